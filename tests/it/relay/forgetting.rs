//! A relay that is told to delete its positions: when it does, what goes, and what it leaves alone.

use super::{LIMIT, execute, insert, sandbox, value};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::RelayConfig;
use fanout_relay::forget;
use fanout_relay::lease::{self, Member};
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, services};

fn deleting(config: &RelayConfig) -> RelayConfig {
    RelayConfig {
        generation: config.generation + 1,
        delete_positions: true,
        ..config.clone()
    }
}

/// Rows in each table of schema `fanout`, those of its version left out.
async fn remembered(sandbox: &Sandbox) -> String {
    let counts = [
        "topics",
        "ranges",
        "leases",
        "positions",
        "parked",
        "members",
    ]
    .map(|table| format!("(select count(*) from fanout.{table})"));
    value(sandbox, &counts.join(" || ' ' || ")).await.unwrap()
}

#[tokio::test]
async fn positions_are_deleted_once_every_relay_has_stopped_and_a_new_topic_begins_anew() {
    let sandbox = sandbox("forget_all").await;
    let config = sandbox.relay_config();
    insert(&sandbox, 30, 3).await;
    let mut first = Relay::start(&sandbox, "a", &config).await;
    first
        .wait_until(LIMIT, "published", |status| status.published_total == 30)
        .await;
    // A row that can't be published: parked rows go too.
    execute(
        &sandbox,
        "insert into outbox (topic, key, type, payload) values ('posts', 'k', '', '{}')",
    )
    .await;
    first
        .wait_until(LIMIT, "parked", |status| status.parked.rows == 1)
        .await;
    let mut second = Relay::start(&sandbox, "b", &config).await;
    second
        .wait_until(LIMIT, "its share", |status| status.ranges.len() == 1)
        .await;

    first.reconfigure(&deleting(&config));
    // The other one, which was not told, goes on with both ranges.
    second
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    let waiting = first.status().await.unwrap();
    assert_eq!(waiting.generation, 2);
    assert!(!waiting.positions_deleted, "{waiting:?}");
    assert!(waiting.ranges.is_empty(), "{waiting:?}");
    insert(&sandbox, 5, 1).await;
    second
        .wait_until(LIMIT, "it publishes", |status| status.published_total == 5)
        .await;

    second.reconfigure(&deleting(&config));
    for relay in [&first, &second] {
        let status = relay
            .wait_until(LIMIT, "deleted", |status| status.positions_deleted)
            .await;
        assert!(relay.ready().await.unwrap());
        assert_eq!(status.source_error, None);
    }
    assert_eq!(remembered(&sandbox).await, "0 0 0 0 0 0");
    assert_eq!(
        value(&sandbox, "select count(*) from outbox")
            .await
            .as_deref(),
        Some("36"),
        "the application's rows stay"
    );

    assert!(second.terminate().await.success());
    execute(&sandbox, "delete from outbox where type = ''").await;
    first.reconfigure(&config);
    let status = first
        .wait_until(LIMIT, "published again", |status| {
            status.ranges.len() == 2 && status.published_total == 30 + 35
        })
        .await;
    assert!(!status.positions_deleted, "{status:?}");
}

#[tokio::test]
async fn a_missing_right_is_told_and_what_is_not_there_counts_as_deleted() {
    let sandbox = sandbox("forget_rights").await;
    let config = sandbox.relay_config();
    let relay = Relay::start(&sandbox, "a", &config).await;
    relay
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() == 2)
        .await;
    assert!(relay.terminate().await.success());

    execute(&sandbox, "revoke delete on fanout.topics from fanout_relay").await;
    let mut relay = Relay::start(&sandbox, "b", &deleting(&config)).await;
    let status = relay
        .wait_until(LIMIT, "the class", |status| status.source_error.is_some())
        .await;
    assert_eq!(
        status.source_error.unwrap().class,
        SourceError::SourcePermissionDenied
    );
    assert!(!status.positions_deleted);
    assert_eq!(
        value(&sandbox, "select count(*) from fanout.ranges")
            .await
            .as_deref(),
        Some("2"),
        "all or nothing"
    );
    // Neither the outbox nor the Kafka topic is needed for it.
    execute(&sandbox, "drop table outbox").await;
    execute(&sandbox, "grant delete on fanout.topics to fanout_relay").await;
    relay
        .wait_until(LIMIT, "deleted", |status| status.positions_deleted)
        .await;
    assert_eq!(remembered(&sandbox).await, "0 0 0 0 0 0");

    // Asked again by another configuration, without the schema and then without the database.
    execute(&sandbox, "drop schema fanout cascade").await;
    let mut again = deleting(&config);
    again.generation += 1;
    relay.reconfigure(&again);
    relay
        .wait_until(LIMIT, "deleted without a schema", |status| {
            status.generation == 3 && status.positions_deleted
        })
        .await;
    let mut files = sandbox.secret_files();
    let nowhere = services::postgres().url_as(services::postgres::RELAY_ROLE, "nowhere");
    files.insert(
        fanout_tests::configs::URL_FILE.to_owned(),
        nowhere.into_bytes(),
    );
    again.generation += 1;
    relay.reconfigure_with(&again, files);
    relay
        .wait_until(LIMIT, "deleted without a database", |status| {
            status.generation == 4 && status.positions_deleted
        })
        .await;
}

#[tokio::test]
async fn a_lease_that_is_held_and_positions_of_another_table_are_left_alone() {
    let sandbox = sandbox("forget_others").await;
    let source = super::source(&sandbox).await;
    let start = fanout_contract::relay::RelayStart::Earliest;
    let topic = lease::register(&source, "cluster", "topic", start)
        .await
        .unwrap();
    let member = Member {
        topic,
        owner: "a".to_owned(),
    };
    let range: i64 = value(&sandbox, "select min(id) from fanout.ranges")
        .await
        .unwrap()
        .parse()
        .unwrap();
    let held = lease::acquire(&source, &member, range)
        .await
        .unwrap()
        .unwrap();
    let before = remembered(&sandbox).await;
    assert!(!forget::delete(&source, "cluster", "topic").await.unwrap());
    assert_eq!(remembered(&sandbox).await, before, "the lease is held");

    lease::release(&source, &held.fence).await.unwrap();
    for (cluster, topic) in [("other", "topic"), ("cluster", "other")] {
        assert!(forget::delete(&source, cluster, topic).await.unwrap());
    }
    execute(&sandbox, "update fanout.topics set source_table = 'other'").await;
    assert!(forget::delete(&source, "cluster", "topic").await.unwrap());
    assert_eq!(
        remembered(&sandbox).await,
        before,
        "they are somebody else's"
    );
}
