//! Runs one engine per configuration, and again after failures; never gives up.

use crate::engine::{self, Setting, Stopped};
use crate::stats::{Gauges, Stats};
use fanout_contract::relay::RelayConfig;
use fanout_runtime::backoff::Backoff;
use fanout_runtime::config::Loaded;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// First and longest pause after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// An engine that ran this long has recovered; the next failure is a new one.
const RECOVERED: Duration = Duration::from_secs(30);

/// Runs until `shutdown`. Fails only when a part of the process panicked.
pub(crate) async fn run(
    mut configs: watch::Receiver<Arc<Loaded<RelayConfig>>>,
    owner: &str,
    stats: &Arc<Stats>,
    gauges: &Gauges,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let mut hash = String::new();
    while !shutdown.is_cancelled() {
        stats.turn();
        let config = configs.borrow_and_update().clone();
        if config.hash != hash {
            hash.clone_from(&config.hash);
            backoff.reset();
            let RelayConfig {
                generation,
                suspend,
                ..
            } = config.config;
            stats.begin(&config.hash, generation, suspend);
            tracing::info!(generation, hash = %config.hash, "configuration in force");
        }
        let stop = shutdown.child_token();
        let began = tokio::time::Instant::now();
        let setting = Setting {
            config: &config,
            owner,
            stats,
            gauges,
        };
        let engine = engine::run(setting, stop.clone());
        tokio::pin!(engine);
        let stopped = tokio::select! {
            stopped = &mut engine => stopped?,
            changed = configs.changed() => {
                stop.cancel();
                let stopped = engine.await?;
                watching(&changed, &shutdown)?;
                stopped
            }
        };
        if began.elapsed() > RECOVERED {
            backoff.reset();
        }
        if let Stopped::Failed = stopped {
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                changed = configs.changed() => watching(&changed, &shutdown)?,
                () = shutdown.cancelled() => {}
            }
        }
    }
    Ok(())
}

/// The watcher of the configuration ends at shutdown only.
fn watching(
    changed: &Result<(), watch::error::RecvError>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    if changed.is_err() && !shutdown.is_cancelled() {
        anyhow::bail!("the configuration is not watched any more");
    }
    Ok(())
}
