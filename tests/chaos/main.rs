//! The long form of the faults: `make chaos`, or `make chaos KILLS=100 EVENTS=100000 SEED=7`. Prints a table, and fails
//! where a promise is broken.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    reason = "it reports on standard output and fails by panicking"
)]

use fanout_tests::chaos::{self, Plan};
use std::time::Duration;

#[tokio::main]
async fn main() {
    fanout_runtime::tls::install_ring_provider();
    // Cargo adds `--bench`.
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse().ok());
    let plan = Plan {
        kills: numbers
            .next()
            .map_or(1_000, |kills: u64| u32::try_from(kills).unwrap_or(u32::MAX)),
        events: numbers.next().unwrap_or(1_000_000),
        writers: 8,
        rest: Duration::from_millis(5),
        pause: Duration::from_secs(5),
        seed: numbers.next().unwrap_or(1),
    };
    println!("{plan:?}");
    let report = chaos::run("chaos", plan).await;
    println!("{}", report.table());
    if let Some(broken) = report.broken_promise() {
        panic!("{broken}");
    }
}
