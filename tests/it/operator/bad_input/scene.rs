//! One cluster with a healthy topic and a healthy Subscription, which every case runs beside.

use super::super::cluster::{Cluster, LIMIT, Operator};
use super::super::kubelet::Kubelet;
use super::board::{Board, Key, Row};
use fanout_crds::condition::{READY, STALLED};
use fanout_tests::checker::load;
use fanout_tests::checker::writer::Writer;
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::services;
use fanout_tests::services::kafka::{Kafka, SASL_PASSWORD};
use fanout_tests::services::postgres::{PASSWORD, Postgres};
use fanout_tests::{Sandbox, eventually};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::discovery::ApiResource;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What is wrong must be said within this time.
const SAID: Duration = Duration::from_secs(30);
/// FanoutTopic that is well, and the Subscription beside all cases.
pub(super) const POSTS: &str = "posts";
const STEADY: &str = "steady";
/// Between two events of the writer.
const PACE: Duration = Duration::from_millis(100);

/// What has to be said.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// On which object.
    pub(super) object: Key,
    /// On which condition, beside Ready.
    pub(super) condition: &'static str,
    /// Its value.
    pub(super) value: &'static str,
    /// Reason of the condition and of Ready.
    pub(super) reason: &'static str,
    /// What the message holds: the field, the thing, the next step.
    pub(super) words: &'static [&'static str],
    /// Does it wait for a human?
    pub(super) stalled: bool,
}

/// Shared by all cases.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) sandbox: Sandbox,
    pub(super) kafka: &'static Kafka,
    pub(super) postgres: &'static Postgres,
    pub(super) board: Board,
    kubelet: Kubelet,
    operator: Operator,
    steady: Receiver,
    written: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
    writer: tokio::task::JoinHandle<()>,
    cases: AtomicUsize,
}

impl Scene {
    pub(super) async fn start() -> Self {
        let cluster = Cluster::start().await;
        newer_definitions(&cluster).await;
        let operator = cluster.operator("only").await;
        let sandbox = Sandbox::new("bad_input").await;
        let namespace = cluster.server.namespace("bad-input").await;
        let kubelet = Kubelet::start(&cluster, &namespace);
        let steady = Receiver::start(&sandbox, STEADY, behave::ok()).await;
        let board = Board::start(cluster.client.clone());
        let (written, stop) = (Arc::default(), CancellationToken::new());
        let writer = write(&sandbox, Arc::clone(&written), stop.clone()).await;
        let scene = Self {
            kafka: services::kafka(),
            postgres: services::postgres(),
            namespace,
            sandbox,
            board,
            kubelet,
            operator,
            steady,
            written,
            stop,
            writer,
            cases: AtomicUsize::new(0),
            cluster,
        };
        let url = scene.sandbox.relay_url.clone();
        scene.secret("database", &[("url", &url)]).await;
        let bootstrap = scene.cluster.bootstrap.clone();
        scene
            .apply(&topic(POSTS, "database", &bootstrap, "partitions: 3"))
            .await;
        let url = scene.steady.url().to_owned();
        scene.apply(&subscription(STEADY, POSTS, &url, "")).await;
        scene.is_well(&scene.topic(POSTS)).await;
        scene.is_well(&scene.subscription(STEADY)).await;
        scene.delivers_beside().await;
        scene
    }

