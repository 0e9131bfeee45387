//! Stands in for the Deployment controller and the kubelet: runs the real worker binaries for the worker Deployments of
//! a namespace, and keeps Pods and statuses as those would.

use super::cluster::{ADDRESS, Cluster};
use super::played::volume;
use anyhow::Context as _;
use fanout_contract::names;
use fanout_tests::process::{Files, Hosted};
use fanout_tests::services::child::{self, Signal};
use fanout_tests::services::dirs;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplateSpec, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at the API server.
const TICK: Duration = Duration::from_millis(200);
/// Files are brought up to date after this time also when no annotation tells to.
const SYNC: Duration = Duration::from_mins(1);
/// A container that got SIGTERM is killed after this time, as its pod's grace period says.
const GRACE: Duration = Duration::from_mins(1);
/// Lines of a log that a failed test shows.
const SHOWN_LINES: usize = 60;

/// The worker Deployments of one namespace as processes. Dropped, all of them are killed.
pub(crate) struct Kubelet {
    node: Arc<Mutex<Node>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Node {
    pods: Vec<Running>,
    /// Containers that got SIGTERM, and when they are killed.
    ending: Vec<(Hosted, Instant)>,
    /// Log files of every container that ever ran, by worker.
    logs: Vec<(String, std::path::PathBuf)>,
}

struct Running {
    worker: String,
    name: String,
    template: PodTemplateSpec,
    container: Hosted,
    told: Option<String>,
    synced: Instant,
    shown: Option<serde_json::Value>,
}

impl Kubelet {
    /// Runs the worker Deployments that `namespace` has and gets.
    pub(crate) fn start(cluster: &Cluster, namespace: &str) -> Self {
        let node = Arc::new(Mutex::new(Node::default()));
        let manager = Manager {
            client: cluster.client.clone(),
            namespace: namespace.to_owned(),
            node: Arc::clone(&node),
        };
        let task = tokio::spawn(async move {
            loop {
                // An API server that is away or was faster is looked at again.
                manager.tick().await.ok();
                tokio::time::sleep(TICK).await;
            }
        });
        Self { node, task }
    }

    fn node(&self) -> std::sync::MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that the containers of `worker` logged.
    pub(crate) fn log(&self, worker: &str) -> String {
        let node = self.node();
        let logs = node.logs.iter().filter(|(of, _)| of == worker);
        logs.map(|(_, path)| std::fs::read(path).unwrap_or_default())
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .collect()
    }

    /// Sends `signal` to every container of `worker`; one that ends by it is started again.
    pub(crate) fn signal(&self, worker: &str, signal: Signal) {
        let node = self.node();
        for pod in node.pods.iter().filter(|pod| pod.worker == worker) {
            pod.container.signal(signal);
        }
    }

    /// SIGKILL to every container of `worker`; they are started again.
    pub(crate) fn kill(&self, worker: &str) {
        self.signal(worker, Signal::KILL);
    }

    /// Pods of `worker` by name: process id and number of restarts.
    pub(crate) fn containers(&self, worker: &str) -> BTreeMap<String, (u32, i32)> {
        let node = self.node();
        let pods = node.pods.iter().filter(|pod| pod.worker == worker);
        pods.map(|pod| {
            (
                pod.name.clone(),
                (pod.container.pid(), pod.container.restarts()),
            )
        })
        .collect()
    }

    /// Number of worker processes, those that got SIGTERM included.
    pub(crate) fn processes(&self) -> usize {
        let node = self.node();
        node.pods.len() + node.ending.len()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        if std::thread::panicking() {
            let node = self.node();
            for (worker, path) in &node.logs {
                let log = std::fs::read(path).unwrap_or_default();
                let log = String::from_utf8_lossy(&log);
                eprintln!(
                    "---- the end of {worker}'s log\n{}\n----",
                    child::tail(&log, SHOWN_LINES)
                );
            }
        }
        let mut node = self.node();
        node.pods.clear();
        node.ending.clear();
    }
}

struct Manager {
    client: Client,
    namespace: String,
    node: Arc<Mutex<Node>>,
}

impl Manager {
    fn node(&self) -> std::sync::MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn tick(&self) -> anyhow::Result<()> {
        let workers = ListParams::default().labels(names::WORKER_LABEL);
        let deployments = self.api::<Deployment>().list(&workers).await?.items;
        let pods = self.api::<Pod>().list(&workers).await?.items;
        self.end_unwanted(&deployments, &pods).await?;
        for deployment in &deployments {
            self.start_missing(deployment).await.ok();
        }
        let names: Vec<String> = self.node().pods.iter().map(|it| it.name.clone()).collect();
        for name in names {
            let pod = pods.iter().find(|pod| pod.name_any() == name);
            self.sync(&name, pod).await.ok();
        }
        for deployment in &deployments {
            self.show(deployment).await?;
        }
        self.reap();
        Ok(())
    }

