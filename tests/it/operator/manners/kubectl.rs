//! What people do with kubectl: apply, diff, wait, watch, explain, and share an object or a worker with other managers.

use crate::operator::cluster::{Cluster, LIMIT};
use crate::operator::played::Played;
use crate::operator::{secrets, subscription, topic};
use fanout_tests::eventually;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::ResourceExt as _;
use serde_json::Value;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

/// `kubectl` in a namespace.
pub(super) struct Kubectl<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
}

/// What a command said.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) code: i32,
    stdout: String,
    stderr: String,
}

impl<'a> Kubectl<'a> {
    pub(super) const fn new(cluster: &'a Cluster, namespace: &'a str) -> Self {
        Self { cluster, namespace }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::from(self.cluster.server.kubectl());
        command
            .args(["--namespace", self.namespace])
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    pub(super) async fn run(&self, arguments: &[&str]) -> Said {
        self.run_with(arguments, "").await
    }

    async fn run_with(&self, arguments: &[&str], input: &str) -> Said {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that fails early closes its input, which its status tells.
        stdin.write_all(input.as_bytes()).await.ok();
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        Said {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(super) async fn output(&self, arguments: &[&str]) -> String {
        self.output_with(arguments, "").await
    }

    async fn output_with(&self, arguments: &[&str], input: &str) -> String {
        let said = self.run_with(arguments, input).await;
        assert_eq!(said.code, 0, "kubectl {arguments:?}: {said:?}");
        said.stdout
    }

    pub(super) async fn object(&self, kind: &str, name: &str) -> Value {
        let text = self
            .output(&["get", kind, name, "--output=json", "--show-managed-fields"])
            .await;
        serde_json::from_str(&text).unwrap()
    }

    /// `kubectl apply --server-side` of a manager.
    async fn apply_as(&self, manager: &str, object: &str, force: bool) -> Said {
        let manager = format!("--field-manager={manager}");
        let force = format!("--force-conflicts={force}");
        let arguments = ["apply", "--server-side", &manager, &force, "--filename=-"];
        self.run_with(&arguments, object).await
    }
}

pub(super) async fn shows_and_changes(cluster: &Cluster) {
    let namespace = cluster.server.namespace("kubectl").await;
    let kubectl = Kubectl::new(cluster, &namespace);
    // Labels of deployment tools: whoever finds them on an object takes it for its own.
    let topic = topic("posts", &cluster.bootstrap).replace(
        "metadata: {name: posts}",
        "metadata: {name: posts, labels: {app.kubernetes.io/instance: shop}, annotations: {argocd.argoproj.io/tracking-id: shop}}",
    );
    let documents = [
        secrets(),
        topic,
        subscription("plain", "posts", "").replace(
            "{name: plain}",
            "{name: plain, labels: {app.kubernetes.io/instance: shop}}",
        ),
    ]
    .join("\n---\n");
    kubectl
        .output_with(&["apply", "--filename=-"], &documents)
        .await;

    becomes_ready(cluster, &kubectl).await;
    differs_only_where_it_was_changed(&kubectl, &documents).await;
    managers_share_an_object(&kubectl).await;
    a_worker_keeps_what_others_add(cluster, &kubectl).await;
    workers_carry_no_tool_s_labels(cluster, &namespace).await;
    explains_every_part(&kubectl).await;
}

/// `kubectl wait` and `kubectl get --watch`.
async fn becomes_ready(cluster: &Cluster, kubectl: &Kubectl<'_>) {
    const BOTH: [&str; 2] = [
        "fanouttopics.fanout.dev/posts",
        "subscriptions.fanout.dev/plain",
    ];
    let wait = |limit| [&["wait", "--for=condition=Ready", limit][..], &BOTH].concat();
    let early = kubectl.run(&wait("--timeout=1s")).await;
    assert_eq!(early.code, 1, "{early:?}");
    assert!(early.stderr.contains("timed out"), "{early:?}");

    let mut watching = kubectl
        .command(&["get", "subscriptions.fanout.dev", "plain", "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rows = BufReader::new(watching.stdout.take().unwrap()).lines();
    let header = rows.next_line().await.unwrap().unwrap();
    assert_eq!(
        header.split_whitespace().collect::<Vec<_>>(),
        [
            "NAME", "TOPIC", "SINK", "READY", "DEPTH", "OLDEST", "WORKERS", "REASON", "AGE"
        ]
    );

    let limit = format!("--timeout={}s", LIMIT.as_secs());
    let arguments = wait(&limit);
    let play = async {
        let relay = Played::start(cluster, kubectl.namespace, "posts-relay").await;
        relay.relay(cluster).await;
        let pool = Played::start(cluster, kubectl.namespace, "posts-pool-0").await;
        pool.consume(cluster).await;
        (relay, pool)
    };
    let watch = async {
        loop {
            let row = rows.next_line().await.unwrap().expect("the watch goes on");
            let cells: Vec<&str> = row.split_whitespace().collect();
            assert_eq!(cells[..2], ["plain", "posts"], "{row}");
            // Before the first status the columns are empty.
            if cells.get(3) == Some(&"True") {
                assert!(
                    cells.contains(&"1/1") && cells.contains(&"Succeeded"),
                    "{row}"
                );
                return;
            }
        }
    };
    let (played, waited, watched) = tokio::join!(
        play,
        kubectl.run(&arguments),
        tokio::time::timeout(LIMIT, watch)
    );
    drop(played);
    assert_eq!(waited.code, 0, "{waited:?}");
    assert_eq!(waited.stdout.matches("condition met").count(), 2);
    watched.expect("the watch shows the row that says it is ready");
}

/// `kubectl diff`: neither defaults nor the status count as somebody's change.
async fn differs_only_where_it_was_changed(kubectl: &Kubectl<'_>, documents: &str) {
    const DIFF: [&str; 2] = ["diff", "--filename=-"];
    let same = kubectl.run_with(&DIFF, documents).await;
    assert_eq!(same.code, 0, "{same:?}");
    let filter = "  filter: event.type == 'post.created'";
    let changed = subscription("plain", "posts", filter);
    let found = kubectl
        .run_with(
            &DIFF,
            &changed.replace(
                "{name: plain}",
                "{name: plain, labels: {app.kubernetes.io/instance: shop}}",
            ),
        )
        .await;
    assert_eq!(found.code, 1, "{found:?}");
    let lines: Vec<&str> = found
        .stdout
        .lines()
        .filter(|line| {
            line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---")
        })
        .map(str::trim_end)
        .collect();
    assert_eq!(
        lines,
        [
            "-  generation: 1",
            "+  generation: 2",
            "+  filter: event.type == 'post.created'"
        ],
        "{found:?}"
    );
}

/// Two managers, and the operator beside them.
async fn managers_share_an_object(kubectl: &Kubectl<'_>) {
    let with = |extra: &str| subscription("shared", "posts", extra);
    let part = |spec: &str| {
        format!(
            "apiVersion: fanout.dev/v1alpha1\nkind: Subscription\nmetadata: {{name: shared}}\nspec: {spec}"
        )
    };
    let alices = with("  filter: event.type == 'a'");
    let said = kubectl.apply_as("alice", &alices, false).await;
    assert_eq!(said.code, 0, "{said:?}");
    eventually(LIMIT, "the operator has written its status", async || {
        let object = kubectl.object("subscriptions.fanout.dev", "shared").await;
        let managers = &object["metadata"]["managedFields"];
        let operators: Vec<&Value> = managers
            .as_array()
            .into_iter()
            .flatten()
            .filter(|entry| {
                let name = entry["manager"].as_str().unwrap_or_default();
                name.starts_with("fanout-operator")
            })
            .collect();
        anyhow::ensure!(!operators.is_empty(), "{managers}");
        for entry in operators {
            assert_eq!(entry["subresource"], "status", "{entry}");
            let fields = entry["fieldsV1"].as_object().unwrap();
            assert_eq!(fields.keys().collect::<Vec<_>>(), ["f:status"]);
        }
        Ok(())
    })
    .await;

    let bobs = part("{filter: event.type == 'b'}");
    let refused = kubectl.apply_as("bob", &bobs, false).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused.stderr.contains("conflict with \"alice\"")
            && refused.stderr.contains(".spec.filter"),
        "{refused:?}"
    );
    // What nobody else wants is his.
    let limit = part("{delivery: {maxInFlight: 7}}");
    let said = kubectl.apply_as("bob", &limit, false).await;
    assert_eq!(said.code, 0, "{said:?}");
    let said = kubectl.apply_as("alice", &alices, false).await;
    assert_eq!(
        said.code, 0,
        "the operator and bob are in nobody's way: {said:?}"
    );
    let both = kubectl.object("subscriptions.fanout.dev", "shared").await;
    assert_eq!(both["spec"]["delivery"]["maxInFlight"], 7);
    assert_eq!(both["spec"]["filter"], "event.type == 'a'");
    // Who insists takes it over, and the other is told.
    let said = kubectl.apply_as("bob", &bobs, true).await;
    assert_eq!(said.code, 0, "{said:?}");
    let refused = kubectl.apply_as("alice", &alices, false).await;
    assert!(
        refused.stderr.contains("conflict with \"bob\""),
        "{refused:?}"
    );
    kubectl
        .output(&["delete", "subscriptions.fanout.dev", "shared"])
        .await;
}

/// A worker's Deployment belongs to the operator; what it does not care for is left alone.
async fn a_worker_keeps_what_others_add(cluster: &Cluster, kubectl: &Kubectl<'_>) {
    let namespace = kubectl.namespace;
    kubectl
        .output(&["label", "deployment", "posts-relay", "team=social"])
        .await;
    let mark = cluster.server.mark();
    kubectl
        .output(&["scale", "deployment", "posts-relay", "--replicas=3"])
        .await;
    let mended = async |what| {
        cluster
            .until(namespace, "posts-relay", what, |deployment: &Deployment| {
                let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
                if replicas == Some(1) && deployment.metadata.generation >= Some(3) {
                    Ok(())
                } else {
                    Err(format!("{replicas:?}"))
                }
            })
            .await
    };
    let deployment = mended("the scale is as the FanoutTopic says").await;
    assert_eq!(deployment.labels()["team"], "social");

    let theirs =
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: posts-relay}\nspec: {replicas: 2}";
    let refused = kubectl.apply_as("ops", theirs, false).await;
    assert!(
        refused.stderr.contains("conflict with \"fanout-operator\""),
        "{refused:?}"
    );
    let said = kubectl.apply_as("ops", theirs, true).await;
    assert_eq!(said.code, 0, "{said:?}");
    let generation = deployment.metadata.generation;
    cluster
        .until(
            namespace,
            "posts-relay",
            "it is taken back",
            |found: &Deployment| {
                let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
                if replicas == Some(1) && found.metadata.generation > generation {
                    Ok(())
                } else {
                    Err(format!("{replicas:?}"))
                }
            },
        )
        .await;
    let writes = cluster.operator_writes(mark, namespace);
    let mending = writes
        .iter()
        .filter(|write| write.resource == "deployments.apps" && write.name == "posts-relay")
        .count();
    // A cache that lags behind may cost a second write; whoever fights writes again and again.
    assert!(
        (2..=4).contains(&mending),
        "about one write for each of the two changes: {writes:?}"
    );
}

async fn workers_carry_no_tool_s_labels(cluster: &Cluster, namespace: &str) {
    for worker in ["posts-relay", "posts-pool-0"] {
        let deployment: Deployment = cluster.get(namespace, worker).await.unwrap();
        let template = deployment.spec.clone().unwrap().template.metadata.unwrap();
        let config: ConfigMap = cluster.get(namespace, worker).await.unwrap();
        let secret: Secret = cluster.get(namespace, worker).await.unwrap();
        let account: ServiceAccount = cluster.get(namespace, worker).await.unwrap();
        for metadata in [
            deployment.metadata,
            template,
            config.metadata,
            secret.metadata,
            account.metadata,
        ] {
            let text = serde_json::to_string(&(metadata.labels, metadata.annotations)).unwrap();
            for foreign in ["app.kubernetes.io/instance", "argocd", "shop"] {
                assert!(!text.contains(foreign), "{worker}: {text}");
            }
        }
    }
}

/// `kubectl explain` has something to say at every level, and tells which conditions are bad when True.
async fn explains_every_part(kubectl: &Kubectl<'_>) {
    for (path, text) in [
        ("fanouttopics", "outbox table"),
        ("fanouttopics.spec", "rows are published to"),
        ("fanouttopics.spec.source.postgres", "outbox table"),
        ("fanouttopics.spec.broker.kafka", "Kafka"),
        ("fanouttopics.spec.relay.pod", "relay pods"),
        ("fanouttopics.status", "Abnormal when True: Reconciling"),
        ("subscriptions", "receiver"),
        ("subscriptions.spec", "FanoutTopic in the same namespace"),
        ("subscriptions.spec.sink.webhook", "HTTP endpoint"),
        ("subscriptions.spec.delivery.retry", "Attempts"),
        ("subscriptions.status", "Normal when True: Ready"),
        ("subscriptions.status.conditions", "What it means"),
    ] {
        let said = kubectl
            .output(&["explain", "--api-version=fanout.dev/v1alpha1", path])
            .await;
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(text), "{path}: {said}");
        assert!(!said.contains("<no description>"), "{path}: {said}");
    }
}
