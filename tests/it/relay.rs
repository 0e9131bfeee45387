//! The relay: what design and manifest promise about it, each with a test that fails without the rule.

mod changes;
mod checks;
mod contract;
mod debezium;
mod delivery;
mod forgetting;
mod history;
mod outages;
mod parking;
mod ranges;
mod releasing;
mod retention;
mod sharing;
mod statements;
mod table;
mod transactional;
mod wild;

use fanout_contract::relay::RelayConfig;
use fanout_relay::position::{History, INCARNATION};
use fanout_relay::source::{Failure, Source};
use fanout_tests::Sandbox;
use fanout_tests::checker::Checker;
use fanout_tests::checker::load::Journal;
use fanout_tests::process::Relay;
use fanout_tests::verdict::Verdict;
use sqlx::AssertSqlSafe;
use std::time::Duration;

/// Long enough for anything that works, on a very busy machine.
const LIMIT: Duration = Duration::from_mins(4);

/// Runs statements as the superuser.
async fn execute(sandbox: &Sandbox, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(sandbox.pool())
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The one value of the one row that `sql` returns, as text.
async fn value(sandbox: &Sandbox, sql: &str) -> Option<String> {
    sqlx::query_scalar(AssertSqlSafe(format!("select ({sql})::text")))
        .fetch_one(sandbox.pool())
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Commits `rows` events of `keys` keys in one transaction.
async fn insert(sandbox: &Sandbox, rows: usize, keys: usize) {
    execute(
        sandbox,
        &format!(
            "insert into outbox (topic, key, type, subject, payload)
             select '{}', 'bulk-' || n % {keys}, 'bulk', 'bulk/' || nextval('bulk'), '{{}}'
               from generate_series(1, {rows}) n",
            sandbox.topic_name
        ),
    )
    .await;
}

/// A sandbox whose [`insert`] numbers its events.
async fn sandbox(test: &str) -> Sandbox {
    let sandbox = Sandbox::new(test).await;
    execute(&sandbox, "create sequence bulk").await;
    sandbox
}

/// The history of the sandbox's server.
async fn history(sandbox: &Sandbox) -> History {
    let column = async |sql| value(sandbox, sql).await.unwrap();
    History {
        system_identifier: column("select system_identifier from pg_control_system()")
            .await
            .parse()
            .unwrap(),
        timeline: column("select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").await,
        incarnation: column(INCARNATION).await.parse().unwrap(),
    }
}

/// The outbox of the sandbox, reached as the relay does, in this process.
async fn source(sandbox: &Sandbox) -> Source {
    try_source(sandbox, &sandbox.relay_config()).await.unwrap()
}

async fn try_source(sandbox: &Sandbox, config: &RelayConfig) -> Result<Source, Failure> {
    let files = fanout_runtime::config::Files(sandbox.secret_files());
    Source::connect(config, &files).await
}

/// Fails when records were repeated although nothing went wrong.
async fn assert_not_repeated(verdict: &Verdict, relay: &Relay) {
    if verdict.duplicates > 0 {
        // Brokers that are too slow on a busy machine are a reason to send again.
        let metrics = relay.metrics().await.unwrap();
        assert!(
            metrics.contains("side=\"broker\""),
            "{verdict:?}\n{metrics}"
        );
    }
}

/// Judges the topic until nothing is missing.
async fn settled(sandbox: &Sandbox, journal: &Journal) -> Verdict {
    let checker = Checker::new(sandbox, journal).await;
    Checker::settle(LIMIT, async || checker.judge_log().await).await
}
