//! `delivery: Transactional`: who reads committed records sees every row once, in order, whatever happens to relays.

mod rules;
mod zombies;

use super::{LIMIT, execute, insert, sandbox, settled, value};
use fanout_contract::names;
use fanout_contract::relay::{Delivery, RelayConfig};
use fanout_tests::checker::load::{Journal, Load, Options};
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, eventually, services};

/// A sandbox with a topic of positions, and the configuration of its relays.
async fn transactional(test: &str) -> (Sandbox, RelayConfig) {
    let sandbox = sandbox(test).await;
    let kafka = tokio::task::spawn_blocking(services::kafka).await.unwrap();
    sandbox.create_positions_topic(kafka).await;
    let config = config(&sandbox);
    (sandbox, config)
}

fn config(sandbox: &Sandbox) -> RelayConfig {
    RelayConfig {
        delivery: Delivery::Transactional,
        ..sandbox.relay_config()
    }
}

fn load() -> Options {
    Options {
        writers: 4,
        // Until it is stopped.
        transactions: u64::MAX,
        rest: std::time::Duration::from_millis(2),
        ..Options::default()
    }
}

/// Everything arrived, in order, and once.
async fn assert_once(sandbox: &Sandbox, journal: &Journal) {
    let verdict = settled(sandbox, journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!(verdict.duplicates, 0, "{verdict:?}");
}

/// Waits until `rows` records are committed.
async fn arrived(sandbox: &Sandbox, rows: usize) -> Log {
    eventually(LIMIT, &format!("{rows} records"), async || {
        let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
        let found = log.records.len();
        if found >= rows { Ok(log) } else { Err(found) }
    })
    .await
}

/// Expires every lease, as time does: nobody is left who could write under one.
async fn expire(sandbox: &Sandbox) {
    execute(
        sandbox,
        "update fanout.leases set expires_at = clock_timestamp() where expires_at > clock_timestamp()",
    )
    .await;
}

#[tokio::test]
async fn killed_relays_repeat_nothing() {
    kill("tx_kills", 6).await;
}

#[tokio::test]
#[ignore = "long form: make soak"]
async fn soak_killed_relays_repeat_nothing() {
    kill("tx_soak", 120).await;
}

/// Kills a relay `rounds` times under load.
async fn kill(test: &str, rounds: usize) {
    let (sandbox, config) = transactional(test).await;
    insert(&sandbox, 20_000, 300).await;
    let mut relays = [
        Relay::start(&sandbox, "a", &config).await,
        Relay::start(&sandbox, "b", &config).await,
    ];
    let load = Load::start(&sandbox, &load()).await;
    for round in 0..rounds {
        let before = load.events();
        eventually(LIMIT, "more events", async || {
            if load.events() > before + 200 {
                Ok(())
            } else {
                Err(load.events())
            }
        })
        .await;
        insert(&sandbox, 3_000, 300).await;
        let relay = &mut relays[round % 2];
        relay
            .wait_until(LIMIT, "a range", |status| !status.ranges.is_empty())
            .await;
        relay.kill();
        expire(&sandbox).await;
        relay.start_again().await;
    }
    load.stop();
    let journal = load.finish().await;
    assert_once(&sandbox, &journal).await;
    for relay in &relays {
        assert!(relay.terminate().await.success());
    }
    // The database knows as much as the log, and a relay that begins there repeats nothing.
    let standard = Relay::start(&sandbox, "c", &sandbox.relay_config()).await;
    insert(&sandbox, 100, 10).await;
    standard
        .wait_until(LIMIT, "published", |status| status.published_total == 100)
        .await;
    assert_once(&sandbox, &journal).await;
}

#[tokio::test]
async fn the_delivery_changes_while_rows_come() {
    let (sandbox, transactional) = transactional("tx_changes").await;
    let standard = sandbox.relay_config();
    insert(&sandbox, 8_000, 100).await;
    let mut relay = Relay::start(&sandbox, "a", &standard).await;
    let load = Load::start(&sandbox, &load()).await;
    for config in [&transactional, &standard, &transactional] {
        let before = load.events();
        eventually(LIMIT, "more events", async || {
            if load.events() > before + 200 {
                Ok(())
            } else {
                Err(load.events())
            }
        })
        .await;
        relay.reconfigure(config);
        let hash = relay.config_hash();
        relay
            .wait_until(LIMIT, "the new configuration", |status| {
                status.config_hash == hash && !status.ranges.is_empty()
            })
            .await;
    }
    load.stop();
    let journal = load.finish().await;
    // Each hands over in peace.
    assert_once(&sandbox, &journal).await;
    // Both kinds of records are there: only transactions leave something behind their records.
    let positions = names::positions_topic(&sandbox.kafka_topic);
    let log = Log::read(&sandbox.bootstrap, &positions).await;
    assert!(!log.records.is_empty());
}
