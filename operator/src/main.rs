//! The `fanout-operator` binary.

use clap::Parser;
use fanout_operator::args::Args;
use fanout_runtime::{shutdown, telemetry, tls};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tls::install_ring_provider();
    let args = Args::parse();
    telemetry::init(args.log_format, &args.log_filter)?;
    let shutdown = shutdown::on_signal()?;
    Box::pin(fanout_operator::run(args, shutdown)).await
}
