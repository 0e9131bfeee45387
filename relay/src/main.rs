//! The relay's binary.

use anyhow::Context as _;
use clap::Parser as _;
use fanout_relay::args::Args;
use fanout_runtime::{process, shutdown, telemetry, tls};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    process::protect_memory().context("core dumps can't be forbidden")?;
    tls::install_ring_provider();
    let args = Args::parse();
    telemetry::init(args.log_format, &args.log_filter)?;
    fanout_relay::run(args, shutdown::on_signal()?).await
}
