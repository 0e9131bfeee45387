//! What deployment tools make of the objects: kstatus (Flux, Helm 4) by its own library, Argo CD by the script that
//! manifests/argocd-cm.yaml ships, run the way Argo CD does.

use crate::operator::cluster::{Cluster, LIMIT};
use crate::operator::played::Played;
use crate::operator::{secrets, subscription, topic};
use fanout_contract::consumer::{StopReason, SubscriptionState};
use fanout_contract::names;
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{Parked, Problem, RelayConfig, RelayStatus};
use fanout_crds::condition::{DELIVERING, LOG_READY, OUTBOX_BLOCKED, READY, STALLED};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::eventually;
use fanout_tests::services::{dirs, run};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Both tools, and a namespace with objects in every state.
pub(super) struct Tools<'a> {
    cluster: &'a Cluster,
    namespace: String,
    program: PathBuf,
    script: PathBuf,
}

/// What the tools say of one object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    kstatus: String,
    argo: String,
    argo_message: String,
}

impl<'a> Tools<'a> {
    pub(super) async fn new(cluster: &'a Cluster) -> Self {
        let namespace = cluster.server.namespace("health").await;
        let built = tokio::task::spawn_blocking(|| {
            run(Command::new("bash")
                .arg(dirs::tests_dir().join("cluster/build.sh"))
                .arg("health")
                .env("FANOUT_CACHE", dirs::cache()))
        });
        let script = argo_script(cluster, &namespace).await;
        Self {
            cluster,
            namespace,
            program: Path::new(built.await.unwrap().unwrap().trim()).join("health"),
            script,
        }
    }

    pub(super) async fn see_objects_that_no_operator_saw(&self) {
        self.apply(&secrets()).await;
        self.apply(&topic("posts", &self.cluster.bootstrap)).await;
        self.apply(&subscription("plain", "posts", "")).await;
        let unseen = ["InProgress", "Progressing", "has not seen"];
        self.topic("posts", unseen).await;
        self.subscription("plain", unseen).await;
    }

    pub(super) async fn see_every_state(&self) {
        self.see_what_waits_or_can_not_be_used().await;
        self.see_what_runs().await;
        self.see_what_is_deleted().await;
    }

    async fn see_what_waits_or_can_not_be_used(&self) {
        let (cluster, namespace) = (self.cluster, self.namespace.as_str());
        for document in [
            topic("no-secret", &cluster.bootstrap).replace("name: database,", "name: nowhere,"),
            topic("no-broker", "127.0.0.1:1"),
            subscription("bad-filter", "posts", "  filter: 'event.type =='"),
            subscription("refused", "posts", "").replace("198.18.0.1:8000", "10.96.0.1"),
            subscription("unlabelled", "posts", "").replace("{name: signing,", "{name: private,"),
            subscription("no-topic", "nowhere", ""),
        ] {
            self.apply(&document).await;
        }
        cluster
            .topic(namespace, "posts", LOG_READY, "True/Succeeded")
            .await;
        self.topic("posts", ["InProgress", "Progressing", "StatusUnknown: "])
            .await;
        for (name, condition, expected, verdict) in [
            (
                "no-secret",
                STALLED,
                "True/SecretNotPermitted",
                ["Failed", "Degraded", "SecretNotPermitted: "],
            ),
            (
                "no-broker",
                READY,
                "False/BrokerUnreachable",
                ["InProgress", "Progressing", "BrokerUnreachable: "],
            ),
        ] {
            cluster.topic(namespace, name, condition, expected).await;
            self.topic(name, verdict).await;
        }
        for (name, condition, expected, verdict) in [
            (
                "plain",
                READY,
                "False/PodsNotReady",
                ["InProgress", "Progressing", "PodsNotReady: "],
            ),
            (
                "no-topic",
                READY,
                "False/TopicNotFound",
                ["InProgress", "Progressing", "TopicNotFound: "],
            ),
            (
                "bad-filter",
                STALLED,
                "True/FilterInvalid",
                ["Failed", "Degraded", "FilterInvalid: spec.filter"],
            ),
            (
                "refused",
                STALLED,
                "True/AddressRefused",
                [
                    "Failed",
                    "Degraded",
                    "AddressRefused: spec.sink.webhook.url",
                ],
            ),
            (
                "unlabelled",
                STALLED,
                "True/SecretNotPermitted",
                ["Failed", "Degraded", "SecretNotPermitted: "],
            ),
        ] {
            cluster
                .subscription(namespace, name, condition, expected)
                .await;
            self.subscription(name, verdict).await;
        }
    }

