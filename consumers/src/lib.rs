//! Moves each subscription's events from Kafka to its sink.

mod args;
mod breaker;
mod concurrency;
mod dead_letter;
mod event;
mod key_queues;
mod metrics;
mod offsets;
mod retry;
mod settings;
mod sink;
mod source;
mod subscription;
mod supervisor;
mod verdict;

pub use args::Args;

use anyhow::Context;
use fanout_contract::consumer::ConsumerConfig;
use fanout_runtime::admin::{self, Admin};
use fanout_runtime::config;
use metrics::Metrics;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use supervisor::{Board, Supervisor};
use tokio_util::sync::CancellationToken;

/// Runs until `shutdown`: then what is under way is finished, committed, and the groups are left.
///
/// # Errors
/// The first configuration can't be used, the admin server fails, or a subscription ends by itself.
pub async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(args.admin_addr)
        .await
        .with_context(|| format!("admin address {}", args.admin_addr))?;
    let admin_addr = listener.local_addr()?;
    tracing::info!(%admin_addr, instance = args.instance, "starting");
    if let Some(file) = &args.admin_addr_file {
        tokio::fs::write(file, admin_addr.to_string())
            .await
            .context("admin address file")?;
    }
    let configs = config::watch::<ConsumerConfig>(args.config_dir, shutdown.clone()).await?;
    let namespace = configs.borrow().config.namespace.clone();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&namespace, &mut registry);
    let board = Arc::new(Board::default());
    // The admin server outlives the subscriptions: it shows how they stop.
    let stopped = CancellationToken::new();
    let mut server = tokio::spawn(admin::serve(
        listener,
        admin(registry, &board),
        stopped.clone(),
    ));
    let supervisor = Supervisor::new(args.instance, metrics, board);
    let result = tokio::select! {
        result = supervisor.run(configs, shutdown) => result,
        ended = &mut server => {
            ended?.context("admin server")?;
            Err(anyhow::anyhow!("the admin server ended"))
        }
    };
    stopped.cancel();
    result
}

/// Every metric of a worker, with a series for each value of its closed labels: what docs/reference/metrics.md is made
/// from.
///
/// # Errors
/// The metrics can't be encoded.
pub fn sample_metrics() -> Result<String, std::fmt::Error> {
    metrics::sample()
}

fn admin(registry: Registry, board: &Arc<Board>) -> Admin {
    let (ready, live, status) = (Arc::clone(board), Arc::clone(board), Arc::clone(board));
    Admin {
        registry,
        ready: Arc::new(move || ready.ready()),
        live: Arc::new(move || live.live()),
        status: Arc::new(move || serde_json::to_value(status.status()).unwrap_or_default()),
    }
}
