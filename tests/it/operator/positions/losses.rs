//! Logs that lost records, or that are others than before.

use super::super::kubelet::Kubelet;
use super::{EARLIEST, LATEST, LONG, Scene};
use crate::consumer::ids;
use crate::consumer::log::Log;
use crate::operator::cluster::Cluster;
use fanout_contract::names;
use fanout_crds::condition::{READY, RECORDS_EXPIRED};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::{Sandbox, eventually, services};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use rdkafka::admin::AdminOptions;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Retention overtakes a suspended Subscription: it is said at once, with partition and number, and delivery goes on with
/// what is left.
pub(super) async fn what_retention_removed_is_loud(cluster: &Cluster, sandbox: &Sandbox) {
    let scene = Scene::new(cluster, sandbox, "expired").await;
    let kubelet = Kubelet::start(cluster, &scene.namespace);
    let late = scene.subscribe("late", EARLIEST, "").await;
    scene.ready("late", "True/Succeeded").await;
    cluster
        .subscription(&scene.namespace, "late", RECORDS_EXPIRED, "False/Succeeded")
        .await;
    scene.suspend("late", true).await;
    scene.ready("late", "True/Suspended").await;
    for id in ids("e", 0..10) {
        scene.log.event_to(0, &id, "test").await;
    }
    let mut removed = TopicPartitionList::new();
    removed
        .add_partition_offset(&scene.topic, 0, Offset::Offset(7))
        .unwrap();
    services::kafka()
        .admin()
        .delete_records(&removed, &AdminOptions::new())
        .await
        .unwrap();

    let told = cluster
        .subscription(&scene.namespace, "late", RECORDS_EXPIRED, "True/Expired")
        .await;
    assert!(message(&told, RECORDS_EXPIRED).contains("7 of partition 0"));
    // The depth counts what is left.
    cluster.depth(&scene.namespace, "late", 3).await;
    let warned = eventually(LONG, "an event", async || {
        let events = cluster
            .api::<Event>(&scene.namespace)
            .list(&ListParams::default())
            .await
            .unwrap();
        events
            .into_iter()
            .find(|event| event.action.as_deref() == Some(RECORDS_EXPIRED))
            .ok_or("none")
    })
    .await;
    assert_eq!(warned.type_.as_deref(), Some("Warning"));
    assert!(warned.note.unwrap().contains("7 of partition 0"));

    // The first worker has some records ready, a new one begins where the log does.
    kubelet.kill("posts-pool-0");
    scene
        .until_committed("late", "the position is in the log", |committed| {
            committed.get(&0) == Some(&7)
        })
        .await;
    scene.suspend("late", false).await;
    let ready = scene.ready("late", "True/Expired").await;
    assert!(message(&ready, READY).contains("7 of partition 0"));
    scene.arrive(&late, &ids("e", 7..10)).await;
    scene.drained("late").await;
    scene.assert_exactly(&late, &ids("e", 7..10)).await;
}

fn message(subscription: &Subscription, kind: &str) -> String {
    let conditions = &subscription.status.as_ref().unwrap().conditions;
    let condition = conditions.iter().find(|it| it.type_ == kind).unwrap();
    condition.message.clone()
}

/// Offsets of a Kafka topic mean nothing in another one of the same name: taking them over would skip its first records.
pub(super) async fn all_of_a_replaced_log_is_new(cluster: &Cluster, sandbox: &Sandbox) {
    let scene = Scene::new(cluster, sandbox, "replaced").await;
    let _kubelet = Kubelet::start(cluster, &scene.namespace);
    for partition in 0..3 {
        for id in ids("before", 0..5) {
            scene.log.event_to(partition, &id, "test").await;
        }
    }
    let plain = scene.subscribe("plain", LATEST, "").await;
    scene.ready("plain", "True/Succeeded").await;
    assert_eq!(scene.saved("plain").await, [(0, 5), (1, 5), (2, 5)].into());

    cluster
        .api::<FanoutTopic>(&scene.namespace)
        .delete("posts", &DeleteParams::default())
        .await
        .unwrap();
    scene.ready("plain", "False/TopicNotFound").await;
    collect_garbage(&scene).await;
    let dead = names::dead_letter_topic(&scene.topic);
    services::kafka()
        .admin()
        .delete_topics(&[&scene.topic, &dead], &AdminOptions::new())
        .await
        .unwrap();
    eventually(LONG, "Kafka has forgotten the topic", async || {
        let live = scene.kafka.describe_topic(&scene.topic).await?;
        anyhow::ensure!(live.is_none(), "{live:?}");
        let committed = scene.committed("plain").await;
        anyhow::ensure!(committed.is_empty(), "{committed:?}");
        anyhow::Ok(())
    })
    .await;
    scene.make_topic().await;
    let log = Log::new(&cluster.bootstrap, &scene.topic);
    let after: Vec<String> = (0..3)
        .flat_map(|partition| ids(&format!("after{partition}"), 0..9))
        .collect();
    for (n, id) in (0..).zip(&after) {
        log.event_to(n / 9, id, "test").await;
    }
    scene.arrive(&plain, &after).await;
    scene.drained("plain").await;
    scene.assert_exactly(&plain, &after).await;
    scene.ready("plain", "True/Succeeded").await;
}

/// Deletes what the topic owned, as the garbage collector does.
async fn collect_garbage(scene: &Scene<'_>) {
    let workers = ListParams::default().labels(names::WORKER_LABEL);
    macro_rules! delete_all {
        ($($kind:ty),*) => {$(
            let api = scene.cluster.api::<$kind>(&scene.namespace);
            for object in api.list(&workers).await.unwrap() {
                api.delete(&object.name_any(), &DeleteParams::default()).await.unwrap();
            }
        )*};
    }
    delete_all!(Deployment, ConfigMap, Secret, ServiceAccount);
}
