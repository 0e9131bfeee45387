//! Kafka forgets the offsets of groups without members. The broker of this test does so after a minute.

use super::super::kubelet::Kubelet;
use super::{EARLIEST, Offsets, Scene};
use crate::consumer::ids;
use crate::consumer::log::Log;
use crate::operator::cluster::Cluster;
use fanout_crds::condition::{POSITION_INITIALIZED, STALLED};
use fanout_tests::Sandbox;
use fanout_tests::receiver::Receiver;
use fanout_tests::services::kafka::Kafka;
use serde_json::json;
use std::collections::BTreeSet;

/// Events of several keys, so that every partition has some.
fn events(from: usize, to: usize) -> Vec<String> {
    (0..6)
        .flat_map(|key| ids(&format!("k{key}"), from..to))
        .collect()
}

/// Three ways to lose the last member while the operator looks on: each Subscription goes on exactly where it was,
/// although Kafka forgot it, the topic grew, and operator and workers were made anew. In another namespace the operator is
/// away when it happens: nothing is lost there either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::too_many_lines, reason = "one story, told in its order")]
async fn positions_outlive_groups_that_kafka_has_forgotten() {
    let kafka = tokio::task::spawn_blocking(|| {
        Kafka::start_with(&[
            ("offsets.retention.minutes", "1"),
            ("offsets.retention.check.interval.ms", "1000"),
        ])
    })
    .await
    .unwrap()
    .unwrap();
    let mut cluster = Cluster::start().await;
    cluster.bootstrap = kafka.bootstrap();
    let sandbox = Sandbox::new("op_expiry").await;
    let operator = cluster.operator("first").await;
    let (seen, unseen) = tokio::join!(
        Scene::new(&cluster, &sandbox, "seen"),
        Scene::new(&cluster, &sandbox, "unseen"),
    );
    let seen_kubelet = Kubelet::start(&cluster, &seen.namespace);
    let unseen_kubelet = Kubelet::start(&cluster, &unseen.namespace);
    let dedicated = "  isolation: Dedicated";
    let lost = seen.subscribe("lost", EARLIEST, dedicated).await;
    let paused = seen.subscribe("paused", EARLIEST, dedicated).await;
    let invalid = seen.subscribe("invalid", EARLIEST, "").await;
    let alone = unseen.subscribe("alone", EARLIEST, "").await;
    let all = [("lost", &lost), ("paused", &paused), ("invalid", &invalid)];
    let first = events(0, 5);
    seen.log.append(&first).await;
    unseen.log.append(&first).await;
    for (name, receiver) in all {
        deliver(&seen, name, receiver, &first).await;
    }
    deliver(&unseen, "alone", &alone, &first).await;

    seen.suspend("paused", true).await;
    seen.ready("paused", "True/Suspended").await;
    let filter = json!({"spec": {"filter": "event.type =="}});
    seen.change("invalid", filter).await;
    cluster
        .subscription(&seen.namespace, "invalid", STALLED, "True/FilterInvalid")
        .await;
    drop(seen_kubelet);
    seen.nodes_are_lost().await;
    let mut expected = Vec::new();
    for (name, _) in all {
        let saved = seen.until_saved(name).await;
        assert_eq!(saved.values().sum::<i64>(), 30, "{name}: {saved:?}");
        expected.push(saved);
    }
    operator.stop().await;

    // Nobody sees these.
    let second = events(5, 7);
    unseen.log.append(&second).await;
    unseen.arrive(&alone, &second).await;
    unseen.drained("alone").await;
    drop(unseen_kubelet);
    unseen.nodes_are_lost().await;
    let last_saved = unseen.saved("alone").await;
    kafka.add_partitions(&seen.topic, 4).await;
    seen.change_topic(json!({"spec": {"broker": {"kafka": {"topic": {"partitions": 4}}}}}))
        .await;
    let third = events(7, 9);
    let log = Log::new(&cluster.bootstrap, &seen.topic);
    log.append(&third).await;
    let grown = ids("grown", 0..5);
    for id in &grown {
        log.event_to(3, id, "test").await;
    }
    for (scene, name) in [
        (&seen, "lost"),
        (&seen, "paused"),
        (&seen, "invalid"),
        (&unseen, "alone"),
    ] {
        scene
            .until_committed(name, "Kafka has forgotten it", Offsets::is_empty)
            .await;
    }

    let operator = cluster.operator("second").await;
    for ((name, _), mut expected) in all.into_iter().zip(expected) {
        expected.insert(3, 0);
        seen.until_committed(name, "it is restored before there is a worker", |found| {
            *found == expected
        })
        .await;
    }
    unseen
        .until_committed("alone", "it is restored", |found| *found == last_saved)
        .await;
    let _seen_kubelet = Kubelet::start(&cluster, &seen.namespace);
    let _unseen_kubelet = Kubelet::start(&cluster, &unseen.namespace);
    seen.suspend("paused", false).await;
    seen.change("invalid", json!({"spec": {"filter": null}}))
        .await;
    let missed = [third, grown].concat();
    for (name, receiver) in all {
        seen.arrive(receiver, &missed).await;
        seen.ready(name, "True/Succeeded").await;
        let everything = [first.clone(), missed.clone()].concat();
        seen.assert_exactly(receiver, &everything).await;
        cluster
            .subscription(
                &seen.namespace,
                name,
                POSITION_INITIALIZED,
                "True/Succeeded",
            )
            .await;
    }

    // What was delivered behind the operator's back may be repeated, and nothing is missing.
    let fourth = events(7, 8);
    unseen.log.append(&fourth).await;
    unseen.arrive(&alone, &fourth).await;
    let accepted: BTreeSet<String> = unseen.accepted(&alone).await.into_iter().collect();
    let everything: BTreeSet<String> = [first, second, fourth].concat().into_iter().collect();
    assert_eq!(accepted, everything);
    operator.stop().await;
}

async fn deliver(scene: &Scene<'_>, name: &str, receiver: &Receiver, ids: &[String]) {
    scene.arrive(receiver, ids).await;
    scene.drained(name).await;
    scene.ready(name, "True/Succeeded").await;
}
