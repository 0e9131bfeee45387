//! Two FanoutTopics for one Kafka topic, in two namespaces, under two spellings of the address.

use super::super::kubelet::Kubelet;
use super::scene::{Said, Scene, topic};
use fanout_crds::FanoutTopic;
use fanout_crds::condition::STALLED;
use fanout_tests::eventually;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};

/// Every case of objects that get in each other's way.
pub(super) async fn all(scene: &Scene) {
    let other = scene.cluster.server.namespace("bad-input-later").await;
    let _kubelet = Kubelet::start(&scene.cluster, &other);
    let url = scene.sandbox.relay_url.clone();
    scene.secret_in(&other, "database", &[("url", &url)]).await;
    let bootstrap = &scene.cluster.bootstrap;
    scene
        .apply(&topic("older", "database", bootstrap, "partitions: 1"))
        .await;
    scene.is_well(&scene.topic("older")).await;
    let older: FanoutTopic = scene.cluster.get(&scene.namespace, "older").await.unwrap();
    // Objects of one second are ordered by chance.
    let second = older.creation_timestamp().unwrap().0.as_second();
    eventually(super::super::LIMIT, "a second passes", async || {
        let now = Timestamp::now().as_second();
        if now > second + 1 { Ok(()) } else { Err(now) }
    })
    .await;
    let spelled = bootstrap.replace("127.0.0.1", "localhost");
    let name = format!("name: {}", scene.kafka_topic("older"));
    let newer = topic("newer", "database", &spelled, &name);
    let topics = scene.cluster.api::<FanoutTopic>(&scene.namespace);
    scene
        .case(
            Said {
                object: ("fanouttopics", other.clone(), "newer".to_owned()),
                condition: STALLED,
                value: "True",
                reason: "NameConflict",
                words: &[
                    "spec.broker.kafka.topic.name",
                    "older FanoutTopic",
                    "/older",
                    "delete one of the two",
                ],
                stalled: true,
            },
            async || scene.cluster.apply(&other, &newer).await,
            async || {
                let deployments = scene.cluster.api::<Deployment>(&other);
                let workers = deployments.list(&ListParams::default()).await.unwrap();
                assert!(workers.items.is_empty(), "two relays on one topic");
                drop(
                    topics
                        .delete("older", &DeleteParams::default())
                        .await
                        .unwrap(),
                );
            },
        )
        .await;
}
