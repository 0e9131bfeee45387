//! Positions through everything that happens to groups and logs. Workers are real; events are written into the log by the
//! test.

mod expiry;
mod growth;
mod losses;
mod starts;

use super::cluster::Cluster;
use crate::consumer;
use crate::consumer::log::Log;
use fanout_crds::condition::{LOG_READY, READY};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_operator::kafka;
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::{Sandbox, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// For what takes the broker or a worker half a minute or more by itself.
const LONG: Duration = Duration::from_mins(6);
const EARLIEST: &str = "{position: Earliest}";
const LATEST: &str = "{position: Latest}";

type Offsets = BTreeMap<i32, i64>;

/// A namespace with FanoutTopic `posts`, and a way into its log.
struct Scene<'c> {
    cluster: &'c Cluster,
    sandbox: &'c Sandbox,
    namespace: String,
    topic: String,
    log: Log,
    kafka: Arc<kafka::Cluster>,
}

impl<'c> Scene<'c> {
    async fn new(cluster: &'c Cluster, sandbox: &'c Sandbox, label: &str) -> Self {
        let namespace = cluster.server.namespace(label).await;
        cluster.apply(&namespace, &super::secrets()).await;
        let topic = format!("{namespace}.posts");
        let scene = Self {
            log: Log::new(&cluster.bootstrap, &topic),
            kafka: cluster.kafka().await,
            cluster,
            sandbox,
            namespace,
            topic,
        };
        scene.make_topic().await;
        scene
    }

    async fn make_topic(&self) {
        let yaml = format!(
            "
apiVersion: fanout.dev/v1alpha1
kind: FanoutTopic
metadata: {{name: posts}}
spec:
  source: {{postgres: {{urlSecretRef: {{name: database, key: url}}, table: public.outbox}}}}
  broker: {{kafka: {{bootstrapServers: '{}', topic: {{partitions: 3, allowReorder: true}}}}}}
  relay: {{replicas: 1}}
",
            self.cluster.bootstrap
        );
        self.cluster.apply(&self.namespace, &yaml).await;
        self.cluster
            .topic(&self.namespace, "posts", LOG_READY, "True/Succeeded")
            .await;
    }

    /// An endpoint that accepts everything, and the Subscription `name` to it.
    async fn subscribe(&self, name: &str, start: &str, extra: &str) -> Receiver {
        let receiver = format!("{}-{name}", self.namespace);
        let receiver = Receiver::start(self.sandbox, &receiver, behave::ok()).await;
        self.make_subscription(name, receiver.url(), start, extra)
            .await;
        receiver
    }

