//! The checker is proved by planted faults: each is made to strike by the way the writers write, not by luck, and
//! each must be found under the right name.

mod mini_relay;

use fanout_tests::checker::Checker;
use fanout_tests::checker::load::{self, Journal, Load, Options};
use fanout_tests::checker::outbox::Row;
use fanout_tests::checker::writer::Writer;
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::services::postgres::Postgres;
use fanout_tests::verdict::Verdict;
use fanout_tests::{Sandbox, eventually};
use mini_relay::{Fault, MiniRelay};
use std::sync::Arc;
use std::time::Duration;

/// A sandbox, its keys, and two writers.
async fn scene(test: &str) -> (Sandbox, Writer, Writer) {
    let sandbox = Sandbox::new(test).await;
    load::create_keys(&sandbox, 4).await;
    let writer = async || {
        Writer::connect(&sandbox.app_url, &sandbox.topic_name)
            .await
            .unwrap()
    };
    let (one, two) = (writer().await, writer().await);
    (sandbox, one, two)
}

async fn verdict(sandbox: &Sandbox, writers: [Writer; 2]) -> Verdict {
    let mut journal = Journal::default();
    for writer in writers {
        journal.merge(writer.into_journal());
    }
    Checker::new(sandbox, &journal).await.judge_log().await
}

/// Writes `events` of one key in a transaction of their own.
async fn commit(writer: &mut Writer, key: &str, events: usize) {
    writer.begin().await.unwrap();
    for _ in 0..events {
        writer.write(key).await.unwrap();
    }
    writer.commit().await.unwrap();
}

/// A row written before others commits after them.
async fn late_commit(test: &str, fault: Fault) -> Verdict {
    let (sandbox, mut late, mut early) = scene(test).await;
    let mut relay = MiniRelay::new(&sandbox, fault).await;
    late.begin().await.unwrap();
    late.write("key-0").await.unwrap();
    commit(&mut early, "key-1", 3).await;
    relay.pass().await;
    late.commit().await.unwrap();
    relay.pass().await;
    verdict(&sandbox, [late, early]).await
}

#[tokio::test]
async fn a_relay_that_reads_the_difference_loses_no_late_commit() {
    let verdict = late_commit("late_commit", Fault::None).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!((verdict.delivered, verdict.duplicates), (4, 0));
}

#[tokio::test]
async fn a_relay_that_reads_by_id_is_caught_losing_a_late_commit() {
    let verdict = late_commit("id_cursor", Fault::IdCursor).await;
    assert_eq!((verdict.missing, verdict.delivered), (1, 3), "{verdict:?}");
}

#[tokio::test]
async fn a_relay_that_reads_by_xid_is_caught_losing_a_late_commit() {
    let verdict = late_commit("xid_cursor", Fault::XidCursor).await;
    assert_eq!((verdict.missing, verdict.delivered), (1, 3), "{verdict:?}");
}

/// A transaction takes its id before another one does, and a key's lock after it.
async fn early_xid(test: &str, fault: Fault) -> Verdict {
    let (sandbox, mut early, mut other) = scene(test).await;
    let mut relay = MiniRelay::new(&sandbox, fault).await;
    early.begin().await.unwrap();
    early.take_xid().await.unwrap();
    commit(&mut other, "key-0", 1).await;
    early.write("key-0").await.unwrap();
    early.commit().await.unwrap();
    relay.pass().await;
    verdict(&sandbox, [early, other]).await
}

#[tokio::test]
async fn a_whole_difference_by_id_keeps_the_order_of_an_early_xid() {
    let verdict = early_xid("early_xid", Fault::None).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!(verdict.delivered, 2);
}

#[tokio::test]
async fn a_relay_that_cuts_the_difference_by_xid_is_caught_breaking_order() {
    let verdict = early_xid("xid_cut", Fault::XidCut).await;
    assert_eq!(
        (verdict.order_breaks, verdict.missing),
        (1, 0),
        "{verdict:?}"
    );
}

/// Two keys, three events each; two passes.
async fn simple(test: &str, fault: Fault) -> Verdict {
    let (sandbox, mut one, mut two) = scene(test).await;
    let mut relay = MiniRelay::new(&sandbox, fault).await;
    commit(&mut one, "key-0", 3).await;
    commit(&mut two, "key-1", 3).await;
    relay.pass().await;
    relay.pass().await;
    verdict(&sandbox, [one, two]).await
}

