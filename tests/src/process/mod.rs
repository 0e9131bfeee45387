//! The project's own binaries as processes: configured, watched, stopped, killed and looked into.

mod config_dir;
mod hosted;
mod operator;

pub use hosted::{Hosted, pod_address};
pub use operator::{OperatorProcess, Usage};

use crate::faults::clock::Environment;
use crate::services::child::{self, Process, Signal, Spec};
use crate::services::{dirs, say};
use crate::{Sandbox, eventually, produced};
use config_dir::ConfigDir;
use fanout_contract::consumer::{ConsumerConfig, ConsumerStatus};
use fanout_contract::names::CONFIG_FILE;
use fanout_contract::relay::{RelayConfig, RelayStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, SystemTime};

/// A relay process.
pub type Relay = Worker<RelayBinary>;
/// A consumer process.
pub type Consumer = Worker<ConsumerBinary>;

/// Files beside `config.yaml` by name: secret values.
pub type Files = BTreeMap<String, Vec<u8>>;

/// How long a worker may take to open its admin server.
const START_LIMIT: Duration = Duration::from_secs(30);
/// A worker stops within this time after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_mins(1);
/// Lines of a worker's log that a failed test shows.
const SHOWN_LINES: usize = 80;

/// Where a worker of a test listens.
const ANY_PORT: &str = "127.0.0.1:0";

/// One of the workers' binaries.
pub trait Binary {
    /// File name of the program.
    const NAME: &'static str;
    /// Its configuration file.
    type Config: Serialize;
    /// Its `/status` document.
    type Status: DeserializeOwned + std::fmt::Debug;
}

/// `fanout-relay`.
#[derive(Debug)]
pub struct RelayBinary;
/// `fanout-consumers`.
#[derive(Debug)]
pub struct ConsumerBinary;

impl Binary for RelayBinary {
    const NAME: &'static str = "fanout-relay";
    type Config = RelayConfig;
    type Status = RelayStatus;
}

impl Binary for ConsumerBinary {
    const NAME: &'static str = "fanout-consumers";
    type Config = ConsumerConfig;
    type Status = ConsumerStatus;
}

/// A worker process. Dropped, it is killed; in a failing test it shows the end of its log, else its log is searched
/// for the secrets it was given.
#[derive(Debug)]
pub struct Worker<B: Binary> {
    instance: String,
    dir: PathBuf,
    config: ConfigDir,
    files: Files,
    environment: Environment,
    process: Process,
    admin: String,
    http: reqwest::Client,
    binary: PhantomData<B>,
}

impl<B: Binary> Worker<B> {
    /// Starts the binary as `instance` with `config` and the sandbox's secret files, and waits for its admin server.
    pub async fn start(sandbox: &Sandbox, instance: &str, config: &B::Config) -> Self {
        Self::start_with(sandbox, instance, config, sandbox.secret_files()).await
    }

    /// [`Self::start`] with files of the caller's own.
    pub async fn start_with(
        sandbox: &Sandbox,
        instance: &str,
        config: &B::Config,
        files: Files,
    ) -> Self {
        Self::start_under(sandbox, instance, config, files, Environment::new()).await
    }

    /// [`Self::start_with`] environment variables beside those of this process.
    pub async fn start_under(
        sandbox: &Sandbox,
        instance: &str,
        config: &B::Config,
        files: Files,
        environment: Environment,
    ) -> Self {
        let unique = format!("{instance}-{:04x}", rand::random::<u16>());
        let dir = sandbox.dir().join(unique);
        let mut config_dir = ConfigDir::new(dir.join("config")).expect("a folder can be made");
        let files = with_config(config, files);
        config_dir.replace(&files).expect("files can be written");
        fanout_runtime::tls::install_ring_provider();
        let program = program(B::NAME);
        let process = spawn(
            &program,
            instance,
            &dir,
            config_dir.path(),
            ANY_PORT,
            &environment,
        );
        let mut worker = Self {
            instance: instance.to_owned(),
            dir,
            config: config_dir,
            files,
            environment,
            process,
            admin: String::new(),
            http: reqwest::Client::builder()
                .timeout(Duration::from_secs(5))
                .pool_max_idle_per_host(0)
                .build()
                .expect("a client without special settings"),
            binary: PhantomData,
        };
        worker.wait_for_admin().await;
        worker
    }

    /// Starts it again over the same folder, under the same instance name, after it was stopped or killed.
    pub async fn start_again(&mut self) {
        assert!(
            self.process.ended().is_some(),
            "{} still runs",
            self.instance
        );
        self.process = spawn(
            &program(B::NAME),
            &self.instance,
            &self.dir,
            self.config.path(),
            ANY_PORT,
            &self.environment,
        );
        self.wait_for_admin().await;
    }

    async fn wait_for_admin(&mut self) {
        let file = self.dir.join("admin-addr");
        let process = &self.process;
        self.admin = eventually(START_LIMIT, "the worker's admin address", async || {
            process.ensure_running()?;
            let address = std::fs::read_to_string(&file)?;
            anyhow::ensure!(address.trim().contains(':'), "half written");
            anyhow::Ok(address.trim().to_owned())
        })
        .await;
    }

    /// Replaces the configuration the way the kubelet does; the secret files stay.
    pub fn reconfigure(&mut self, config: &B::Config) {
        self.reconfigure_with(config, self.files.clone());
    }

    /// Replaces the configuration and the files beside it.
    pub fn reconfigure_with(&mut self, config: &B::Config, files: Files) {
        self.files = with_config(config, files);
        self.config
            .replace(&self.files)
            .expect("files can be written");
    }

