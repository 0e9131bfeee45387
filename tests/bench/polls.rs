//! What a poll costs: statements of an idle relay, and the time of a poll beside many retained rows.

use crate::outbox::{execute, prepare};
use fanout_contract::relay::Claim;
use fanout_tests::Sandbox;
use fanout_tests::process::Relay;
use fanout_tests::services::kafka::Kafka;
use fanout_tests::services::postgres::Postgres;
use sqlx::AssertSqlSafe;
use std::time::{Duration, Instant};

/// Far more than anything takes.
const LIMIT: Duration = Duration::from_mins(2);
/// Idle statements are counted for so long.
const COUNTED: Duration = Duration::from_secs(20);
/// Polls that are timed.
const POLLS: u32 = 2_000;

/// Transactions a second that an idle relay makes in its database.
pub(crate) async fn idle((server, kafka): (&Postgres, &Kafka)) -> f64 {
    let sandbox = Sandbox::with("bench_idle", server, kafka).await;
    let config = prepare(&sandbox, server, Claim::Snapshot).await;
    let relay = Relay::start(&sandbox, "r", &config).await;
    relay
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() > 1)
        .await;
    let count = async || -> i64 {
        execute(&sandbox, "select pg_stat_clear_snapshot()").await;
        // As its role, so that what looks is not counted: statements are counted by the session that makes them.
        sqlx::query_scalar("select xact_commit + xact_rollback from pg_stat_database where datname = current_database()")
            .fetch_one(sandbox.pool())
            .await
            .unwrap()
    };
    // Counters arrive with a delay of up to a second; the pauses are what is measured.
    tokio::time::sleep(COUNTED / 4).await;
    let (before, began) = (count().await, Instant::now());
    tokio::time::sleep(COUNTED).await;
    let after = count().await;
    (after - before) as f64 / began.elapsed().as_secs_f64()
}

/// Milliseconds of a poll that finds nothing, for each of `rows` retained rows, in the order given, which must rise.
pub(crate) async fn retained((server, kafka): (&Postgres, &Kafka), rows: &[usize]) -> Vec<f64> {
    let sandbox = Sandbox::with("bench_polls", server, kafka).await;
    let outbox = fanout_relay::claim::Outbox::new(
        match &sandbox.relay_config().source {
            fanout_contract::relay::Source::Postgres(postgres) => postgres,
        },
        "/bench/polls".to_owned(),
        fanout_relay::claim::columns::Types::default(),
    )
    .unwrap();
    let shards = fanout_relay::claim::Shards { lo: 0, hi: 32 };
    let limits = fanout_relay::worker::BATCH;
    let mut found = Vec::new();
    let mut filled = 0;
    for rows in rows {
        let sql = format!(
            "insert into outbox (topic, key, type, payload) select '{}', 'user-' || n % 10000, 't', '\\x00' \
             from generate_series(1, {}) n",
            sandbox.topic_name,
            rows - filled
        );
        filled = *rows;
        for sql in [sql.as_str(), "vacuum analyze outbox", "checkpoint"] {
            execute(&sandbox, sql).await;
        }
        let mut connection = sandbox.pool().acquire().await.unwrap();
        let now: String = sqlx::query_scalar("select pg_current_snapshot()::text")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let old = fanout_relay::claim::snapshot::Snapshot::new(now).sql();
        let sql = fanout_relay::claim::snapshot::poll(&outbox, shards, &old, limits);
        let began = Instant::now();
        for _ in 0..POLLS {
            sqlx::raw_sql(AssertSqlSafe(sql.clone()))
                .execute(&mut *connection)
                .await
                .unwrap();
        }
        found.push(began.elapsed().as_secs_f64() * 1e3 / f64::from(POLLS));
    }
    found
}
