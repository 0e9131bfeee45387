//! Clocks that jump: the relay's, the database's, and those of a machine that was suspended.

use super::super::{LIMIT, execute, insert, settled, value};
use super::blocking;
use fanout_contract::reason::BrokerError;
use fanout_tests::checker::load::{Journal, Load, Options};
use fanout_tests::faults::clock::Clock;
use fanout_tests::process::Relay;
use fanout_tests::services::child::Signal;
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{Sandbox, eventually, services};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// A relay that goes by `clock`.
async fn relay(sandbox: &Sandbox, instance: &str, clock: &Clock) -> Relay {
    let (config, files) = (sandbox.relay_config(), sandbox.secret_files());
    Relay::start_under(sandbox, instance, &config, files, clock.environment()).await
}

async fn term(sandbox: &Sandbox) -> i64 {
    let term = value(sandbox, "select max(term) from fanout.leases").await;
    term.unwrap().parse().unwrap()
}

fn endless() -> Options {
    Options {
        writers: 4,
        transactions: u64::MAX,
        ..Options::default()
    }
}

#[tokio::test]
async fn a_relay_whose_wall_clock_jumps_publishes_on_and_parks_nothing() {
    let sandbox = super::super::sandbox("clock_relay").await;
    let clock = Clock::new().unwrap();
    let relay = relay(&sandbox, "a", &clock).await;
    relay
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    let load = Load::start(&sandbox, &endless()).await;
    let before = term(&sandbox).await;
    for seconds in [HOUR / 2, -DAY, 0] {
        clock.shift(seconds, 0).unwrap();
        let sent = relay.status().await.unwrap().published_total;
        relay
            .wait_until(LIMIT, "it publishes", |status| {
                status.published_total > sent + 100
            })
            .await;
    }
    assert_eq!(term(&sandbox).await, before, "no lease depends on it");
    // Brokers refuse records of the future: no record is at fault.
    clock.shift(DAY, 0).unwrap();
    let refused = relay
        .wait_until(LIMIT, "it says so", |status| status.broker_error.is_some())
        .await;
    let error = refused.broker_error.unwrap();
    assert_eq!(error.class, BrokerError::ProduceFailed);
    assert!(error.message.contains("clock"), "{error:?}");
    clock.shift(0, 0).unwrap();
    load.stop();
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    let parked = value(&sandbox, "select count(*) from fanout.parked").await;
    assert_eq!(parked.as_deref(), Some("0"));
}

/// Its programs have not slept, but the time of their leases is over.
#[tokio::test]
async fn a_relay_whose_machine_was_suspended_gives_up_what_it_had() {
    let sandbox = super::super::sandbox("clock_suspend").await;
    let clock = Clock::new().unwrap();
    let first = relay(&sandbox, "a", &clock).await;
    first
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    let load = Load::start(&sandbox, &endless()).await;
    let before = term(&sandbox).await;
    first
        .wait_until(LIMIT, "it publishes", |status| status.published_total > 100)
        .await;
    // So short that nobody noticed: it takes its ranges anew, because somebody might have.
    clock.shift(60, 60).unwrap();
    eventually(LIMIT, "every range is taken anew", async || {
        let terms = "select min(term) from fanout.leases where expires_at > clock_timestamp()";
        let term: i64 = value(&sandbox, terms).await.unwrap().parse()?;
        anyhow::ensure!(term > before, "{term}");
        Ok(())
    })
    .await;
    insert(&sandbox, 10_000, 200).await;
    // Now others notice: for them the lease is over, and for its monotonic clock it is not.
    first.signal(Signal::STOP);
    let second = Relay::start(&sandbox, "b", &sandbox.relay_config()).await;
    execute(
        &sandbox,
        "update fanout.leases set expires_at = clock_timestamp(); delete from fanout.members where owner like 'a/%'",
    )
    .await;
    second
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    insert(&sandbox, 2_000, 200).await;
    clock.shift(DAY, DAY).unwrap();
    clock.shift(0, DAY).unwrap();
    first.signal(Signal::CONT);
    for relay in [&first, &second] {
        relay
            .wait_until(LIMIT, "one range", |status| status.ranges.len() == 1)
            .await;
    }
    load.stop();
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
}

/// Leases are the database's, by its clock.
#[tokio::test]
async fn a_database_whose_clock_jumps_loses_nothing_and_keeps_nobody_out() {
    let clock = Clock::new().unwrap();
    let environment = clock.environment();
    let postgres = blocking(move || Postgres::start_under(environment).unwrap()).await;
    let kafka = blocking(services::kafka).await;
    let sandbox = Sandbox::with("clock_database", &postgres, kafka).await;
    execute(&sandbox, "create sequence bulk").await;
    let mut config = sandbox.relay_config();
    let fanout_contract::relay::Source::Postgres(source) = &mut config.source;
    // The checker looks at the rows at the end.
    source.retention_seconds = 10 * DAY;
    let first = Relay::start(&sandbox, "a", &config).await;
    // Nobody waits for a lock: the server's own timeouts go by that clock, too.
    for (rows, seconds) in [(500, DAY), (1_000, -DAY), (1_500, 0)] {
        clock.shift(seconds, 0).unwrap();
        insert(&sandbox, 500, 50).await;
        first
            .wait_until(LIMIT, "it publishes", |status| {
                status.published_total >= rows && status.ranges.len() == 2
            })
            .await;
    }
    // Who dies when the clock goes back has leases, and a place among the members, for another day.
    first.signal(Signal::STOP);
    clock.shift(-DAY, 0).unwrap();
    first.kill();
    insert(&sandbox, 1_000, 50).await;
    let second = Relay::start(&sandbox, "b", &config).await;
    second
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    let verdict = settled(&sandbox, &Journal::default()).await;
    assert!(verdict.is_sound(), "{verdict:?}");
}
