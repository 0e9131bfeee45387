//! Published rows go when they are old, and none before every topic that wants it has it.

use super::{LIMIT, execute, sandbox, settled, value};
use fanout_contract::relay::{RelayConfig, Source as SourceConfig};
use fanout_tests::checker::load::Journal;
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, eventually};

fn keeping(sandbox: &Sandbox, seconds: i64) -> RelayConfig {
    let mut config = sandbox.relay_config();
    let SourceConfig::Postgres(postgres) = &mut config.source;
    postgres.retention_seconds = seconds;
    config
}

async fn expect_rows(sandbox: &Sandbox, what: &str, count: &str, wanted: &str) {
    eventually(LIMIT, what, async || {
        let found = value(sandbox, count).await;
        if found.as_deref() == Some(wanted) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn published_rows_are_removed_when_they_are_old() {
    let sandbox = sandbox("retention").await;
    super::insert(&sandbox, 3_000, 30).await;
    // Of another topic, and not published by anybody.
    execute(
        &sandbox,
        "insert into outbox (topic, type) values ('other', 't')",
    )
    .await;
    let mut relay = Relay::start(&sandbox, "a", &keeping(&sandbox, 86_400)).await;
    let verdict = settled(&sandbox, &Journal::default()).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!(
        value(&sandbox, "select count(*) from outbox")
            .await
            .as_deref(),
        Some("3001")
    );
    // A row that is not old yet, and one that is not committed yet.
    execute(&sandbox, "insert into outbox (topic, type, subject, created_at) values ('posts', 'young', 's/0', clock_timestamp() + interval '1 day')").await;
    relay.reconfigure(&keeping(&sandbox, 0));
    let left = "select string_agg(distinct type, ',' order by type) from outbox";
    expect_rows(&sandbox, "old rows are gone", left, "t,young").await;
}

#[tokio::test]
async fn a_row_stays_until_every_topic_that_matches_it_has_it() {
    let sandbox = sandbox("retention_two").await;
    execute(&sandbox, "create index on outbox (xid, shard)").await;
    // A second topic reads the whole table, and is suspended.
    let mut whole = keeping(&sandbox, 0);
    whole.name = "whole".to_owned();
    whole.suspend = true;
    let SourceConfig::Postgres(postgres) = &mut whole.source;
    postgres.r#match.clear();
    let fanout_contract::relay::Broker::Kafka(kafka) = &mut whole.broker;
    kafka.topic = sandbox.dead_letter_topic.clone();
    let mut second = Relay::start(&sandbox, "whole", &whole).await;
    second
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() == 2)
        .await;
    let first = Relay::start(&sandbox, "a", &keeping(&sandbox, 0)).await;
    super::insert(&sandbox, 100, 10).await;
    first
        .wait_until(LIMIT, "published", |status| status.published_total == 100)
        .await;
    second
        .wait_until(LIMIT, "suspended, but it counts", |status| {
            status.suspended
                && status
                    .pending
                    .as_ref()
                    .is_some_and(|pending| pending.rows == 100)
        })
        .await;
    assert_eq!(
        value(&sandbox, "select count(*) from outbox")
            .await
            .as_deref(),
        Some("100")
    );
    whole.suspend = false;
    second.reconfigure(&whole);
    second
        .wait_until(LIMIT, "published", |status| status.published_total == 100)
        .await;
    expect_rows(
        &sandbox,
        "rows are gone",
        "select count(*) from outbox",
        "0",
    )
    .await;
}
