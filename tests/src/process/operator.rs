//! The operator's binary as a process on a test's API server, with the rights that the chart gives it.

use super::program;
use crate::faults::Hook;
use crate::services::api_server::ApiServer;
use crate::services::child::{self, Process, Signal, Spec};
use crate::services::{RECEIVER_RANGE, dirs};
use crate::{Deadline, eventually};
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

/// How long it may take to open its admin server.
const START_LIMIT: Duration = Duration::from_secs(30);
/// It stops within this time after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_mins(1);
/// Lines of its log that a failed test shows.
const SHOWN_LINES: usize = 60;

/// An operator process. Dropped, it is killed; in a failing test it shows the end of its log.
#[derive(Debug)]
pub struct OperatorProcess {
    order: Spec,
    process: Arc<Process>,
    admin: String,
    dir: PathBuf,
    http: reqwest::Client,
}

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory, bytes.
    pub resident: u64,
    /// The most it ever was, bytes.
    pub peak: u64,
    /// Open files, sockets included.
    pub files: usize,
    /// Threads.
    pub threads: u64,
    /// Processor time since it started.
    pub processor: Duration,
}

impl OperatorProcess {
    /// Starts the binary as `instance` in namespace `fanout-system`, where `manifests/install.yaml` was applied.
    pub async fn start(server: &ApiServer, instance: &str) -> Self {
        let kubeconfig = server.kubeconfig_of_service_account("fanout-system", "fanout-operator");
        Self::start_on(&kubeconfig, "fanout-system", instance).await
    }

    /// Starts the binary as `instance` on the API server that `kubeconfig` names; its Lease is in `namespace`.
    pub async fn start_on(kubeconfig: &Path, namespace: &str, instance: &str) -> Self {
        fanout_runtime::tls::install_ring_provider();
        let name = format!("{instance}-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        let dir = dirs::private(&name, 0o755).expect("a folder can be made");
        let address = dir.join("admin-addr");
        let order = Spec::new(program("fanout-operator"), &dir, &dir.join("log"))
            .env("KUBECONFIG", kubeconfig)
            .args(["--namespace", namespace, "--instance", instance])
            .args(["--worker-image", "localhost/fanout-operator:test"])
            .args(["--egress-allowed-cidr", RECEIVER_RANGE])
            .args(["--admin-addr", "127.0.0.1:0"])
            .args(["--admin-addr-file".as_ref(), address.as_os_str()])
            .args(["--log-format", "text"]);
        let process = spawn(&order);
        let admin = eventually(START_LIMIT, "the operator's admin address", async || {
            process.ensure_running()?;
            let address = std::fs::read_to_string(&address)?;
            anyhow::ensure!(address.contains(':'), "half written");
            anyhow::Ok(address)
        })
        .await;
        Self {
            order,
            process: Arc::new(process),
            admin,
            dir,
            http: reqwest::Client::builder()
                .timeout(Duration::from_secs(5))
                .build()
                .expect("a client without special settings"),
        }
    }

    /// Starts it again under its name, as the kubelet does with a container that ended. Its admin server is elsewhere now.
    pub fn start_again(&mut self) {
        assert!(self.process.ended().is_some(), "it still runs");
        self.process = Arc::new(spawn(&self.order));
    }

    /// What kills the present process.
    pub fn killer(&self) -> Hook {
        let process = Arc::clone(&self.process);
        Arc::new(move || {
            process.kill();
        })
    }

    /// Body of a page of the admin server.
    pub async fn get(&self, path: &str) -> anyhow::Result<String> {
        self.process.ensure_running()?;
        let url = format!("http://{}{path}", self.admin);
        let answer = self.http.get(url).send().await?.error_for_status()?;
        Ok(answer.text().await?)
    }

    /// The values of the series of a metric, such as `fanout_operator_reconciles_total`, whose labels contain `label`.
    pub async fn series(&self, metric: &str, label: &str) -> anyhow::Result<Vec<f64>> {
        let text = self.get("/metrics").await?;
        let of_metric = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(metric)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let is_metric = labels.is_empty() || labels.starts_with('{');
            (is_metric && labels.contains(label)).then(|| value.parse::<f64>())
        });
        Ok(of_metric.collect::<Result<_, _>>()?)
    }

    /// Passes it has made over objects of `kind`, or over all objects.
    pub async fn passes(&self, kind: Option<&str>) -> anyhow::Result<f64> {
        let label = kind.map_or_else(String::new, |kind| format!("kind=\"{kind}\""));
        let passes = self.series("fanout_operator_reconciles_total", &label);
        Ok(passes.await?.iter().sum())
    }

    /// What it takes of the machine now.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        let proc = PathBuf::from(format!("/proc/{}", self.process.pid()));
        let status = std::fs::read_to_string(proc.join("status"))?;
        let stat = std::fs::read_to_string(proc.join("stat"))?;
        let number = |name: &str| -> anyhow::Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|rest| rest.split_whitespace().next());
            Ok(word.with_context(|| name.to_owned())?.parse()?)
        };
        // User and system time are the fields 14 and 15; the program's name, field 2, may hold spaces.
        let (_, fields) = stat.rsplit_once(") ").context("stat")?;
        let ticks: u64 = fields
            .split(' ')
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u64>().unwrap_or_default())
            .sum();
        Ok(Usage {
            resident: number("VmRSS:")? * 1024,
            peak: number("VmHWM:")? * 1024,
            files: std::fs::read_dir(proc.join("fd"))?.count(),
            threads: number("Threads:")?,
            // A tick that user space sees is 10 ms on every Linux.
            processor: Duration::from_millis(ticks * 10),
        })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// SIGKILL, and waits until it is gone: its Lease stays taken.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Sends a signal, such as `Signal::STOP` and `Signal::CONT`.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// SIGTERM, and waits until it has ended: its Lease is free.
    pub async fn terminate(&self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.wait().await
    }

    /// Waits until it has ended.
    pub async fn wait(&self) -> ExitStatus {
        let deadline = Deadline::after(STOP_LIMIT);
        eventually(deadline.left(), "the operator ends", async || {
            self.process.ended().ok_or("it runs")
        })
        .await
    }

    /// How it ended, when it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Everything that it, and those before it, logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

fn spawn(order: &Spec) -> Process {
    let started = order.clone().spawn();
    started.unwrap_or_else(|error| panic!("fanout-operator: {error:#}"))
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() {
            let shown = child::tail(&self.log(), SHOWN_LINES);
            eprintln!(
                "---- the end of the operator's log in {}\n{shown}\n----",
                self.dir.display()
            );
        }
    }
}
