//! The autoscaler's decision on modelled topics, beside the rules of KEDA and Numaflow on the same ones: figures, and a plot
//! of each in `docs/scaling`.

pub(crate) mod model;
pub(crate) mod report;
pub(crate) mod rules;
pub(crate) mod scenarios;

use std::time::Instant;

/// Runs every scenario, prints the figures, and writes the plots and the table of `docs/scaling.md`.
pub(crate) fn run() {
    let all = report::all();
    println!("{}", report::table(&all));
    report::write(&all);
    for outcome in &all {
        println!("{}", outcome.scenario.title);
        for (second, _, why) in &outcome.traces[0].changes {
            println!("  {second:>4} s  {why}");
        }
    }
    let (subscriptions, looks) = (10_000, 120);
    let started = Instant::now();
    let changes = scenarios::crowd(subscriptions, looks);
    let round = started.elapsed() / looks;
    println!(
        "{subscriptions} subscriptions: one round of decisions takes {round:.1?}; {changes} changes in {looks} rounds"
    );
}
