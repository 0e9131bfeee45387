//! The operator's binary behind proxies that kill it, refuse, lose, delay: whatever happens, it ends where an undisturbed
//! one does.

mod outage;
mod points;
mod replicas;
mod scenario;
mod state;
mod troubles;

use super::cluster::{Cluster, LIMIT};
use super::played::{Played, files};
use anyhow::Context as _;
use fanout_contract::consumer::{ConsumerConfig, StopReason};
use fanout_contract::names;
use fanout_tests::faults::api_proxy::ApiProxy;
use fanout_tests::faults::kafka_proxy::KafkaProxy;
use fanout_tests::process::OperatorProcess;
use fanout_tests::services;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A namespace with an operator of its own that sees nothing else, behind proxies; its workers are played.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) namespace: String,
    pub(crate) api: ApiProxy,
    pub(crate) kafka: KafkaProxy,
    pub(crate) operator: OperatorProcess,
    pub(crate) broker: Arc<fanout_operator::kafka::Cluster>,
    played: BTreeMap<String, Worker>,
    /// How often the operator was started again.
    pub(crate) restarts: usize,
    /// Events come while this is set.
    pub(crate) flowing: bool,
    producer: FutureProducer,
    /// Its watches end with 410 all the time.
    pub(crate) expiring: bool,
    expired: Instant,
}

/// A worker's pod, and what it shows.
struct Worker {
    played: Played,
    /// Of the Deployment that it was made from.
    generation: Option<i64>,
    /// Hash of the configuration, and the Subscriptions that lack a position.
    shown: Option<(String, Vec<String>)>,
}

impl<'a> Stage<'a> {
    pub(crate) async fn new(cluster: &'a Cluster) -> Self {
        let kafka = KafkaProxy::start(services::kafka()).await.unwrap();
        let namespace = cluster.server.namespace("stage").await;
        cluster.apply(&namespace, LEASES).await;
        let api = proxy(cluster, &namespace).await;
        let operator = operator(&api, &namespace, "one").await;
        Self {
            cluster,
            namespace,
            api,
            kafka,
            operator,
            broker: cluster.kafka().await,
            played: BTreeMap::new(),
            restarts: 0,
            flowing: true,
            producer: services::kafka().client().create().unwrap(),
            expiring: false,
            expired: Instant::now(),
        }
    }

    /// What a kubelet and the controllers do meanwhile: workers run what they are told, and an operator that ended is
    /// started again.
    pub(crate) async fn tick(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if self.expiring && self.expired.elapsed() > Duration::from_secs(1) {
            self.api.expire_watches();
            self.expired = Instant::now();
        }
        if self.operator.ended().is_some() {
            self.operator.start_again();
            self.restarts += 1;
        }
        if self.flowing {
            self.produce();
        }
        let workers = ListParams::default().labels(names::WORKER_LABEL);
        let deployments = self.cluster.api::<Deployment>(&self.namespace);
        let deployments = deployments.list(&workers).await?.items;
        let pods = self.cluster.api::<Pod>(&self.namespace);
        for deployment in &deployments {
            let worker = deployment.name_any();
            let generation = deployment.metadata.generation;
            if self.played.get(&worker).map(|it| it.generation) != Some(generation) {
                if let Some(old) = self.played.remove(&worker) {
                    pods.delete(old.played.pod(), &DeleteParams::default())
                        .await?;
                }
                let played = Played::of(self.cluster, deployment).await?;
                let new = Worker {
                    played,
                    generation,
                    shown: None,
                };
                self.played.insert(worker, new);
            }
        }
        let gone: Vec<String> = self
            .played
            .keys()
            .filter(|worker| deployments.iter().all(|it| it.name_any() != **worker))
            .cloned()
            .collect();
        for worker in gone {
            let gone = self.played.remove(&worker).context("just seen")?;
            pods.delete(gone.played.pod(), &DeleteParams::default())
                .await?;
        }
        let workers: Vec<String> = self.played.keys().cloned().collect();
        for worker in workers {
            self.run(&worker).await?;
        }
        Ok(())
    }
}

impl Stage<'_> {
    /// The worker runs the configuration that its pod was told of, and says which Subscriptions lack a position.
    async fn run(&mut self, worker: &str) -> anyhow::Result<()> {
        let files = files(self.cluster, &self.namespace, worker).await?;
        let hash = fanout_runtime::config::hash(&files);
        let running = self.played.get_mut(worker).context("listed")?;
        let pod: Pod = self
            .cluster
            .get(&self.namespace, running.played.pod())
            .await?;
        if pod.annotations().get(names::CONFIG_ANNOTATION) != Some(&hash) {
            return Ok(());
        }
        let config = serde_yaml::from_slice::<ConsumerConfig>(&files[names::CONFIG_FILE]);
        let topic = format!("{}.posts", self.namespace);
        let mut missing = Vec::new();
        for entry in config.into_iter().flat_map(|config| config.subscriptions) {
            let live = self.broker.describe_topic(&topic).await?;
            let partitions = live.context("the topic")?.partitions;
            let committed = self.broker.committed(&entry.group_id, &topic).await?;
            if committed.len() < usize::try_from(partitions)? {
                missing.push(entry.name);
            }
        }
        let shown = Some((hash, missing.clone()));
        if running.shown != shown {
            running.played.take_over(&files);
            for name in missing {
                running.played.change(&name, |entry| {
                    entry.reason = Some(StopReason::PositionMissing);
                });
            }
            running.shown = shown;
        }
        Ok(())
    }

    /// An event, once there is a topic for it.
    fn produce(&self) {
        let topic = format!("{}.posts", self.namespace);
        let partition = rand::random_range(0..3);
        let record = FutureRecord::<(), [u8]>::to(&topic)
            .partition(partition)
            .payload(b"{}".as_slice());
        // Nobody waits for it: what counts is that the ends move.
        self.producer.send_result(record).ok();
    }
}

/// A proxy of the API server for an operator that sees `namespace` alone.
pub(crate) async fn proxy(cluster: &Cluster, namespace: &str) -> ApiProxy {
    let kubeconfig = cluster
        .server
        .kubeconfig_of_service_account("fanout-system", "fanout-operator");
    ApiProxy::start(&kubeconfig, Some(namespace)).await.unwrap()
}

/// An operator process behind `api`.
pub(crate) async fn operator(api: &ApiProxy, namespace: &str, instance: &str) -> OperatorProcess {
    let file = services::dirs::run().join(format!("{namespace}-{instance}.kubeconfig"));
    let kubeconfig = api.kubeconfig(file).unwrap();
    OperatorProcess::start_on(&kubeconfig, namespace, instance).await
}

/// The chart allows this in the operator's own namespace only.
pub(crate) const LEASES: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: leases}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: leases}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leases}
subjects: [{kind: ServiceAccount, name: fanout-operator, namespace: fanout-system}]
";
