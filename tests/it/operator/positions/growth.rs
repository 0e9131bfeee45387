//! Partitions that are added while workers run, and Subscriptions that are suspended meanwhile.

use super::super::kubelet::Kubelet;
use super::super::played::consumer_config;
use super::{LATEST, LONG, Scene};
use crate::consumer::ids;
use crate::consumer::log::Log;
use crate::operator::cluster::Cluster;
use fanout_crds::condition::POSITION_INITIALIZED;
use fanout_tests::{Sandbox, eventually};
use serde_json::json;

/// Everything in them is new, also what was written before any worker knew of them, for groups with members, and for
/// Subscriptions that deliver nothing.
pub(super) async fn partitions_added_later_start_at_0(cluster: &Cluster, sandbox: &Sandbox) {
    let scene = Scene::new(cluster, sandbox, "grown").await;
    let kubelet = Kubelet::start(cluster, &scene.namespace);
    let runs = scene.subscribe("runs", LATEST, "").await;
    let paused = scene.subscribe("paused", LATEST, "").await;
    for name in ["runs", "paused"] {
        scene.ready(name, "True/Succeeded").await;
    }
    let first = ids("k", 0..10);
    scene.log.append(&first).await;
    for (name, receiver) in [("runs", &runs), ("paused", &paused)] {
        scene.arrive(receiver, &first).await;
        scene.drained(name).await;
    }
    scene.suspend("paused", true).await;
    scene.ready("paused", "True/Suspended").await;
    let watches = [scene.watch("runs"), scene.watch("paused")];

    scene
        .change_topic(json!({"spec": {"broker": {"kafka": {"topic": {"partitions": 5}}}}}))
        .await;
    eventually(LONG, "the topic has five partitions", async || {
        let live = scene.kafka.describe_topic(&scene.topic).await?;
        let partitions = live.map(|live| live.partitions);
        anyhow::ensure!(partitions == Some(5), "{partitions:?}");
        anyhow::Ok(())
    })
    .await;
    let log = Log::new(&cluster.bootstrap, &scene.topic);
    let early = [ids("third", 0..5), ids("fourth", 0..5)];
    for (partition, ids) in (3..).zip(&early) {
        for id in ids {
            log.event_to(partition, id, "test").await;
        }
    }
    let mut all = first.clone();
    all.extend(early.concat());
    scene.arrive(&runs, &all).await;
    scene.drained("runs").await;
    scene
        .until_committed("paused", "the new partitions start at 0", |committed| {
            committed.get(&3) == Some(&0) && committed.get(&4) == Some(&0)
        })
        .await;
    for name in ["runs", "paused"] {
        cluster
            .subscription(
                &scene.namespace,
                name,
                POSITION_INITIALIZED,
                "True/Succeeded",
            )
            .await;
    }
    eventually(LONG, "start offsets are configured no more", async || {
        let config = consumer_config(cluster, &scene.namespace, "posts-pool-0").await?;
        let left = config.subscriptions.iter().map(|it| it.start_offsets.len());
        let left: usize = left.sum();
        anyhow::ensure!(left == 0, "{left}");
        anyhow::Ok(())
    })
    .await;

    // A suspended one keeps its place through the end of its worker.
    kubelet.kill("posts-pool-0");
    let late = ids("late", 0..5);
    log.append(&late).await;
    all.extend(late);
    scene.arrive(&runs, &all).await;
    scene.assert_exactly(&paused, &first).await;
    scene.suspend("paused", false).await;
    scene.ready("paused", "True/Succeeded").await;
    scene.arrive(&paused, &all).await;
    for (name, receiver) in [("runs", &runs), ("paused", &paused)] {
        scene.drained(name).await;
        scene.assert_exactly(receiver, &all).await;
    }
    for watch in watches {
        watch.end().await;
    }
}
