//! Benchmarks, each in one run on one machine: `make bench`, or one of them with `make bench BENCH=relay`.
//!
//! `relay`: rows a second that relays move from a full table into Kafka in each claim mode, beside a bare producer with the
//! same settings that sends the same records from memory, and beside Debezium's connector with its outbox event router.
//! `latency`: from commit to a consumer, beside Debezium. `polls`: what an idle relay asks, and what a poll costs.
//!
//! `objects`: the operator with 1,000 Subscriptions on 20 FanoutTopics: time to Ready, restarts, memory, writes.
//!
//! `scaling`: the autoscaler's decision on modelled topics, beside KEDA's and Numaflow's rules; no service is needed. Writes the
//! plots of `docs/scaling`.
//!
//! A number after the name stands for the number of rows or Subscriptions, a second one for the seconds to be idle.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark fails by panicking and reports on standard output"
)]

mod bare;
mod drain;
mod latency;
mod objects;
mod outbox;
mod polls;
mod processor;
mod relay;
mod scaling;

use std::time::Duration;

/// Rows in the table, unless told otherwise.
const ROWS: usize = 1_000_000;
/// Retained rows that polls are timed beside.
const RETAINED: [usize; 3] = [100_000, 1_000_000, 10_000_000];
/// Subscriptions, unless told otherwise.
const SUBSCRIPTIONS: usize = 1_000;
/// So long nothing may be written, unless told otherwise.
const IDLE: Duration = Duration::from_mins(10);

/// Names.
const ALL: [&str; 5] = ["relay", "latency", "polls", "objects", "scaling"];

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
        assert!(ALL.contains(&name.as_str()), "there is no benchmark {name}");
    }
    if ["relay", "latency", "polls"].into_iter().any(wanted) {
        let servers = relay::Servers::start().await;
        if wanted("relay") {
            relay::throughput(&servers, number.unwrap_or(ROWS)).await;
        }
        if wanted("latency") {
            relay::latencies(&servers).await;
        }
        if wanted("polls") {
            let most = number.unwrap_or(usize::MAX);
            let rows = RETAINED.map(|rows| rows.min(most));
            relay::idle(&servers, &rows).await;
        }
    }
    if wanted("scaling") {
        scaling::run();
    }
    if wanted("objects") {
        let idle = seconds.map_or(IDLE, |seconds| Duration::from_secs(seconds as u64));
        objects::run(number.unwrap_or(SUBSCRIPTIONS), idle).await;
    }
}
