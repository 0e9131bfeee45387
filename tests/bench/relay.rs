//! The relay beside what people use: every claim mode, a bare producer, and Debezium, in one run on the same servers.

use crate::{bare, drain, latency, outbox, polls};
use fanout_contract::relay::Claim;
use fanout_tests::services::kafka::Kafka;
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{Sandbox, services};

/// Servers of a run. The log can be decoded, because Debezium reads it.
pub(crate) struct Servers {
    postgres: Postgres,
    kafka: &'static Kafka,
}

impl Servers {
    pub(crate) async fn start() -> Self {
        let kafka = tokio::task::spawn_blocking(services::kafka);
        let postgres = tokio::task::spawn_blocking(|| Postgres::start_logical().unwrap())
            .await
            .unwrap();
        Self {
            postgres,
            kafka: kafka.await.unwrap(),
        }
    }

    fn both(&self) -> (&Postgres, &Kafka) {
        (&self.postgres, self.kafka)
    }
}

/// Rows a second, and what they cost.
pub(crate) async fn throughput(servers: &Servers, rows: usize) {
    println!(
        "\n{rows} rows of 200 bytes; Debezium: a hundred in a transaction, without a first tenth; relays: one transaction"
    );
    println!(
        "{:<24}{:>14}{:>9}{:>12}   processor seconds per million rows",
        "", "rows a second", "of bare", "of Debezium"
    );
    let sandbox = Sandbox::with("bench_bare", &servers.postgres, servers.kafka).await;
    outbox::fill(&sandbox, rows).await;
    let records = bare::records(&sandbox).await;
    let bare = bare::run(&sandbox, records).await;
    println!("{:<24}{bare:>14.0}{:>8.0}%", "bare producer", 100.0);
    let peer = drain::connector(servers.both(), rows).await;
    let show = |name: &str, drained: drain::Drained| {
        let [mover, postgres, kafka] = drained.processor;
        println!(
            "{name:<24}{:>14.0}{:>8.0}%{:>11.1}x   {mover:.1} + PostgreSQL {postgres:.1} + Kafka {kafka:.1}",
            drained.rows_per_second,
            100.0 * drained.rows_per_second / bare,
            drained.rows_per_second / peer.rows_per_second,
        );
    };
    show("Debezium, tuned", peer);
    for claim in [Claim::Snapshot, Claim::Lease, Claim::Delete] {
        for relays in [1, 2, 4] {
            let drained = drain::relays(servers.both(), (claim, relays), rows).await;
            let plural = if relays == 1 { "" } else { "s" };
            show(&format!("{claim:?}, {relays} relay{plural}"), drained);
        }
    }
}

/// Milliseconds from commit to consumer.
pub(crate) async fn latencies(servers: &Servers) {
    println!(
        "\n{} transactions of one row a second: from commit to a consumer",
        latency::RATE
    );
    println!(
        "{:<36}{:>9}{:>9}{:>12}{:>14}{:>15}",
        "", "p50 ms", "p99 ms", "processor", "outbox MiB", "fanout MiB"
    );
    let show = |name: &str, found: latency::Latency| {
        println!(
            "{name:<36}{:>9.1}{:>9.1}{:>11.0}%{:>14.1}{:>15.1}",
            found.p50,
            found.p99,
            100.0 * found.processor,
            found.outbox,
            found.schema
        );
    };
    show(
        "Debezium, fastest",
        latency::connector(servers.both()).await,
    );
    show("Snapshot", latency::relay(servers.both(), false).await);
    show(
        "Snapshot, a transaction stays open",
        latency::relay(servers.both(), true).await,
    );
}

/// What polls cost.
pub(crate) async fn idle(servers: &Servers, rows: &[usize]) {
    let idle = polls::idle(servers.both()).await;
    println!("\nan idle relay: {idle:.1} statements a second, those of its leases included");
    for (rows, milliseconds) in rows.iter().zip(polls::retained(servers.both(), rows).await) {
        println!("a poll beside {rows:>10} retained rows: {milliseconds:.3} ms");
    }
}
