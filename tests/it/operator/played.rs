//! Plays what is not there without a kubelet and controllers: a worker's pod, its Deployment's status, and the worker
//! itself, which takes over the configuration when the pod's annotation tells it to.

use super::cluster::{ADDRESS, Cluster, LIMIT};
use axum::routing::get;
use axum::{Json, Router};
use fanout_contract::consumer::{ConsumerConfig, ConsumerStatus, SubscriptionStatus};
use fanout_contract::names;
use fanout_contract::relay::{Pending, RangeStatus, RelayConfig, RelayStatus};
use fanout_tests::eventually;
use fanout_tests::fleet::running;
use fanout_tests::process::pod_address;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// A worker's pod that this test plays.
pub(crate) struct Played {
    namespace: String,
    worker: String,
    pod: String,
    status: Arc<Mutex<Value>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Played {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// The files in the volume of a worker, as its ConfigMap and Secret make them.
pub(super) fn volume(config_map: ConfigMap, secret: Secret) -> BTreeMap<String, Vec<u8>> {
    let texts = config_map.data.unwrap_or_default().into_iter();
    let values = secret.data.unwrap_or_default().into_iter();
    texts
        .map(|(name, text)| (name, text.into_bytes()))
        .chain(values.map(|(name, value)| (name, value.0)))
        .collect()
}

/// The files in a worker's volume.
pub(crate) async fn files(
    cluster: &Cluster,
    namespace: &str,
    worker: &str,
) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let config_map = cluster.get(namespace, worker).await?;
    let secret = cluster.get(namespace, worker).await?;
    Ok(volume(config_map, secret))
}

/// The configuration of a consumer.
pub(crate) async fn consumer_config(
    cluster: &Cluster,
    namespace: &str,
    worker: &str,
) -> anyhow::Result<ConsumerConfig> {
    let files = files(cluster, namespace, worker).await?;
    Ok(serde_yaml::from_slice(&files[names::CONFIG_FILE])?)
}

impl Played {
    /// Makes the pod of `worker`, as its Deployment describes it, ready; its worker runs nothing yet.
    pub(crate) async fn start(cluster: &Cluster, namespace: &str, worker: &str) -> Self {
        let deployment: Deployment =
            eventually(LIMIT, worker, async || cluster.get(namespace, worker).await).await;
        Self::of(cluster, &deployment).await.unwrap()
    }

    /// Makes a pod of `deployment` ready; its worker runs nothing yet.
    pub(crate) async fn of(cluster: &Cluster, deployment: &Deployment) -> anyhow::Result<Self> {
        let (namespace, worker) = (
            deployment.namespace().unwrap_or_default(),
            deployment.name_any(),
        );
        let status = Arc::new(Mutex::new(json!({})));
        let listener = TcpListener::bind(pod_address()).await?;
        let address = listener.local_addr()?;
        let shown = Arc::clone(&status);
        let routes = Router::new().route(
            "/status",
            get(async move || Json(shown.lock().unwrap().clone())),
        );
        let server = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });

        let template = deployment.spec.clone().unwrap_or_default().template;
        let mut pod = Pod {
            metadata: template.metadata.clone().unwrap_or_default(),
            spec: template.spec,
            status: None,
        };
        let name = format!("{worker}-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        let played = Self {
            namespace,
            worker,
            pod: name.clone(),
            status,
            server,
        };
        pod.metadata.name = Some(name.clone());
        pod.annotations_mut()
            .insert(ADDRESS.to_owned(), address.to_string());
        let pods = cluster.api::<Pod>(&played.namespace);
        pods.create(&PostParams::default(), &pod).await?;
        let ip = address.ip().to_string();
        let ready = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "podIP": ip, "podIPs": [{"ip": ip}],
        }});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&ready))
            .await?;
        played.roll_out(cluster, 1).await?;
        Ok(played)
    }

    /// Name of its pod.
    pub(crate) fn pod(&self) -> &str {
        &self.pod
    }

    /// Sets the Deployment's status as its controller would with `ready` pods of as many.
    async fn roll_out(&self, cluster: &Cluster, ready: i32) -> anyhow::Result<()> {
        let deployment: Deployment = cluster.get(&self.namespace, &self.worker).await?;
        let status = json!({"status": {
            "observedGeneration": deployment.metadata.generation,
            "replicas": ready, "updatedReplicas": ready, "readyReplicas": ready, "availableReplicas": ready,
        }});
        cluster
            .api::<Deployment>(&self.namespace)
            .patch_status(
                &self.worker,
                &PatchParams::default(),
                &Patch::Merge(&status),
            )
            .await?;
        Ok(())
    }

    /// Waits until the pod was told of the configuration that lies in ConfigMap and Secret now.
    pub(crate) async fn told(&self, cluster: &Cluster) -> BTreeMap<String, Vec<u8>> {
        eventually(
            LIMIT,
            &format!("{} is told of its configuration", self.pod),
            async || {
                let files = files(cluster, &self.namespace, &self.worker).await?;
                let hash = fanout_runtime::config::hash(&files);
                let pod: Pod = cluster.get(&self.namespace, &self.pod).await?;
                anyhow::ensure!(
                    pod.annotations().get(names::CONFIG_ANNOTATION) == Some(&hash),
                    "{hash}"
                );
                anyhow::Ok(files)
            },
        )
        .await
    }

    /// The consumer takes over the configuration it was told of.
    pub(crate) async fn consume(&self, cluster: &Cluster) -> ConsumerConfig {
        let files = self.told(cluster).await;
        self.take_over(&files);
        serde_yaml::from_slice(&files[names::CONFIG_FILE]).unwrap()
    }

    /// The relay takes over the configuration it was told of.
    pub(crate) async fn relay(&self, cluster: &Cluster) -> RelayConfig {
        let files = self.told(cluster).await;
        self.take_over(&files);
        serde_yaml::from_slice(&files[names::CONFIG_FILE]).unwrap()
    }

    /// Reports that the configuration in `files` runs.
    pub(crate) fn take_over(&self, files: &BTreeMap<String, Vec<u8>>) {
        let config_hash = fanout_runtime::config::hash(files);
        let yaml = &files[names::CONFIG_FILE];
        if let Ok(config) = serde_yaml::from_slice::<RelayConfig>(yaml) {
            self.report(&RelayStatus {
                config_hash,
                generation: config.generation,
                source_checked: true,
                positions_deleted: config.delete_positions,
                pending: Some(Pending {
                    rows: 1234,
                    oldest_event_time: Some("2026-01-01T00:00:00Z".to_owned()),
                }),
                ranges: vec![RangeStatus {
                    id: 1,
                    lo: 0,
                    hi: 64,
                    term: 1,
                }],
                ..RelayStatus::default()
            });
        } else {
            let config: ConsumerConfig = serde_yaml::from_slice(yaml).unwrap();
            self.report(&ConsumerStatus {
                config_hash,
                subscriptions: config.subscriptions.iter().map(running).collect(),
            });
        }
    }

    /// What `/status` answers from now on.
    pub(crate) fn report(&self, status: &impl serde::Serialize) {
        *self.status.lock().unwrap() = serde_json::to_value(status).unwrap();
    }

    /// Changes one Subscription in what `/status` answers.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut SubscriptionStatus)) {
        let mut status: ConsumerStatus =
            serde_json::from_value(self.status.lock().unwrap().clone()).unwrap();
        change(
            status
                .subscriptions
                .iter_mut()
                .find(|entry| entry.name == name)
                .unwrap(),
        );
        self.report(&status);
    }
}
