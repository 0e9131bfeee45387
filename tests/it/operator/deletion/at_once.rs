//! Objects that are deleted right after they were created, before, while and after the operator sees them.

use super::World;
use super::place::{delete, gone};
use crate::operator::cluster::{Cluster, LIMIT};
use crate::operator::live::Live;
use fanout_contract::names;
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::eventually;
use fanout_tests::services;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;

const TIMES: usize = 200;
/// Those whose creation the operator is let to begin with.
const STARTED: usize = 3;

fn objects(bootstrap: &str, name: &str) -> [String; 2] {
    let topic = Live::topic(bootstrap)
        .replace("name: posts", &format!("name: {name}"))
        .trim_end()
        .to_owned();
    [
        format!("{topic}\n  deletionPolicy: Delete\n"),
        format!(
            "
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: {name}}}
spec:
  topicRef: {{name: {name}}}
  startFrom: {{position: Earliest}}
  sink: {{webhook: {{url: 'http://198.18.0.1:8000/all'}}}}
  deletionPolicy: Delete
"
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_created_and_deleted_at_once_leaves_nothing_behind() {
    let world = World::start_without_mortal().await;
    let cluster = &world.cluster;
    let operator = cluster.operator("only").await;
    let live = Live::start(cluster, "at_once").await;
    let namespace = &live.namespace;
    delete::<FanoutTopic>(cluster, namespace, "posts").await;

    for number in 0..TIMES {
        let name = format!("at-once-{number}");
        let [topic, subscription] = objects(&cluster.bootstrap, &name);
        let both = [topic.as_str(), &subscription].join("---");
        cluster.apply(namespace, &both).await;
        // From nothing to ten milliseconds: what is tested is the length of this life.
        tokio::time::sleep(Duration::from_millis(number as u64 % 11)).await;
        if number % 2 == 0 {
            delete::<FanoutTopic>(cluster, namespace, &name).await;
            delete::<Subscription>(cluster, namespace, &name).await;
        } else {
            delete::<Subscription>(cluster, namespace, &name).await;
            delete::<FanoutTopic>(cluster, namespace, &name).await;
        }
    }
    // And some in the middle of their creation.
    for number in 0..STARTED {
        let name = format!("started-{number}");
        for object in objects(&cluster.bootstrap, &name) {
            cluster.apply(namespace, &object).await;
        }
        cluster
            .until(namespace, &name, "is begun with", |topic: &FanoutTopic| {
                let status = topic.status.as_ref().and_then(|it| it.topic_id.as_ref());
                let begun = match number {
                    0 => !topic.finalizers().is_empty(),
                    1 => status.is_some(),
                    _ => topic.status.as_ref().is_some_and(|it| it.relay.is_some()),
                };
                if begun {
                    Ok(())
                } else {
                    Err(format!("{:?}", topic.metadata.finalizers))
                }
            })
            .await;
        delete::<FanoutTopic>(cluster, namespace, &name).await;
        delete::<Subscription>(cluster, namespace, &name).await;
    }

    nothing_is_left(cluster, &live).await;
    operator.stop().await;
}

async fn nothing_is_left(cluster: &Cluster, live: &Live) {
    let namespace = &live.namespace;
    let started = (0..STARTED).map(|number| format!("started-{number}"));
    let at_once = (0..TIMES).map(|number| format!("at-once-{number}"));
    for name in started.chain(at_once) {
        gone::<FanoutTopic>(cluster, namespace, &name).await;
        gone::<Subscription>(cluster, namespace, &name).await;
    }
    let workers = ListParams::default().labels(names::WORKER_LABEL);
    eventually(LIMIT, "no object of a worker is left", async || {
        let mut left = all::<Deployment>(cluster, namespace, &workers).await?;
        left.extend(all::<ConfigMap>(cluster, namespace, &workers).await?);
        left.extend(all::<Secret>(cluster, namespace, &workers).await?);
        left.extend(all::<ServiceAccount>(cluster, namespace, &workers).await?);
        left.extend(all::<Pod>(cluster, namespace, &workers).await?);
        anyhow::ensure!(left.is_empty(), "{left:?}");
        anyhow::Ok(())
    })
    .await;
    let kafka = services::kafka();
    let prefix = format!("{namespace}.");
    let client = kafka.admin().inner();
    let metadata = client.fetch_metadata(None, LIMIT).unwrap();
    let topics: Vec<&str> = metadata
        .topics()
        .iter()
        .map(rdkafka::metadata::MetadataTopic::name)
        // The first FanoutTopic of the namespace keeps its own.
        .filter(|name| name.starts_with(&prefix) && !name.starts_with(&format!("{prefix}posts")))
        .collect();
    assert_eq!(topics, Vec::<&str>::new());
    let groups = client.fetch_group_list(None, LIMIT).unwrap();
    let groups: Vec<&str> = groups
        .groups()
        .iter()
        .map(rdkafka::groups::GroupInfo::name)
        .filter(|name| name.starts_with(&prefix))
        .collect();
    assert_eq!(groups, Vec::<&str>::new());
    let positions: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "select count(*) from fanout.topics where topic not like '{prefix}posts%'"
    )))
    .fetch_one(live.sandbox.pool())
    .await
    .unwrap();
    assert_eq!(positions, 0);
}

async fn all<K>(
    cluster: &Cluster,
    namespace: &str,
    parameters: &ListParams,
) -> kube::Result<Vec<String>>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let api: Api<K> = cluster.api(namespace);
    let list = api.list(parameters).await?;
    Ok(list.iter().map(ResourceExt::name_any).collect())
}
