//! The product, its services and a receiver in a namespace of their own on the cluster.

mod objects;
mod release;
pub(crate) mod traffic;

use crate::SOON;
use crate::command::{output, repository_file, try_with_input};
use crate::node::{self, Node};
use fanout_tests::{eventually, produced};
use release::Version;
use serde_json::{Value, json};
use std::time::Instant;

// As the demo installs it: on a cluster where the demo runs, both are the same release.
const RELEASE: &str = "fanout";
const OPERATOR_NAMESPACE: &str = "fanout-system";
const DATABASE: &str = "social";
/// What may be reached: the pods' and the services' addresses of the local cluster.
const RANGES: &str = "{10.244.0.0/24,10.96.0.0/16}";

/// Everything the test made.
#[derive(Debug)]
pub(crate) struct System {
    namespace: String,
    current: Version,
    installed_here: bool,
    started: Instant,
    // Last: the cluster outlives what runs on it.
    node: Node,
}

impl System {
    /// Installs the chart, starts Kafka, PostgreSQL and a receiver, and prepares the database.
    pub(crate) async fn install() -> Self {
        let started = Instant::now();
        let node = Node::start();
        let product = node::load_image("product");
        let images = ["demo", "kafka", "postgres"].map(|name| (name, node::load_image(name)));
        let mut system = Self {
            namespace: format!("cluster-test-{}", std::process::id()),
            current: Version::current(&product),
            installed_here: false,
            started,
            node,
        };
        system.step("the images are on the cluster");
        system.install_chart();
        system.step("the chart is installed");
        // The strictest policy of the namespace: workers and all have to pass it.
        system.apply(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": system.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }));
        for manifest in ["kafka", "postgres"] {
            system.apply_manifest(manifest, &images);
        }
        system.rollout(&["kafka", "postgres"]);
        system.prepare_database().await;
        system.apply_manifest("receiver", &images);
        system.apply_manifest("writer", &images);
        system.rollout(&["receiver"]);
        system.step("Kafka, PostgreSQL and the receiver run");
        system
    }

    /// Says how far the test is.
    pub(crate) fn step(&self, what: &str) {
        eprintln!("{:4} s  {what}", self.started.elapsed().as_secs());
    }

    fn apply_manifest(&self, name: &str, images: &[(&str, String)]) {
        let mut manifest = repository_file(&format!("tests/cluster/manifests/{name}.yaml"));
        for (name, image) in images {
            manifest = manifest.replace(&format!("{name}:IMAGE"), image);
        }
        self.kubectl_with_input(&["apply", "--filename=-"], &manifest);
    }

    fn rollout(&self, deployments: &[&str]) {
        for deployment in deployments {
            let deployment = format!("deployment/{deployment}");
            self.kubectl(&["rollout", "status", &deployment, "--timeout=300s"]);
        }
    }

    /// What a DBA does: roles, schema, outbox; and the Secrets that name them.
    async fn prepare_database(&self) {
        let (app, relay) = (password(), password());
        // Ready by the probe may still mean that the first connection comes too early on a busy machine.
        eventually(SOON, "the database answers", async || {
            self.try_sql("postgres", "select 1")
        })
        .await;
        self.sql(
            "postgres",
            &format!(
                "create role fanout_app login password '{app}';
                 create role fanout_relay login password '{relay}';
                 create database {DATABASE};"
            ),
        );
        for file in [
            "manifests/sql/00-fanout.sql",
            "manifests/sql/10-outbox.sql",
            "tests/demo/social.sql",
        ] {
            let variables = "\\set app_role fanout_app\n";
            self.sql(DATABASE, &format!("{variables}{}", repository_file(file)));
        }
        for (name, user, password) in [
            ("receiver-db", "fanout_app", app),
            ("relay-db", "fanout_relay", relay),
        ] {
            let url = format!(
                "postgres://{user}:{password}@postgres.{}.svc:5432/{DATABASE}",
                self.namespace
            );
            self.apply(&json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "labels": {"fanout.dev/credentials": "true"}},
                "stringData": {"url": url},
            }));
        }
    }

    /// Keeps what the product's processes logged and what the API server knows, Secrets aside.
    pub(crate) fn keep(&self) {
        if produced::dir().is_none() {
            return;
        }
        let kinds = "fanouttopics.fanout.dev,subscriptions.fanout.dev,deployments,replicasets,pods,configmaps,serviceaccounts,services,leases,events";
        for namespace in [self.namespace.as_str(), OPERATOR_NAMESPACE] {
            let place = ["--namespace", namespace];
            let objects =
                output(
                    self.node
                        .kubectl()
                        .args(place)
                        .args(["get", kinds, "--output=yaml"]),
                );
            produced::keep("cluster-objects", objects.as_bytes());
            let pods =
                output(
                    self.node
                        .kubectl()
                        .args(place)
                        .args(["get", "pods", "--output=name"]),
                );
            for pod in pods.lines() {
                let logs = ["logs", pod, "--all-containers"];
                let log = output(self.node.kubectl().args(place).args(logs));
                produced::keep("cluster-pod.log", log.as_bytes());
            }
        }
        node::keep_logs();
    }

    /// Removes the namespace and, unless it was there before, the release; nothing of either may stay but the CRDs.
    pub(crate) async fn remove(self) {
        self.kubectl(&["delete", "namespace", &self.namespace, "--timeout=300s"]);
        if !self.uninstall() {
            return;
        }
        let selector = format!("--selector=app.kubernetes.io/instance={RELEASE}");
        let kinds = "deployments,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,services,configmaps,secrets";
        eventually(SOON, "nothing of the release is left", async || {
            let listed =
                self.kubectl(&["get", kinds, "--all-namespaces", &selector, "--output=name"]);
            if listed.trim().is_empty() {
                Ok(())
            } else {
                Err(listed)
            }
        })
        .await;
        // They are kept so that an uninstall can't take every FanoutTopic and Subscription of the cluster with it.
        for crd in ["fanouttopics.fanout.dev", "subscriptions.fanout.dev"] {
            self.kubectl(&["delete", "customresourcedefinition", crd, "--timeout=300s"]);
        }
        self.kubectl(&["delete", "namespace", OPERATOR_NAMESPACE, "--timeout=300s"]);
    }

    fn apply(&self, object: &Value) {
        self.kubectl_with_input(&["apply", "--filename=-"], &object.to_string());
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_with_input(arguments, "")
    }

    /// `Err` holds what it said on standard error.
    pub(crate) fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.try_kubectl_with_input(arguments, "")
    }

    fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> String {
        self.try_kubectl_with_input(arguments, input)
            .unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
    }

    fn try_kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.node.kubectl();
        command
            .arg("--namespace")
            .arg(&self.namespace)
            .args(arguments);
        try_with_input(&mut command, input)
    }

    fn sql(&self, database: &str, text: &str) -> String {
        self.try_sql(database, text)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_sql(&self, database: &str, text: &str) -> Result<String, String> {
        let mut command = self.node.kubectl();
        command
            .args([
                "--namespace",
                &self.namespace,
                "exec",
                "--stdin",
                "deployment/postgres",
                "--",
            ])
            .args([
                "psql",
                "--no-psqlrc",
                "--quiet",
                "--no-align",
                "--tuples-only",
                "--set=ON_ERROR_STOP=1",
            ])
            .args(["--username=postgres", "--dbname", database]);
        try_with_input(&mut command, text)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The cluster may be gone after this, so what explains the failure is shown now.
            for arguments in [
                "get pods,fanouttopics.fanout.dev,subscriptions.fanout.dev --all-namespaces --output=wide",
                "get events --all-namespaces --sort-by=.lastTimestamp",
                "logs --namespace=fanout-system --selector=app.kubernetes.io/name=fanout-operator --tail=50",
            ] {
                let _shown = self.node.kubectl().args(arguments.split(' ')).status();
            }
        }
    }
}

fn password() -> String {
    format!("{}{:016x}", produced::MARK, rand::random::<u64>())
}
