//! Command line.

use fanout_contract::names::CONFIG_DIR;
use fanout_runtime::telemetry::LogFormat;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Publishes the committed rows of one outbox to Kafka.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "fanout-relay")]
pub struct Args {
    /// Folder with config.yaml and the files it names.
    #[arg(long, default_value = CONFIG_DIR)]
    pub config_dir: PathBuf,
    /// Name of this process among the relays of the topic, for people: the pod's name.
    #[arg(long)]
    pub instance: String,
    /// Where /livez, /readyz, /metrics and /status are served.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub admin_addr: SocketAddr,
    /// File to write the address to that is served, where it ends in port 0.
    #[arg(long)]
    pub admin_addr_file: Option<PathBuf>,
    /// json or text.
    #[arg(long, default_value_t)]
    pub log_format: LogFormat,
    /// Which lines are logged, as in RUST_LOG.
    #[arg(long, default_value = "info")]
    pub log_filter: String,
}
