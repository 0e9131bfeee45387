//! Everything committed arrives, once, in order, and nothing else does.

use super::{LIMIT, assert_not_repeated, insert, sandbox, settled};
use fanout_tests::checker::load::{self, Journal, Load, Options};
use fanout_tests::checker::writer::Writer;
use fanout_tests::checker::{Checker, log::Log};
use fanout_tests::process::Relay;
use fanout_tests::{Deadline, Sandbox, eventually};
use std::collections::HashSet;
use std::time::Duration;

/// How long a transaction stays open while others commit.
const HOLD: Duration = Duration::from_mins(1);

fn options() -> Options {
    Options {
        transactions: 1_500,
        ..Options::default()
    }
}

#[tokio::test]
async fn every_kind_of_transaction_arrives_once_and_in_order() {
    let sandbox = Sandbox::new("relay_every_kind").await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let journal = Load::start(&sandbox, &options()).await.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(&verdict, &relay).await;
}

#[tokio::test]
async fn the_same_through_a_pooler_in_transaction_mode() {
    let sandbox = Sandbox::new("relay_pooled").await;
    let mut files = sandbox.secret_files();
    let url = sandbox.pooled_relay_url().await;
    files.insert(fanout_tests::configs::URL_FILE.to_owned(), url.into_bytes());
    let relay = Relay::start_with(&sandbox, "a", &sandbox.relay_config(), files).await;
    let journal = Load::start(&sandbox, &options()).await.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(&verdict, &relay).await;
}

#[tokio::test]
async fn a_large_difference_is_published_in_order_while_others_write() {
    let sandbox = sandbox("relay_large").await;
    // Several batches for each of the two ranges.
    insert(&sandbox, 40_000, 500).await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let load = Load::start(
        &sandbox,
        &Options {
            transactions: 300,
            ..options()
        },
    )
    .await;
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(&verdict, &relay).await;
    relay
        .wait_until(LIMIT, "nothing pending", |status| {
            status
                .pending
                .as_ref()
                .is_some_and(|pending| pending.rows == 0)
        })
        .await;
}

#[tokio::test]
async fn a_transaction_open_for_a_minute_delays_only_itself() {
    let sandbox = Sandbox::new("relay_open_minute").await;
    load::create_keys(&sandbox, 2).await;
    let connect = async || {
        Writer::connect(&sandbox.app_url, &sandbox.topic_name)
            .await
            .unwrap()
    };
    let (mut open, mut others) = (connect().await, connect().await);
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;

    open.begin().await.unwrap();
    let late = open.write("key-0").await.unwrap();
    let held = Deadline::after(HOLD);
    let mut written = 0;
    while !held.passed() {
        others.begin().await.unwrap();
        let id = others.write("key-1").await.unwrap();
        others.commit().await.unwrap();
        written += 1;
        // Delivered meanwhile, one after the other: each before the next is written.
        eventually(
            Duration::from_secs(20),
            "what others commit arrives",
            async || {
                let ids = arrived(&sandbox).await;
                if ids.contains(&late) {
                    return Err("a row that is not committed".to_owned());
                }
                ids.contains(&id)
                    .then_some(())
                    .ok_or_else(|| format!("{} records", ids.len()))
            },
        )
        .await;
    }
    assert!(written > 10, "{written}");
    let status = relay
        .wait_until(LIMIT, "the open transaction is reported", |status| {
            status.long_transaction.is_some()
        })
        .await;
    assert_eq!(status.pending.map(|pending| pending.rows), Some(0));

    open.commit().await.unwrap();
    let mut journal = Journal::default();
    journal.merge(open.into_journal());
    journal.merge(others.into_journal());
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(&verdict, &relay).await;
    assert_eq!(verdict.delivered, written + 1, "{verdict:?}");
}

async fn arrived(sandbox: &Sandbox) -> HashSet<String> {
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    log.records
        .iter()
        .map(|record| record.attributes().id)
        .collect()
}

