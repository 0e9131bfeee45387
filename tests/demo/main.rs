//! The demo's application: writers, receivers, planted faults, and the report on what became of every event.

mod database;
mod event;
mod fault;
mod log;
mod receive;
mod report;
mod write;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A small social application around an outbox.
#[derive(Debug, Parser)]
#[command(name = "fanout-demo", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write posts, follows and likes, each with its outbox row in the same transaction.
    Write(write::Args),
    /// Receive webhooks and record each in the database before answering.
    Receive(receive::Args),
    /// Plant a fault that the report must find.
    Fault(fault::Args),
    /// Wait until everything is delivered, then judge it. Exit status: 0 sound, 1 a fault, 2 no judgement possible.
    Report(report::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    fanout_runtime::tls::install_ring_provider();
    let args = Args::parse();
    let result = match fanout_runtime::telemetry::init(
        fanout_runtime::telemetry::LogFormat::Text,
        "info,rdkafka=error,sqlx=error",
    ) {
        Ok(()) => run(args.command).await,
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    let shutdown = fanout_runtime::shutdown::on_signal()?;
    match command {
        Command::Write(args) => write::run(args, shutdown).await?,
        Command::Receive(args) => receive::run(args, shutdown).await?,
        Command::Fault(args) => fault::run(args).await?,
        Command::Report(args) => return report::run(args).await,
    }
    Ok(ExitCode::SUCCESS)
}
