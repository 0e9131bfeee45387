//! The short form of `make chaos`.

use fanout_tests::chaos::{self, Plan};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_kills_and_every_other_fault_lose_nothing() {
    let plan = Plan {
        kills: 50,
        events: 5_000,
        writers: 4,
        rest: Duration::from_millis(20),
        pause: Duration::from_secs(5),
        seed: 1,
    };
    let report = chaos::run("chaos_faults", plan).await;
    eprintln!("{}", report.table());
    assert_eq!(report.broken_promise(), None);
    assert!(report.killed() >= plan.kills);
    // The scene was set: every point was reached, every other fault struck.
    for (point, count) in &report.kills {
        assert!(*count > 0, "{point:?} was never reached");
    }
    for (name, count) in &report.faults {
        assert!(*count > 0, "{name}: never");
    }
}
