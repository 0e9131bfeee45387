//! Moves committed rows of a PostgreSQL outbox into Kafka.
//!
//! [`run`] wires the process; [`engine`] owns ranges under one configuration; a [`worker`] publishes one range: it reads
//! the difference of two snapshots ([`claim`]), encodes ([`encode`]), produces ([`produce`]), parks what can't be produced
//! ([`park`]) and stores how far it came ([`position`]) under its lease ([`lease`], shared out by [`ranges`], split and
//! merged by [`rearrange`]), also in a database that was accepted for another ([`adopt`]), until all of that is to be
//! deleted ([`forget`]).

pub mod adopt;
pub mod args;
pub mod broker;
pub mod checks;
pub mod claim;
pub mod durable;
pub mod encode;
pub mod engine;
pub mod forget;
pub mod kafka_error;
pub mod lease;
pub mod logged;
pub mod measure;
pub mod park;
pub mod position;
pub mod produce;
pub mod ranges;
pub mod rearrange;
pub mod recheck;
pub mod retention;
pub mod source;
pub mod sql;
pub mod stats;
pub mod worker;

mod supervisor;

use crate::args::Args;
use crate::stats::{Gauges, Stats};
use anyhow::Context as _;
use fanout_contract::relay::RelayConfig;
use fanout_runtime::admin::{self, Admin};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The main loop turns at least every few seconds, whatever the servers do; after this long it is stuck.
const STUCK: Duration = Duration::from_mins(3);

/// Runs until `shutdown`, then finishes what is in flight and gives its leases back. Fails when the process can't start
/// or a part of it ended that must not; everything outside of it is waited for.
pub async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let stats = Arc::new(Stats::default());
    let gauges = Gauges::default();
    let config =
        fanout_runtime::config::watch::<RelayConfig>(args.config_dir.clone(), shutdown.clone())
            .await
            .context("the configuration can't be read")?;
    let listener = tokio::net::TcpListener::bind(args.admin_addr)
        .await
        .context("the admin address can't be used")?;
    let address = listener.local_addr()?;
    tracing::info!(admin_addr = %address, instance = %args.instance, "started");
    if let Some(file) = &args.admin_addr_file {
        tokio::fs::write(file, address.to_string())
            .await
            .context("the admin address can't be written")?;
    }
    let admin = admin_server(&stats, &gauges);
    // Outlives the relay's own stop, so that its last state can be seen.
    let closing = CancellationToken::new();
    let server = tokio::spawn(admin::serve(listener, admin, closing.clone()));
    let owner = format!("{}/{:016x}", args.instance, rand::random::<u64>());
    let outcome = supervisor::run(config, &owner, &stats, &gauges, shutdown).await;
    closing.cancel();
    server.await.context("the admin server panicked")??;
    tracing::info!("stopped");
    outcome
}

fn admin_server(stats: &Arc<Stats>, gauges: &Gauges) -> Admin {
    let alive = {
        let stats = stats.clone();
        move || {
            let idle = stats.since_turn();
            if idle > STUCK {
                return Err(format!("the main loop is stuck for {} s", idle.as_secs()));
            }
            Ok(())
        }
    };
    let alive = Arc::new(alive);
    let shown = stats.clone();
    Admin {
        registry: stats::register(stats, gauges),
        ready: alive.clone(),
        live: alive,
        status: Arc::new(move || serde_json::json!(shown.status())),
    }
}
