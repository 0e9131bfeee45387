//! A private Kafka broker, one node, from Maven artifacts.

mod acls;
mod credentials;
mod lane;

pub use acls::{Acl, Operation, Resource};
pub use lane::Lane;

use self::credentials::{Certificates, KEY_STORE};
use self::lane::Lanes;
use super::child::{Process, Signal, Spec};
use super::{dirs, maven, ports, run, say};
use crate::{Deadline, eventually};
use anyhow::Context;
use base64::Engine as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The user that [`Kafka::sasl_bootstrap`] lets in, with [`SASL_PASSWORD`].
pub const SASL_USER: &str = "fanout";
/// Password of [`SASL_USER`]; it carries [`crate::produced::MARK`].
pub const SASL_PASSWORD: &str = "PlantedSecret correct horse";
/// Users that [`Kafka::tls_bootstrap`] and [`Kafka::sasl_bootstrap`] let in with [`SASL_PASSWORD`]. They may do what no
/// [`Acl`] is about.
pub const RESTRICTED_USERS: [&str; 2] = ["restricted-relay", "restricted-consumer"];
const START_LIMIT: Duration = Duration::from_secs(90);

/// A running broker.
pub struct Kafka {
    installation: Installation,
    node: Node,
    process: Mutex<Option<Process>>,
    admin: AdminClient<DefaultClientContext>,
    lanes: Lanes,
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Kafka {
    /// Downloads the broker unless it is cached, formats a folder and starts it.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(&[])
    }

    /// The same with broker `settings` of the caller's own, which go before those of all tests.
    pub fn start_with(settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let installation = Installation::cached()?;
        let node = Node::format(&installation, settings)?;
        let process = node.spawn(&installation, None)?;
        let admin = client(&node.bootstrap()).create()?;
        let lanes = Lanes::new(&node.lanes);
        Ok(Self {
            installation,
            node,
            process: Mutex::new(Some(process)),
            admin,
            lanes,
        })
    }

    /// Starts the broker over its existing data, after [`Self::kill`].
    pub fn start_again(&self) -> anyhow::Result<()> {
        let process = self.node.spawn(&self.installation, None)?;
        *self.lock() = Some(process);
        Ok(())
    }

    /// SIGKILL. For tests that have a broker of their own ([`Self::start`]).
    pub fn kill(&self) {
        drop(self.lock().take());
    }

    /// Sends the broker a signal, such as `Signal::STOP`: it answers nothing before `Signal::CONT`.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = self.lock().as_ref() {
            process.signal(signal);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `host:port`.
    pub fn bootstrap(&self) -> String {
        self.node.bootstrap()
    }

    /// `host:port` of the listener that asks for SASL/SCRAM-SHA-512 as [`SASL_USER`].
    pub fn sasl_bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.node.sasl_port)
    }

    /// `host:port` of the listener that asks for the same over TLS, with a certificate that [`Self::ca`] signs.
    pub fn tls_bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.node.tls_port)
    }

    /// A listener for a proxy; waits when all are taken.
    pub async fn lane(&self) -> Lane {
        self.lanes.take().await
    }

    /// Adds an entry to the access control lists. Blocks.
    pub fn allow_or_deny(&self, acl: &Acl) -> anyhow::Result<()> {
        acls::create(&self.bootstrap(), acl)
    }

    /// Removes the entry. Blocks.
    pub fn forget(&self, acl: &Acl) -> anyhow::Result<()> {
        acls::delete(&self.bootstrap(), acl)
    }

    /// Client configuration that reaches this broker and nothing else.
    pub fn client(&self) -> ClientConfig {
        client(&self.bootstrap())
    }

    /// Id of its process; `None` after [`Self::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(Process::pid)
    }

    /// Admin client.
    pub fn admin(&self) -> &AdminClient<DefaultClientContext> {
        &self.admin
    }

    /// Creates a topic with one replica.
    pub async fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        let results = self
            .admin
            .create_topics(
                [&topic],
                &AdminOptions::new().operation_timeout(Some(START_LIMIT)),
            )
            .await
            .unwrap_or_else(|error| panic!("topic {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(name, error)| panic!("topic {name}: {error}"));
        }
        self.await_partitions(name, partitions).await;
    }

    /// Gives a topic more partitions, `total` in all.
    pub async fn add_partitions(&self, name: &str, total: i32) {
        let count = usize::try_from(total).expect("a positive number");
        let results = self
            .admin
            .create_partitions([&NewPartitions::new(name, count)], &AdminOptions::new())
            .await
            .unwrap_or_else(|error| panic!("topic {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(name, error)| panic!("topic {name}: {error}"));
        }
        self.await_partitions(name, total).await;
    }

    /// Waits until clients can use all partitions: a new one is known before the broker leads it.
    async fn await_partitions(&self, name: &str, partitions: i32) {
        let client = self.admin.inner();
        let answer = Duration::from_secs(5);
        eventually(
            START_LIMIT,
            &format!("topic {name} can be used"),
            async || {
                let metadata = client.fetch_metadata(Some(name), answer)?;
                let known = metadata
                    .topics()
                    .first()
                    .map_or(0, |topic| topic.partitions().len());
                anyhow::ensure!(i32::try_from(known)? == partitions, "{known} partitions");
                for partition in 0..partitions {
                    client.fetch_watermarks(name, partition, answer)?;
                }
                Ok(())
            },
        )
        .await;
    }
}

fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

/// Addresses and folder of the node.
#[derive(Debug)]
struct Node {
    dir: PathBuf,
    port: u16,
    sasl_port: u16,
    tls_port: u16,
    tls: Certificates,
    /// Port and advertised port of each [`Lane`].
    lanes: Vec<(u16, u16)>,
}

impl Node {
    fn format(installation: &Installation, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let (port, sasl_port) = (ports::free()?, ports::free()?);
        let (tls_port, controller) = (ports::free()?, ports::free()?);
        let dir = dirs::private(&format!("kafka-{port}"), 0o700)?;
        let lanes = lane::ports()?;
        let [listeners, advertised, protocols] = lane::properties(&lanes);
        let fixed = fs::read_to_string(dirs::tests_dir().join("kafka/server.properties"))?;
        let tls = Certificates::make(&dir)?;
        let own = format!(
            "controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port},SASL_SSL://127.0.0.1:{tls_port},CONTROLLER://127.0.0.1:{controller}{listeners}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port},SASL_SSL://127.0.0.1:{tls_port}{advertised}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT{protocols}\n\
             {KEY_STORE}.type=PEM\n\
             {KEY_STORE}.location={}\n\
             log.dirs={}\n",
            tls.old.path.display(),
            dir.join("data").display()
        );
        // Java takes the last of several values.
        let own = settings.iter().fold(own, |mut own, (name, value)| {
            let _infallible = writeln!(own, "{name}={value}");
            own
        });
        fs::write(dir.join("server.properties"), format!("{fixed}{own}"))?;
        let id = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .encode(rand::random::<u128>().to_be_bytes());
        run(Command::new("java")
            .args(installation.java_args())
            .args([
                "kafka.tools.StorageTool",
                "format",
                // With "=": an id may begin with a hyphen.
                &format!("--cluster-id={id}"),
                "-c",
                "server.properties",
            ])
            .args(
                [SASL_USER]
                    .into_iter()
                    .chain(RESTRICTED_USERS)
                    .flat_map(|user| {
                        let scram = format!("SCRAM-SHA-512=[name={user},password={SASL_PASSWORD}]");
                        ["--add-scram".to_owned(), scram]
                    }),
            )
            .current_dir(&dir))?;
        Ok(Self {
            dir,
            port,
            sasl_port,
            tls_port,
            tls,
            lanes,
        })
    }

    fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn spawn(&self, installation: &Installation, extra: Option<String>) -> anyhow::Result<Process> {
        let log = dirs::run().join(format!("kafka-{}.log", self.port));
        let process = Spec::new("java", &self.dir, &log)
            .args(["-Xms128m", "-Xmx512m"])
            .args(extra)
            .args(installation.java_args())
            .args(["kafka.Kafka", "server.properties"])
            .spawn()?;
        let probe: BaseConsumer = client(&self.bootstrap())
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "50")
            .set("log_level", "0")
            .create()?;
        Deadline::after(START_LIMIT).poll("Kafka answers", || {
            process.ensure_running()?;
            Ok(probe
                .fetch_metadata(None, Duration::from_millis(300))
                .ok()
                .filter(|metadata| !metadata.brokers().is_empty()))
        })?;
        Ok(process)
    }
}

/// Jars, and an archive of their loaded classes that halves the start.
#[derive(Debug)]
struct Installation {
    class_path: String,
    archive: PathBuf,
}

impl Installation {
    /// The installation for `tests/kafka/pom.xml`, in the cache.
    fn cached() -> anyhow::Result<Self> {
        // Held until the archive is there, too.
        let (dir, _guard) = maven::cached("kafka", "Kafka, about 55 MB")?;
        let installation = Self {
            class_path: maven::class_path(&dir)?,
            archive: dir.join(format!("classes-{}.jsa", java_version()?)),
        };
        if !installation.archive.exists() {
            say("preparing Kafka for quick starts (once, about 15 s)");
            installation.train()?;
        }
        Ok(installation)
    }

    fn java_args(&self) -> Vec<String> {
        let log4j = dirs::tests_dir().join("kafka/log4j2.properties");
        let mut args = vec![
            "-XX:+UseSerialGC".to_owned(),
            "-Xshare:auto".to_owned(),
            format!("-Dlog4j2.configurationFile={}", log4j.display()),
            "-cp".to_owned(),
            self.class_path.clone(),
        ];
        if self.archive.exists() {
            args.push(format!("-XX:SharedArchiveFile={}", self.archive.display()));
        }
        args
    }

    /// Starts a broker once and keeps the classes it loaded.
    fn train(&self) -> anyhow::Result<()> {
        let partial = self.archive.with_extension("partial");
        let node = Node::format(self, &[])?;
        let process = node.spawn(
            self,
            Some(format!("-XX:ArchiveClassesAtExit={}", partial.display())),
        )?;
        process.signal(Signal::TERM);
        process.wait(START_LIMIT)?;
        fs::remove_dir_all(&node.dir)?;
        fs::rename(&partial, &self.archive).context("java wrote no class archive")
    }
}

/// Something short that changes with the installed Java: a class archive is bound to it.
fn java_version() -> anyhow::Result<String> {
    let output = Command::new("java")
        .arg("-version")
        .output()
        .context("java")?;
    Ok(maven::short_hash(&output.stderr))
}