#[tokio::test]
async fn records_are_what_the_row_says() {
    let sandbox = sandbox("relay_records").await;
    let _relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    super::execute(
        &sandbox,
        r#"insert into outbox (topic, key, type, headers, traceparent, content_type, payload) values
             ('posts', 'k', 'full', '{"x-tenant": "7", "ce_tenant": "eu"}', '00-a-b-01', 'text/plain', '\x00ff27'),
             ('posts', null, 'nothing', null, null, 'application/json', null),
             ('posts', '', 'empty', null, null, 'application/json', ''),
             ('other', 'k', 'of another topic', null, null, 'application/json', '')"#,
    )
    .await;
    let checker = Checker::new(&sandbox, &Journal::default()).await;
    let verdict = Checker::settle(LIMIT, async || checker.judge_log().await).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    let record = |r#type: &str| {
        let found = log
            .records
            .iter()
            .find(|record| record.attributes().r#type == r#type);
        found.unwrap_or_else(|| panic!("{type} in {log:?}", r#type = r#type))
    };
    let full = record("full");
    assert_eq!(full.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(full.payload.as_deref(), Some(&b"\x00\xff\x27"[..]));
    assert_eq!(full.header("content-type").as_deref(), Some("text/plain"));
    assert_eq!(full.header("x-tenant").as_deref(), Some("7"));
    let attributes = full.attributes();
    assert_eq!(attributes.extension("tenant"), Some("eu"));
    assert_eq!(attributes.extension("traceparent"), Some("00-a-b-01"));
    assert_eq!(
        attributes.extension("sequence"),
        Some("00000000000000000001")
    );
    assert_eq!(attributes.source, format!("/{}/posts", sandbox.namespace));
    assert!(attributes.time.is_some_and(|time| time.ends_with('Z')));
    let nothing = record("nothing");
    assert_eq!(
        (nothing.key.as_deref(), nothing.payload.as_deref()),
        (None, Some(&b""[..])),
        "no tombstone"
    );
    let empty = record("empty");
    assert_eq!(
        (empty.key.as_deref(), empty.payload.as_deref()),
        (Some(&b""[..]), Some(&b""[..]))
    );
}

#[tokio::test]
async fn a_null_payload_is_a_tombstone_where_that_is_asked_for() {
    let sandbox = sandbox("relay_tombstone").await;
    let mut config = sandbox.relay_config();
    config.null_payload = fanout_contract::relay::NullPayload::Tombstone;
    let _relay = Relay::start(&sandbox, "a", &config).await;
    super::execute(
        &sandbox,
        "insert into outbox (topic, key, type) values ('posts', 'k', 'deleted')",
    )
    .await;
    settled(&sandbox, &Journal::default()).await;
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    let record = log.records.first().unwrap();
    assert_eq!(
        (record.key.as_deref(), &record.payload),
        (Some(&b"k"[..]), &None)
    );
    assert_eq!(record.attributes().r#type, "deleted");
}

#[tokio::test]
async fn rows_without_a_key_spread_over_partitions() {
    let sandbox = sandbox("relay_null_keys").await;
    let _relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    // A producer keeps to one partition for some milliseconds, so that batches fill: what is due at once may stay together.
    eventually(LIMIT, "rows in more than one partition", async || {
        super::execute(
            &sandbox,
            "insert into outbox (topic, type, subject) select 'posts', 't', 's/0' from generate_series(1, 100)",
        )
        .await;
        let verdict = settled(&sandbox, &Journal::default()).await;
        assert!(verdict.is_sound(), "{verdict:?}");
        let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
        let partitions: HashSet<i32> = log.records.iter().map(|record| record.partition).collect();
        if partitions.len() > 1 {
            Ok(())
        } else {
            Err(format!("{partitions:?}"))
        }
    })
    .await;
}

/// A key of another type is the record's key as text, also where its row is parked.
#[tokio::test]
async fn keys_of_other_types_are_their_text() {
    let sandbox = sandbox("relay_key_types").await;
    let outbox = fanout_tests::documents::root().join("manifests/sql/10-outbox.sql");
    let outbox = std::fs::read_to_string(outbox).unwrap();
    for (r#type, key) in [
        ("uuid", "6f1c1f5e-8a55-4f0e-9d0b-0c9a3c1c9a11"),
        ("bigint", "9007199254740993"),
    ] {
        let table = format!("public.outbox_{type}", r#type = r#type);
        let script = outbox.replace(
            "key          text",
            &format!("key          {type}", r#type = r#type),
        );
        fanout_tests::services::postgres()
            .psql(&sandbox.database, &script, &[("table", &table)])
            .unwrap();
        let topic = format!("{}.{type}", sandbox.namespace, r#type = r#type);
        let kafka = fanout_tests::services::kafka();
        kafka.create_topic(&topic, 3, &[]).await;
        let mut config = sandbox.relay_config();
        let fanout_contract::relay::Source::Postgres(postgres) = &mut config.source;
        postgres.table.clone_from(&table);
        let fanout_contract::relay::Broker::Kafka(target) = &mut config.broker;
        target.topic.clone_from(&topic);
        let _relay = Relay::start(&sandbox, r#type, &config).await;
        super::execute(
            &sandbox,
            &format!(
                "insert into {table} (topic, key, type) values ('posts', '{key}', 't'), ('posts', null, 't'), ('posts', '{key}', '')"
            ),
        )
        .await;
        eventually(LIMIT, "two are published and one is parked", async || {
            let log = Log::read(&sandbox.bootstrap, &topic).await;
            let keys: HashSet<Option<String>> = log
                .records
                .iter()
                .map(|record| record.key.clone().map(|key| String::from_utf8(key).unwrap()))
                .collect();
            let parked = format!("select string_agg(key || ':' || reason, ' ') from fanout.parked where key = '{key}'");
            let parked = super::value(&sandbox, &parked).await;
            let both = HashSet::from([Some(key.to_owned()), None]);
            if keys == both && parked == Some(format!("{key}:TypeEmpty")) {
                Ok(())
            } else {
                Err(format!("{keys:?}, parked {parked:?}"))
            }
        })
        .await;
    }
}
