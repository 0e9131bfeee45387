//! The consumers' process.

use anyhow::Context;
use clap::Parser;
use fanout_consumers::{Args, run};
use fanout_runtime::{process, shutdown, telemetry, tls};
use std::time::Duration;

/// Calls of the Kafka client that still wait for a broker do not hold up the end of the process.
const LAST_CALLS: Duration = Duration::from_secs(2);

fn main() -> anyhow::Result<()> {
    process::protect_memory().context("core dumps can't be forbidden")?;
    tls::install_ring_provider();
    let args = Args::parse();
    telemetry::init(args.log_format, &args.log_filter)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("async runtime")?;
    let result = runtime.block_on(async { run(args, shutdown::on_signal()?).await });
    runtime.shutdown_timeout(LAST_CALLS);
    result
}