    async fn see_what_runs(&self) {
        let (cluster, namespace) = (self.cluster, self.namespace.as_str());
        self.apply(&subscription("paused", "posts", "  suspend: true"))
            .await;
        let relay = Played::start(cluster, namespace, "posts-relay").await;
        relay.relay(cluster).await;
        let pool = Played::start(cluster, namespace, "posts-pool-0").await;
        let wait = async |name, condition, expected| {
            cluster
                .subscription(namespace, name, condition, expected)
                .await;
        };
        // Both may come in one configuration or in two.
        eventually(LIMIT, "the worker has both", async || {
            let config = pool.consume(cluster).await;
            anyhow::ensure!(config.subscriptions.len() == 2, "{config:?}");
            anyhow::Ok(())
        })
        .await;
        wait("plain", READY, "True/Succeeded").await;
        self.subscription("plain", ["Current", "Healthy", "Succeeded"])
            .await;
        wait("paused", READY, "True/Suspended").await;
        self.subscription("paused", ["Current", "Suspended", "Suspended: "])
            .await;

        // A receiver that is down is no failed rollout.
        pool.change("plain", |entry| {
            entry.delivering = Some(false);
            entry.reason = Some(StopReason::DeliveryFailing);
        });
        wait("plain", DELIVERING, "False/DeliveryFailing").await;
        self.subscription("plain", ["Current", "Healthy", "DeliveryFailing"])
            .await;
        pool.change("plain", |entry| {
            entry.state = SubscriptionState::Stopped;
            entry.reason = Some(StopReason::EndpointGone);
        });
        wait("plain", STALLED, "True/EndpointGone").await;
        self.subscription("plain", ["Failed", "Degraded", "EndpointGone"])
            .await;
        self.see_a_topic(&relay).await;
    }

    async fn see_a_topic(&self, relay: &Played) {
        let (cluster, namespace) = (self.cluster, self.namespace.as_str());
        let wait = async |condition, expected| {
            cluster.topic(namespace, "posts", condition, expected).await;
        };
        wait(READY, "True/Succeeded").await;
        self.topic("posts", ["Current", "Healthy", "Succeeded"])
            .await;
        let files = relay.told(cluster).await;
        let config: RelayConfig = serde_yaml::from_slice(&files[names::CONFIG_FILE]).unwrap();
        let working = RelayStatus {
            config_hash: fanout_runtime::config::hash(&files),
            generation: config.generation,
            source_checked: true,
            ..RelayStatus::default()
        };
        relay.report(&RelayStatus {
            parked: Parked { rows: 1, held: 2 },
            ..working.clone()
        });
        wait(OUTBOX_BLOCKED, "True/RowsParked").await;
        self.topic("posts", ["Current", "Healthy", "RowsParked: "])
            .await;
        relay.report(&RelayStatus {
            source_error: Some(Problem {
                class: SourceError::SourceAuthenticationFailed,
                message: "the password is refused".to_owned(),
            }),
            ..working
        });
        wait(STALLED, "True/SourceAuthenticationFailed").await;
        self.topic(
            "posts",
            ["Failed", "Degraded", "SourceAuthenticationFailed: "],
        )
        .await;
        let suspend = json!({"spec": {"suspend": true}});
        cluster
            .api::<FanoutTopic>(namespace)
            .patch("posts", &PatchParams::default(), &Patch::Merge(&suspend))
            .await
            .unwrap();
        wait(STALLED, "True/SourceAuthenticationFailed").await;
        relay.relay(cluster).await;
        wait(READY, "True/Suspended").await;
        self.topic("posts", ["Current", "Suspended", "Suspended: "])
            .await;
    }

