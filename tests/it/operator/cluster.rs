//! An API server of a test's own, with the chart's rights, and operators that run on it inside this process.

use clap::Parser as _;
use fanout_crds::{FanoutTopic, Subscription};
use fanout_operator::args::Args;
use fanout_operator::kafka::{self, ClusterParams, Clusters};
use fanout_tests::services::api_server::{ApiServer, Write};
use fanout_tests::services::{self, dirs};
use fanout_tests::{eventually, produced};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::pinned_kind;
use kube::{Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

/// Longest wait for the operator to do something.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);
/// Annotation on a test's pods with the address of the worker that plays them.
pub(crate) const ADDRESS: &str = "tests/address";

/// One API server.
pub(crate) struct Cluster {
    pub(crate) server: Arc<ApiServer>,
    pub(crate) client: Client,
    pub(crate) bootstrap: String,
}

/// One operator. Dropped, it stops.
pub(crate) struct Operator {
    admin: std::path::PathBuf,
    stop: CancellationToken,
    ended: tokio::task::JoinHandle<anyhow::Result<()>>,
}

/// The operator of [`Cluster::shared`].
pub(crate) struct SharedOperator(&'static Operator);

struct Shared {
    server: Arc<ApiServer>,
    bootstrap: String,
    operator: Operator,
}

static SHARED: OnceCell<Shared> = OnceCell::const_new();

/// Starts them on a runtime that outlives the test which needs them first.
async fn share() -> Shared {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let cluster = Cluster::start().await;
            let operator = cluster.operator("shared").await;
            let stop = operator.stop.clone();
            let shared = Shared {
                server: cluster.server,
                bootstrap: cluster.bootstrap,
                operator,
            };
            tell.send(shared).ok().expect("a test waits");
            stop.cancelled().await;
        });
    });
    told.await.expect("the shared cluster starts")
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let kafka = tokio::task::spawn_blocking(services::kafka);
        let server = tokio::task::spawn_blocking(ApiServer::start)
            .await
            .unwrap()
            .expect("the API server starts");
        let client = server.client().await;
        let install = dirs::tests_dir().join("../manifests/install.yaml");
        server.apply(&client, &install).await;
        Self {
            bootstrap: kafka.await.unwrap().bootstrap(),
            server: Arc::new(server),
            client,
        }
    }

    /// An API server and its operator that several tests share, each in namespaces of its own.
    pub(crate) async fn shared() -> (Self, SharedOperator) {
        let shared = SHARED.get_or_init(share).await;
        let cluster = Self {
            bootstrap: shared.bootstrap.clone(),
            server: Arc::clone(&shared.server),
            client: shared.server.client().await,
        };
        (cluster, SharedOperator(&shared.operator))
    }

    /// Starts an operator with the rights that the chart gives it.
    pub(crate) async fn operator(&self, instance: &str) -> Operator {
        self.operator_with(instance, &[]).await
    }

    /// The same with further arguments.
    pub(crate) async fn operator_with(&self, instance: &str, further: &[&str]) -> Operator {
        produced::keep_tracing();
        let kubeconfig = self
            .server
            .kubeconfig_of_service_account("fanout-system", "fanout-operator");
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        let instance = format!("--instance={instance}");
        let admin = dirs::run().join(format!("operator-{:08x}", rand::random::<u32>()));
        let admin_file = format!("--admin-addr-file={}", admin.display());
        let arguments = [
            "fanout-operator",
            &admin_file,
            "--namespace=fanout-system",
            &instance,
            "--worker-image=localhost/fanout-operator:test",
            "--admin-addr=127.0.0.1:0",
            "--egress-allowed-cidr=198.18.0.0/15",
        ];
        let args = Args::parse_from(arguments.iter().chain(further));
        let addresses: fanout_operator::Addresses = Arc::new(|pod| {
            let address = pod.annotations().get(ADDRESS)?;
            address.parse::<SocketAddr>().ok()
        });
        let stop = CancellationToken::new();
        let ended = tokio::spawn(Box::pin(fanout_operator::run_on(
            config,
            addresses,
            args,
            stop.clone(),
        )));
        Operator { admin, stop, ended }
    }

    /// Applies YAML documents into `namespace`.
    pub(crate) async fn apply(&self, namespace: &str, yaml: &str) {
        for mut object in serde_yaml::from_multiple::<DynamicObject>(yaml).expect("YAML") {
            let types = object.types.clone().expect("apiVersion and kind");
            let (resource, _) =
                pinned_kind(&self.client, &GroupVersionKind::try_from(&types).unwrap())
                    .await
                    .unwrap();
            note_secrets(&object);
            object.metadata.namespace = Some(namespace.to_owned());
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, &resource);
            api.patch(
                &object.name_any(),
                &PatchParams::apply("tests").force(),
                &Patch::Apply(&object),
            )
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", object.name_any()));
        }
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn get<K>(&self, namespace: &str, name: &str) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        Ok(self.api::<K>(namespace).get(name).await?)
    }

    /// Waits until the object looks as `accept` wants.
    pub(crate) async fn until<K>(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        accept: impl Fn(&K) -> Result<(), String>,
    ) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        eventually(LIMIT, &format!("{name}: {what}"), async || {
            let object: K = self.get(namespace, name).await?;
            accept(&object).map_err(anyhow::Error::msg)?;
            anyhow::Ok(object)
        })
        .await
    }

    /// Waits until a condition of a FanoutTopic reads `<status>/<reason>` at its present generation.
    pub(crate) async fn topic(
        &self,
        namespace: &str,
        name: &str,
        kind: &str,
        expected: &str,
    ) -> FanoutTopic {
        self.until(
            namespace,
            name,
            &format!("{kind} is {expected}"),
            |topic: &FanoutTopic| {
                let conditions = topic
                    .status
                    .as_ref()
                    .map_or(&[][..], |status| &status.conditions);
                reads(conditions, topic.metadata.generation, kind, expected)
            },
        )
        .await
    }

    /// The same for a Subscription.
    pub(crate) async fn subscription(
        &self,
        namespace: &str,
        name: &str,
        kind: &str,
        expected: &str,
    ) -> Subscription {
        self.until(
            namespace,
            name,
            &format!("{kind} is {expected}"),
            |subscription: &Subscription| {
                let conditions = subscription
                    .status
                    .as_ref()
                    .map_or(&[][..], |status| &status.conditions);
                reads(conditions, subscription.metadata.generation, kind, expected)
            },
        )
        .await
    }

    /// Waits until a Subscription shows this depth.
    pub(crate) async fn depth(&self, namespace: &str, name: &str, expected: i64) {
        let what = format!("depth is {expected}");
        self.until(namespace, name, &what, |subscription: &Subscription| {
            let depth = subscription.status.as_ref().and_then(|status| status.depth);
            if depth == Some(expected) {
                Ok(())
            } else {
                Err(format!("{depth:?}"))
            }
        })
        .await;
    }

    /// What operators changed in `namespace` since `mark`, or tried to.
    pub(crate) fn operator_writes(&self, mark: usize, namespace: &str) -> Vec<Write> {
        self.server
            .writes_since(mark)
            .into_iter()
            .filter(|write| {
                write.user_agent.starts_with("fanout-operator/") && write.namespace == namespace
            })
            .collect()
    }

    /// A client of the broker.
    pub(crate) async fn kafka(&self) -> Arc<kafka::Cluster> {
        let params = ClusterParams {
            bootstrap_servers: self.bootstrap.clone(),
            mechanism: fanout_contract::kafka::Mechanism::None,
            credentials: fanout_contract::kafka::KafkaCredentials::default(),
        };
        Clusters::new().get(&params).await.unwrap()
    }
}

