//! Plays every worker of a namespace in this process: its pod, its Deployment's status, and its `/status`, which shows
//! the configuration that the pod was told of. For tests of the operator with more workers than a machine runs.

use anyhow::Context as _;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use fanout_contract::consumer::{
    ConsumerConfig, ConsumerStatus, SubscriptionConfig, SubscriptionState, SubscriptionStatus,
};
use fanout_contract::names;
use fanout_contract::relay::{Pending, RangeStatus, RelayConfig, RelayStatus};
use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::reflector::{ObjectRef, Store, reflector, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Looks at least this often, also after something failed.
const SYNC: Duration = Duration::from_secs(1);

/// The workers of one namespace. Dropped, they are gone; their objects stay.
#[derive(Debug)]
pub struct Fleet {
    _tasks: JoinSet<()>,
}

impl Fleet {
    /// Plays the worker Deployments that `namespace` has and gets. Each pod has an address of its own on loopback.
    pub fn start(client: &Client, namespace: &str) -> Self {
        let mut tasks = JoinSet::new();
        let changed = Arc::new(Notify::new());
        let mut player = Player {
            client: client.clone(),
            namespace: namespace.to_owned(),
            deployments: follow(client, namespace, &changed, &mut tasks),
            pods: follow(client, namespace, &changed, &mut tasks),
            config_maps: follow(client, namespace, &changed, &mut tasks),
            secrets: follow(client, namespace, &changed, &mut tasks),
            network: rand::random_range(1..250),
            addresses: 0,
            workers: BTreeMap::new(),
        };
        tasks.spawn(async move {
            loop {
                if let Err(error) = player.play().await {
                    tracing::info!("played workers: {error:#}");
                }
                // In time at the next change; late at the next look.
                tokio::time::timeout(SYNC, changed.notified()).await.ok();
            }
        });
        Self { _tasks: tasks }
    }
}

/// A cache of the workers' objects of one kind.
fn follow<K>(
    client: &Client,
    namespace: &str,
    changed: &Arc<Notify>,
    tasks: &mut JoinSet<()>,
) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    let (cache, writer) = store();
    let config = watcher::Config::default().labels(names::WORKER_LABEL);
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let changed = Arc::clone(changed);
    tasks.spawn(async move {
        let stream = reflector(writer, watcher(api, config).default_backoff());
        let mut stream = std::pin::pin!(stream);
        while stream.next().await.is_some() {
            changed.notify_one();
        }
    });
    cache
}

struct Player {
    client: Client,
    namespace: String,
    deployments: Store<Deployment>,
    pods: Store<Pod>,
    config_maps: Store<ConfigMap>,
    secrets: Store<Secret>,
    /// Second byte of all addresses, by chance: several tests run at once.
    network: u8,
    addresses: u16,
    workers: BTreeMap<String, Worker>,
}

/// One worker with its only pod.
struct Worker {
    pod: String,
    is_relay: bool,
    hash: String,
    status: Document,
    _server: JoinSet<()>,
}

/// What `/status` answers.
type Document = Arc<Mutex<String>>;

