//! Where a subscription begins, what it commits, and what it does not read twice.

use super::log::Log;
use super::*;
use fanout_contract::consumer::{Ordering, StartOffset};
use fanout_tests::receiver::behave;
use fanout_tests::{PARTITIONS, services};
use rdkafka::admin::AdminOptions;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_offset_counts_once_and_is_committed() {
    let mut scene = Scene::new("c_start", behave::ok()).await;
    let (before, after) = (ids("k", 0..5), ids("k", 5..10));
    scene.log.append(&before).await;
    let (partition, offset) = scene.log.event(Some("k"), "k-0005", "test", "{}").await;
    for start in &mut scene.subscription.start_offsets {
        if start.partition == partition {
            start.offset = offset;
        }
    }
    scene.log.append(&after[1..]).await;
    let mut consumer = scene.consumer("pool-0").await;
    scene.drained().await;
    assert_eq!(scene.accepted().await, after);
    for start in &mut scene.subscription.start_offsets {
        start.offset = 0;
    }
    consumer.terminate().await;
    consumer.reconfigure(
        &scene
            .sandbox
            .consumer_config(vec![scene.subscription.clone()]),
    );
    consumer.start_again().await;
    in_force(&consumer).await;
    scene.log.append(&ids("k", 10..11)).await;
    scene.arrive(&ids("k", 10..11)).await;
    assert_eq!(
        scene.accepted().await,
        ids("k", 5..11),
        "a start never overrides a commit"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_start_is_committed_without_any_event() {
    let scene = Scene::new("c_idle_start", behave::ok()).await;
    let _consumer = scene.consumer("pool-0").await;
    scene.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_without_a_position_is_not_read_until_it_has_one() {
    let mut scene = Scene::new("c_missing", behave::ok()).await;
    scene
        .subscription
        .start_offsets
        .retain(|start| start.partition != 0);
    let here = scene
        .log
        .raw(None, Some(b"{}"), Some(log::cloud_event("here-0000", "t")))
        .await;
    assert_eq!(here, 0);
    let keyed: Vec<_> = (0..30).map(|key| format!("k{key}-0000")).collect();
    let mut elsewhere = Vec::new();
    for id in &keyed {
        let (partition, _) = scene.log.event(Some(id), id, "t", "{}").await;
        if partition != 0 {
            elsewhere.push(id.clone());
        }
    }
    let mut consumer = scene.consumer("pool-0").await;
    scene.arrive(&elsewhere).await;
    let status = consumer
        .wait_until(LIMIT, "it is reported", |status| {
            the(status, "hook").reason == Some(StopReason::PositionMissing)
        })
        .await;
    assert!(is_running(&status, "hook"));
    assert!(
        the(&status, "hook")
            .partitions
            .iter()
            .all(|partition| partition.partition != 0)
    );
    assert_eq!(scene.accepted().await.len(), elsewhere.len());
    scene.subscription.start_offsets.push(StartOffset {
        partition: 0,
        offset: 0,
    });
    scene.reconfigure(&mut consumer).await;
    scene.arrive(&["here-0000".to_owned()]).await;
    scene.arrive(&keyed).await;
    scene.drained().await;
    assert_no_repeats(&scene.accepted().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_markers_and_aborted_records_hold_no_position_back() {
    let scene = Scene::new("c_markers", behave::ok()).await;
    scene.log.transaction(&ids("committed", 0..10), true).await;
    scene.log.transaction(&ids("aborted", 0..10), false).await;
    let _consumer = scene.consumer("pool-0").await;
    scene.arrive(&ids("committed", 0..10)).await;
    scene.drained().await;
    // Markers are the last records, and again while it runs.
    scene.log.transaction(&ids("aborted", 10..20), false).await;
    scene.log.transaction(&ids("committed", 10..12), true).await;
    scene.log.transaction(&ids("aborted", 20..30), false).await;
    scene.arrive(&ids("committed", 10..12)).await;
    scene.drained().await;
    let accepted = scene.accepted().await;
    assert_eq!(
        accepted,
        ids("committed", 0..12),
        "aborted records are no events"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_finished_behind_a_blocked_event_is_not_repeated_after_a_kill() {
    let scene = Scene::new("c_metadata", failing("bad", Answer::Status(500))).await;
    scene.log.append(&ids("bad", 0..1)).await;
    let good: Vec<_> = (0..60).map(|key| format!("k{key}-0000")).collect();
    scene.log.append(&good).await;
    let mut consumer = scene.consumer("pool-0").await;
    scene.arrive(&good).await;
    // A later event and its commit show that what came before is committed too.
    let committed = consumer
        .wait_until(LIMIT, "one partition is blocked", |status| {
            let partitions = &the(status, "hook").partitions;
            let blocked = partitions
                .iter()
                .filter(|p| p.oldest_event_time.is_some())
                .count();
            partitions.len() == 6 && blocked == 1
        })
        .await;
    assert_eq!(the(&committed, "hook").totals.delivered, 60);
    commits_settle(&scene.log, &scene.subscription.group_id).await;
    consumer.kill();
    scene.hook.set(behave::ok());
    consumer.start_again().await;
    in_force(&consumer).await;
    scene.arrive(&ids("bad", 0..1)).await;
    scene.drained().await;
    assert_no_repeats(&scene.accepted().await);
}

/// Waits until five of six partitions are committed to their ends and the sixth stands at its blocked event. The
/// metadata of the sixth is part of the same commit.
async fn commits_settle(log: &Log, group: &str) {
    log.wait_behind(
        group,
        "all but the blocked partition are committed",
        |behind| behind.iter().filter(|behind| **behind == Some(0)).count() == 5,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetching_stops_where_progress_could_not_be_described_any_more() {
    let scene = Scene::new("c_full", failing("bad", Answer::Status(500)))
        .await
        .with(|subscription| {
            subscription.filter = Some("event.type == 'wanted'".to_owned());
            subscription.delivery.ordering = Ordering::None;
        });
    scene
        .log
        .raw(
            None,
            Some(b"{}"),
            Some(log::cloud_event("bad-0000", "wanted")),
        )
        .await;
    let sends: Vec<_> = (0..17_000)
        .map(|n| scene.log.event_to(0, &format!("skip-{n}"), "unwanted"))
        .collect();
    for sent in sends {
        sent.await;
    }
    scene
        .log
        .raw(
            None,
            Some(b"{}"),
            Some(log::cloud_event("last-0000", "wanted")),
        )
        .await;
    let mut consumer = scene.consumer("pool-0").await;
    let full = |status: &ConsumerStatus| the(status, "hook").reason == Some(StopReason::PrefixFull);
    let status = consumer.wait_until(LIMIT, "the prefix is full", full).await;
    let filtered = the(&status, "hook").totals.filtered;
    assert!((16_000..17_000).contains(&filtered), "{filtered}");
    assert_eq!(scene.accepted().await, [] as [String; 0]);
    // It goes on from there, even after a kill.
    consumer.kill();
    consumer.start_again().await;
    in_force(&consumer).await;
    consumer
        .wait_until(LIMIT, "the prefix is full again", full)
        .await;
    scene.hook.set(behave::ok());
    scene
        .arrive(&["bad-0000".to_owned(), "last-0000".to_owned()])
        .await;
    scene.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_retention_removed_are_skipped_loudly() {
    let scene = Scene::new("c_expired", behave::ok()).await;
    for n in 0..10 {
        let id = format!("k-{n:04}");
        scene
            .log
            .raw(None, Some(b"{}"), Some(log::cloud_event(&id, "t")))
            .await;
    }
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&scene.sandbox.kafka_topic, 0, Offset::Offset(7))
        .unwrap();
    let admin = services::kafka().admin();
    admin
        .delete_records(&list, &AdminOptions::new())
        .await
        .unwrap();
    let consumer = scene.consumer("pool-0").await;
    scene.drained().await;
    let accepted: BTreeSet<_> = scene.accepted().await.into_iter().collect();
    assert!(accepted.iter().eq(&ids("k", 7..10)), "{accepted:?}");
    let metrics = consumer.metrics().await.unwrap();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("fanout_subscription_expired_offsets_total{"))
        .unwrap();
    assert!(line.ends_with(" 7"), "{line}");
    assert_eq!(
        scene.subscription.start_offsets.len(),
        usize::try_from(PARTITIONS).unwrap()
    );
}
