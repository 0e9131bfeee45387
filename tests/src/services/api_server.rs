//! A private Kubernetes API server: etcd and kube-apiserver, no kubelet and no controllers, with both CRDs installed.
//!
//! What controllers would do (pods of a Deployment, their status, garbage collection) is up to the test.

use super::child::{Process, Spec};
use super::{dirs, ports, run};
use crate::produced::{self, rights};
use crate::{Deadline, eventually};
use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams, ValidationDirective};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Client, Config, ResourceExt as _};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const START_LIMIT: Duration = Duration::from_mins(1);

/// A running API server.
#[derive(Debug)]
pub struct ApiServer {
    dir: PathBuf,
    port: u16,
    audit: Mutex<Audit>,
    binaries: PathBuf,
    etcd_url: String,
    // The server goes first: without etcd it would only complain.
    server: Mutex<Process>,
    _etcd: Process,
}

impl ApiServer {
    /// Builds the servers unless they are cached, starts them, and installs the CRDs.
    pub fn start() -> anyhow::Result<Self> {
        let binaries = binaries()?;
        let name = format!("kubernetes-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        let dir = dirs::private(&name, 0o700)?;
        let (etcd, etcd_url) = start_etcd(&binaries, &dir)?;
        let port = ports::free()?;
        let server = start_server(&binaries, &dir, port, &etcd_url)?;
        let this = Self {
            dir,
            port,
            audit: Mutex::default(),
            binaries,
            etcd_url,
            server: Mutex::new(server),
            _etcd: etcd,
        };
        this.wait_until_ready()?;
        Ok(this)
    }

    /// `kubectl` of this server's version, as a user with every right.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.binaries.join("kubectl"));
        command
            .env("KUBECONFIG", self.kubeconfig())
            // Its cache of what the server knows; CRDs change, and the next server may have the same port.
            .arg("--cache-dir")
            .arg(self.dir.join("kubectl"));
        command
    }

    /// Starts the controllers that end what is deleted: of namespaces and of objects whose owner is gone. They stop when
    /// what is returned is dropped.
    pub fn start_ending_controllers(&self) -> anyhow::Result<Process> {
        Spec::new(
            self.binaries.join("kube-controller-manager"),
            &self.dir,
            &dirs::run().join("kube-controller-manager.log"),
        )
        .args([Path::new("--kubeconfig"), &self.kubeconfig()])
        .args([
            "--controllers",
            "garbage-collector-controller,namespace-controller",
        ])
        .args(["--leader-elect=false", "--secure-port=0"])
        .args(["--kube-api-qps=200", "--kube-api-burst=400"])
        .spawn()
    }

    /// SIGKILL to the server; what it stored stays. For tests that have one of their own ([`Self::start`]).
    pub fn kill(&self) {
        self.server().kill();
    }

    /// Starts the server at its address over what is stored, after [`Self::kill`], and waits until it is ready.
    pub fn start_again(&self) -> anyhow::Result<()> {
        let server = start_server(&self.binaries, &self.dir, self.port, &self.etcd_url)?;
        *self.server() = server;
        self.wait_until_ready()
    }

    fn server(&self) -> MutexGuard<'_, Process> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kubeconfig of a user with every right.
    pub fn kubeconfig(&self) -> PathBuf {
        self.write_kubeconfig("admin", "")
    }

    /// Kubeconfig of `user`, who is a member of `groups` and has the rights that RBAC gives.
    pub fn kubeconfig_as(&self, user: &str, groups: &[&str]) -> PathBuf {
        let groups: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
        let identity = format!(", as: {user:?}, as-groups: [{}]", groups.join(", "));
        self.write_kubeconfig(&user.replace([':', '/'], "-"), &identity)
    }

