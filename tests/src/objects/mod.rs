//! Many FanoutTopics and Subscriptions on a real API server and a real broker, served by the operator's own binary; their
//! workers are played. What the benchmark measures and a test asserts in small.

mod tally;

use crate::eventually;
use crate::fleet::Fleet;
use crate::process::OperatorProcess;
use crate::services::api_server::{ApiServer, Write};
use crate::services::{self, dirs};
use anyhow::Context as _;
use fanout_crds::{FanoutTopic, Subscription};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::time::{Duration, Instant};
use tally::Tally;

/// Requests of this harness under way at once.
const AT_ONCE: usize = 16;
/// Partitions of each Kafka topic.
const PARTITIONS: i32 = 3;
/// Between two lots of records for every topic.
const BETWEEN_LOTS: Duration = Duration::from_millis(250);
/// Records for every topic in one lot: more than a count must move by to be worth a write.
const LOT: usize = 150;

/// How many objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// FanoutTopics.
    pub topics: usize,
    /// Subscriptions of each.
    pub subscriptions: usize,
}

impl Plan {
    /// All Subscriptions.
    pub const fn all(self) -> usize {
        self.topics * self.subscriptions
    }
}

/// The servers and the objects.
pub struct Objects {
    /// The API server, which nobody else uses.
    pub server: ApiServer,
    /// Namespace of all objects.
    pub namespace: String,
    plan: Plan,
    client: Client,
    bootstrap: String,
    topics: Tally,
    subscriptions: Tally,
    _fleet: Fleet,
}

impl Objects {
    /// Starts the servers, with a namespace that has no objects but Secrets.
    pub async fn prepare(plan: Plan) -> Self {
        let kafka = tokio::task::spawn_blocking(services::kafka);
        let server = tokio::task::spawn_blocking(ApiServer::start)
            .await
            .expect("no panic")
            .expect("the API server starts");
        let client = server.client().await;
        let install = dirs::tests_dir().join("../manifests/install.yaml");
        server.apply(&client, &install).await;
        let namespace = server.namespace("many").await;
        let this = Self {
            topics: Tally::start::<FanoutTopic>(&client, &namespace),
            subscriptions: Tally::start::<Subscription>(&client, &namespace),
            _fleet: Fleet::start(&client, &namespace),
            bootstrap: kafka.await.expect("Kafka starts").bootstrap(),
            server,
            namespace,
            plan,
            client,
        };
        for (name, key, value) in [
            ("database", "url", "postgres://relay:secret@database/social"),
            ("signing", "key", "whsec_c2NhbGUtb2Ytb2JqZWN0cw=="),
        ] {
            let secret = json!({
                "metadata": {"name": name, "labels": {"fanout.dev/credentials": "true"}},
                "stringData": {key: value},
            });
            this.create::<Secret>(secret).await.expect("a Secret");
        }
        this
    }

    /// Creates all objects, and returns how long that took.
    pub async fn create_all(&self) -> Duration {
        let began = Instant::now();
        self.side_by_side(0..self.plan.topics, async |topic| {
            self.create::<FanoutTopic>(self.topic(topic)).await
        })
        .await;
        self.side_by_side(0..self.plan.all(), async |index| {
            self.create::<Subscription>(self.subscription(index)).await
        })
        .await;
        began.elapsed()
    }

    /// Changes the filter of every Subscription.
    pub async fn change_all(&self) {
        self.side_by_side(0..self.plan.all(), async |index| self.change(index).await)
            .await;
    }

    /// Changes the filter of one Subscription.
    pub async fn change(&self, index: usize) -> kube::Result<()> {
        let filter = format!("event.type == 'changed-{}'", rand::random::<u32>());
        let patch = json!({"spec": {"filter": filter}});
        self.patch(index, &patch).await
    }

    /// Sets an annotation of one Subscription that means nothing to the operator.
    pub async fn touch(&self, index: usize) -> kube::Result<()> {
        let value = rand::random::<u32>().to_string();
        let patch = json!({"metadata": {"annotations": {"tests/touched": value}}});
        self.patch(index, &patch).await
    }

