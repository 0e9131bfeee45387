//! What the test does with the product: objects, events, and what it sees of both.

use super::{DATABASE, System};
use crate::SOON;
use crate::node;
use fanout_contract::consumer::{ConsumerConfig, ConsumerStatus};
use fanout_tests::eventually;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A container that stands still until this is dropped.
#[derive(Debug)]
pub(crate) struct Frozen {
    container: String,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        node::container("resume", &self.container);
    }
}

impl System {
    pub(crate) fn apply_topic(&self) {
        self.apply(&json!({
            "apiVersion": "fanout.dev/v1alpha1", "kind": "FanoutTopic", "metadata": {"name": "posts"},
            "spec": {
                "source": {"postgres": {"urlSecretRef": {"name": "relay-db", "key": "url"}, "table": "public.outbox"}},
                "broker": {"kafka": {
                    "bootstrapServers": format!("kafka.{}.svc:9092", self.namespace),
                    "topic": {"partitions": 3, "replicationFactor": 1},
                }},
            },
        }));
    }

    pub(crate) fn apply_subscription(&self, name: &str, filter: Option<&str>) {
        let mut subscription = json!({
            "apiVersion": "fanout.dev/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
            "spec": {
                "topicRef": {"name": "posts"},
                "startFrom": {"position": "Earliest"},
                "sink": {"webhook": {"url": format!("http://receiver.{}.svc:8080/hooks/{name}", self.namespace)}},
            },
        });
        if let Some(filter) = filter {
            subscription["spec"]["filter"] = filter.into();
        }
        self.apply(&subscription);
    }

    /// Merges `patch` into a Subscription and returns its new generation.
    pub(crate) fn patch_subscription(&self, name: &str, patch: &Value) -> i64 {
        let patch = patch.to_string();
        let arguments = [
            "patch",
            "subscriptions.fanout.dev",
            name,
            "--type=merge",
            "--output=json",
            "--patch",
            &patch,
        ];
        let changed: Value = serde_json::from_str(&self.kubectl(&arguments)).unwrap();
        changed["metadata"]["generation"].as_i64().unwrap()
    }

    pub(crate) fn delete(&self, kind: &str, name: &str) {
        self.kubectl(&["delete", kind, name, "--timeout=300s"]);
    }

    /// Deletes an object with `deletionPolicy: Delete`.
    pub(crate) async fn delete_thoroughly(&self, kind: &str, name: &str) {
        let policy = r#"{"spec": {"deletionPolicy": "Delete"}}"#;
        self.kubectl(&["patch", kind, name, "--type=merge", "--patch", policy]);
        eventually(SOON, "the operator will clean up", async || {
            let finalizers = "--output=jsonpath={.metadata.finalizers}";
            let found = self.kubectl(&["get", kind, name, finalizers]);
            if found.contains("fanout.dev/cleanup") {
                Ok(())
            } else {
                Err(found)
            }
        })
        .await;
        self.delete(kind, name);
    }

    /// What deletions with `deletionPolicy: Delete` left: positions in the database, and events that say that something stays.
    pub(crate) fn left_behind(&self) -> (String, String) {
        let positions = self.sql(DATABASE, "select topic from fanout.topics");
        let incomplete = "--field-selector=reason=CleanupIncomplete";
        let events = self.kubectl(&["get", "events", incomplete, "--output=name"]);
        (positions.trim().to_owned(), events.trim().to_owned())
    }

    pub(crate) async fn wait_ready(&self, name: &str, limit: Duration) {
        let generation = self.subscription(name)["metadata"]["generation"]
            .as_i64()
            .unwrap();
        self.wait_ready_at(name, generation, limit).await;
    }

    pub(crate) async fn wait_ready_at(&self, name: &str, generation: i64, limit: Duration) {
        eventually(
            limit,
            &format!("{name} is Ready at generation {generation}"),
            async || {
                if self.is_ready_at(name, generation) {
                    Ok(())
                } else {
                    Err(self.subscription(name)["status"].to_string())
                }
            },
        )
        .await;
    }

    pub(crate) fn is_ready_at(&self, name: &str, generation: i64) -> bool {
        let subscription = self.subscription(name);
        let ready = subscription["status"]["conditions"]
            .as_array()
            .and_then(|conditions| {
                conditions
                    .iter()
                    .find(|condition| condition["type"] == "Ready")
            });
        ready.is_some_and(|ready| {
            ready["status"] == "True" && ready["observedGeneration"] == generation
        })
    }

    /// Until the operator has done all it can: the worker's configuration holds the generation.
    pub(crate) async fn wait_config_rendered(&self, name: &str, generation: i64, limit: Duration) {
        eventually(
            limit,
            &format!("generation {generation} of {name} is in a worker's ConfigMap"),
            async || {
                let listed = self.kubectl(&[
                    "get",
                    "configmaps",
                    "--selector=fanout.dev/topic=posts",
                    "--output=json",
                ]);
                let listed: Value = serde_json::from_str(&listed).unwrap();
                let rendered = listed["items"].as_array().unwrap().iter().any(|map| {
                    let text = map["data"]["config.yaml"].as_str().unwrap_or_default();
                    let config: Option<ConsumerConfig> = serde_yaml::from_str(text).ok();
                    config.is_some_and(|config| {
                        config
                            .subscriptions
                            .iter()
                            .any(|one| one.name == name && one.generation == generation)
                    })
                });
                if rendered {
                    Ok(())
                } else {
                    Err(listed.to_string())
                }
            },
        )
        .await;
    }

