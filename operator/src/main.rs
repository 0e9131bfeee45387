//! The `fanout-operator` binary.

use anyhow::Context as _;
use fanout_operator::args::Command;
use fanout_operator::check;
use fanout_runtime::{process, shutdown, telemetry, tls};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    process::protect_memory().context("core dumps can't be forbidden")?;
    tls::install_ring_provider();
    match Command::parse() {
        Command::Run(args) => {
            telemetry::init(args.log_format, &args.log_filter)?;
            let shutdown = shutdown::on_signal()?;
            Box::pin(fanout_operator::run(*args, shutdown)).await
        }
        Command::Check(args) => {
            telemetry::init(telemetry::LogFormat::Text, "info")?;
            Box::pin(check::run(&args)).await
        }
    }
}