    /// Breaks something, waits until it is said, sees that what is beside is delivered, mends it, waits until all is well.
    pub(super) async fn case(
        &self,
        said: Said,
        wreck: impl AsyncFnOnce(),
        mend: impl AsyncFnOnce(),
    ) {
        wreck().await;
        let what = format!("{}/{}", said.condition, said.reason);
        let first = self
            .board
            .until(&said.object, SAID, &what, |row| is_said(&said, row))
            .await;
        self.delivers_beside().await;
        mend().await;
        let second = self.is_well(&said.object).await;
        let (_, _, name) = &said.object;
        let line = format!("{name:20} {what:45} said after {first:5.1?}, well after {second:5.1?}");
        eprintln!("{line}");
        self.cases.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the object is ready and nobody is asked to act; returns how long it took.
    pub(super) async fn is_well(&self, object: &Key) -> Duration {
        self.board
            .until(object, LIMIT, "is well", |row| {
                let ready = row.condition(READY);
                let stalled = row.condition(STALLED);
                let well = matches!(ready, Some(("True", "Succeeded", "")))
                    && matches!(stalled, Some(("False", ..)));
                if well { Ok(()) } else { Err(row.conditions()) }
            })
            .await
    }

    /// An event that is written from now on arrives at the healthy endpoint.
    pub(super) async fn delivers_beside(&self) {
        let before = self.written.lock().unwrap().len();
        let id = eventually(LIMIT, "an event is written", async || {
            let written = self.written.lock().unwrap();
            written.get(before).cloned().ok_or(before)
        })
        .await;
        self.arrives(STEADY, &id).await;
    }

    /// Waits until `receiver` has accepted the event.
    pub(super) async fn arrives(&self, receiver: &str, id: &str) {
        eventually(LIMIT, &format!("an event arrives at {receiver}"), async || {
            let arrived: bool = sqlx::query_scalar(
                "select exists (select from harness.received where receiver = $1 and event_id = $2 and status = 200)",
            )
            .bind(receiver)
            .bind(id)
            .fetch_one(self.sandbox.pool())
            .await?;
            anyhow::ensure!(arrived, "not yet");
            Ok(())
        })
        .await;
    }

    /// Commits one row of `topic` in the shared outbox; returns its event id.
    pub(super) async fn publish(&self, topic: &str) -> String {
        sqlx::query_scalar(
            "insert into public.outbox (topic, key, type, payload) values ($1, 'k', 'post.created', '{}') returning event_id::text",
        )
        .bind(topic)
        .fetch_one(self.sandbox.pool())
        .await
        .unwrap()
    }

    /// Everything that was written reached the healthy endpoint, and no message holds a secret.
    pub(super) async fn finish(self) {
        self.stop.cancel();
        self.writer.await.unwrap();
        let written = self.written.lock().unwrap().clone();
        assert!(written.len() > 100, "only {} events", written.len());
        eventually(LIMIT, "the healthy endpoint has everything", async || {
            let missing: i64 = sqlx::query_scalar(
                "select count(*) from unnest($1::text[]) id where not exists \
                 (select from harness.received where receiver = $2 and event_id = id and status = 200)",
            )
            .bind(&written)
            .bind(STEADY)
            .fetch_one(self.sandbox.pool())
            .await?;
            anyhow::ensure!(missing == 0, "{missing} of {} are missing", written.len());
            Ok(())
        })
        .await;
        for worker in ["posts-relay", "posts-pool-0"] {
            let log = self.kubelet.log(worker);
            assert!(!holds_secret(&log), "a secret in the log of {worker}");
        }
        let cases = self.cases.load(Ordering::Relaxed);
        eprintln!("{cases} cases, {} events beside", written.len());
        self.operator.stop().await;
    }

    /// Applies YAML documents into the scene's namespace.
    pub(super) async fn apply(&self, yaml: &str) {
        self.cluster.apply(&self.namespace, yaml).await;
    }

    /// Makes or replaces a labelled Secret.
    pub(super) async fn secret(&self, name: &str, values: &[(&str, &str)]) {
        self.secret_in(&self.namespace, name, values).await;
    }

    pub(super) async fn secret_in(&self, namespace: &str, name: &str, values: &[(&str, &str)]) {
        let values: serde_json::Map<String, Value> = values
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).into()))
            .collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "labels": {"fanout.dev/credentials": "true"}},
            "stringData": values,
        });
        self.cluster.apply(namespace, &secret.to_string()).await;
    }

    /// Merges `patch` into an object, whatever this version thinks of it.
    pub(super) async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()>,
    {
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.cluster.client.clone(),
            &self.namespace,
            &ApiResource::erase::<K>(&()),
        );
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        patched.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// Runs SQL as the superuser.
    pub(super) async fn sql(&self, database: &str, sql: &str) {
        let (postgres, database, sql) = (self.postgres, database.to_owned(), sql.to_owned());
        tokio::task::spawn_blocking(move || postgres.psql(&database, &sql, &[]).unwrap())
            .await
            .unwrap();
    }

    pub(super) fn topic(&self, name: &str) -> Key {
        ("fanouttopics", self.namespace.clone(), name.to_owned())
    }

    pub(super) fn subscription(&self, name: &str) -> Key {
        ("subscriptions", self.namespace.clone(), name.to_owned())
    }

    /// Name of a FanoutTopic's Kafka topic.
    pub(super) fn kafka_topic(&self, topic: &str) -> String {
        format!("{}.{topic}", self.namespace)
    }
}

