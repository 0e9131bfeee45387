//! Two relays share a topic and take over from each other.

use super::{LIMIT, assert_not_repeated, insert, sandbox, settled, value};
use fanout_contract::relay::RelayStatus;
use fanout_tests::checker::load::{Journal, Load, Options};
use fanout_tests::process::Relay;
use fanout_tests::services::child::Signal;
use std::time::{Duration, Instant};

fn owns(count: usize) -> impl Fn(&RelayStatus) -> bool {
    move |status| status.ranges.len() == count
}

#[tokio::test]
async fn one_relay_takes_both_ranges_and_gives_one_to_a_second() {
    let sandbox = sandbox("relay_share").await;
    let config = sandbox.relay_config();
    let first = Relay::start(&sandbox, "a", &config).await;
    first.wait_until(LIMIT, "both ranges", owns(2)).await;
    let load = Load::start(
        &sandbox,
        &Options {
            transactions: 1_000,
            ..Options::default()
        },
    )
    .await;
    let second = Relay::start(&sandbox, "b", &config).await;
    second.wait_until(LIMIT, "one range", owns(1)).await;
    first.wait_until(LIMIT, "one range", owns(1)).await;
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    // A range handed over in peace repeats nothing.
    assert_not_repeated(&verdict, &first).await;

    // A graceful stop hands over at once, not when the lease runs out.
    let stopped = Instant::now();
    assert!(second.terminate().await.success());
    first
        .wait_until(Duration::from_secs(8), "both ranges again", owns(2))
        .await;
    assert!(stopped.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn a_killed_relay_is_replaced_and_nothing_is_lost() {
    let sandbox = sandbox("relay_kill").await;
    let config = sandbox.relay_config();
    let mut first = Relay::start(&sandbox, "a", &config).await;
    let second = Relay::start(&sandbox, "b", &config).await;
    first.wait_until(LIMIT, "one range", owns(1)).await;
    second.wait_until(LIMIT, "one range", owns(1)).await;
    let load = Load::start(
        &sandbox,
        &Options {
            transactions: 3_000,
            ..Options::default()
        },
    )
    .await;
    insert(&sandbox, 30_000, 300).await;
    first.kill();
    second
        .wait_until(Duration::from_secs(20), "both ranges", owns(2))
        .await;
    first.start_again().await;
    first.wait_until(LIMIT, "one range", owns(1)).await;
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    // What was in flight and not stored at the kill, for one range.
    assert!(verdict.duplicates <= 35_000, "{verdict:?}");
}

#[tokio::test]
async fn a_relay_that_was_frozen_past_its_lease_breaks_no_order() {
    let sandbox = sandbox("relay_frozen").await;
    let config = sandbox.relay_config();
    let first = Relay::start(&sandbox, "a", &config).await;
    first.wait_until(LIMIT, "both ranges", owns(2)).await;
    insert(&sandbox, 60_000, 300).await;
    let before = value(&sandbox, "select max(term) from fanout.leases").await;
    first.signal(Signal::STOP);
    let second = Relay::start(&sandbox, "b", &config).await;
    // The frozen one counts as live for a lease, and holds its ranges as long.
    second.wait_until(LIMIT, "both ranges", owns(2)).await;
    insert(&sandbox, 5_000, 300).await;
    first.signal(Signal::CONT);
    first.wait_until(LIMIT, "one range", owns(1)).await;
    insert(&sandbox, 5_000, 300).await;
    let verdict = settled(&sandbox, &Journal::default()).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    let after = value(&sandbox, "select max(term) from fanout.leases").await;
    assert_ne!(before, after, "each owner has a term of its own");
    // Appended, never updated: every position still is the version its transaction wrote.
    let rewritten = "select count(*) from fanout.positions where xid::xid <> xmin or xmax <> 0";
    assert_eq!(value(&sandbox, rewritten).await.as_deref(), Some("0"));
}
