//! Command line.

use clap::Parser;
use fanout_runtime::telemetry::LogFormat;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Moves each subscription's events from Kafka to its sink.
#[derive(Clone, Debug, Parser)]
#[command(name = "fanout-consumers", version)]
pub struct Args {
    /// Folder with config.yaml and the files it names; changes are applied without a restart.
    #[arg(long, default_value = fanout_contract::names::CONFIG_DIR)]
    pub config_dir: PathBuf,
    /// Name of this process, as brokers log it: the pod's name.
    #[arg(long, default_value = "fanout-consumers")]
    pub instance: String,
    /// Address of the admin server (/livez, /readyz, /metrics, /status).
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], fanout_contract::names::ADMIN_PORT)))]
    pub admin_addr: SocketAddr,
    /// File to write the admin server's address to, where the system chose the port.
    #[arg(long)]
    pub admin_addr_file: Option<PathBuf>,
    /// Shape of log lines: json or text.
    #[arg(long, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,
    /// Which log lines are written, in the syntax of RUST_LOG.
    #[arg(long, default_value = "info")]
    pub log_filter: String,
}
