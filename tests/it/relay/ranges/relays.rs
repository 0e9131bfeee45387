//! Relays that share a topic while its ranges split and merge.

use super::{ASTRAY, HALVES, IDS, expect_ranges, of_width, split_all};
use crate::relay::{LIMIT, execute, insert, sandbox, settled, value};
use fanout_contract::relay::RelayStatus;
use fanout_tests::checker::load::{Load, Options};
use fanout_tests::eventually;
use fanout_tests::process::Relay;
use fanout_tests::services::child::Signal;

fn load() -> Options {
    Options {
        writers: 4,
        // Until it is stopped.
        transactions: u64::MAX,
        ..Options::default()
    }
}

fn works(status: &RelayStatus) -> bool {
    !status.ranges.is_empty()
}

/// A range handed over in peace repeats nothing; brokers that are too slow on a busy machine are a reason to send again.
fn assert_not_repeated(duplicates: usize, relays: &[Relay]) {
    let slow = || {
        let mut logs = relays.iter().map(Relay::log);
        logs.any(|log| log.contains("nothing can be produced"))
    };
    assert!(duplicates == 0 || slow(), "{duplicates}");
}

#[tokio::test]
async fn one_relay_becomes_eight_and_one_again_under_load() {
    let sandbox = sandbox("ranges_eight").await;
    let config = sandbox.relay_config();
    insert(&sandbox, 20_000, 300).await;
    let mut relays = vec![Relay::start(&sandbox, "r0", &config).await];
    relays[0].wait_until(LIMIT, "its ranges", works).await;
    let load = Load::start(&sandbox, &load()).await;
    for number in 1..8 {
        relays.push(Relay::start(&sandbox, &format!("r{number}"), &config).await);
    }
    // Each has a part, whichever of them came first.
    for relay in &relays {
        relay.wait_until(LIMIT, "a range of its own", works).await;
    }
    let shared = async || {
        let mut shards = 0;
        for relay in &relays {
            let status = relay.status().await.map_err(|error| error.to_string())?;
            let owned: i32 = status.ranges.iter().map(|range| range.hi - range.lo).sum();
            if owned > 16 {
                return Err(format!("{owned} shards on one relay"));
            }
            shards += owned;
        }
        if shards == 64 {
            Ok(())
        } else {
            Err(format!("{shards} shards"))
        }
    };
    eventually(LIMIT, "every shard on some relay", shared).await;
    // Nothing moves any more.
    let before = value(&sandbox, IDS).await;
    insert(&sandbox, 20_000, 300).await;
    for relay in &relays[1..] {
        relay.signal(Signal::TERM);
    }
    expect_ranges(&sandbox, HALVES).await;
    assert_ne!(value(&sandbox, IDS).await, before);
    load.stop();
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(verdict.duplicates, &relays);
    relays[0]
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    for relay in &relays[1..] {
        assert!(relay.terminate().await.success());
    }
}

#[tokio::test]
async fn keys_stay_held_while_ranges_merge_and_split() {
    let sandbox = sandbox("ranges_held").await;
    let config = sandbox.relay_config();
    let rows = async |r#type: &str| {
        execute(
            &sandbox,
            &format!(
                "insert into outbox (topic, key, type, subject) select 'posts', 'k' || n, '{type}', 's/0' from generate_series(1, 40) n",
                r#type = r#type
            ),
        )
        .await;
    };
    let parked = async |wanted: &str| {
        let counts = "select count(reason) || ' ' || count(*) - count(reason) from fanout.parked";
        eventually(LIMIT, &format!("{wanted} parked and held"), async || {
            let found = value(&sandbox, counts).await;
            if found.as_deref() == Some(wanted) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
    };
    let first = Relay::start(&sandbox, "a", &config).await;
    // Without a type they can't be published.
    rows("").await;
    parked("40 0").await;
    assert!(first.terminate().await.success());
    split_all(&sandbox, 4).await;
    assert_eq!(value(&sandbox, ASTRAY).await.as_deref(), Some("0"));
    rows("split").await;
    let second = Relay::start(&sandbox, "b", &config).await;
    parked("40 40").await;
    expect_ranges(&sandbox, HALVES).await;
    rows("merged").await;
    parked("40 80").await;
    assert_eq!(value(&sandbox, ASTRAY).await.as_deref(), Some("0"));
    let status = second.status().await.unwrap();
    assert_eq!(status.published_total, 0);
}

#[tokio::test]
async fn a_relay_whose_range_was_split_while_it_was_frozen_breaks_no_order() {
    let sandbox = sandbox("ranges_frozen").await;
    let config = sandbox.relay_config();
    let first = Relay::start(&sandbox, "a", &config).await;
    first.wait_until(LIMIT, "its ranges", works).await;
    let load = Load::start(&sandbox, &load()).await;
    insert(&sandbox, 30_000, 300).await;
    first.signal(Signal::STOP);
    let before = value(&sandbox, IDS).await;
    let mut others = Vec::new();
    for name in ["b", "c", "d"] {
        others.push(Relay::start(&sandbox, name, &config).await);
    }
    // Three relays need eight; they wait until the frozen one's leases have expired.
    expect_ranges(&sandbox, &of_width(8)).await;
    let split = value(&sandbox, IDS).await;
    first.signal(Signal::CONT);
    insert(&sandbox, 5_000, 300).await;
    first
        .wait_until(LIMIT, "ranges that there are", works)
        .await;
    load.stop();
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    // What was in flight and not stored when it was frozen, for two ranges.
    assert!(verdict.duplicates <= 70_000, "{verdict:?}");
    assert_ne!(before, split);
    let orphans = "select count(*) from fanout.positions p where not exists (select from fanout.ranges r where r.id = p.range_id)";
    assert_eq!(value(&sandbox, orphans).await.as_deref(), Some("0"));
}