/// What is in a Secret may be nowhere else.
fn note_secrets(object: &DynamicObject) {
    let is_secret = object.types.as_ref().is_some_and(|it| it.kind == "Secret");
    let values = object.data["stringData"].as_object();
    for (key, value) in values.filter(|_| is_secret).into_iter().flatten() {
        produced::note_secret(key, value.as_str().unwrap_or_default().as_bytes());
    }
}

pub(crate) fn reads(
    conditions: &[Condition],
    generation: Option<i64>,
    kind: &str,
    expected: &str,
) -> Result<(), String> {
    let all = || {
        let texts = conditions
            .iter()
            .map(|it| format!("{}={}/{} ({})", it.type_, it.status, it.reason, it.message));
        texts.collect::<Vec<_>>().join(", ")
    };
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .ok_or_else(all)?;
    let found = format!("{}/{}", condition.status, condition.reason);
    if found == expected && condition.observed_generation == generation {
        Ok(())
    } else {
        Err(all())
    }
}

impl SharedOperator {
    /// At the end of a test: it must still run.
    pub(crate) fn leave(self) {
        self.0.keep_pages();
        assert!(!self.0.ended.is_finished(), "the shared operator ended");
    }
}

impl Operator {
    /// Keeps what it shows, to be searched for secrets.
    fn keep_pages(&self) {
        if let Ok(address) = std::fs::read_to_string(&self.admin) {
            let kept = || produced::keep_pages("operator", &address);
            tokio::task::block_in_place(kept);
        }
    }

    /// What SIGTERM does.
    pub(crate) async fn stop(self) {
        self.keep_pages();
        self.stop.cancel();
        self.ended.await.unwrap().expect("the operator ends well");
    }
}