    /// Kubeconfig of a ServiceAccount, with the rights that RBAC gives it.
    pub fn kubeconfig_of_service_account(&self, namespace: &str, name: &str) -> PathBuf {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        if user == rights::USER {
            // Itself and not impersonated: the audit policy sees who asks, not in whose name.
            return self.write_kubeconfig_of("operator", OPERATOR_TOKEN, "");
        }
        self.kubeconfig_as(
            &user,
            &[
                "system:serviceaccounts",
                &format!("system:serviceaccounts:{namespace}"),
                "system:authenticated",
            ],
        )
    }

    /// Client with every right. A client belongs to the runtime, that is to the test, it was made in.
    pub async fn client(&self) -> Client {
        client(&self.kubeconfig(), "fanout-tests")
            .await
            .expect("a client of the API server")
    }

    /// Client of a kubeconfig made here, that calls itself `user_agent`.
    pub async fn client_of(&self, kubeconfig: &Path, user_agent: &str) -> Client {
        client(kubeconfig, user_agent)
            .await
            .expect("a client of the API server")
    }

    /// A new namespace whose name starts with `prefix`.
    pub async fn namespace(&self, prefix: &str) -> String {
        let name = format!("{prefix}-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        let object = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let namespace: Namespace = serde_json::from_value(object).expect("a Namespace");
        Api::all(self.client().await)
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap_or_else(|error| panic!("namespace {name}: {error}"));
        name
    }

    /// Applies every object of a YAML file, as `kubectl apply --server-side` does.
    pub async fn apply(&self, client: &Client, file: &Path) {
        let text =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let objects: Vec<DynamicObject> = serde_yaml::from_multiple(&text).expect("objects");
        for object in objects {
            let name = object.name_any();
            apply(client, &object)
                .await
                .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }

    /// Number of requests that changed something, or tried to, so far. A mark for [`Self::writes_since`].
    pub fn mark(&self) -> usize {
        self.audit(<[Write]>::len)
    }

    /// Requests after `mark` that changed something, or tried to, in the order in which they ended.
    pub fn writes_since(&self, mark: usize) -> Vec<Write> {
        self.audit(|writes| writes.get(mark..).unwrap_or_default().to_vec())
    }

    fn audit<T>(&self, look: impl FnOnce(&[Write]) -> T) -> T {
        let mut audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
        audit
            .read(&self.dir.join(AUDIT))
            .expect("the audit log can be read");
        look(&audit.writes)
    }

    fn write_kubeconfig(&self, name: &str, identity: &str) -> PathBuf {
        self.write_kubeconfig_of(name, TOKEN, identity)
    }

    fn write_kubeconfig_of(&self, name: &str, token: &str, identity: &str) -> PathBuf {
        let file = self.dir.join(format!("{name}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: tests\n\
             clusters: [{{name: tests, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority: '{}'}}}}]\n\
             users: [{{name: tests, user: {{token: {token}{identity}}}}}]\n\
             contexts: [{{name: tests, context: {{cluster: tests, user: tests}}}}]\n",
            self.port,
            self.dir.join("certificates/apiserver.crt").display(),
        );
        // By rename: tests run at the same time, and a half written file is no kubeconfig.
        let half = self
            .dir
            .join(format!(".{name}.{:08x}", rand::random::<u32>()));
        fs::write(&half, text)
            .and_then(|()| fs::rename(&half, &file))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        file
    }

    /// On a runtime of its own, because services start on a plain thread.
    fn wait_until_ready(&self) -> anyhow::Result<()> {
        let deadline = Deadline::after(START_LIMIT);
        deadline.poll("the API server makes its certificate", || {
            self.server().ensure_running()?;
            Ok(self
                .dir
                .join("certificates/apiserver.crt")
                .exists()
                .then_some(()))
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            eventually(deadline.left(), "the API server is ready", async || {
                self.server().ensure_running()?;
                let request = axum::http::Request::get("/readyz").body(Vec::new())?;
                let client = client(&self.kubeconfig(), "fanout-tests").await?;
                client
                    .request_text(request)
                    .await
                    .map_err(anyhow::Error::from)
            })
            .await;
            install_crds(&self.client().await).await
        })
    }
}

/// Token of the user `admin`; the server listens on loopback only and ends with the tests.
const TOKEN: &str = "fanout-tests-PlantedSecret-admin";
/// Token of the operator's ServiceAccount.
const OPERATOR_TOKEN: &str = "fanout-tests-PlantedSecret-operator";
/// They live for a minute or two: memory is cheaper than collecting garbage.
const LAZY_GC: (&str, &str) = ("GOGC", "400");
/// The audit log, in the server's folder.
const AUDIT: &str = "audit.log";

/// The writes in the audit log, as far as it was read.
#[derive(Debug, Default)]
struct Audit {
    read: u64,
    writes: Vec<Write>,
}

impl Audit {
    /// Reads what is new in `file`.
    fn read(&mut self, file: &Path) -> std::io::Result<()> {
        let Ok(mut file) = File::open(file) else {
            // Nobody wrote yet.
            return Ok(());
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // The last line may be half written.
        let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(());
        };
        text.truncate(end + 1);
        self.read += u64::try_from(text.len()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let events = text.lines().map(Write::parse);
        self.writes.extend(
            events
                .map(|write| write.expect("an audit event"))
                .filter(|write| !matches!(write.verb.as_str(), "get" | "list" | "watch")),
        );
        Ok(())
    }
}

/// A request that changed something, or tried to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// `User-Agent` of the client.
    pub user_agent: String,
    /// The user, or the impersonated one.
    pub user: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// `resource.group`, or `resource/subresource.group`.
    pub resource: String,
    /// Namespace, empty for what is cluster-wide.
    pub namespace: String,
    /// Object.
    pub name: String,
    /// HTTP status of the answer.
    pub status: u64,
    /// When the request arrived.
    pub at: Timestamp,
}

impl Write {
    fn parse(line: &str) -> Option<Self> {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |pointer: &str| {
            let value = event.pointer(pointer).and_then(serde_json::Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let mut resource = text("/objectRef/resource");
        for (pointer, separator) in [
            ("/objectRef/subresource", '/'),
            ("/objectRef/apiGroup", '.'),
        ] {
            let part = text(pointer);
            if !part.is_empty() {
                resource.push(separator);
                resource += &part;
            }
        }
        let impersonated = text("/impersonatedUser/username");
        Some(Self {
            user_agent: text("/userAgent"),
            user: if impersonated.is_empty() {
                text("/user/username")
            } else {
                impersonated
            },
            verb: text("/verb"),
            resource,
            namespace: text("/objectRef/namespace"),
            name: text("/objectRef/name"),
            status: event
                .pointer("/responseStatus/code")
                .and_then(serde_json::Value::as_u64)?,
            at: text("/requestReceivedTimestamp").parse().ok()?,
        })
    }
}

async fn apply(client: &Client, object: &DynamicObject) -> anyhow::Result<()> {
    let types = object.types.as_ref().context("apiVersion and kind")?;
    let (resource, capabilities) = pinned_kind(client, &GroupVersionKind::try_from(types)?).await?;
    let api: Api<DynamicObject> = match (capabilities.scope, object.namespace()) {
        (Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
        (Scope::Namespaced, None) => anyhow::bail!("no namespace"),
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
    };
    let mut parameters = PatchParams::apply("fanout-tests").force();
    parameters.field_validation = Some(ValidationDirective::Strict);
    api.patch(&object.name_any(), &parameters, &Patch::Apply(object))
        .await?;
    Ok(())
}

/// Applies both CRDs and waits until their resources are served.
async fn install_crds(client: &Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in fanout_crds::crds() {
        let name = crd.name_any();
        api.patch(
            &name,
            &PatchParams::apply("fanout-tests"),
            &Patch::Apply(&crd),
        )
        .await
        .with_context(|| name.clone())?;
        eventually(START_LIMIT, &format!("{name} is served"), async || {
            let found = api.get(&name).await?;
            let conditions = found
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let established = conditions
                .iter()
                .any(|condition| condition.type_ == "Established" && condition.status == "True");
            anyhow::ensure!(established, "{conditions:?}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

async fn client(kubeconfig: &Path, user_agent: &str) -> anyhow::Result<Client> {
    fanout_runtime::tls::install_ring_provider();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config
        .headers
        .push((axum::http::header::USER_AGENT, user_agent.parse()?));
    Ok(Client::try_from(config)?)
}

/// Folder of the built binaries. The first build takes minutes and says so.
fn binaries() -> anyhow::Result<PathBuf> {
    let script = dirs::tests_dir().join("cluster/build.sh");
    let output = Command::new("bash")
        .arg(script)
        .arg("kube")
        .env("FANOUT_CACHE", dirs::cache())
        .stdin(Stdio::null())
        // Progress goes straight to the developer.
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "Kubernetes could not be built, see above"
    );
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn start_etcd(binaries: &Path, dir: &Path) -> anyhow::Result<(Process, String)> {
    let url = format!("http://127.0.0.1:{}", ports::free()?);
    let peer = format!("http://127.0.0.1:{}", ports::free()?);
    let process = Spec::new(binaries.join("etcd"), dir, &dirs::run().join("etcd.log"))
        .args(["--data-dir", "etcd"])
        .args(["--listen-client-urls", &url])
        .args(["--advertise-client-urls", &url])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")])
        // Nothing here outlives the process.
        .args(["--unsafe-no-fsync", "--log-level", "warn"])
        .env(LAZY_GC.0, LAZY_GC.1)
        .spawn()?;
    Ok((process, url))
}

fn start_server(binaries: &Path, dir: &Path, port: u16, etcd: &str) -> anyhow::Result<Process> {
    let key = dir.join("service-accounts.key");
    if !key.exists() {
        run(Command::new("openssl")
            .args("ecparam -name prime256v1 -genkey -noout -out".split(' '))
            .arg(&key))?;
    }
    fs::write(
        dir.join("tokens.csv"),
        format!(
            "{TOKEN},admin,admin,system:masters\n{OPERATOR_TOKEN},{},operator,\"system:serviceaccounts,system:serviceaccounts:fanout-system\"\n",
            rights::USER
        ),
    )?;
    let policy = dirs::tests_dir().join("cluster/conf/audit.yaml");
    produced::divert(&dir.join(AUDIT))?;
    Spec::new(
        binaries.join("kube-apiserver"),
        dir,
        &dirs::run().join("kube-apiserver.log"),
    )
    .args(["--etcd-servers", etcd])
    .args([
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        &port.to_string(),
    ])
    // Only a pod network would need the server's address; loopback is none it would publish.
    .args([
        "--advertise-address",
        "192.0.2.1",
        "--endpoint-reconciler-type",
        "none",
    ])
    .args([
        "--service-cluster-ip-range",
        "10.96.0.0/24",
        "--cert-dir",
        "certificates",
    ])
    .args([
        "--authorization-mode",
        "RBAC",
        "--token-auth-file",
        "tokens.csv",
        "--anonymous-auth=false",
    ])
    .args(["--service-account-issuer", "https://kubernetes.default.svc"])
    .args([Path::new("--service-account-signing-key-file"), &key])
    .args([Path::new("--service-account-key-file"), &key])
    // No controller makes the ServiceAccount that pods would need.
    .args(["--disable-admission-plugins", "ServiceAccount"])
    .args([Path::new("--audit-policy-file"), &policy])
    // Never continued in another file.
    .args(["--audit-log-path", AUDIT, "--audit-log-maxsize", "100000"])
    .args(["--audit-log-mode", "blocking"])
    .env(LAZY_GC.0, LAZY_GC.1)
    .spawn()
}
