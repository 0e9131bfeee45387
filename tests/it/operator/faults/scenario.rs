//! What every run goes through: objects are created, changed and deleted; each step ends when the operator says Ready.

use super::Stage;
use super::state::{self, State};
use crate::operator::cluster::{LIMIT, reads};
use crate::operator::{secrets, subscription, topic};
use fanout_contract::names;
use fanout_crds::condition::READY;
use fanout_crds::deletion::CLEANUP_INCOMPLETE;
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::eventually;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::time::{Duration, Instant};

/// What the operator made outside of Kubernetes goes with the object.
const DELETE: &str = "  deletionPolicy: Delete";
/// Nothing more happens after so long without a write.
const QUIET: Duration = Duration::from_secs(6);

/// Creates everything.
pub(crate) async fn create(stage: &mut Stage<'_>) {
    let (cluster, namespace) = (stage.cluster, stage.namespace.clone());
    cluster.apply(&namespace, &secrets()).await;
    let topic = topic("posts", &stage.kafka.bootstrap());
    cluster.apply(&namespace, &format!("{topic}{DELETE}")).await;
    let latest = subscription("latest", "posts", DELETE).replace("Earliest", "Latest");
    cluster.apply(&namespace, &latest).await;
    let dedicated = format!("{DELETE}\n  isolation: Dedicated");
    let alone = subscription("alone", "posts", &dedicated);
    cluster.apply(&namespace, &alone).await;
    ready(stage, &["latest", "alone"]).await;
    stage.flowing = false;
}

/// Partitions are added, a Subscription leaves the pool, which goes, and another is deleted.
pub(crate) async fn change(stage: &mut Stage<'_>) {
    let (cluster, namespace) = (stage.cluster, stage.namespace.clone());
    let more =
        json!({"spec": {"broker": {"kafka": {"topic": {"partitions": 4, "allowReorder": true}}}}});
    cluster
        .api::<FanoutTopic>(&namespace)
        .patch("posts", &PatchParams::default(), &Patch::Merge(&more))
        .await
        .unwrap();
    let own = json!({"spec": {"isolation": "Dedicated", "filter": "event.type == 'post.created'"}});
    cluster
        .api::<Subscription>(&namespace)
        .patch("latest", &PatchParams::default(), &Patch::Merge(&own))
        .await
        .unwrap();
    cluster
        .api::<Subscription>(&namespace)
        .delete("alone", &DeleteParams::default())
        .await
        .unwrap();
    ready(stage, &["latest"]).await;
}

/// Everything is deleted at once: nothing is left on the API server nor on the broker, and nothing was given up.
pub(crate) async fn delete(stage: &mut Stage<'_>) {
    let (cluster, namespace) = (stage.cluster, stage.namespace.clone());
    let now = DeleteParams::default();
    let subscriptions = cluster.api::<Subscription>(&namespace);
    subscriptions.delete("latest", &now).await.unwrap();
    let topics = cluster.api::<FanoutTopic>(&namespace);
    topics.delete("posts", &now).await.unwrap();
    let name = format!("{namespace}.posts");
    eventually(LIMIT, "nothing is left", async || {
        stage.tick().await?;
        for topic in [names::dead_letter_topic(&name), name.clone()] {
            let found = stage.broker.describe_topic(&topic).await?;
            anyhow::ensure!(found.is_none(), "{found:?}");
        }
        for subscription in ["latest", "alone"] {
            let group = format!("{namespace}.{subscription}");
            let committed = stage.broker.committed(&group, &name).await?;
            anyhow::ensure!(committed.is_empty(), "{group}: {committed:?}");
        }
        let left = state::read(stage).await?;
        let left: Vec<&String> = left.keys().filter(|name| name.contains('/')).collect();
        anyhow::ensure!(left.is_empty(), "{left:?}");
        anyhow::Ok(())
    })
    .await;
    let events = cluster.api::<Event>(&namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let given_up: Vec<_> = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some(CLEANUP_INCOMPLETE))
        .map(|event| event.note.as_deref())
        .collect();
    assert_eq!(given_up, Vec::<Option<&str>>::new());
}

/// Waits until the topic and `subscriptions` are Ready at their generations.
pub(crate) async fn ready(stage: &mut Stage<'_>, subscriptions: &[&str]) {
    eventually(LIMIT, "everything is Ready", async || {
        stage.tick().await?;
        let topic: FanoutTopic = stage.cluster.get(&stage.namespace, "posts").await?;
        let status = topic.status.clone().unwrap_or_default();
        holds(&topic, &status.conditions)?;
        for name in subscriptions {
            let found: Subscription = stage.cluster.get(&stage.namespace, name).await?;
            let status = found.status.clone().unwrap_or_default();
            holds(&found, &status.conditions)?;
        }
        anyhow::Ok(())
    })
    .await;
}

fn holds<K: Resource>(
    object: &K,
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
) -> anyhow::Result<()> {
    reads(
        conditions,
        object.meta().generation,
        READY,
        "True/Succeeded",
    )
    .map_err(|found| anyhow::anyhow!("{}: {found}", object.name_any()))
}

/// Waits until nothing has been written for a while, and reads the state.
pub(crate) async fn settled(stage: &mut Stage<'_>) -> State {
    let mut before = (usize::MAX, Instant::now());
    eventually(LIMIT, "the operator is quiet", async || {
        stage.tick().await?;
        let writes = stage.api.script().writes();
        let writes = writes.iter().filter(|write| !write.is_lease()).count();
        if writes != before.0 {
            before = (writes, Instant::now());
        }
        anyhow::ensure!(before.1.elapsed() > QUIET, "{writes} writes");
        state::read(stage).await
    })
    .await
}

/// Waits until the state is `expected`.
pub(crate) async fn ends_as(stage: &mut Stage<'_>, expected: &State, what: &str) {
    eventually(LIMIT, &format!("the same end: {what}"), async || {
        stage.tick().await?;
        let found = state::read(stage).await?;
        let differences = state::differences(expected, &found);
        anyhow::ensure!(differences.is_empty(), "{}", differences.join("\n"));
        anyhow::Ok(())
    })
    .await;
}

/// Where a Subscription starts was decided once: what is committed is what was recorded first, whatever came in between.
pub(crate) async fn starts_where_first_recorded(stage: &Stage<'_>) {
    let writes = stage.api.script().writes();
    let first = writes
        .iter()
        .filter(|write| write.name == "latest" && write.answered == Some(200))
        .find_map(|write| {
            let body: serde_json::Value = serde_json::from_slice(&write.body).ok()?;
            let positions = body.pointer("/status/positions")?.as_array()?.clone();
            Some(positions).filter(|positions| !positions.is_empty())
        })
        .expect("positions were recorded");
    let group = format!("{}.latest", stage.namespace);
    let topic = format!("{}.posts", stage.namespace);
    let committed = stage.broker.committed(&group, &topic).await.unwrap();
    for position in first {
        let partition = i32::try_from(position["partition"].as_i64().unwrap()).unwrap();
        assert_eq!(
            committed.get(&partition).copied(),
            position["offset"].as_i64(),
            "partition {partition}"
        );
    }
}
