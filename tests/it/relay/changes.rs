//! Configuration that changes under a running relay, and what it reports.

use super::{LIMIT, execute, sandbox, settled, value};
use fanout_contract::reason::{BrokerError, SourceError};
use fanout_contract::relay::{Broker, RelayStart, Source as SourceConfig};
use fanout_tests::checker::load::Journal;
use fanout_tests::process::Relay;
use fanout_tests::{configs, eventually, services};
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_suspended_relay_publishes_nothing_but_knows_what_waits() {
    let sandbox = sandbox("change_suspend").await;
    let mut config = sandbox.relay_config();
    config.suspend = true;
    let mut relay = Relay::start(&sandbox, "a", &config).await;
    super::insert(&sandbox, 200, 10).await;
    let status = relay
        .wait_until(LIMIT, "pending is known", |status| {
            status
                .pending
                .as_ref()
                .is_some_and(|pending| pending.rows == 200)
        })
        .await;
    assert!(status.suspended && status.source_checked);
    let oldest = status.pending.unwrap().oldest_event_time.unwrap();
    let first = "select to_char(min(created_at) at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') from outbox";
    assert!(
        oldest.starts_with(&value(&sandbox, first).await.unwrap()),
        "{oldest}"
    );
    assert_eq!(status.published_total, 0);

    config.suspend = false;
    config.generation = 2;
    relay.reconfigure(&config);
    let status = relay
        .wait_until(LIMIT, "it goes on", |status| status.published_total == 200)
        .await;
    assert_eq!((status.generation, status.suspended), (2, false));
    assert_eq!(status.config_hash, relay.config_hash());
    let verdict = settled(&sandbox, &Journal::default()).await;
    assert!(verdict.is_sound(), "{verdict:?}");
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_a_right_one_applied_without_restart() {
    let sandbox = sandbox("change_password").await;
    let config = sandbox.relay_config();
    let right = sandbox.secret_files();
    let mut wrong = right.clone();
    let url = sandbox
        .relay_url
        .replace(services::postgres::PASSWORD, "PlantedSecret-wrong-password");
    wrong.insert(configs::URL_FILE.to_owned(), url.into_bytes());
    let mut relay = Relay::start_with(&sandbox, "a", &config, wrong).await;
    let class = |status: &fanout_contract::relay::RelayStatus| {
        status.source_error.as_ref().map(|error| error.class)
    };
    let status = relay
        .wait_until(LIMIT, "the class", |status| {
            class(status) == Some(SourceError::SourceAuthenticationFailed)
        })
        .await;
    assert!(!status.source_checked && status.pending.is_none());
    // It stays up, ready to report.
    assert!(relay.ready().await.unwrap());
    assert_eq!(relay.get("/livez").await.unwrap().0, 200);
    super::insert(&sandbox, 10, 2).await;
    relay.reconfigure_with(&config, right);
    relay
        .wait_until(LIMIT, "published", |status| {
            status.published_total == 10 && class(status).is_none()
        })
        .await;
    // A connection that stands is not enough: the password changes again, and the pool with it.
    let mut wrong = relay_files(&sandbox);
    wrong.insert(configs::URL_FILE.to_owned(), b"no url".to_vec());
    relay.reconfigure_with(&config, wrong);
    relay
        .wait_until(LIMIT, "the class", |status| {
            class(status) == Some(SourceError::SourceUrlInvalid)
        })
        .await;
}

fn relay_files(sandbox: &fanout_tests::Sandbox) -> fanout_tests::process::Files {
    sandbox.secret_files()
}

#[tokio::test]
async fn another_match_is_applied_from_the_stored_position_on() {
    let sandbox = sandbox("change_match").await;
    let mut config = sandbox.relay_config();
    let mut relay = Relay::start(&sandbox, "a", &config).await;
    super::insert(&sandbox, 10, 2).await;
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 10)
        .await;
    let SourceConfig::Postgres(postgres) = &mut config.source;
    postgres.r#match[0].value = "it's another".to_owned();
    relay.reconfigure(&config);
    let hash = relay.config_hash();
    relay
        .wait_until(LIMIT, "in force", |status| {
            status.config_hash == hash && status.ranges.len() == 2
        })
        .await;
    execute(
        &sandbox,
        "insert into outbox (topic, type) values ('posts', 't'), ('it''s another', 't')",
    )
    .await;
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 11)
        .await;
}

#[tokio::test]
async fn latest_begins_at_the_moment_the_topic_is_new() {
    let sandbox = sandbox("change_latest").await;
    super::insert(&sandbox, 10, 2).await;
    let mut config = sandbox.relay_config();
    let SourceConfig::Postgres(postgres) = &mut config.source;
    postgres.start_from = RelayStart::Latest;
    let mut relay = Relay::start(&sandbox, "a", &config).await;
    relay
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() == 2)
        .await;
    super::insert(&sandbox, 3, 2).await;
    relay
        .wait_until(LIMIT, "the new ones", |status| status.published_total == 3)
        .await;
    relay.kill();
    super::insert(&sandbox, 4, 2).await;
    relay.start_again().await;
    let status = relay
        .wait_until(LIMIT, "what came meanwhile", |status| {
            status.published_total >= 4
        })
        .await;
    // The kill may have come before the position of the three was stored; the ten are never published.
    assert!((4..=7).contains(&status.published_total), "{status:?}");
}

#[tokio::test]
async fn a_missing_topic_is_reported_and_used_once_it_is_there() {
    let sandbox = sandbox("change_topic").await;
    let mut config = sandbox.relay_config();
    let Broker::Kafka(kafka) = &mut config.broker;
    kafka.topic = format!("{}.later", sandbox.kafka_topic);
    let topic = kafka.topic.clone();
    super::insert(&sandbox, 10, 2).await;
    let relay = Relay::start(&sandbox, "a", &config).await;
    let status = relay
        .wait_until(LIMIT, "the class", |status| {
            status
                .broker_error
                .as_ref()
                .is_some_and(|error| error.class == BrokerError::TopicMissing)
        })
        .await;
    assert!(status.broker_error.unwrap().message.contains(&topic));
    assert!(
        status.source_checked && status.source_error.is_none(),
        "the outbox is fine"
    );
    services::kafka().create_topic(&topic, 2, &[]).await;
    relay
        .wait_until(LIMIT, "published", |status| {
            status.published_total == 10 && status.broker_error.is_none()
        })
        .await;
}

#[tokio::test]
async fn an_idle_relay_polls_at_most_four_times_a_second() {
    let sandbox = sandbox("change_idle").await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    relay
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    let polls = async || -> f64 {
        let metrics = relay.metrics().await.unwrap();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("fanout_relay_polls_total "))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // The pauses have grown to their longest once two seconds passed with few polls.
    let (mut before, mut at) = (polls().await, Instant::now());
    eventually(LIMIT, "at most four a second", async || {
        let seconds = at.elapsed().as_secs_f64();
        if seconds < 5.0 {
            return Err("too early to tell".to_owned());
        }
        let now = polls().await;
        let rate = (now - before) / at.elapsed().as_secs_f64();
        (before, at) = (now, Instant::now());
        // A poll of each range may fall into the interval or out of it.
        if rate <= 4.0 + 2.0 / seconds && rate > 0.5 {
            Ok(())
        } else {
            Err(format!("{rate} a second"))
        }
    })
    .await;
    assert!(at.elapsed() < Duration::from_secs(30));
}
