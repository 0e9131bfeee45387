//! One namespace of the matrix: what is made in it, how it goes, and what has to be left.

use super::{Broker, Case, Installed, Order, Policy, World};
use crate::operator::cluster::{Cluster, LIMIT};
use crate::operator::kubelet::Kubelet;
use fanout_contract::names::{self, CLEANUP_FINALIZER};
use fanout_crds::condition::{LOG_READY, POSITION_INITIALIZED, READY, reason};
use fanout_crds::deletion::CLEANUP_INCOMPLETE;
use fanout_crds::{FanoutTopic, Subscription};
use fanout_operator::kafka;
use fanout_tests::services::kafka::{SASL_PASSWORD, SASL_USER};
use fanout_tests::{Sandbox, eventually, services};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;

/// A FanoutTopic `posts`, a Subscription `all` and their Secrets.
pub(super) struct Place {
    pub(super) case: Case,
    pub(super) namespace: String,
    /// Where everything can be deleted: the outbox, and real workers.
    live: Option<(Sandbox, Kubelet)>,
    recorded: Recorded,
}

/// What there was outside of Kubernetes.
struct Recorded {
    topics: [(String, String); 2],
    group: String,
}

/// What is known after the deletion.
pub(super) struct Seen {
    /// When the first object, or the namespace, was deleted.
    pub(super) mark: usize,
    /// Reasons of the events on what was deleted, by object.
    incomplete: Vec<String>,
}

impl Place {
    pub(super) async fn make(world: &World, case: Case) -> Self {
        let cluster = &world.cluster;
        let namespace = cluster.server.namespace("gone").await;
        let live = if case.is_cleaned_up() {
            let sandbox = Sandbox::new("deletion").await;
            Some((sandbox, Kubelet::start(cluster, &namespace)))
        } else {
            None
        };
        let database = live.as_ref().map_or_else(
            || "postgres://relay@192.0.2.1/nowhere".to_owned(),
            |(sandbox, _)| sandbox.relay_url.clone(),
        );
        cluster
            .apply(&namespace, &secrets(&database, SASL_PASSWORD))
            .await;
        cluster.apply(&namespace, &objects(world, case)).await;
        cluster
            .subscription(&namespace, "all", POSITION_INITIALIZED, "True/Succeeded")
            .await;
        // Made by a pass of its own: one that is under way at the deletion would still make it.
        cluster
            .until(
                &namespace,
                "posts-pool-0",
                "exists",
                |_: &Deployment| Ok(()),
            )
            .await;
        let found = if live.is_some() {
            cluster
                .subscription(&namespace, "all", READY, "True/Succeeded")
                .await;
            cluster
                .topic(&namespace, "posts", READY, "True/Succeeded")
                .await
        } else {
            cluster
                .topic(&namespace, "posts", LOG_READY, "True/Succeeded")
                .await
        };
        finalizers_are_those_of_the_policy(cluster, &namespace, case.policy).await;
        let status = found.status.unwrap();
        let name = status.topic_name.unwrap();
        let recorded = Recorded {
            topics: [
                (name.clone(), status.topic_id.unwrap()),
                (
                    names::dead_letter_topic(&name),
                    status.dead_letter_topic_id.unwrap(),
                ),
            ],
            group: format!("{namespace}.all"),
        };
        Self {
            case,
            namespace,
            live,
            recorded,
        }
    }

    /// Makes Kafka refuse the password, and waits until the operator has noticed.
    pub(super) async fn refuse(&self, world: &World) {
        if self.case.broker != Broker::Refusing {
            return;
        }
        let secrets = secrets("postgres://relay@192.0.2.1/nowhere", "another password");
        world.cluster.apply(&self.namespace, &secrets).await;
        let expected = format!("False/{}", reason::BROKER_AUTHENTICATION_FAILED);
        world
            .cluster
            .topic(&self.namespace, "posts", LOG_READY, &expected)
            .await;
    }

    /// Deletes everything in the order of the case, and waits until it is gone.
    pub(super) async fn delete(&self, world: &World) -> Seen {
        let cluster = &world.cluster;
        let mut mark = cluster.server.mark();
        let api_topic = || self.end::<FanoutTopic>(cluster, "posts");
        let api_subscription = || self.end::<Subscription>(cluster, "all");
        match self.case.order {
            Order::TopicFirst => {
                api_topic().await;
                api_subscription().await;
            }
            Order::SubscriptionFirst => {
                api_subscription().await;
                api_topic().await;
            }
            Order::SecretFirst => {
                for secret in ["database", "kafka"] {
                    delete::<Secret>(cluster, &self.namespace, secret).await;
                }
                tokio::join!(api_topic(), api_subscription());
            }
            Order::Both => {
                tokio::join!(api_topic(), api_subscription());
            }
            Order::Namespace => {
                Api::<Namespace>::all(cluster.client.clone())
                    .delete(&self.namespace, &DeleteParams::default())
                    .await
                    .unwrap();
                // What was written before is allowed.
                mark = cluster.server.mark();
            }
        }
        if self.is_stuck() {
            self.let_go(cluster).await;
        }
        self.until_gone(cluster).await;
        Seen {
            mark,
            incomplete: self.told(cluster).await,
        }
    }