    /// A pod goes when its Deployment or its object is gone, when there are too many, or when its template is an older
    /// one and the pods of the present one are ready.
    async fn end_unwanted(&self, deployments: &[Deployment], pods: &[Pod]) -> anyhow::Result<()> {
        let mut unwanted = Vec::new();
        {
            let mut node = self.node();
            let counted: Vec<(String, PodTemplateSpec, bool)> = node
                .pods
                .iter()
                .map(|pod| {
                    let ready = pod.shown.as_ref().is_some_and(is_ready);
                    (pod.worker.clone(), pod.template.clone(), ready)
                })
                .collect();
            let mut kept: BTreeMap<String, i32> = BTreeMap::new();
            let all = std::mem::take(&mut node.pods);
            for pod in all {
                let deployment = deployments.iter().find(|it| it.name_any() == pod.worker);
                let exists = pods.iter().any(|it| it.name_any() == pod.name);
                let keep = exists
                    && deployment.is_some_and(|deployment| {
                        let (wanted, template) = wanted(deployment);
                        if pod.template != template {
                            let ready = counted
                                .iter()
                                .filter(|(worker, its, ready)| {
                                    *worker == pod.worker && *its == template && *ready
                                })
                                .count();
                            return i32::try_from(ready).unwrap_or_default() < wanted;
                        }
                        let count = kept.entry(pod.worker.clone()).or_default();
                        *count += 1;
                        *count <= wanted
                    });
                if keep {
                    node.pods.push(pod);
                } else {
                    pod.container.signal(Signal::TERM);
                    unwanted.push(pod.name);
                    node.ending.push((pod.container, Instant::now() + GRACE));
                }
            }
        }
        for name in unwanted {
            match self
                .api::<Pod>()
                .delete(&name, &DeleteParams::default())
                .await
            {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                deleted => {
                    deleted?;
                }
            }
        }
        Ok(())
    }

    async fn start_missing(&self, deployment: &Deployment) -> anyhow::Result<()> {
        let worker = deployment.name_any();
        let (wanted, template) = wanted(deployment);
        loop {
            let running = self
                .node()
                .pods
                .iter()
                .filter(|pod| pod.worker == worker && pod.template == template)
                .count();
            if i32::try_from(running)? >= wanted || deployment.metadata.deletion_timestamp.is_some()
            {
                return Ok(());
            }
            // Like a container whose volume can't be mounted, it waits for its files.
            let files = self.files(&worker).await?;
            let name = format!("{worker}-{:08x}", rand::random::<u32>());
            let pod = Pod {
                metadata: kube::api::ObjectMeta {
                    name: Some(name.clone()),
                    ..template.metadata.clone().unwrap_or_default()
                },
                spec: template.spec.clone(),
                status: None,
            };
            self.api::<Pod>()
                .create(&PostParams::default(), &pod)
                .await?;
            let dir = dirs::private(&format!("{}-{name}", self.namespace), 0o755)?;
            let container = Hosted::start(&program(&template)?, &name, &dir, &files)?;
            let mut node = self.node();
            node.logs
                .push((worker.clone(), container.dir().join("log")));
            node.pods.push(Running {
                worker: worker.clone(),
                name,
                template: template.clone(),
                container,
                told: None,
                synced: Instant::now(),
                shown: None,
            });
        }
    }

    async fn files(&self, worker: &str) -> anyhow::Result<Files> {
        let config_map = self.api::<ConfigMap>().get(worker).await?;
        let secret = self.api::<Secret>().get(worker).await?;
        Ok(volume(config_map, secret))
    }