    async fn make_subscription(&self, name: &str, url: &str, start: &str, extra: &str) {
        let yaml = format!(
            "
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: {name}}}
spec:
  topicRef: {{name: posts}}
  startFrom: {start}
  sink: {{webhook: {{url: '{url}', timeoutSeconds: 30}}}}
{extra}
"
        );
        self.cluster.apply(&self.namespace, &yaml).await;
    }

    /// Waits until `Ready` of `name` reads `expected`.
    async fn ready(&self, name: &str, expected: &str) -> Subscription {
        self.cluster
            .subscription(&self.namespace, name, READY, expected)
            .await
    }

    async fn change(&self, name: &str, patch: Value) {
        self.cluster
            .api::<Subscription>(&self.namespace)
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    async fn suspend(&self, name: &str, suspend: bool) {
        let patch = json!({"spec": {"suspend": suspend}});
        self.change(name, patch).await;
    }

    async fn change_topic(&self, patch: Value) {
        self.cluster
            .api::<FanoutTopic>(&self.namespace)
            .patch("posts", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    fn group(&self, name: &str) -> String {
        format!("{}.{name}", self.namespace)
    }

    /// Committed offsets of `name`, once Kafka answers.
    async fn committed(&self, name: &str) -> Offsets {
        let group = self.group(name);
        eventually(LONG, "Kafka tells the committed offsets", async || {
            self.kafka.committed(&group, &self.topic).await
        })
        .await
    }

    /// Waits until the committed offsets of `name` are as `accept` wants them.
    async fn until_committed(&self, name: &str, what: &str, accept: impl Fn(&Offsets) -> bool) {
        eventually(LONG, &format!("{name}: {what}"), async || {
            let committed = self.committed(name).await;
            if accept(&committed) {
                Ok(())
            } else {
                Err(format!("{committed:?}"))
            }
        })
        .await;
    }

    /// Positions in the status.
    async fn saved(&self, name: &str) -> Offsets {
        let subscription: Subscription = self.cluster.get(&self.namespace, name).await.unwrap();
        let positions = subscription.status.unwrap().positions;
        positions
            .iter()
            .map(|position| (position.partition, position.offset))
            .collect()
    }

    /// Waits until everything committed is in the status, and returns it.
    async fn until_saved(&self, name: &str) -> Offsets {
        eventually(LONG, &format!("{name} is saved"), async || {
            let (committed, saved) = (self.committed(name).await, self.saved(name).await);
            if committed == saved {
                Ok(saved)
            } else {
                Err(format!("committed {committed:?}, saved {saved:?}"))
            }
        })
        .await
    }

    async fn drained(&self, name: &str) {
        self.log.drained(&self.group(name)).await;
    }

    async fn accepted(&self, receiver: &Receiver) -> Vec<String> {
        consumer::accepted(self.sandbox, receiver.name()).await
    }

    /// Waits until `receiver` has accepted `ids`, whatever else it has.
    async fn arrive(&self, receiver: &Receiver, ids: &[String]) {
        let what = format!("{} events arrive at {}", ids.len(), receiver.name());
        eventually(LONG, &what, async || {
            let seen: BTreeSet<_> = self.accepted(receiver).await.into_iter().collect();
            let missing: Vec<_> = ids.iter().filter(|id| !seen.contains(*id)).collect();
            if missing.is_empty() {
                Ok(())
            } else {
                Err(format!("{missing:?} are missing"))
            }
        })
        .await;
    }

    /// Exactly `ids` arrived, each once.
    async fn assert_exactly(&self, receiver: &Receiver, ids: &[String]) {
        let mut accepted = self.accepted(receiver).await;
        accepted.sort_unstable();
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        assert_eq!(accepted, ids, "{}", receiver.name());
    }

    /// Watches that the committed offsets of `name` never go back.
    fn watch(&self, name: &str) -> Watch {
        let (kafka, topic, group) = (
            Arc::clone(&self.kafka),
            self.topic.clone(),
            self.group(name),
        );
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut highest = Offsets::new();
            let mut looks = 0;
            let mut ticks = tokio::time::interval(Duration::from_millis(100));
            while !stopped.is_cancelled() {
                ticks.tick().await;
                let Ok(committed) = kafka.committed(&group, &topic).await else {
                    continue;
                };
                looks += 1;
                for (partition, offset) in committed {
                    let before = highest.insert(partition, offset).unwrap_or(0);
                    assert!(
                        before <= offset,
                        "{group}: partition {partition} went back from {before} to {offset}"
                    );
                }
            }
            looks
        });
        Watch { stop, task }
    }

    /// What controllers write when the nodes of all workers are lost.
    async fn nodes_are_lost(&self) {
        let pods = self
            .cluster
            .api::<k8s_openapi::api::core::v1::Pod>(&self.namespace);
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            pods.delete(&pod.name_any(), &kube::api::DeleteParams::default())
                .await
                .unwrap();
        }
        let deployments = self.cluster.api::<Deployment>(&self.namespace);
        let status = json!({"status": {
            "replicas": 0, "updatedReplicas": 0, "readyReplicas": 0, "availableReplicas": 0,
        }});
        for deployment in deployments.list(&ListParams::default()).await.unwrap() {
            deployments
                .patch_status(
                    &deployment.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(&status),
                )
                .await
                .unwrap();
        }
    }
}

/// A running [`Scene::watch`].
struct Watch {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<u32>,
}

impl Watch {
    async fn end(self) {
        self.stop.cancel();
        let looks = self.task.await.unwrap();
        assert!(looks > 10, "it has hardly looked: {looks}");
    }
}

/// Cases that need no service of their own, side by side in namespaces of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_begin_where_they_are_told_and_skip_nothing() {
    let (cluster, operator) = Cluster::shared().await;
    let sandbox = Sandbox::new("op_positions").await;
    tokio::join!(
        Box::pin(starts::first_positions_and_a_name_made_anew(
            &cluster, &sandbox
        )),
        Box::pin(starts::a_group_with_members_begins_at_start_offsets(
            &cluster, &sandbox
        )),
        Box::pin(starts::the_101st_goes_to_a_second_pool(&cluster, &sandbox)),
        Box::pin(growth::partitions_added_later_start_at_0(
            &cluster, &sandbox
        )),
        Box::pin(losses::what_retention_removed_is_loud(&cluster, &sandbox)),
        Box::pin(losses::all_of_a_replaced_log_is_new(&cluster, &sandbox)),
    );
    operator.leave();
}
