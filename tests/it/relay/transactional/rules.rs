//! The rules that transactions rest on: each of these tests fails without its rule.

use super::{arrived, assert_once, config, execute, insert, transactional, value};
use crate::relay::LIMIT;
use crate::relay::ranges::split_all;
use fanout_contract::names;
use fanout_contract::reason::BrokerError;
use fanout_contract::relay::{Broker as BrokerConfig, Delivery};
use fanout_relay::broker::Broker;
use fanout_relay::claim::snapshot::Snapshot;
use fanout_relay::logged::{self, Logged};
use fanout_relay::position::{Fence, Position};
use fanout_relay::produce::transaction::Trouble;
use fanout_relay::produce::{Producer, Tracker};
use fanout_runtime::config::Files;
use fanout_tests::checker::load::Journal;
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::services::kafka::Kafka;
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{Sandbox, eventually, services};
use rdkafka::config::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::{Connection as _, PgConnection, Row as _};
use std::sync::Arc;
use std::time::Duration;

/// Largest record of a producer that belongs to no relay.
const BYTES: usize = 1_000_000;

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The brokers as a relay reaches them, in this process.
async fn broker(sandbox: &Sandbox) -> Arc<Broker> {
    let BrokerConfig::Kafka(target) = config(sandbox).broker;
    let files = Files(sandbox.secret_files());
    Broker::connect(&target, Delivery::Transactional, &files)
        .await
        .unwrap()
}

/// A producer with the `transactional.id` of `range`.
async fn producer(broker: &Arc<Broker>, range: i64) -> Arc<Producer> {
    broker
        .transactional(BYTES, Duration::ZERO, range)
        .await
        .unwrap()
}

/// Hands a record over and waits until the broker has it; the transaction stays open.
async fn send(producer: &Arc<Producer>, to: (&str, i32), key: &str, payload: &[u8]) {
    let tracker = Tracker::new();
    producer.send_to(to, key, payload, &tracker).unwrap();
    tracker.close();
    producer.flush(LIMIT).await.unwrap();
}

fn position(range: i64, seq: i64) -> Logged {
    let owner = "a".to_owned();
    let term = 1;
    let fence = Fence { range, owner, term };
    let at = Position::At(Snapshot::new("9:9:"));
    Logged::new(&fence, seq, &at, ("1/2/3", "00000001"), Vec::new())
}

/// A position in the log that knows transactions as ended of which a crash of the database forgets that they ever were would
/// hide the rows of those that get their ids then.
#[tokio::test]
async fn a_position_in_the_log_is_no_newer_than_what_the_database_has_flushed() {
    let postgres = Arc::new(blocking(|| Postgres::start().unwrap()).await);
    let kafka = blocking(services::kafka).await;
    let sandbox = Sandbox::with("tx_crash", &postgres, kafka).await;
    execute(&sandbox, "create sequence bulk").await;
    sandbox.create_positions_topic(kafka).await;
    let _relay = Relay::start(&sandbox, "a", &config(&sandbox)).await;
    insert(&sandbox, 40, 40).await;
    arrived(&sandbox, 40).await;
    let flusher = "select pid from pg_stat_activity where backend_type = 'walwriter'";
    let flusher: i32 = value(&sandbox, flusher).await.unwrap().parse().unwrap();
    let flusher = rustix::process::Pid::from_raw(flusher).unwrap();
    rustix::process::kill_process(flusher, rustix::process::Signal::STOP).unwrap();
    let mut writer = PgConnection::connect(&sandbox.url).await.unwrap();
    let row = "insert into outbox (topic, key, type, subject) values \
               ('posts', 'k', 'bulk', 'bulk/' || nextval('bulk')) returning xid::text::bigint";
    let mut aborted: i64 = 0;
    for sql in [
        "set synchronous_commit = off",
        "begin",
        row,
        "rollback",
        "begin",
        row,
        "rollback",
    ] {
        let rows = sqlx::raw_sql(sql).fetch_all(&mut writer).await.unwrap();
        if let Some(row) = rows.first() {
            aborted = row.get(0);
        }
    }
    // Visible, and not flushed by whoever wrote it.
    sqlx::raw_sql(row).execute(&mut writer).await.unwrap();
    arrived(&sandbox, 41).await;
    let server = Arc::clone(&postgres);
    blocking(move || server.kill().and_then(|()| server.start_again()).unwrap()).await;
    let next = eventually(LIMIT, "the server is back", async || {
        let mut connection = PgConnection::connect(&sandbox.url).await?;
        let row = sqlx::raw_sql(row).fetch_one(&mut connection).await?;
        anyhow::Ok(row.get::<i64, _>(0))
    })
    .await;
    assert!(
        next > aborted,
        "{next} was given out before, up to {aborted}"
    );
    insert(&sandbox, 40, 40).await;
    assert_once(&sandbox, &Journal::default()).await;
}