    async fn patch(&self, index: usize, patch: &Value) -> kube::Result<()> {
        self.api::<Subscription>()
            .patch(&name(index), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
    }

    /// Deletes the ConfigMap of every worker.
    pub async fn delete_configurations(&self) {
        let workers = ListParams::default().labels(fanout_contract::names::WORKER_LABEL);
        self.api::<ConfigMap>()
            .delete_collection(&DeleteParams::default(), &workers)
            .await
            .expect("ConfigMaps can be deleted");
    }

    /// Waits until every object is Ready at its present generation; returns how long each Subscription took from its
    /// creation or last change of its spec, shortest first.
    pub async fn ready(&self, limit: Duration) -> Vec<Duration> {
        let wanted = (self.plan.topics, self.plan.all());
        eventually(limit, "every object is Ready", async || {
            let ready = (self.topics.ready(), self.subscriptions.ready());
            if ready == wanted {
                Ok(())
            } else {
                Err(format!("{ready:?} of {wanted:?} (topics, Subscriptions)"))
            }
        })
        .await;
        self.subscriptions.times_to_ready()
    }

    /// Waits until one Subscription is Ready at `generation`.
    pub async fn ready_at(&self, index: usize, generation: i64, limit: Duration) {
        let name = name(index);
        eventually(limit, &format!("{name} is Ready"), async || {
            let ready = self.subscriptions.is_ready_at(&name, generation);
            ready.then_some(()).ok_or("not yet")
        })
        .await;
    }

    /// Waits until every object shows its numbers and nobody has written any of them for `quiet`.
    pub async fn settled(&self, quiet: Duration, limit: Duration) {
        let wanted = (self.plan.topics, self.plan.all());
        eventually(limit, "the objects are left alone", async || {
            let shown = (self.topics.counted(), self.subscriptions.counted());
            let since = self.topics.quiet().min(self.subscriptions.quiet());
            if shown == wanted && since > quiet {
                Ok(())
            } else {
                Err(format!("{shown:?} counted, changed {since:?} ago"))
            }
        })
        .await;
    }

    /// Waits until an operator that has just started has been through every object and knows every depth; returns the
    /// number of its passes.
    pub async fn resynchronised(&self, operator: &OperatorProcess, limit: Duration) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a few thousand objects")]
        let wanted = (self.plan.topics as f64, self.plan.all() as f64);
        eventually(limit, "all objects were looked at", async || {
            let topics = operator.passes(Some("FanoutTopic")).await?;
            let subscriptions = operator.passes(Some("Subscription")).await?;
            let depths = operator.series("fanout_subscription_lag_records", "");
            let depths = depths.await?.len();
            anyhow::ensure!(
                topics >= wanted.0 && subscriptions >= wanted.1 && depths == self.plan.all(),
                "{topics} and {subscriptions} passes, {depths} depths"
            );
            anyhow::Ok(topics + subscriptions)
        })
        .await
    }

    /// What operators wrote since `mark`, or tried to.
    pub fn writes(&self, mark: usize) -> Vec<Write> {
        let mut writes = self.server.writes_since(mark);
        writes.retain(|write| write.user_agent.starts_with("fanout-operator/"));
        writes
    }

    /// Publishes to every topic for `time`, so that every depth grows all the while.
    pub async fn publish_for(&self, time: Duration) {
        let (namespace, topics) = (self.namespace.clone(), self.plan.topics);
        let bootstrap = self.bootstrap.clone();
        tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
            let producer: ThreadedProducer<DefaultProducerContext> = rdkafka::ClientConfig::new()
                .set("bootstrap.servers", bootstrap)
                .create()?;
            let end = Instant::now() + time;
            while Instant::now() < end {
                for topic in 0..topics {
                    let name = format!("{namespace}.t{topic}");
                    for _ in 0..LOT {
                        producer
                            .send(BaseRecord::<(), str>::to(&name).payload("{}"))
                            .map_err(|(error, _)| error)?;
                    }
                }
                std::thread::park_timeout(BETWEEN_LOTS);
            }
            producer.flush(Duration::from_secs(30))?;
            Ok(())
        })
        .await
        .expect("no panic")
        .expect("records can be produced");
    }

    /// Runs `act` on each of `items`, a few at once.
    async fn side_by_side(
        &self,
        items: std::ops::Range<usize>,
        act: impl AsyncFn(usize) -> kube::Result<()>,
    ) {
        stream::iter(items.map(|item| act(item)))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await
            .expect("the API server takes it");
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create<K>(&self, object: Value) -> kube::Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Serialize
            + DeserializeOwned
            + Debug,
    {
        let object: K = serde_json::from_value(object).expect("an object of its kind");
        self.api::<K>()
            .create(&PostParams::default(), &object)
            .await
            .map(drop)
    }

    fn topic(&self, index: usize) -> Value {
        json!({
            "apiVersion": "fanout.dev/v1alpha1", "kind": "FanoutTopic",
            "metadata": {"name": format!("t{index}")},
            "spec": {
                "source": {"postgres": {"urlSecretRef": {"name": "database", "key": "url"}, "table": "public.outbox"}},
                "broker": {"kafka": {"bootstrapServers": self.bootstrap, "topic": {"partitions": PARTITIONS}}},
                "relay": {"replicas": 1},
            },
        })
    }

    /// Name of its FanoutTopic.
    pub fn topic_of(&self, index: usize) -> String {
        format!("t{}", index % self.plan.topics)
    }

    fn subscription(&self, index: usize) -> Value {
        let name = name(index);
        json!({
            "apiVersion": "fanout.dev/v1alpha1", "kind": "Subscription",
            "metadata": {"name": name},
            "spec": {
                "topicRef": {"name": self.topic_of(index)},
                "filter": format!("event.type == 'type-{index}' && event.data.visibility == 'public'"),
                "sink": {"webhook": {
                    "url": format!("http://198.18.0.1:8000/{name}"),
                    "signing": {"secretRefs": [{"name": "signing", "key": "key"}]},
                }},
            },
        })
    }
}

/// Name of a Subscription.
pub fn name(index: usize) -> String {
    format!("s{index}")
}

/// The most of `writes` that began within one second, and how many a second there were between the first and the last.
pub fn pace(writes: &[Write]) -> anyhow::Result<(usize, f64)> {
    let mut times: Vec<f64> = writes
        .iter()
        .map(|write| write.at.as_duration().as_secs_f64())
        .collect();
    times.sort_by(f64::total_cmp);
    let (first, last) = (times.first(), times.last());
    let (first, last) = first.zip(last).context("no writes")?;
    let within_a_second = |start: &f64| {
        let from = times.partition_point(|time| time < start);
        times.partition_point(|time| *time < start + 1.0) - from
    };
    let most = times.iter().map(within_a_second).max().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "a few thousand writes")]
    let rate = (times.len() - 1) as f64 / (last - first).max(1.0);
    Ok((most, rate))
}