    /// Brings one pod's volume and status up to date, and starts its container again when it ended.
    async fn sync(&self, name: &str, pod: Option<&Pod>) -> anyhow::Result<()> {
        let pod = pod.context("just created")?;
        let told = pod.annotations().get(names::CONFIG_ANNOTATION).cloned();
        let (worker, stale) = {
            let node = self.node();
            let running = node.pods.iter().find(|it| it.name == name);
            let running = running.context("gone")?;
            (
                running.worker.clone(),
                running.told != told || running.synced.elapsed() > SYNC,
            )
        };
        let fresh = if stale {
            Some(self.files(&worker).await?)
        } else {
            None
        };
        let probe = {
            let mut node = self.node();
            let running = node.pods.iter_mut().find(|it| it.name == name);
            let running = running.context("gone")?;
            if let Some(files) = fresh {
                running.container.replace(&files)?;
                running.told = told;
                running.synced = Instant::now();
            }
            running.container.restart_ended();
            running.container.probe()
        };
        let ready = probe.ready().await;
        let (status, address) = {
            let node = self.node();
            let running = node.pods.iter().find(|it| it.name == name);
            let running = running.context("gone")?;
            let restarts = running.container.restarts();
            let ip = running.container.ip();
            let status = json!({"status": {
                "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": if ready {"True"} else {"False"}}],
                "containerStatuses": [{
                    "name": "worker", "image": "local", "imageID": "", "ready": ready, "restartCount": restarts,
                }],
            }});
            if running.shown.as_ref() == Some(&status) && !moved(pod, &running.container) {
                return Ok(());
            }
            (status, running.container.admin())
        };
        let pods = self.api::<Pod>();
        if let Some(address) = address {
            let patch = json!({"metadata": {"annotations": {ADDRESS: address}}});
            pods.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        if let Some(running) = self.node().pods.iter_mut().find(|it| it.name == name) {
            running.shown = Some(status);
        }
        Ok(())
    }

    /// Writes the Deployment's status when it changed.
    async fn show(&self, deployment: &Deployment) -> anyhow::Result<()> {
        let worker = deployment.name_any();
        let (all, updated, ready) = {
            let (_, template) = wanted(deployment);
            let node = self.node();
            let pods: Vec<&Running> = node.pods.iter().filter(|it| it.worker == worker).collect();
            let updated = pods.iter().filter(|it| it.template == template).count();
            let ready = pods
                .iter()
                .filter(|it| it.shown.as_ref().is_some_and(is_ready))
                .count();
            (pods.len(), updated, ready)
        };
        let shown = deployment.status.clone().unwrap_or_default();
        let count = |count: Option<i32>| usize::try_from(count.unwrap_or_default()).unwrap_or(0);
        let same = shown.observed_generation == deployment.metadata.generation
            && count(shown.replicas) == all
            && count(shown.updated_replicas) == updated
            && count(shown.ready_replicas) == ready;
        if same {
            return Ok(());
        }
        let status = json!({"status": {
            "observedGeneration": deployment.metadata.generation,
            "replicas": all, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": ready,
        }});
        self.api::<Deployment>()
            .patch_status(&worker, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        Ok(())
    }

    /// Forgets containers that ended; those beyond their grace period are killed.
    fn reap(&self) {
        self.node()
            .ending
            .retain(|(container, limit)| !container.has_ended() && Instant::now() < *limit);
    }
}

/// Number of pods, and what they are made from.
fn wanted(deployment: &Deployment) -> (i32, PodTemplateSpec) {
    let spec = deployment.spec.clone().unwrap_or_default();
    (spec.replicas.unwrap_or(1), spec.template)
}

/// File name of the program in the template's command.
fn program(template: &PodTemplateSpec) -> anyhow::Result<String> {
    let spec = template.spec.as_ref().context("a pod spec")?;
    let container = spec.containers.first().context("a container")?;
    let command = container.command.as_deref().unwrap_or_default();
    let path = command.first().context("a command")?;
    Ok(path.trim_start_matches('/').to_owned())
}

fn is_ready(status: &serde_json::Value) -> bool {
    status["status"]["conditions"][0]["status"] == "True"
}

/// True when the pod does not name the admin server's present address: a restart takes another port.
fn moved(pod: &Pod, container: &Hosted) -> bool {
    pod.annotations().get(ADDRESS) != container.admin().as_ref()
}