    /// Objects of which an event must say that something stays.
    fn stays(&self) -> &'static [&'static str] {
        let case = self.case;
        let failed = case.policy == Policy::Delete
            && case.installed == Installed::Yes
            && case.broker != Broker::Up
            && case.order != Order::Namespace;
        if failed { &["all", "posts"] } else { &[] }
    }

    /// What events say; they are published after the finalizers went.
    async fn told(&self, cluster: &Cluster) -> Vec<String> {
        eventually(LIMIT, "what stays is told", async || {
            let told = incomplete(cluster, &self.namespace).await;
            anyhow::ensure!(told.len() >= self.stays().len(), "{told:?}");
            anyhow::Ok(told)
        })
        .await
    }

    /// Nobody takes the finalizers off.
    fn is_stuck(&self) -> bool {
        self.case.policy == Policy::Delete && self.case.installed == Installed::No
    }

    /// Deletes one object and, unless it is stuck, waits until it is gone.
    async fn end<K>(&self, cluster: &Cluster, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        delete::<K>(cluster, &self.namespace, name).await;
        if !self.is_stuck() {
            gone::<K>(cluster, &self.namespace, name).await;
        }
    }

    /// What the chart's notes say to do without an operator.
    async fn let_go(&self, cluster: &Cluster) {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let is_deleted = |meta: &kube::api::ObjectMeta| {
            if meta.deletion_timestamp.is_some() {
                Ok(())
            } else {
                Err("not deleted yet".to_owned())
            }
        };
        let namespace = &self.namespace;
        cluster
            .until(namespace, "posts", "waits", |it: &FanoutTopic| {
                is_deleted(&it.metadata)
            })
            .await;
        cluster
            .until(namespace, "all", "waits", |it: &Subscription| {
                is_deleted(&it.metadata)
            })
            .await;
        let none = PatchParams::default();
        cluster
            .api::<FanoutTopic>(namespace)
            .patch("posts", &none, &patch)
            .await
            .unwrap();
        cluster
            .api::<Subscription>(namespace)
            .patch("all", &none, &patch)
            .await
            .unwrap();
    }

    async fn until_gone(&self, cluster: &Cluster) {
        let namespace = &self.namespace;
        gone::<FanoutTopic>(cluster, namespace, "posts").await;
        gone::<Subscription>(cluster, namespace, "all").await;
        eventually(LIMIT, "no worker is left", async || {
            let workers = ListParams::default().labels(names::WORKER_LABEL);
            let deployments = cluster.api::<Deployment>(namespace).list(&workers).await?;
            let secrets = cluster.api::<Secret>(namespace).list(&workers).await?;
            let pods = cluster.api::<Pod>(namespace).list(&workers).await?;
            let left = deployments.items.len() + secrets.items.len() + pods.items.len();
            anyhow::ensure!(left == 0, "{left} objects");
            anyhow::Ok(())
        })
        .await;
        if self.case.order == Order::Namespace {
            let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
            eventually(LIMIT, "the namespace is gone", async || {
                let found = namespaces.get_opt(namespace).await?;
                anyhow::ensure!(found.is_none(), "{found:?}");
                anyhow::Ok(())
            })
            .await;
        }
    }

    /// What the policy says is gone, and nothing else; what should be gone and is not was said.
    pub(super) async fn check(&self, world: &World, seen: &Seen) {
        let case = self.case;
        if case.broker != Broker::Down {
            let kafka = world.cluster.kafka().await;
            self.check_kafka(&kafka, case.is_cleaned_up()).await;
        }
        if let Some((sandbox, kubelet)) = &self.live {
            assert_eq!(kubelet.processes(), 0, "{case:?}: no worker runs");
            // In a namespace that is being deleted the relay may be gone too soon.
            if case.order != Order::Namespace {
                let left: i64 = sqlx::query_scalar("select count(*) from fanout.topics")
                    .fetch_one(sandbox.pool())
                    .await
                    .unwrap();
                assert_eq!(left, 0, "{case:?}: positions");
            }
        }
        assert_eq!(seen.incomplete, self.stays(), "{case:?}: what events say");
    }

    async fn check_kafka(&self, kafka: &kafka::Cluster, deleted: bool) {
        let case = self.case;
        for (topic, id) in &self.recorded.topics {
            let found = kafka.describe_topic(topic).await.unwrap();
            let expected = (!deleted).then_some(id);
            assert_eq!(
                found.as_ref().map(|it| &it.id),
                expected,
                "{case:?}: {topic}"
            );
        }
        let (topic, _) = &self.recorded.topics[0];
        let committed = kafka.committed(&self.recorded.group, topic).await.unwrap();
        assert_eq!(committed.is_empty(), deleted, "{case:?}: {committed:?}");
        // A group without offsets may still be one.
        let groups = services::kafka()
            .admin()
            .inner()
            .fetch_group_list(Some(&self.recorded.group), LIMIT)
            .unwrap();
        let alive = groups.groups().iter().any(|group| group.state() != "Dead");
        assert_eq!(alive, !deleted, "{case:?}: the group");
    }
}