#[tokio::test]
async fn a_faultless_relay_is_sound() {
    let verdict = simple("faultless", Fault::None).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!(
        (verdict.committed, verdict.delivered, verdict.duplicates),
        (6, 6, 0)
    );
}

#[tokio::test]
async fn advancing_before_the_ack_is_caught_losing_what_was_queued() {
    let verdict = simple("before_ack", Fault::AdvanceBeforeAck).await;
    assert_eq!((verdict.missing, verdict.delivered), (6, 0), "{verdict:?}");
}

#[tokio::test]
async fn a_crash_before_the_advance_is_counted_as_duplicates() {
    let verdict = simple("before_advance", Fault::CrashBeforeAdvance).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!(
        (verdict.delivered, verdict.duplicates),
        (6, 6),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn a_swap_within_a_key_is_caught_breaking_order() {
    let verdict = simple("swap", Fault::Swap).await;
    assert_eq!(
        (verdict.order_breaks, verdict.missing),
        (1, 0),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn a_skipped_row_is_caught_missing() {
    let verdict = simple("skip", Fault::Skip).await;
    assert_eq!(
        (verdict.missing, verdict.order_breaks),
        (1, 0),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn a_reencoded_payload_is_caught_changed() {
    let verdict = simple("reencode", Fault::Reencode).await;
    assert_eq!((verdict.changed, verdict.missing), (6, 0), "{verdict:?}");
}

#[tokio::test]
async fn another_key_is_caught_changed() {
    let verdict = simple("wrong_key", Fault::WrongKey).await;
    assert_eq!((verdict.changed, verdict.missing), (1, 0), "{verdict:?}");
}

#[tokio::test]
async fn publishing_before_the_commit_is_caught_when_it_rolls_back() {
    let (sandbox, mut one, two) = scene("rolled_back").await;
    let relay = MiniRelay::new(&sandbox, Fault::None).await;
    one.begin().await.unwrap();
    let event_id = one.write("key-0").await.unwrap();
    relay.publish(&uncommitted(event_id)).await;
    one.roll_back().await.unwrap();
    let verdict = verdict(&sandbox, [one, two]).await;
    assert_eq!(
        (verdict.rolled_back, verdict.committed),
        (1, 0),
        "{verdict:?}"
    );
}

fn uncommitted(event_id: String) -> Row {
    Row {
        id: 1,
        event_id,
        key: Some("key-0".to_owned()),
        r#type: "post.created".to_owned(),
        subject: Some("key-0/1".to_owned()),
        content_type: "application/json".to_owned(),
        payload: None,
    }
}

#[tokio::test]
async fn a_key_in_two_partitions_is_caught_breaking_order() {
    let (sandbox, mut one, two) = scene("scattered").await;
    let mut relay = MiniRelay::new(&sandbox, Fault::None).await;
    commit(&mut one, "key-0", 1).await;
    relay.pass().await;
    fanout_tests::services::kafka()
        .add_partitions(&sandbox.kafka_topic, 31)
        .await;
    let mut relay = MiniRelay::new(&sandbox, Fault::None).await;
    relay.pass().await;
    let verdict = verdict(&sandbox, [one, two]).await;
    assert_eq!(
        (verdict.order_breaks, verdict.missing),
        (1, 0),
        "{verdict:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faultless_relay_is_sound_under_every_kind_of_transaction() {
    let sandbox = Sandbox::new("every_kind").await;
    let options = Options {
        transactions: 600,
        hold: Duration::from_secs(1),
        ..Options::default()
    };
    let load = Load::start(&sandbox, &options).await;
    let mut relay = MiniRelay::new(&sandbox, Fault::None).await;
    while load.done() < options.transactions {
        relay.pass().await;
    }
    let journal = load.finish().await;
    relay.pass().await;
    let checker = Checker::new(&sandbox, &journal).await;
    let verdict = checker.judge_log().await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!(
        (verdict.delivered, verdict.duplicates),
        (checker.rows().len(), 0)
    );
    assert!(
        journal.count(load::Outcome::Failed) > 50,
        "some were rolled back"
    );
}

/// What a consumer that does wrong would do at a receiver: the requests are sent by the test.
#[tokio::test]
async fn faults_behind_the_log_are_caught_at_the_receiver() {
    let (sandbox, mut one, two) = scene("at_receiver").await;
    commit(&mut one, "key-0", 4).await;
    commit(&mut one, "key-1", 2).await;
    let mut relay = MiniRelay::new(&sandbox, Fault::None).await;
    relay.pass().await;
    let mut journal = one.into_journal();
    journal.merge(two.into_journal());
    let checker = Checker::new(&sandbox, &journal).await;
    let receiver = Receiver::start(&sandbox, "hook", behave::ok()).await;
    let subscription = sandbox.webhook("hook", receiver.url());
    let client = client();
    let rows = checker.rows();
    // The first of key-0 never, its third before its second, its second twice; of key-1 the second changed.
    for row in [&rows[2], &rows[1], &rows[1], &rows[3], &rows[4]] {
        deliver(&client, &receiver, row, row.payload.clone()).await;
    }
    deliver(&client, &receiver, &rows[5], Some(b"{}".to_vec())).await;
    let verdict = checker
        .judge_receiver(&receiver, &subscription, |row| row.id != rows[3].id)
        .await;
    // Nobody committed offsets: what was not delivered still waits in the log.
    assert_eq!((verdict.queued, verdict.missing), (1, 0), "{verdict:?}");
    assert_eq!(
        (verdict.order_breaks, verdict.duplicates),
        (1, 1),
        "{verdict:?}"
    );
    assert_eq!((verdict.changed, verdict.unwanted), (1, 1), "{verdict:?}");
    commit_to_the_end(&sandbox, &subscription.group_id);
    let verdict = checker
        .judge_receiver(&receiver, &subscription, |_| true)
        .await;
    assert_eq!((verdict.queued, verdict.missing), (0, 1), "{verdict:?}");
}

fn client() -> reqwest::Client {
    fanout_runtime::tls::install_ring_provider();
    reqwest::Client::new()
}

async fn deliver(client: &reqwest::Client, to: &Receiver, row: &Row, body: Option<Vec<u8>>) {
    let attributes = row.attributes("/a/b");
    let mut request = client.post(to.url()).body(body.unwrap_or_default());
    for (name, value) in attributes.to_headers() {
        request = request.header(name.replacen('_', "-", 1), value);
    }
    assert_eq!(request.send().await.unwrap().status(), 200);
}

fn commit_to_the_end(sandbox: &Sandbox, group: &str) {
    use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
    let consumer: BaseConsumer = fanout_tests::services::kafka()
        .client()
        .set("group.id", group)
        .create()
        .unwrap();
    let mut offsets = rdkafka::TopicPartitionList::new();
    for partition in 0..fanout_tests::PARTITIONS {
        let (_, end) = consumer
            .fetch_watermarks(&sandbox.kafka_topic, partition, Duration::from_secs(10))
            .unwrap();
        offsets
            .add_partition_offset(
                &sandbox.kafka_topic,
                partition,
                rdkafka::Offset::Offset(end),
            )
            .unwrap();
    }
    consumer.commit(&offsets, CommitMode::Sync).unwrap();
}

/// Commits whose answer never came are unknown to the writer; the table decides, and the verdict follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_of_the_database_leaves_no_contradiction() {
    let postgres = tokio::task::spawn_blocking(|| Postgres::start().unwrap())
        .await
        .unwrap();
    let postgres = Arc::new(postgres);
    let kafka = tokio::task::spawn_blocking(fanout_tests::services::kafka)
        .await
        .unwrap();
    let sandbox = Sandbox::with("database_fault", &postgres, kafka).await;
    let options = Options {
        transactions: 600,
        hold: Duration::from_millis(200),
        // One that is prepared at the crash keeps its keys for ever.
        prepared: false,
        ..Options::default()
    };
    let load = Load::start(&sandbox, &options).await;
    let half = options.transactions / 2;
    eventually(Duration::from_mins(1), "half is written", async || {
        (load.done() > half)
            .then_some(())
            .ok_or_else(|| load.done())
    })
    .await;
    let server = Arc::clone(&postgres);
    tokio::task::spawn_blocking(move || server.kill().and_then(|()| server.start_again()).unwrap())
        .await
        .unwrap();
    let journal = load.finish().await;
    let mut relay = MiniRelay::new(&sandbox, Fault::None).await;
    relay.pass().await;
    let checker = Checker::new(&sandbox, &journal).await;
    let verdict = checker.judge_log().await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert!(verdict.delivered > 300, "{verdict:?}");
}
