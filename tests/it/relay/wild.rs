//! PostgreSQL as it is in the wild: it crashes, fails over, is restored elsewhere, waits, and sits behind poolers.

mod adoption;
mod away;
mod clock;
mod crash;
mod failover;
mod partitions;
mod settings;
mod slow_broker;

use fanout_tests::Sandbox;
use fanout_tests::checker::log::Log;
use fanout_tests::services::postgres::Postgres;
use std::collections::HashSet;
use std::sync::Arc;

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

async fn own_postgres() -> Arc<Postgres> {
    blocking(|| Arc::new(Postgres::start().unwrap())).await
}

/// Runs SQL on `server` as the superuser, outside the tested database.
async fn administer(server: &Arc<Postgres>, sql: &'static str) -> String {
    let server = Arc::clone(server);
    let printed = blocking(move || server.psql("postgres", sql, &[]).unwrap()).await;
    printed.trim().to_owned()
}

/// Ids of the events in the topic.
async fn arrived(sandbox: &Sandbox) -> HashSet<String> {
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    log.records.iter().map(|r| r.attributes().id).collect()
}