    async fn see_what_is_deleted(&self) {
        let api = self.cluster.api::<Subscription>(&self.namespace);
        let hold =
            |finalizers: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let merge = PatchParams::default();
        api.patch("no-topic", &merge, &hold(&["tests/hold"]))
            .await
            .unwrap();
        api.delete("no-topic", &DeleteParams::default())
            .await
            .unwrap();
        let object = self.object("subscriptions.fanout.dev", "no-topic").await;
        assert_eq!(self.judge(&object).kstatus, "Terminating");
        api.patch("no-topic", &merge, &hold(&[])).await.unwrap();
    }

    /// What was in force is not what is wanted now.
    pub(super) async fn see_changes_that_no_operator_saw(&self) {
        let filter = json!({"spec": {"filter": "event.type == 'post.created'"}});
        self.cluster
            .api::<Subscription>(&self.namespace)
            .patch("paused", &PatchParams::default(), &Patch::Merge(&filter))
            .await
            .unwrap();
        self.subscription("paused", ["InProgress", "Progressing", "has not seen"])
            .await;
        let kubectl = super::kubectl::Kubectl::new(self.cluster, &self.namespace);
        let waited = kubectl
            .run(&[
                "wait",
                "--for=condition=Ready",
                "--timeout=2s",
                "subscriptions.fanout.dev/paused",
            ])
            .await;
        assert_eq!(waited.code, 1, "a condition of an older generation counts");
    }

    async fn apply(&self, yaml: &str) {
        self.cluster.apply(&self.namespace, yaml).await;
    }

    async fn topic(&self, name: &str, expected: [&str; 3]) {
        self.sees("fanouttopics.fanout.dev", name, expected).await;
    }

    async fn subscription(&self, name: &str, expected: [&str; 3]) {
        self.sees("subscriptions.fanout.dev", name, expected).await;
    }

    /// Asserts what kstatus and Argo CD say, and that Argo CD's message holds a text.
    async fn sees(&self, kind: &str, name: &str, [kstatus, argo, message]: [&str; 3]) {
        let object = self.object(kind, name).await;
        let found = self.judge(&object);
        assert!(
            found.kstatus == kstatus && found.argo == argo && found.argo_message.contains(message),
            "{name}: {found:?} instead of {kstatus}, {argo}, {message}: {object}"
        );
    }

    async fn object(&self, kind: &str, name: &str) -> Value {
        super::kubectl::Kubectl::new(self.cluster, &self.namespace)
            .object(kind, name)
            .await
    }

    fn judge(&self, object: &Value) -> Verdict {
        let mut child = Command::new(&self.program)
            .arg(&self.script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        serde_json::to_writer(child.stdin.take().unwrap(), object).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{object}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// The script as Argo CD finds it after its ConfigMap was patched as manifests/argocd-cm.yaml says.
async fn argo_script(cluster: &Cluster, namespace: &str) -> PathBuf {
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: argocd-cm}\ndata: {url: here}";
    cluster.apply(namespace, config).await;
    let patch = dirs::tests_dir().join("../manifests/argocd-cm.yaml");
    let patch = format!("--patch-file={}", patch.display());
    super::kubectl::Kubectl::new(cluster, namespace)
        .output(&["patch", "configmap", "argocd-cm", &patch])
        .await;
    let patched: ConfigMap = cluster.get(namespace, "argocd-cm").await.unwrap();
    let data = patched.data.unwrap();
    assert_eq!(data["url"], "here", "what was there stays");
    let [topic, subscription] = ["FanoutTopic", "Subscription"]
        .map(|kind| &data[&format!("resource.customizations.health.fanout.dev_{kind}")]);
    assert_eq!(topic, subscription, "one script serves both kinds");
    let file = dirs::private("argocd", 0o700).unwrap().join("health.lua");
    std::fs::write(&file, topic).unwrap();
    file
}
