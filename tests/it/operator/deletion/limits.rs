//! What a deletion leaves alone, what it shows while it waits, and how it is called off.

use super::World;
use super::place::{delete, gone, notes};
use crate::operator::cluster::{Cluster, LIMIT};
use crate::operator::{a_second_passes, posts, secrets, subscription, topic};
use fanout_contract::names::{self, CLEANUP_FINALIZER};
use fanout_crds::condition::{LOG_READY, POSITION_INITIALIZED, READY};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_operator::kafka::NewTopic;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

fn deleting(topic: &str) -> String {
    format!("{}\n  deletionPolicy: Delete\n", topic.trim_end())
}

async fn policy(cluster: &Cluster, namespace: &str, policy: &str) {
    let patch = Patch::Merge(json!({"spec": {"deletionPolicy": policy}}));
    let none = PatchParams::default();
    let topics: Api<FanoutTopic> = cluster.api(namespace);
    topics.patch("posts", &none, &patch).await.unwrap();
    let subscriptions: Api<Subscription> = cluster.api(namespace);
    subscriptions.patch("plain", &none, &patch).await.unwrap();
}

async fn finalizers(cluster: &Cluster, namespace: &str, expected: &[&str]) {
    let reads = |found: &[String]| {
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    };
    cluster
        .until(namespace, "posts", "finalizers", |it: &FanoutTopic| {
            reads(it.finalizers())
        })
        .await;
    cluster
        .until(namespace, "plain", "finalizers", |it: &Subscription| {
            reads(it.finalizers())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_follows_the_policy_and_touches_nothing_of_others() {
    let world = World::start_without_mortal().await;
    let cluster = &world.cluster;
    let operator = cluster.operator("first").await;
    // Without a kubelet no relay ever deletes a position: these deletions wait.
    let namespace = &cluster.server.namespace("waits").await;
    posts(cluster, namespace).await;
    cluster
        .apply(namespace, &subscription("plain", "posts", ""))
        .await;
    cluster
        .subscription(namespace, "plain", POSITION_INITIALIZED, "True/Succeeded")
        .await;
    finalizers(cluster, namespace, &[]).await;
    policy(cluster, namespace, "Delete").await;
    finalizers(cluster, namespace, &[CLEANUP_FINALIZER]).await;
    policy(cluster, namespace, "Retain").await;
    finalizers(cluster, namespace, &[]).await;
    policy(cluster, namespace, "Delete").await;
    finalizers(cluster, namespace, &[CLEANUP_FINALIZER]).await;

    what_waits_says_why_and_is_called_off_by_the_policy(cluster, namespace).await;
    a_topic_that_another_one_claims_stays(cluster).await;
    a_kafka_topic_of_somebody_else_stays(cluster).await;
    operator.stop().await;
    an_object_that_nobody_can_read_ends_at_the_deadline(cluster).await;
}

async fn what_waits_says_why_and_is_called_off_by_the_policy(cluster: &Cluster, namespace: &str) {
    delete::<FanoutTopic>(cluster, namespace, "posts").await;
    // At first it may wait for workers that were just being made.
    cluster
        .until(
            namespace,
            "posts",
            "what it waits for",
            |topic: &FanoutTopic| {
                let conditions = topic.status.as_ref().map(|status| &status.conditions);
                let ready = conditions
                    .into_iter()
                    .flatten()
                    .find(|it| it.type_ == READY && it.reason == "Deleting");
                let message = ready.map_or("", |ready| &ready.message);
                if message.starts_with("the relay's positions and the Kafka topics: 0 of 0") {
                    Ok(())
                } else {
                    Err(message.to_owned())
                }
            },
        )
        .await;
    // Its Subscription, which is not deleted, has no worker any more.
    let found = cluster
        .subscription(namespace, "plain", READY, "False/TopicNotFound")
        .await;
    let workers = ListParams::default().labels(names::WORKER_LABEL);
    let deployments: Api<Deployment> = cluster.api(namespace);
    fanout_tests::eventually(LIMIT, "the relay alone is left", async || {
        let left = deployments.list(&workers).await?;
        let left: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
        anyhow::ensure!(left == ["posts-relay"], "{left:?}");
        anyhow::Ok(())
    })
    .await;
    policy(cluster, namespace, "Retain").await;
    gone::<FanoutTopic>(cluster, namespace, "posts").await;
    delete::<Subscription>(cluster, namespace, "plain").await;
    gone::<Subscription>(cluster, namespace, "plain").await;
    assert_eq!(notes(cluster, namespace).await, []);
    let kafka = cluster.kafka().await;
    let name = format!("{namespace}.posts");
    assert!(kafka.describe_topic(&name).await.unwrap().is_some());
    let group = found.status.unwrap().group_id.unwrap();
    assert!(!kafka.committed(&group, &name).await.unwrap().is_empty());
}

/// The one event of an object that is gone: it is published after the finalizer went.
async fn told(cluster: &Cluster, namespace: &str) -> Vec<(String, String)> {
    fanout_tests::eventually(LIMIT, "what stayed is told", async || {
        let told = notes(cluster, namespace).await;
        anyhow::ensure!(!told.is_empty(), "nothing");
        anyhow::Ok(told)
    })
    .await
}

/// The younger one waits for the Kafka topic of the older one, which is deleted with `Delete`.
async fn a_topic_that_another_one_claims_stays(cluster: &Cluster) {
    let namespace = &cluster.server.namespace("older").await;
    let younger = &cluster.server.namespace("younger").await;
    for namespace in [namespace, younger] {
        cluster.apply(namespace, &secrets()).await;
    }
    let older = deleting(&topic("posts", &cluster.bootstrap));
    cluster.apply(namespace, &older).await;
    let found = cluster
        .topic(namespace, "posts", LOG_READY, "True/Succeeded")
        .await;
    a_second_passes(&found).await;
    let id = found.status.unwrap().topic_id;
    let name = format!("topic: {{name: {namespace}.posts, ");
    let claim = deleting(&topic("posts", &cluster.bootstrap)).replace("topic: {", &name);
    cluster.apply(younger, &claim).await;
    cluster
        .topic(younger, "posts", READY, "False/NameConflict")
        .await;
    delete::<FanoutTopic>(cluster, namespace, "posts").await;
    gone::<FanoutTopic>(cluster, namespace, "posts").await;
    let told = told(cluster, namespace).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains(&format!("{younger}/posts")), "{told:?}");
    let taken = cluster
        .topic(younger, "posts", LOG_READY, "True/Succeeded")
        .await;
    assert_eq!(taken.status.unwrap().topic_id, id, "it is the same one");
}

/// The Kafka topic was deleted and made again behind the operator's back.
async fn a_kafka_topic_of_somebody_else_stays(cluster: &Cluster) {
    let namespace = &cluster.server.namespace("foreign").await;
    cluster.apply(namespace, &secrets()).await;
    cluster
        .apply(namespace, &deleting(&topic("posts", &cluster.bootstrap)))
        .await;
    let found = cluster
        .topic(namespace, "posts", LOG_READY, "True/Succeeded")
        .await;
    let status = found.status.unwrap();
    let name = status.topic_name.unwrap();
    let kafka = cluster.kafka().await;
    kafka.delete_topic(&name).await.unwrap();
    // Brokers know the old one a little longer than the controller.
    fanout_tests::eventually(LIMIT, "the old one is gone", async || {
        let found = kafka.describe_topic(&name).await?;
        anyhow::ensure!(found.is_none(), "{found:?}");
        anyhow::Ok(())
    })
    .await;
    let new = NewTopic {
        name: name.clone(),
        partitions: Some(1),
        ..NewTopic::default()
    };
    let theirs = kafka.create_topic(&new).await.unwrap();
    // Without its relay nothing else is waited for.
    delete::<FanoutTopic>(cluster, namespace, "posts").await;
    delete::<Deployment>(cluster, namespace, "posts-relay").await;
    gone::<FanoutTopic>(cluster, namespace, "posts").await;
    let left = kafka.describe_topic(&name).await.unwrap();
    assert_eq!(left.map(|it| it.id), Some(theirs.id.clone()));
    // Brokers know a deleted topic a little longer than the controller.
    let dead = names::dead_letter_topic(&name);
    fanout_tests::eventually(
        LIMIT,
        "the dead letter topic, which was ours, is gone",
        async || {
            let found = kafka.describe_topic(&dead).await?;
            anyhow::ensure!(found.is_none(), "{found:?}");
            anyhow::Ok(())
        },
    )
    .await;
    let told = told(cluster, namespace).await;
    assert!(
        told.len() == 1 && told[0].1.contains(&theirs.id) && told[0].1.contains("positions"),
        "{told:?}"
    );
}

/// A newer version's object with the finalizer, deleted while this version runs.
async fn an_object_that_nobody_can_read_ends_at_the_deadline(cluster: &Cluster) {
    let namespace = &cluster.server.namespace("strange").await;
    cluster
        .apply(namespace, &deleting(&topic("posts", &cluster.bootstrap)))
        .await;
    let own = json!({"metadata": {"finalizers": [CLEANUP_FINALIZER]}});
    let topics: Api<FanoutTopic> = cluster.api(namespace);
    topics
        .patch("posts", &PatchParams::default(), &Patch::Merge(&own))
        .await
        .unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let path =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/deletionPolicy/enum/-";
    let newer: Value = json!([{"op": "add", "path": path, "value": "Archive"}]);
    crds.patch(
        "fanouttopics.fanout.dev",
        &PatchParams::default(),
        &Patch::<()>::Json(serde_json::from_value(newer).unwrap()),
    )
    .await
    .unwrap();
    let archive = json!({"spec": {"deletionPolicy": "Archive"}});
    fanout_tests::eventually(LIMIT, "the API server knows the newer value", async || {
        topics
            .patch_metadata("posts", &PatchParams::default(), &Patch::Merge(&archive))
            .await
            .map(drop)
    })
    .await;
    let operator = cluster
        .operator_with("second", &["--deletion-deadline-seconds=1"])
        .await;
    // Its answer can't be decoded either.
    topics.delete("posts", &DeleteParams::default()).await.ok();
    fanout_tests::eventually(LIMIT, "it is gone", async || {
        let found = topics.get_metadata_opt("posts").await?;
        anyhow::ensure!(found.is_none(), "{found:?}");
        anyhow::Ok(())
    })
    .await;
    operator.stop().await;
}