    /// Hash that `/status` shows once the present configuration is in force.
    pub fn config_hash(&self) -> String {
        fanout_runtime::config::hash(&self.files)
    }

    /// Body of a page of the admin server, whatever its status.
    pub async fn get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        self.process.ensure_running()?;
        let url = format!("http://{}{path}", self.admin);
        let response = self.http.get(url).send().await?;
        let status = response.status().as_u16();
        Ok((status, response.text().await?))
    }

    /// `/status`.
    pub async fn status(&self) -> anyhow::Result<B::Status> {
        let (code, body) = self.get("/status").await?;
        anyhow::ensure!(code == 200, "/status answers {code}: {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// True when `/readyz` answers 200.
    pub async fn ready(&self) -> anyhow::Result<bool> {
        Ok(self.get("/readyz").await?.0 == 200)
    }

    /// `/metrics`.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        Ok(self.get("/metrics").await?.1)
    }

    /// Polls `/status` until `accept` holds, and returns that status.
    pub async fn wait_until(
        &self,
        limit: Duration,
        what: &str,
        accept: impl Fn(&B::Status) -> bool,
    ) -> B::Status {
        eventually(limit, &format!("{}: {what}", self.instance), async || {
            let status = self.status().await?;
            if accept(&status) {
                Ok(status)
            } else {
                Err(anyhow::anyhow!("{status:?}"))
            }
        })
        .await
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// How it ended, when it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Sends a signal, such as `Signal::STOP` and `Signal::CONT`.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&self) -> ExitStatus {
        self.process.kill()
    }

    /// SIGTERM, and waits until it has ended.
    pub async fn terminate(&self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        eventually(STOP_LIMIT, &format!("{} ends", self.instance), async || {
            self.process.ended().ok_or("it runs")
        })
        .await
    }

    /// Everything it logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Names of the files whose contents, or a password in them, are in `text`.
    pub fn leaked_into(&self, text: &str) -> Vec<String> {
        self.files
            .iter()
            .filter(|(name, _)| *name != CONFIG_FILE)
            .filter(|(_, contents)| {
                produced::secrets_in(contents)
                    .iter()
                    .any(|secret| text.contains(secret))
            })
            .map(|(name, _)| name.clone())
            .collect()
    }
}

impl<B: Binary> Drop for Worker<B> {
    fn drop(&mut self) {
        produced::keep_pages(&self.instance, &self.admin);
        self.process.kill();
        let log = self.log();
        if std::thread::panicking() {
            let shown = child::tail(&log, SHOWN_LINES);
            eprintln!("---- the end of {}'s log\n{shown}\n----", self.instance);
            match dirs::keep(&format!("{}.log", self.instance), &log) {
                Ok(path) => eprintln!("the whole log: {}", path.display()),
                Err(error) => eprintln!("the whole log is lost: {error:#}"),
            }
            return;
        }
        let leaked = self.leaked_into(&log);
        assert!(
            leaked.is_empty(),
            "{} logged secrets: {leaked:?}",
            self.instance
        );
    }
}

fn with_config(config: &impl Serialize, mut files: Files) -> Files {
    note_secrets(&files);
    let yaml = serde_yaml::to_string(config).expect("a configuration can be written");
    files.insert(CONFIG_FILE.to_owned(), yaml.into_bytes());
    files
}

/// What is in these files may be nowhere else.
fn note_secrets(files: &Files) {
    let secrets = files.iter().filter(|(name, _)| *name != CONFIG_FILE);
    secrets.for_each(|(name, contents)| produced::note_secret(name, contents));
}

fn spawn(
    program: &Path,
    instance: &str,
    dir: &Path,
    config: &Path,
    admin: &str,
    environment: &Environment,
) -> Process {
    let address_file = dir.join("admin-addr");
    // What an earlier process wrote there is not the new one's address.
    std::fs::remove_file(&address_file).ok();
    Spec::new(program, dir, &dir.join("log"))
        .args(["--config-dir".as_ref(), config.as_os_str()])
        .args(["--instance", instance, "--admin-addr", admin])
        .args(["--admin-addr-file".as_ref(), address_file.as_os_str()])
        .args([
            "--log-format",
            "text",
            "--log-filter",
            "debug,hyper=info,rustls=info",
        ])
        .envs(environment)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error:#}", program.display()))
}

/// The binary `name` that Cargo built beside this test.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let program = test
        .ancestors()
        .nth(2)
        .expect("tests are built into a folder of the target folder")
        .join(name);
    let Ok(built) = std::fs::metadata(&program).and_then(|meta| meta.modified()) else {
        panic!(
            "{} is missing: run `cargo build --workspace` first",
            program.display()
        );
    };
    if let Some(source) = newer_source(folder(name), built) {
        say(&format!(
            "{name} is older than {}: run `cargo build --workspace`",
            source.display()
        ));
    }
    program
}

/// Folder of a program's sources: the packages are called after it.
fn folder(program: &str) -> &str {
    program.strip_prefix("fanout-").unwrap_or(program)
}

fn newer_source(folder: &str, built: SystemTime) -> Option<PathBuf> {
    let mut folders = vec![dirs::tests_dir().join("..").join(folder).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let meta = entry.metadata().ok()?;
            if meta.is_dir() {
                folders.push(entry.path());
            } else if entry.file_name() != "tests.rs" && meta.modified().ok()? > built {
                return Some(entry.path());
            }
        }
    }
    None
}