#[tokio::test]
async fn a_position_behind_an_open_transaction_is_waited_for() {
    let (sandbox, _) = transactional("tx_end").await;
    let broker = broker(&sandbox).await;
    let topic = names::positions_topic(&sandbox.kafka_topic);
    let other = producer(&broker, 999).await;
    send(&other, (&topic, 0), "999", b"{}").await;
    let own = producer(&broker, 5).await;
    let written = position(5, 7);
    let payload = serde_json::to_vec(&written).unwrap();
    send(&own, (&topic, 0), "5", &payload).await;
    own.commit(LIMIT).await.unwrap();
    // "Everything that is committed" ends before the other's record.
    let early = tokio::time::timeout(Duration::from_secs(1), logged::last(&broker, 0, 5)).await;
    assert!(!matches!(early, Ok(Ok(None))), "{early:?}");
    // Or the coordinator has given it up meanwhile.
    other.commit(LIMIT).await.ok();
    let found = eventually(LIMIT, "an answer", async || {
        let last = logged::last(&broker, 0, 5).await;
        last.map_err(|failure| failure.message)
    })
    .await;
    assert_eq!(found, Some(written));
    // One that is not in the last records of the partition is found, too.
    for _ in 0..3 {
        let tracker = Tracker::new();
        for _ in 0..1_000 {
            own.send_to((&topic, 0), "6", b"{}", &tracker).unwrap();
        }
        tracker.close();
        own.commit(LIMIT).await.unwrap();
    }
    assert_eq!(
        logged::last(&broker, 0, 5).await.unwrap(),
        Some(position(5, 7))
    );
}

#[tokio::test]
async fn whoever_published_what_a_range_was_made_from_is_fenced() {
    let (sandbox, config) = transactional("tx_predecessors").await;
    let relay = Relay::start(&sandbox, "a", &config).await;
    insert(&sandbox, 1_000, 100).await;
    arrived(&sandbox, 1_000).await;
    assert!(relay.terminate().await.success());
    let old = value(&sandbox, "select min(id) from fanout.ranges").await;
    let zombie = producer(&broker(&sandbox).await, old.unwrap().parse().unwrap()).await;
    send(&zombie, (&sandbox.kafka_topic, 0), "stale", b"{}").await;
    // By somebody who knows nothing of transactions.
    split_all(&sandbox, 16).await;
    let relay = Relay::start(&sandbox, "b", &config).await;
    insert(&sandbox, 1_000, 100).await;
    // Not in the log: what is behind an open transaction is not seen there.
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 1_000)
        .await;
    assert_eq!(zombie.commit(LIMIT).await, Err(Trouble::Fenced));
    assert_once(&sandbox, &Journal::default()).await;
}

#[tokio::test]
async fn an_open_transaction_holds_its_partitions_back_no_longer_than_a_lease() {
    let (sandbox, _) = transactional("tx_timeout").await;
    let dead = producer(&broker(&sandbox).await, 1).await;
    send(&dead, (&sandbox.kafka_topic, 0), "k", b"{}").await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &sandbox.bootstrap);
    let other: FutureProducer = config.create().unwrap();
    let record = FutureRecord::<str, str>::to(&sandbox.kafka_topic)
        .partition(0)
        .key("k")
        .payload("behind it");
    other.send(record, LIMIT).await.unwrap();
    // The default, a minute, is longer than this.
    let limit = Duration::from_secs(50);
    let log = eventually(limit, "what is behind it", async || {
        let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
        if log.records.is_empty() {
            Err("nothing")
        } else {
            Ok(log)
        }
    })
    .await;
    assert_eq!(log.records.len(), 1, "{:?}", log.records);
}

#[tokio::test]
async fn brokers_without_transactions_are_named_with_the_field() {
    let kafka = blocking(|| Kafka::start_with(&[("transaction.max.timeout.ms", "5000")]).unwrap());
    let (kafka, postgres) = tokio::join!(kafka, blocking(services::postgres));
    let sandbox = Sandbox::with("tx_refused", postgres, &kafka).await;
    sandbox.create_positions_topic(&kafka).await;
    let mut relay = Relay::start(&sandbox, "a", &config(&sandbox)).await;
    execute(&sandbox, "create sequence bulk").await;
    insert(&sandbox, 10, 10).await;
    let status = relay
        .wait_until(LIMIT, "the reason", |status| {
            let class = status.broker_error.as_ref().map(|error| error.class);
            class == Some(BrokerError::TransactionsUnavailable)
        })
        .await;
    let message = status.broker_error.unwrap().message;
    assert!(message.contains("spec.relay.delivery"), "{message}");
    assert_eq!(status.published_total, 0);
    // Without them it goes on.
    relay.reconfigure(&sandbox.relay_config());
    assert_once(&sandbox, &Journal::default()).await;
}
