//! Benchmarks, each beside what bounds it, in one run on one machine: `cargo bench -p fanout-tests --bench bench`.
//!
//! `relay`: rows a second that the relay moves from a table of one million rows of 200 bytes into Kafka, beside a bare
//! producer with the same settings that sends the same records from memory.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and reports on standard output"
)]

mod bare;
mod relay;

/// Rows in the table, unless another number is given as an argument.
const ROWS: usize = 1_000_000;

#[tokio::main]
async fn main() {
    fanout_runtime::tls::install_ring_provider();
    // Cargo adds `--bench`.
    let rows = std::env::args()
        .skip(1)
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(ROWS);
    let sandbox = fanout_tests::Sandbox::new("bench_relay").await;
    println!("writing {rows} rows");
    relay::fill(&sandbox, rows).await;
    let records = bare::records(&sandbox).await;
    println!("the bare producer sends them from memory");
    let bare = bare::run(&sandbox, records).await;
    println!("the relay reads and sends them");
    let relay = relay::run(&sandbox, rows).await;
    println!();
    println!("{:<16}{:>14}{:>12}", "", "rows a second", "of bare");
    println!("{:<16}{bare:>14.0}{:>11.0}%", "bare producer", 100.0);
    println!(
        "{:<16}{relay:>14.0}{:>11.0}%",
        "relay",
        100.0 * relay / bare
    );
}
