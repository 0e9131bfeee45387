//! Benchmarks, each in one run on one machine: `make bench`, or one of them with `make bench BENCH=relay`.
//!
//! `relay`: rows a second that the relay moves from a table of one million rows of 200 bytes into Kafka, beside a bare
//! producer with the same settings that sends the same records from memory.
//!
//! `objects`: the operator with 1,000 Subscriptions on 20 FanoutTopics: time to Ready, restarts, memory, writes.
//!
//! A number after the name stands for the number of rows or Subscriptions, a second one for the seconds to be idle.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and reports on standard output"
)]

mod bare;
mod objects;
mod relay;

use std::time::Duration;

/// Rows in the table, unless told otherwise.
const ROWS: usize = 1_000_000;
/// Subscriptions, unless told otherwise.
const SUBSCRIPTIONS: usize = 1_000;
/// So long nothing may be written, unless told otherwise.
const IDLE: Duration = Duration::from_mins(10);

#[tokio::main]
async fn main() {
    fanout_runtime::tls::install_ring_provider();
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let (numbers, names): (Vec<&String>, Vec<&String>) =
        words.iter().partition(|word| word.parse::<usize>().is_ok());
    let mut numbers = numbers.iter().filter_map(|number| number.parse().ok());
    let (number, seconds) = (numbers.next(), numbers.next());
    let wanted = |name: &str| names.is_empty() || names.iter().any(|word| *word == name);
    for name in &names {
        assert!(
            ["relay", "objects"].contains(&name.as_str()),
            "there is no benchmark {name}"
        );
    }
    if wanted("relay") {
        relay(number.unwrap_or(ROWS)).await;
    }
    if wanted("objects") {
        let idle = seconds.map_or(IDLE, |seconds| Duration::from_secs(seconds as u64));
        objects::run(number.unwrap_or(SUBSCRIPTIONS), idle).await;
    }
}

async fn relay(rows: usize) {
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