fn secrets(database: &str, password: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Secret
metadata: {{name: database, labels: {{fanout.dev/credentials: 'true'}}}}
stringData: {{url: '{database}'}}
---
apiVersion: v1
kind: Secret
metadata: {{name: kafka, labels: {{fanout.dev/credentials: 'true'}}}}
stringData: {{user: '{SASL_USER}', password: '{password}'}}
"
    )
}

fn objects(world: &World, case: Case) -> String {
    let bootstrap = match case.broker {
        Broker::Up => world.cluster.bootstrap.clone(),
        Broker::Down => world.mortal().bootstrap(),
        Broker::Refusing => services::kafka().sasl_bootstrap(),
    };
    let auth = if case.broker == Broker::Refusing {
        "{mechanism: ScramSha512, userSecretRef: {name: kafka, key: user}, passwordSecretRef: {name: kafka, key: password}}"
    } else {
        "{mechanism: None}"
    };
    let policy = format!("{:?}", case.policy);
    format!(
        "
apiVersion: fanout.dev/v1alpha1
kind: FanoutTopic
metadata: {{name: posts}}
spec:
  source: {{postgres: {{urlSecretRef: {{name: database, key: url}}, table: public.outbox}}}}
  broker: {{kafka: {{bootstrapServers: '{bootstrap}', auth: {auth}, topic: {{partitions: 1}}}}}}
  relay: {{replicas: 1}}
  deletionPolicy: {policy}
---
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: all}}
spec:
  topicRef: {{name: posts}}
  startFrom: {{position: Earliest}}
  sink: {{webhook: {{url: 'http://198.18.0.1:8000/all'}}}}
  deletionPolicy: {policy}
"
    )
}

async fn finalizers_are_those_of_the_policy(cluster: &Cluster, namespace: &str, policy: Policy) {
    let expected: &[&str] = match policy {
        Policy::Retain => &[],
        Policy::Delete => &[CLEANUP_FINALIZER],
    };
    let topic: FanoutTopic = cluster.get(namespace, "posts").await.unwrap();
    let subscription: Subscription = cluster.get(namespace, "all").await.unwrap();
    assert_eq!(topic.finalizers(), expected);
    assert_eq!(subscription.finalizers(), expected);
}

pub(super) async fn delete<K>(cluster: &Cluster, namespace: &str, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    cluster
        .api::<K>(namespace)
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
}

pub(super) async fn gone<K>(cluster: &Cluster, namespace: &str, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let what = format!("{} {namespace}/{name} is gone", K::kind(&()));
    eventually(LIMIT, &what, async || {
        let found = cluster.api::<K>(namespace).get_opt(name).await?;
        anyhow::ensure!(found.is_none(), "{found:?}");
        anyhow::Ok(())
    })
    .await;
}

/// Names of the objects in `namespace` whose cleanup an event calls incomplete.
pub(super) async fn incomplete(cluster: &Cluster, namespace: &str) -> Vec<String> {
    let mut names: Vec<String> = notes(cluster, namespace)
        .await
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Names and notes of the same.
pub(super) async fn notes(cluster: &Cluster, namespace: &str) -> Vec<(String, String)> {
    let events = cluster
        .api::<Event>(namespace)
        .list(&ListParams::default())
        .await
        .unwrap();
    events
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some(CLEANUP_INCOMPLETE))
        .map(|event| {
            let name = event.regarding.and_then(|it| it.name).unwrap_or_default();
            (name, event.note.unwrap_or_default())
        })
        .collect()
}