    pub(crate) async fn wait_depth_zero(&self, name: &str, limit: Duration) {
        eventually(limit, &format!("the depth of {name} is 0"), async || {
            let status = &self.subscription(name)["status"];
            if status["depth"] == 0 {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
    }

    fn subscription(&self, name: &str) -> Value {
        let text = self.kubectl(&["get", "subscriptions.fanout.dev", name, "--output=json"]);
        serde_json::from_str(&text).unwrap()
    }

    pub(super) fn pods(&self, selector: &str) -> Vec<Value> {
        let selector = format!("--selector={selector}");
        let mut listed: Value =
            serde_json::from_str(&self.kubectl(&["get", "pods", &selector, "--output=json"]))
                .unwrap();
        match listed["items"].take() {
            Value::Array(pods) => pods,
            other => panic!("no list of pods: {other}"),
        }
    }

    /// UID and restarts of each worker's pod.
    pub(crate) fn worker_pods(&self) -> BTreeMap<String, (String, i64)> {
        let describe = |pod: &Value| {
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            let restarts = pod["status"]["containerStatuses"][0]["restartCount"]
                .as_i64()
                .unwrap();
            (
                pod["metadata"]["name"].as_str().unwrap().to_owned(),
                (uid, restarts),
            )
        };
        self.pods("fanout.dev/worker")
            .iter()
            .map(describe)
            .collect()
    }

    /// The one pod of the pool that serves every Subscription of this test.
    fn worker(&self) -> Value {
        let mut pods = self.pods("fanout.dev/worker=posts-pool-0");
        assert_eq!(pods.len(), 1, "one pod in the pool");
        pods.remove(0)
    }

    pub(crate) fn freeze_worker(&self) -> Frozen {
        let id = self.worker()["status"]["containerStatuses"][0]["containerID"].clone();
        let container = id
            .as_str()
            .unwrap()
            .trim_start_matches("containerd://")
            .to_owned();
        node::container("pause", &container);
        Frozen { container }
    }

    /// Generation of a Subscription that the worker says is in force.
    pub(crate) fn generation_in_worker(&self, name: &str) -> Option<i64> {
        let pod = self.worker()["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:8080/proxy/status",
            self.namespace
        );
        let status: ConsumerStatus =
            serde_json::from_str(&self.kubectl(&["get", "--raw", &path])).unwrap();
        status
            .subscriptions
            .iter()
            .find(|one| one.name == name)
            .map(|one| one.generation)
    }

    /// Commits `count` events and returns their ids.
    pub(crate) fn write(&self, kind: &str, count: u32) -> Vec<String> {
        self.insert(kind, count, "commit")
    }

    /// The same, but the transaction is rolled back.
    pub(crate) fn write_and_roll_back(&self, kind: &str, count: u32) -> Vec<String> {
        self.insert(kind, count, "rollback")
    }

    fn insert(&self, kind: &str, count: u32, end: &str) -> Vec<String> {
        let ids = self.sql(
            DATABASE,
            &format!(
                "begin;
                 insert into public.outbox (topic, key, type, payload)
                 select 'posts', 'author-' || n % 4, '{kind}',
                        convert_to(json_build_object('author', 'author-' || n % 4, 'sequence', n)::text, 'UTF8')
                   from generate_series(1, {count}) n returning event_id;
                 {end};"
            ),
        );
        ids.lines().map(str::to_owned).collect()
    }

    /// Ids of the events that the receiver has accepted for a Subscription.
    pub(crate) fn received(&self, name: &str) -> BTreeSet<String> {
        let query = format!(
            "select distinct event_id from social.receipts where subscription = '{name}' and status = 200"
        );
        self.sql(DATABASE, &query)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    pub(crate) async fn wait_received(&self, name: &str, ids: &[String], limit: Duration) {
        eventually(
            limit,
            &format!("{} events are delivered for {name}", ids.len()),
            async || {
                let received = self.received(name);
                let missing = ids.iter().filter(|id| !received.contains(*id)).count();
                if missing == 0 {
                    Ok(())
                } else {
                    Err(format!("{missing} are missing"))
                }
            },
        )
        .await;
    }

    pub(crate) fn nothing_labelled(&self, selector: &str) -> Result<(), String> {
        let selector = format!("--selector={selector}");
        let kinds = "deployments,replicasets,pods,configmaps,secrets,services";
        let listed = self.kubectl(&["get", kinds, &selector, "--output=name"]);
        if listed.trim().is_empty() {
            Ok(())
        } else {
            Err(listed)
        }
    }
}
