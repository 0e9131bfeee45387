//! First positions, and groups that were there before.

use super::super::kubelet::Kubelet;
use super::super::played::consumer_config;
use super::{EARLIEST, LATEST, LONG, Offsets, Scene};
use crate::consumer::ids;
use crate::operator::cluster::Cluster;
use fanout_crds::Subscription;
use fanout_crds::condition::POSITION_INITIALIZED;
use fanout_tests::{Sandbox, eventually};
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Earliest, Latest and a time; and a Subscription that is deleted and made anew goes on where the old one was.
pub(super) async fn first_positions_and_a_name_made_anew(cluster: &Cluster, sandbox: &Sandbox) {
    let scene = Scene::new(cluster, sandbox, "starts").await;
    let _kubelet = Kubelet::start(cluster, &scene.namespace);
    scene.log.append(&ids("k", 0..5)).await;
    // An API time has whole seconds.
    let second = Timestamp::now().as_second() + 1;
    eventually(LONG, "the next second", async || {
        let now = Timestamp::now();
        if now.as_second() >= second {
            Ok(())
        } else {
            Err(now)
        }
    })
    .await;
    scene.log.append(&ids("k", 5..10)).await;
    let time = Timestamp::from_second(second).unwrap();
    let earliest = scene.subscribe("earliest", EARLIEST, "").await;
    let latest = scene.subscribe("latest", LATEST, "").await;
    let timed = format!("{{time: '{time}'}}");
    let timed = scene.subscribe("timed", &timed, "").await;
    let all = [
        ("earliest", &earliest, 0),
        ("latest", &latest, 10),
        ("timed", &timed, 5),
    ];
    for (name, ..) in all {
        scene.ready(name, "True/Succeeded").await;
    }
    scene.log.append(&ids("k", 10..12)).await;
    for (name, receiver, first) in all {
        scene.arrive(receiver, &ids("k", first..12)).await;
        scene.drained(name).await;
        scene.assert_exactly(receiver, &ids("k", first..12)).await;
    }

    let old: Subscription = cluster.get(&scene.namespace, "latest").await.unwrap();
    cluster
        .api::<Subscription>(&scene.namespace)
        .delete("latest", &DeleteParams::default())
        .await
        .unwrap();
    eventually(LONG, "its worker lets it go", async || {
        let config = consumer_config(cluster, &scene.namespace, "posts-pool-0").await?;
        let held = config.subscriptions.iter().any(|it| it.name == "latest");
        anyhow::ensure!(!held, "still configured");
        anyhow::Ok(())
    })
    .await;
    scene.log.append(&ids("k", 12..15)).await;
    let watch = scene.watch("latest");
    scene
        .make_subscription("latest", latest.url(), LATEST, "")
        .await;
    let new = scene.ready("latest", "True/Succeeded").await;
    assert_ne!(new.metadata.uid, old.metadata.uid);
    scene.arrive(&latest, &ids("k", 12..15)).await;
    scene.drained("latest").await;
    scene.assert_exactly(&latest, &ids("k", 10..15)).await;
    watch.end().await;
}

/// A member of a group that reads nothing and commits nothing, until it is dropped.
struct Member {
    stop: Arc<AtomicBool>,
    task: Option<std::thread::JoinHandle<()>>,
}

impl Member {
    /// Joins and waits until it has partitions.
    async fn join(scene: &Scene<'_>, name: &str) -> Self {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &scene.cluster.bootstrap)
            .set("group.id", scene.group(name))
            .set("enable.auto.commit", "false")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .create()
            .unwrap();
        consumer.subscribe(&[&scene.topic]).unwrap();
        let (stop, joined) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, has_joined): (_, Arc<AtomicBool>) = (Arc::clone(&stop), Arc::clone(&joined));
        let task = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                drop(consumer.poll(Duration::from_millis(50)));
                let partitions = consumer.assignment().unwrap().count();
                has_joined.fetch_or(partitions > 0, Ordering::Relaxed);
            }
        });
        let member = Self {
            stop,
            task: Some(task),
        };
        eventually(LONG, "the member has partitions", async || {
            if joined.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err("none")
            }
        })
        .await;
        member
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(task) = self.task.take() {
            task.join().ok();
        }
    }
}

/// Kafka refuses a commit from outside while a group has members: the worker commits.
pub(super) async fn a_group_with_members_begins_at_start_offsets(
    cluster: &Cluster,
    sandbox: &Sandbox,
) {
    let scene = Scene::new(cluster, sandbox, "adopted").await;
    let before: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .flat_map(|key| ids(key, 0..3))
        .collect();
    scene.log.append(&before).await;
    let member = Member::join(&scene, "plain").await;
    let plain = scene.subscribe("plain", EARLIEST, "").await;
    cluster
        .subscription(
            &scene.namespace,
            "plain",
            POSITION_INITIALIZED,
            "True/StartOffsetsConfigured",
        )
        .await;
    let starts = async || -> anyhow::Result<Vec<(i32, i64)>> {
        let config = consumer_config(cluster, &scene.namespace, "posts-pool-0").await?;
        let starts = &config.subscriptions[0].start_offsets;
        Ok(starts.iter().map(|it| (it.partition, it.offset)).collect())
    };
    let configured = eventually(LONG, "the worker is configured", starts).await;
    assert_eq!(configured, [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(scene.committed("plain").await, Offsets::new());

    let _kubelet = Kubelet::start(cluster, &scene.namespace);
    scene
        .until_committed("plain", "the worker has a partition", |committed| {
            !committed.is_empty()
        })
        .await;
    tokio::task::spawn_blocking(move || drop(member))
        .await
        .unwrap();
    scene.arrive(&plain, &before).await;
    scene.drained("plain").await;
    cluster
        .subscription(
            &scene.namespace,
            "plain",
            POSITION_INITIALIZED,
            "True/Succeeded",
        )
        .await;
    eventually(LONG, "start offsets are configured no more", async || {
        let starts = starts().await?;
        anyhow::ensure!(starts.is_empty(), "{starts:?}");
        anyhow::Ok(())
    })
    .await;
    scene.assert_exactly(&plain, &before).await;
}

/// A pool is full with a hundred.
pub(super) async fn the_101st_goes_to_a_second_pool(cluster: &Cluster, sandbox: &Sandbox) {
    let scene = Scene::new(cluster, sandbox, "crowd").await;
    let names: BTreeSet<String> = (0..101).map(|n| format!("s{n:03}")).collect();
    for name in &names {
        scene
            .make_subscription(name, "http://198.18.0.1:9/", LATEST, "")
            .await;
    }
    let members = async |pool: &str| -> anyhow::Result<BTreeSet<String>> {
        let config = consumer_config(cluster, &scene.namespace, pool).await?;
        Ok(config.subscriptions.into_iter().map(|it| it.name).collect())
    };
    let (first, second) = eventually(LONG, "all are placed", async || {
        let first = members("posts-pool-0").await?;
        let second = members("posts-pool-1").await?;
        let placed = first.len() + second.len();
        anyhow::ensure!(placed == names.len(), "{placed}");
        anyhow::Ok((first, second))
    })
    .await;
    assert_eq!((first.len(), second.len()), (100, 1));
    assert_eq!(
        first.union(&second).cloned().collect::<BTreeSet<_>>(),
        names
    );
}
