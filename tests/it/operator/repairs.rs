//! Deleted and edited objects come back, a terminating namespace is left alone, and two topics do not share one.

use super::cluster::{Cluster, LIMIT};
use super::played::files;
use super::{a_second_passes, posts, secrets, settled, subscription, topic};
use fanout_contract::names;
use fanout_crds::condition::{LOG_READY, STALLED};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::eventually;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_or_edited_comes_back_and_a_terminating_namespace_is_left_alone() {
    let (cluster, operator) = Cluster::shared().await;
    let namespace = cluster.server.namespace("social").await;
    posts(&cluster, &namespace).await;
    cluster
        .apply(&namespace, &subscription("plain", "posts", ""))
        .await;
    cluster
        .until(
            &namespace,
            "posts-pool-0",
            "exists",
            |_: &Deployment| Ok(()),
        )
        .await;

    edits_are_undone(&cluster, &namespace).await;
    the_last_subscription_takes_the_worker_with_it(&cluster, &namespace).await;
    a_terminating_namespace_is_left_alone(&cluster, &namespace).await;
    operator.leave();
}

async fn edits_are_undone(cluster: &Cluster, namespace: &str) {
    let before = files(cluster, namespace, "posts-pool-0").await.unwrap();
    cluster
        .api::<ConfigMap>(namespace)
        .delete("posts-pool-0", &DeleteParams::default())
        .await
        .unwrap();
    let edit = json!({"spec": {"replicas": 5}});
    cluster
        .api::<Deployment>(namespace)
        .patch(
            "posts-pool-0",
            &PatchParams::default(),
            &Patch::Merge(&edit),
        )
        .await
        .unwrap();
    cluster
        .until(
            namespace,
            "posts-pool-0",
            "has one replica",
            |deployment: &Deployment| {
                let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
                if replicas == Some(1) {
                    Ok(())
                } else {
                    Err(format!("{replicas:?}"))
                }
            },
        )
        .await;
    eventually(LIMIT, "the ConfigMap is back", async || {
        let now = files(cluster, namespace, "posts-pool-0").await?;
        anyhow::ensure!(now == before, "another configuration");
        anyhow::Ok(())
    })
    .await;
}

async fn the_last_subscription_takes_the_worker_with_it(cluster: &Cluster, namespace: &str) {
    cluster
        .api::<Subscription>(namespace)
        .delete("plain", &DeleteParams::default())
        .await
        .unwrap();
    eventually(LIMIT, "the pool is pruned", async || {
        let mut left = BTreeSet::new();
        for object in cluster
            .api::<Deployment>(namespace)
            .list(&ListParams::default())
            .await?
            .items
        {
            left.insert(object.name_any());
        }
        for object in cluster
            .api::<Secret>(namespace)
            .list(&ListParams::default().labels(names::WORKER_LABEL))
            .await?
            .items
        {
            left.insert(object.name_any());
        }
        anyhow::ensure!(
            left == BTreeSet::from(["posts-relay".to_owned()]),
            "{left:?}"
        );
        anyhow::Ok(())
    })
    .await;
}

async fn a_terminating_namespace_is_left_alone(cluster: &Cluster, namespace: &str) {
    settled(cluster, namespace).await;
    Api::<Namespace>::all(cluster.client.clone())
        .delete(namespace, &DeleteParams::default())
        .await
        .unwrap();
    let mark = cluster.server.mark();
    cluster
        .api::<ConfigMap>(namespace)
        .delete("posts-relay", &DeleteParams::default())
        .await
        .unwrap();
    // Its triggers are through once a change made later, elsewhere, has had its effect.
    let other = cluster.server.namespace("other").await;
    posts(cluster, &other).await;
    cluster
        .until(&other, "posts-relay", "exists", |_: &Deployment| Ok(()))
        .await;
    assert_eq!(cluster.operator_writes(mark, namespace), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_older_of_two_topics_on_one_kafka_topic_wins() {
    let (cluster, operator) = Cluster::shared().await;
    let namespace = cluster.server.namespace("social").await;
    cluster.apply(&namespace, &secrets()).await;
    cluster
        .apply(&namespace, &topic("older", &cluster.bootstrap))
        .await;
    cluster
        .topic(&namespace, "older", LOG_READY, "True/Succeeded")
        .await;
    let created = cluster.server.namespace("later").await;
    cluster.apply(&created, &secrets()).await;
    let name = format!("topic: {{name: {namespace}.older, ");
    let newer = topic(
        "newer",
        &cluster.bootstrap.replace("127.0.0.1", "localhost"),
    )
    .replace("topic: {", &name);
    let older: FanoutTopic = cluster.get(&namespace, "older").await.unwrap();
    a_second_passes(&older).await;
    cluster.apply(&created, &newer).await;
    let found = cluster
        .topic(&created, "newer", STALLED, "True/NameConflict")
        .await;
    let conditions = found.status.unwrap().conditions;
    let stalled = conditions.iter().find(|it| it.type_ == STALLED).unwrap();
    assert!(
        stalled.message.contains(&format!("{namespace}/older")),
        "{}",
        stalled.message
    );
    let workers = cluster
        .api::<Deployment>(&created)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(workers.items.is_empty(), "the newer one has no worker");
    cluster
        .topic(&namespace, "older", LOG_READY, "True/Succeeded")
        .await;
    // The newer one takes over when the older one goes.
    cluster
        .api::<FanoutTopic>(&namespace)
        .delete("older", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .topic(&created, "newer", LOG_READY, "True/Succeeded")
        .await;
    operator.leave();
}
