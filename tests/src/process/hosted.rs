//! A worker's binary run the way a pod runs it: from a configuration directory that somebody else fills.

use super::config_dir::ConfigDir;
use super::{Files, note_secrets, program, spawn};
use crate::produced;
use crate::services::child::{Process, Signal};
use fanout_contract::names::ADMIN_PORT;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One container: a process, its configuration directory, and how often it was started again. Dropped, it is killed.
#[derive(Debug)]
pub struct Hosted {
    name: String,
    instance: String,
    dir: PathBuf,
    config: ConfigDir,
    address: SocketAddr,
    process: Process,
    restarts: i32,
    http: reqwest::Client,
}

impl Hosted {
    /// Starts the program `name` (such as `fanout-relay`) as `instance` in the new folder `dir` with `files`.
    pub fn start(name: &str, instance: &str, dir: &Path, files: &Files) -> anyhow::Result<Self> {
        let mut config = ConfigDir::new(dir.join("config"))?;
        config.replace(files)?;
        note_secrets(files);
        fanout_runtime::tls::install_ring_provider();
        let address = pod_address();
        let process = spawn(
            &program(name),
            instance,
            dir,
            config.path(),
            &address.to_string(),
            &Vec::new(),
        );
        Ok(Self {
            name: name.to_owned(),
            instance: instance.to_owned(),
            dir: dir.to_owned(),
            config,
            address,
            process,
            restarts: 0,
            http: reqwest::Client::builder()
                .timeout(Duration::from_secs(2))
                .build()?,
        })
    }

    /// Replaces all files at once.
    pub fn replace(&mut self, files: &Files) -> anyhow::Result<()> {
        note_secrets(files);
        Ok(self.config.replace(files)?)
    }

    /// Starts the process again when it has ended; true when it did.
    pub fn restart_ended(&mut self) -> bool {
        if self.process.ended().is_none() {
            return false;
        }
        self.process = spawn(
            &program(&self.name),
            &self.instance,
            &self.dir,
            self.config.path(),
            &self.address.to_string(),
            &Vec::new(),
        );
        self.restarts += 1;
        true
    }

    /// Address of the admin server, once it listens.
    pub fn admin(&self) -> Option<String> {
        let address = std::fs::read_to_string(self.dir.join("admin-addr")).ok()?;
        Some(address.trim().to_owned()).filter(|address| address.contains(':'))
    }

    /// The pod's address.
    pub fn ip(&self) -> String {
        self.address.ip().to_string()
    }

    /// What asks its readiness probe.
    pub fn probe(&self) -> Probe {
        Probe {
            admin: self.admin().filter(|_| self.process.ended().is_none()),
            http: self.http.clone(),
        }
    }

    /// How often it was started again.
    pub const fn restarts(&self) -> i32 {
        self.restarts
    }

    /// Its folder, with the file `log`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// True when the process has ended.
    pub fn has_ended(&self) -> bool {
        self.process.ended().is_some()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if let Some(admin) = self.admin() {
            produced::keep_pages(&self.instance, &admin);
        }
    }
}

/// An address of its own on loopback, with the port of every worker: where the operator looks for it. Where that port is
/// taken on all addresses, any port.
pub fn pod_address() -> SocketAddr {
    let [a, b, c] = rand::random::<[u8; 3]>();
    let own = Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254));
    let address = SocketAddr::from((own, ADMIN_PORT));
    match TcpListener::bind(address) {
        Ok(_) => address,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}

/// A readiness probe of a container as it was when the probe was made.
#[derive(Debug)]
pub struct Probe {
    admin: Option<String>,
    http: reqwest::Client,
}

impl Probe {
    /// True when `/readyz` answers 200.
    pub async fn ready(&self) -> bool {
        let Some(admin) = &self.admin else {
            return false;
        };
        let answer = self.http.get(format!("http://{admin}/readyz")).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }
}
