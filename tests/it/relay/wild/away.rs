//! A database or a broker that is away for long: events pile up and drain, and the relay is patient and quiet.

use super::super::{LIMIT, settled};
use super::blocking;
use fanout_contract::relay::{Broker, RelayStatus};
use fanout_tests::checker::load::{Load, Options};
use fanout_tests::faults::kafka_proxy::KafkaProxy;
use fanout_tests::faults::postgres_proxy::PostgresProxy;
use fanout_tests::process::Relay;
use fanout_tests::services::postgres::{RELAY_ROLE, url_at};
use fanout_tests::{Deadline, Sandbox, configs, eventually, services};
use std::time::Duration;

/// Who is away for the relay. The application still reaches its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    Database,
    Broker,
}

/// Errors that the relay has counted on that side.
async fn errors(relay: &Relay, side: &str) -> u64 {
    let metrics = relay.metrics().await.unwrap();
    let side = format!("side=\"{side}\"");
    let counts = metrics
        .lines()
        .filter(|line| line.contains("errors") && line.contains(&side));
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Lines that a relay with its default log filter would have written.
fn lines(relay: &Relay) -> usize {
    let levels = [" INFO ", " WARN ", "ERROR "];
    let log = relay.log();
    log.lines()
        .filter(|line| line.contains("fanout_") && levels.iter().any(|level| line.contains(level)))
        .count()
}

/// How often the threads that a process has now went to sleep.
fn naps(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |thread: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    };
    threads.filter_map(of).sum()
}

async fn away(test: &str, who: Away, long: Duration) {
    let kafka = blocking(services::kafka).await;
    let postgres = blocking(services::postgres).await;
    let sandbox = Sandbox::with(test, postgres, kafka).await;
    let database = PostgresProxy::start(postgres).await.unwrap();
    let broker = KafkaProxy::start(kafka).await.unwrap();
    let mut config = sandbox.relay_config();
    let Broker::Kafka(target) = &mut config.broker;
    target.cluster.bootstrap_servers = broker.bootstrap();
    let mut files = sandbox.secret_files();
    let url = url_at(database.port(), RELAY_ROLE, &sandbox.database);
    files.insert(configs::URL_FILE.to_owned(), url.into_bytes());
    let relay = Relay::start_with(&sandbox, "a", &config, files).await;
    relay
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() == 2)
        .await;
    let (side, has_error): (_, fn(&RelayStatus) -> bool) = match who {
        Away::Database => ("source", |status| status.source_error.is_some()),
        Away::Broker => ("broker", |status| status.broker_error.is_some()),
    };
    let before = (errors(&relay, side).await, lines(&relay));
    let slept = naps(relay.pid());
    match who {
        Away::Database => database.down().await,
        Away::Broker => broker.down().await,
    }
    let over = Deadline::after(long);
    let options = Options {
        transactions: 400,
        ..Options::default()
    };
    let journal = Load::start(&sandbox, &options).await.finish().await;
    relay.wait_until(LIMIT, "it says so", has_error).await;
    eventually(long + LIMIT, "the outage is over", async || {
        if over.passed() {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    let after = (errors(&relay, side).await, lines(&relay));
    let slept = naps(relay.pid()).saturating_sub(slept);
    match who {
        Away::Database => database.up().await.unwrap(),
        Away::Broker => broker.up().await.unwrap(),
    }
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    relay
        .wait_until(LIMIT, "it is well", |status| {
            status.source_error.is_none()
                && status.broker_error.is_none()
                && status.ranges.len() == 2
        })
        .await;
    // Everybody waits; one who tries to connect without a pause does so tens of thousands of times a second.
    let allowed = 2_000 * long.as_secs();
    assert!(slept <= allowed, "threads went to sleep {slept} times");
    // A dozen attempts while the pauses grow, for each range, then one every few seconds.
    let allowed = 24 + long.as_secs() / 2;
    let tried = after.0 - before.0;
    assert!((1..=allowed).contains(&tried), "{tried} attempts");
    // What stays as it is, is said once; ranges that are given up and taken again are said, too.
    let allowed = 16 + usize::try_from(long.as_secs() / 5).unwrap();
    let said = after.1 - before.1;
    assert!((1..=allowed).contains(&said), "{said} lines");
}

const SHORT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_mins(10);

#[tokio::test]
async fn rows_pile_up_and_drain_after_the_database_was_away() {
    away("wild_away_pg", Away::Database, SHORT).await;
}

#[tokio::test]
async fn rows_pile_up_and_drain_after_the_broker_was_away() {
    away("wild_away_kafka", Away::Broker, SHORT).await;
}

#[tokio::test]
#[ignore = "long form: make soak"]
async fn soak_ten_minutes_without_a_database() {
    away("soak_away_pg", Away::Database, LONG).await;
}

#[tokio::test]
#[ignore = "long form: make soak"]
async fn soak_ten_minutes_without_a_broker() {
    away("soak_away_kafka", Away::Broker, LONG).await;
}
