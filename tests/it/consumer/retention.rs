//! Logs that no longer hold, or never held, what a subscription wants to read next.

use super::log;
use super::*;
use fanout_contract::consumer::Ordering;
use fanout_tests::receiver::behave;
use fanout_tests::services;
use rdkafka::admin::AdminOptions;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

fn partition_0(scene: &Scene, offset: i64) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&scene.sandbox.kafka_topic, 0, Offset::Offset(offset))
        .unwrap();
    list
}

fn number(id: &str) -> i64 {
    id.rsplit_once('-').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_before_retention_overtook_it_is_still_delivered() {
    const ALL: i64 = 6_000;
    const REMOVED: i64 = 5_900;
    let scene = Scene::new("c_overtaken", behave::always(Answer::Hang))
        .await
        .with(|subscription| {
            subscription.delivery.ordering = Ordering::None;
            let Sink::Webhook(webhook) = &mut subscription.sink;
            webhook.timeout_seconds = 120;
        });
    // The client has so many bytes of payloads ready, not so many events.
    let data = format!("\"{}\"", "x".repeat(1_000));
    let sends: Vec<_> = (0..ALL)
        .map(|n| {
            let id = format!("e-{n}");
            scene.log.event_with(0, &id, "test", &data)
        })
        .collect();
    for sent in sends {
        sent.await;
    }
    let consumer = scene.consumer("pool-0").await;
    consumer
        .wait_until(LIMIT, "the endpoint takes no more", |status| {
            the(status, "hook").in_flight == 32
        })
        .await;
    services::kafka()
        .admin()
        .delete_records(&partition_0(&scene, REMOVED), &AdminOptions::new())
        .await
        .unwrap();
    scene.hook.release();
    scene.drained().await;

    // Those that hung were recorded before they were accepted.
    let accepted: Vec<String> =
        sqlx::query_scalar("select event_id from harness.received where receiver = 'hook'")
            .fetch_all(scene.sandbox.pool())
            .await
            .unwrap();
    assert_no_repeats(&accepted);
    let mut numbers: Vec<i64> = accepted.iter().map(|id| number(id)).collect();
    numbers.sort_unstable();
    let read = numbers.iter().take_while(|n| **n < REMOVED).count();
    let read = i64::try_from(read).unwrap();
    // More than what was on its way to the endpoint: how much more the client had ready is a matter of time.
    assert!((33..REMOVED).contains(&read), "{read}");
    assert!(
        (0..read).chain(REMOVED..ALL).eq(numbers),
        "a hole in what was read"
    );
    let status = consumer.status().await.unwrap();
    let hook = the(&status, "hook");
    let expired = REMOVED - read;
    assert_eq!(i64::try_from(hook.totals.expired).unwrap(), expired);
    let of_0 = hook.partitions.iter().find(|it| it.partition == 0).unwrap();
    assert_eq!(of_0.expired, expired);
    assert!(
        hook.partitions
            .iter()
            .all(|it| it.partition == 0 || it.expired == 0)
    );
    let metrics = consumer.metrics().await.unwrap();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("fanout_subscription_expired_offsets_total{"))
        .unwrap();
    assert!(line.ends_with(&format!(" {expired}")), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_beyond_the_log_waits_for_a_human_and_other_partitions_go_on() {
    let mut scene = Scene::new("c_beyond", behave::ok()).await;
    let group = scene.subscription.group_id.clone();
    let bootstrap = scene.sandbox.bootstrap.clone();
    let beyond = partition_0(&scene, 50);
    // As left behind by a topic of the same name, or by brokers that lost the end of the log.
    tokio::task::spawn_blocking(move || {
        let other: BaseConsumer = rdkafka::config::ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("group.id", group)
            .create()
            .unwrap();
        let commit = || other.commit(&beyond, CommitMode::Sync);
        let deadline = fanout_tests::Deadline::after(LIMIT);
        while let Err(error) = commit() {
            assert!(!deadline.passed(), "{error}");
        }
    })
    .await
    .unwrap();
    for id in ids("here", 0..3) {
        let headers = log::cloud_event(&id, "test");
        scene.log.raw(None, Some(b"{}"), Some(headers)).await;
    }
    scene.log.event_to(1, "there-0000", "test").await;
    let mut consumer = scene.consumer("pool-0").await;
    scene.arrive(&ids("there", 0..1)).await;
    let is_lost = |status: &ConsumerStatus| {
        let hook = the(status, "hook");
        hook.reason == Some(StopReason::PositionOutOfRange)
    };
    let status = consumer.wait_until(LIMIT, "it is told", is_lost).await;
    let message = the(&status, "hook").message.clone().unwrap();
    assert!(message.contains("partition 0 "), "{message}");
    assert!(is_running(&status, "hook"));
    assert_eq!(scene.accepted().await, ids("there", 0..1));

    scene.subscription.resume = Some("yes".to_owned());
    scene.reconfigure(&mut consumer).await;
    scene.arrive(&ids("here", 0..3)).await;
    scene.drained().await;
    consumer
        .wait_until(LIMIT, "all is well", |status| {
            the(status, "hook").reason.is_none()
        })
        .await;
    consumer.kill();
    consumer.start_again().await;
    in_force(&consumer).await;
    scene.log.event_to(0, "here-0003", "test").await;
    scene.arrive(&ids("here", 3..4)).await;
    assert_no_repeats(&scene.accepted().await);
}