impl Player {
    async fn play(&mut self) -> anyhow::Result<()> {
        let deployments = self.deployments.state();
        let wanted: BTreeSet<String> = deployments.iter().map(|it| it.name_any()).collect();
        let gone = self.workers.keys().filter(|name| !wanted.contains(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.end(&name).await?;
        }
        for deployment in deployments {
            let name = deployment.name_any();
            let Some(files) = self.files(&name) else {
                continue;
            };
            if !self.workers.contains_key(&name) {
                self.begin(&deployment, &files).await?;
            }
            self.take_over(&name, &files)?;
            self.roll_out(&deployment).await?;
        }
        Ok(())
    }

    /// The files in a worker's volume, once both its objects are there.
    fn files(&self, worker: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        let config_map = self
            .config_maps
            .get(&ObjectRef::new(worker).within(&self.namespace))?;
        let secret = self
            .secrets
            .get(&ObjectRef::new(worker).within(&self.namespace))?;
        let texts = config_map.data.clone().unwrap_or_default();
        let values = secret.data.clone().unwrap_or_default();
        let texts = texts
            .into_iter()
            .map(|(name, text)| (name, text.into_bytes()));
        Some(
            texts
                .chain(values.into_iter().map(|(name, value)| (name, value.0)))
                .collect(),
        )
    }

    /// Makes the pod of a Deployment; it starts with the files there are.
    async fn begin(
        &mut self,
        deployment: &Deployment,
        files: &BTreeMap<String, Vec<u8>>,
    ) -> anyhow::Result<()> {
        let worker = deployment.name_any();
        let topic = deployment.labels().get(names::TOPIC_LABEL);
        let is_relay = topic.is_some_and(|topic| names::relay_deployment(topic) == worker);
        let (address, listener) = self.listener().await?;
        let status = Document::default();
        let hash = fanout_runtime::config::hash(files);
        *status.lock().unwrap_or_else(PoisonError::into_inner) = document(is_relay, &hash, files)?;
        let shown = Arc::clone(&status);
        let routes = Router::new().route(
            "/status",
            get(async move || {
                let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                ([(CONTENT_TYPE, "application/json")], text)
            }),
        );
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, routes).await.expect("it serves") });

        let template = deployment.spec.clone().context("a spec")?.template;
        let pod = format!("{worker}-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        let object = Pod {
            metadata: ObjectMeta {
                name: Some(pod.clone()),
                ..template.metadata.unwrap_or_default()
            },
            spec: template.spec,
            status: None,
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        pods.create(&PostParams::default(), &object).await?;
        let ready = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(&ready))
            .await?;
        let begun = Worker {
            pod,
            is_relay,
            hash,
            status,
            _server: server,
        };
        self.workers.insert(worker, begun);
        Ok(())
    }

    /// The next address of this fleet on which nobody else listens.
    async fn listener(&mut self) -> anyhow::Result<(Ipv4Addr, TcpListener)> {
        loop {
            let [high, low] = self.addresses.to_be_bytes();
            self.addresses = self.addresses.checked_add(1).context("no address left")?;
            let address = Ipv4Addr::new(127, self.network, high + 1, low);
            let socket = SocketAddr::from((address, names::ADMIN_PORT));
            match TcpListener::bind(socket).await {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                bound => return Ok((address, bound?)),
            }
        }
    }

    /// A pod that is told of the configuration that lies there now runs it from here on.
    fn take_over(&mut self, name: &str, files: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
        let worker = self.workers.get_mut(name).context("begun above")?;
        let reference = ObjectRef::new(&worker.pod).within(&self.namespace);
        let Some(pod) = self.pods.get(&reference) else {
            return Ok(());
        };
        let told = pod.annotations().get(names::CONFIG_ANNOTATION);
        let Some(told) = told.filter(|told| **told != worker.hash) else {
            return Ok(());
        };
        if fanout_runtime::config::hash(files) == *told {
            *worker.status.lock().unwrap_or_else(PoisonError::into_inner) =
                document(worker.is_relay, told, files)?;
            worker.hash.clone_from(told);
        }
        Ok(())
    }

    /// Writes the Deployment's status as its controller would.
    async fn roll_out(&self, deployment: &Deployment) -> anyhow::Result<()> {
        let shown = deployment.status.as_ref();
        let observed = shown.and_then(|status| status.observed_generation);
        if observed == deployment.metadata.generation {
            return Ok(());
        }
        let status = json!({"status": {
            "observedGeneration": deployment.metadata.generation,
            "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        }});
        Api::<Deployment>::namespaced(self.client.clone(), &self.namespace)
            .patch_status(
                &deployment.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&status),
            )
            .await?;
        Ok(())
    }

    async fn end(&mut self, name: &str) -> anyhow::Result<()> {
        if let Some(worker) = self.workers.remove(name) {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
            pods.delete(&worker.pod, &DeleteParams::default().grace_period(0))
                .await?;
        }
        Ok(())
    }
}

/// `/status` of a worker that runs `files`, whose hash is `hash`.
fn document(
    is_relay: bool,
    hash: &str,
    files: &BTreeMap<String, Vec<u8>>,
) -> anyhow::Result<String> {
    let config = files
        .get(names::CONFIG_FILE)
        .context("no configuration file")?;
    if is_relay {
        let config: RelayConfig = serde_yaml::from_slice(config)?;
        return Ok(serde_json::to_string(&RelayStatus {
            config_hash: hash.to_owned(),
            generation: config.generation,
            suspended: config.suspend,
            source_checked: true,
            pending: Some(Pending {
                rows: 0,
                oldest_event_time: None,
            }),
            ranges: vec![RangeStatus {
                id: 1,
                lo: 0,
                hi: 64,
                term: 1,
            }],
            ..RelayStatus::default()
        })?);
    }
    let config: ConsumerConfig = serde_yaml::from_slice(config)?;
    Ok(serde_json::to_string(&ConsumerStatus {
        config_hash: hash.to_owned(),
        subscriptions: config.subscriptions.iter().map(running).collect(),
    })?)
}

/// A Subscription that its worker runs, or keeps suspended, as its configuration says.
pub fn running(config: &SubscriptionConfig) -> SubscriptionStatus {
    SubscriptionStatus {
        name: config.name.clone(),
        uid: config.uid.clone(),
        generation: config.generation,
        state: if config.suspend {
            SubscriptionState::Suspended
        } else {
            SubscriptionState::Running
        },
        ..SubscriptionStatus::default()
    }
}
