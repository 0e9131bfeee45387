//! Servers that go away, fail over, or turn into standbys.

use super::{LIMIT, assert_not_repeated, settled};
use fanout_contract::reason::SourceError;
use fanout_tests::checker::load::{Load, Options};
use fanout_tests::process::Relay;
use fanout_tests::services::kafka::Kafka;
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{Sandbox, services};
use std::sync::Arc;

async fn own_postgres() -> Arc<Postgres> {
    tokio::task::spawn_blocking(|| Arc::new(Postgres::start().unwrap()))
        .await
        .unwrap()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn options() -> Options {
    Options {
        transactions: 1_500,
        prepared: false,
        ..Options::default()
    }
}

#[tokio::test]
async fn the_relay_resumes_after_the_database_crashed() {
    let postgres = own_postgres().await;
    let kafka = blocking(services::kafka).await;
    let sandbox = Sandbox::with("outage_postgres", &postgres, kafka).await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let load = Load::start(&sandbox, &options()).await;
    relay
        .wait_until(LIMIT, "it publishes", |status| status.published_total > 200)
        .await;
    let server = postgres.clone();
    blocking(move || server.kill().unwrap()).await;
    relay
        .wait_until(LIMIT, "it notices", |status| status.source_error.is_some())
        .await;
    let server = postgres.clone();
    blocking(move || server.start_again().unwrap()).await;
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    relay
        .wait_until(LIMIT, "it is well", |status| status.source_error.is_none())
        .await;
}

/// Positions belong to a cluster and a topic: two clusters' topics of one name, fed from one table, share nothing.
#[tokio::test]
async fn topics_of_one_name_in_two_clusters_have_positions_of_their_own() {
    let other = blocking(|| Arc::new(Kafka::start().unwrap())).await;
    let sandbox = super::sandbox("outage_clusters").await;
    let topic = &sandbox.kafka_topic;
    other
        .create_topic(topic, fanout_tests::PARTITIONS, &[])
        .await;
    super::insert(&sandbox, 500, 20).await;
    let config = sandbox.relay_config();
    let here = Relay::start(&sandbox, "here", &config).await;
    here.wait_until(LIMIT, "published", |status| status.published_total == 500)
        .await;
    let mut elsewhere = config;
    let fanout_contract::relay::Broker::Kafka(target) = &mut elsewhere.broker;
    target.cluster.bootstrap_servers = other.bootstrap();
    // What the first one published is not published there, and neither takes the other's ranges.
    let there = Relay::start(&sandbox, "there", &elsewhere).await;
    there
        .wait_until(LIMIT, "published", |status| status.published_total == 500)
        .await;
    super::insert(&sandbox, 500, 20).await;
    for relay in [&here, &there] {
        relay
            .wait_until(LIMIT, "published", |status| {
                status.published_total == 1_000 && status.ranges.len() == 2
            })
            .await;
    }
    for bootstrap in [sandbox.bootstrap.clone(), other.bootstrap()] {
        let log = fanout_tests::checker::log::Log::read(&bootstrap, topic).await;
        assert_eq!(log.records.len(), 1_000);
    }
    let known = "select count(distinct cluster_id) from fanout.topics";
    assert_eq!(super::value(&sandbox, known).await.as_deref(), Some("2"));
}

#[tokio::test]
async fn the_relay_resumes_after_the_broker_was_away() {
    let kafka = blocking(|| Arc::new(Kafka::start().unwrap())).await;
    let postgres = blocking(services::postgres).await;
    let sandbox = Sandbox::with("outage_kafka", postgres, &kafka).await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let load = Load::start(&sandbox, &options()).await;
    relay
        .wait_until(LIMIT, "it publishes", |status| status.published_total > 200)
        .await;
    let server = kafka.clone();
    blocking(move || server.kill()).await;
    relay
        .wait_until(LIMIT, "it notices", |status| status.broker_error.is_some())
        .await;
    // What waits is still known.
    relay
        .wait_until(LIMIT, "pending grows", |status| {
            status
                .pending
                .as_ref()
                .is_some_and(|pending| pending.rows > 0)
        })
        .await;
    let server = kafka.clone();
    blocking(move || server.start_again().unwrap()).await;
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(&verdict, &relay).await;
    relay
        .wait_until(LIMIT, "it is well", |status| status.broker_error.is_none())
        .await;
}

#[tokio::test]
async fn nothing_is_read_from_a_standby_and_a_promoted_one_goes_on() {
    let postgres = own_postgres().await;
    let kafka = blocking(services::kafka).await;
    let sandbox = Sandbox::with("outage_standby", &postgres, kafka).await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let load = Load::start(
        &sandbox,
        &Options {
            transactions: 300,
            ..options()
        },
    )
    .await;
    let mut journal = load.finish().await;
    relay
        .wait_until(LIMIT, "it publishes", |status| status.published_total > 50)
        .await;
    let server = postgres.clone();
    blocking(move || {
        server.psql("postgres", "checkpoint", &[]).unwrap();
        server.kill().unwrap();
        std::fs::write(server.socket_dir().join("data/standby.signal"), "").unwrap();
        server.start_again().unwrap();
    })
    .await;
    let status = relay
        .wait_until(LIMIT, "the class", |status| {
            status
                .source_error
                .as_ref()
                .is_some_and(|error| error.class == SourceError::SourceReadOnly)
        })
        .await;
    assert_eq!(status.ranges.len(), 0);
    let server = postgres.clone();
    let timeline = "select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    let promoted = blocking(move || {
        server
            .psql("postgres", "select pg_promote(true, 60)", &[])
            .unwrap();
        server.psql("postgres", timeline, &[]).unwrap()
    })
    .await;
    assert_ne!(
        promoted.trim(),
        "00000001",
        "the scene is set: a new timeline"
    );
    let load = Load::start(
        &sandbox,
        &Options {
            transactions: 300,
            seed: 99,
            ..options()
        },
    )
    .await;
    journal.merge(load.finish().await);
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    relay
        .wait_until(LIMIT, "it is well", |status| {
            status.source_error.is_none() && status.ranges.len() == 2
        })
        .await;
    let stored = super::value(&sandbox, "select max(timeline) from fanout.positions").await;
    assert_eq!(stored.as_deref(), Some(promoted.trim()));
}