/// A FanoutTopic on the outbox of Secret `database`, with one relay.
pub(super) fn topic(name: &str, database: &str, bootstrap: &str, kafka_topic: &str) -> String {
    topic_with(
        name,
        database,
        &format!("bootstrapServers: '{bootstrap}', topic: {{{kafka_topic}}}"),
    )
}

/// The same with other settings of the broker.
pub(super) fn topic_with(name: &str, database: &str, kafka: &str) -> String {
    format!(
        "
apiVersion: fanout.dev/v1alpha1
kind: FanoutTopic
metadata: {{name: {name}}}
spec:
  source: {{postgres: {{urlSecretRef: {{name: {database}, key: url}}, table: public.outbox}}}}
  broker: {{kafka: {{{kafka}}}}}
  relay: {{replicas: 1}}
"
    )
}

/// A Subscription from the first record on.
pub(super) fn subscription(name: &str, topic: &str, url: &str, extra: &str) -> String {
    format!(
        "
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: {name}}}
spec:
  topicRef: {{name: {topic}}}
  startFrom: {{position: Earliest}}
  sink: {{webhook: {{url: '{url}'}}}}
{extra}
"
    )
}

fn is_said(said: &Said, row: &Row) -> Result<(), String> {
    let found = row.condition(said.condition);
    let Some((value, reason, message)) = found else {
        return Err(row.conditions());
    };
    let words = said.words.iter().all(|word| message.contains(word));
    let stalled = row.condition(STALLED);
    let stalled = match stalled {
        Some(("True", reason, _)) => said.stalled && reason == said.reason,
        Some(_) => !said.stalled,
        None => false,
    };
    assert!(
        !holds_secret(&row.conditions()),
        "a secret in {}",
        row.conditions()
    );
    if (value, reason) == (said.value, said.reason)
        && words
        && stalled
        && row.column("Reason") == said.reason
    {
        // The message tells where to go.
        assert!(
            message.contains("spec.") || message.contains("status."),
            "{message}"
        );
        return Ok(());
    }
    Err(format!(
        "{} in column REASON; {}",
        row.column("Reason"),
        row.conditions()
    ))
}

fn holds_secret(text: &str) -> bool {
    [PASSWORD, SASL_PASSWORD, "wr0ng-passw0rd"]
        .iter()
        .any(|secret| text.contains(secret))
}

/// A newer version's definitions: values that this operator does not know.
async fn newer_definitions(cluster: &Cluster) {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    for (name, path) in [
        ("subscriptions.fanout.dev", "isolation/enum/-"),
        (
            "fanouttopics.fanout.dev",
            "source/properties/postgres/properties/claim/enum/-",
        ),
    ] {
        let add = json!([{"op": "add", "path": format!("{spec}/{path}"), "value": "Newer"}]);
        let patch = Patch::<()>::Json(serde_json::from_value(add).unwrap());
        let patched = crds.patch(name, &PatchParams::default(), &patch).await;
        assert_eq!(patched.unwrap().name_any(), name);
    }
}

/// Writes an event now and then until `stop`, each in a transaction of its own.
async fn write(
    sandbox: &Sandbox,
    written: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
) -> tokio::task::JoinHandle<()> {
    load::create_keys(sandbox, 8).await;
    let mut writer = Writer::connect(&sandbox.app_url, POSTS).await.unwrap();
    tokio::spawn(async move {
        for number in 0_u64.. {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PACE) => {}
            }
            writer.begin().await.unwrap();
            let id = writer.write(&format!("key-{}", number % 8)).await.unwrap();
            writer.commit().await.unwrap();
            written.lock().unwrap().push(id);
        }
    })
}
