//! A record that waits for long is never dropped while a younger one of its key is sent.

use super::super::insert;
use super::blocking;
use fanout_contract::relay::RelayStart;
use fanout_relay::claim::snapshot::Limits;
use fanout_relay::claim::{Reader, Shards};
use fanout_relay::encode::{Encoder, Encoding};
use fanout_relay::lease::{self, Member};
use fanout_relay::produce::{MESSAGE_TIMEOUT, Producer, Tracker};
use fanout_tests::checker::log::Log;
use fanout_tests::faults::kafka_proxy::KafkaProxy;
use fanout_tests::{Deadline, eventually, services};
use std::sync::Arc;
use std::time::Duration;

/// What a process meets that was stopped for seconds while its broker was slow: its clock says that the oldest record
/// waited for too long and the younger ones did not.
#[tokio::test]
async fn an_old_record_is_not_dropped_before_a_younger_one_is_sent() {
    let sandbox = super::super::sandbox("wild_slow").await;
    let kafka = blocking(services::kafka).await;
    insert(&sandbox, 2, 1).await;
    let source = super::super::source(&sandbox).await;
    let topic = lease::register(&source, "cluster", "topic", RelayStart::Earliest)
        .await
        .unwrap();
    let owner = "a".to_owned();
    let view = lease::observe(&source, &Member { topic, owner })
        .await
        .unwrap();
    let limits = Limits {
        rows: 10,
        bytes: 1 << 20,
    };
    let all = Shards { lo: 0, hi: 64 };
    let start =
        fanout_relay::position::Position::At(fanout_relay::claim::snapshot::Snapshot::nothing());
    let mut reader = Reader::new(source, all, limits, view.history, start);
    let batch = reader.next().await.unwrap();
    let rows: Vec<_> = batch.rows().map(|row| row.unwrap()).collect();
    assert_eq!(rows[0].key, rows[1].key, "the scene is set");

    let proxy = KafkaProxy::start(kafka).await.unwrap();
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", proxy.bootstrap());
    let linger = Duration::from_millis(1);
    let producer = Producer::new(config, &sandbox.kafka_topic, 1_000_000, linger, None).unwrap();
    let producer = Arc::new(producer);
    producer.warm_up().await.unwrap();
    let encoder = Encoder::new(Encoding::new(&sandbox.relay_config()), 1_000_000);
    proxy.down().await;
    let send = |index: usize| {
        let tracker = Tracker::new();
        let sent = producer.send(&rows[index], &encoder, &tracker, &mut Vec::new());
        sent.unwrap();
        tracker.close();
        tracker
    };
    let passes = async |over: Deadline| {
        eventually(Duration::from_mins(1), "time", async || {
            if over.passed() {
                Ok(())
            } else {
                Err("not yet")
            }
        })
        .await;
    };
    let began = Deadline::after(MESSAGE_TIMEOUT + Duration::from_secs(2));
    let old = send(0);
    passes(Deadline::after(MESSAGE_TIMEOUT / 2)).await;
    let young = send(1);
    // The old one would be given up by now, the young one would not.
    passes(began).await;
    proxy.up().await.unwrap();
    eventually(Duration::from_mins(1), "both are answered", async || {
        if old.is_done() && young.is_done() {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    let sequences: Vec<_> = log
        .records
        .iter()
        .map(|r| r.header("ce_sequence"))
        .collect();
    let expected: Vec<_> = rows
        .iter()
        .map(|row| Some(fanout_contract::envelope::sequence(row.id)))
        .collect();
    assert_eq!(sequences, expected);
    assert!(!old.has_failed() && !young.has_failed());
    producer.stop().await;
}
