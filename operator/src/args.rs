//! Command line: parsed once; nothing else reads arguments or the environment.

use crate::check::CheckArgs;
use crate::settings::Settings;
use clap::Parser;
use fanout_runtime::telemetry::LogFormat;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What the program was started for.
#[derive(Clone, Debug)]
pub enum Command {
    /// The operator.
    Run(Box<Args>),
    /// `check`, the first argument, and then those of the check.
    Check(CheckArgs),
}

impl Command {
    /// Parses the command line of this process, and ends it when that can't be understood.
    ///
    /// Without a word in front it is the operator: charts of any version start it so.
    pub fn parse() -> Self {
        let mut all = std::env::args_os();
        let program = all.next();
        let mut rest = all.peekable();
        if rest.next_if(|first| first == "check").is_some() {
            return Self::Check(CheckArgs::parse_from(program.into_iter().chain(rest)));
        }
        let args = Args::parse_from(program.into_iter().chain(rest));
        Self::Run(Box::new(args))
    }
}

/// Reconciles FanoutTopics and Subscriptions.
#[derive(Clone, Debug, Parser)]
#[command(name = "fanout-operator", version)]
pub struct Args {
    /// Namespace the operator runs in: its Lease lives there.
    #[arg(long)]
    pub namespace: String,
    /// Name of this process (the pod's name), unique among the replicas.
    #[arg(long)]
    pub instance: String,
    /// Name of the Lease that elects the leader; one per installation.
    #[arg(long, default_value = "fanout-operator")]
    pub lease_name: String,
    /// Image of the workers; it holds `/fanout-relay` and `/fanout-consumers`.
    #[arg(long)]
    pub worker_image: String,
    /// Pull policy of the workers' image: Always, IfNotPresent or Never. Absent: the cluster's default.
    #[arg(long)]
    pub image_pull_policy: Option<String>,
    /// Precedes the names of Kafka topics and consumer groups that no spec names.
    #[arg(long, default_value = "")]
    pub kafka_prefix: String,
    /// Private range that sinks may connect to; may be repeated.
    #[arg(long = "egress-allowed-cidr", value_name = "CIDR")]
    pub egress_allowed_cidrs: Vec<IpNet>,
    /// What `deletionPolicy: Delete` could not delete this many seconds after the object's deletion stays.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub deletion_deadline_seconds: u64,
    /// Address of the admin server (`/livez`, `/readyz`, `/metrics`, `/status`).
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub admin_addr: SocketAddr,
    /// File that the admin server's chosen address is written to.
    #[arg(long)]
    pub admin_addr_file: Option<PathBuf>,
    /// Format of the log.
    #[arg(long, default_value = "json")]
    pub log_format: LogFormat,
    /// What is logged, as a tracing filter.
    #[arg(long, default_value = "info")]
    pub log_filter: String,
}

impl Args {
    /// The part that decides what is built.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            worker_image: self.worker_image.clone(),
            image_pull_policy: self.image_pull_policy.clone(),
            kafka_prefix: self.kafka_prefix.clone(),
            egress_allowed: self.egress_allowed_cidrs.clone(),
            deletion_deadline: Duration::from_secs(self.deletion_deadline_seconds),
        }
    }
}
