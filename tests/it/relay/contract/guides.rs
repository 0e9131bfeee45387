//! The migration guides, tried on a table that has rows and is written to: their SQL is run as it stands in the files, and
//! the mapping they show is the one that publishes.

use super::{LIMIT, execute, value};
use fanout_contract::relay::{Claim, Columns, RelayConfig, Source as SourceConfig};
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::services::dirs;
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{Sandbox, eventually, services};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use std::collections::HashMap;
use tokio_util::sync::CancellationToken;

/// Rows that are there when the guide is followed.
const ROWS: i64 = 12_000;

/// The fenced blocks of `language` in a guide, in order.
fn blocks(guide: &str, language: &str) -> Vec<String> {
    let path = dirs::tests_dir().join("../docs/migration").join(guide);
    let text = std::fs::read_to_string(path).unwrap();
    text.split(&format!("```{language}\n"))
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

/// What the guide's FanoutTopic says of the source.
fn config(sandbox: &Sandbox, guide: &str) -> RelayConfig {
    let yaml = blocks(guide, "yaml").concat();
    let document: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
    let shown = &document["source"]["postgres"];
    let mut config = sandbox.relay_config();
    let SourceConfig::Postgres(postgres) = &mut config.source;
    shown["table"]
        .as_str()
        .unwrap()
        .clone_into(&mut postgres.table);
    postgres.claim = serde_json::from_value(shown["claim"].clone()).unwrap_or(Claim::Snapshot);
    assert_eq!(shown["match"], serde_json::json!([]));
    postgres.r#match.clear();
    let columns: Columns = serde_json::from_value(shown["columns"].clone()).unwrap();
    postgres.columns = Some(columns);
    config
}

/// Commits a row at a time until `stop`; returns how many.
async fn write(url: String, stop: CancellationToken) -> i64 {
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let mut written = 0;
    while !stop.is_cancelled() {
        let key = written % 40;
        let insert = format!(
            "insert into events (aggregate_id, kind, body) values ('k{key}', 'new', '{{\"n\": {written}}}')"
        );
        sqlx::raw_sql(AssertSqlSafe(insert))
            .execute(&mut connection)
            .await
            .unwrap();
        written += 1;
    }
    written
}

async fn psql(sandbox: &Sandbox, sql: String) {
    let database = sandbox.database.clone();
    let postgres: &'static Postgres = services::postgres();
    tokio::task::spawn_blocking(move || postgres.psql(&database, &sql, &[]))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn the_guide_to_snapshot_is_followed_on_a_table_that_is_in_use() {
    follow("snapshot.md", true).await;
}

#[tokio::test]
async fn the_guide_to_lease_is_followed_on_a_table_that_is_in_use() {
    follow("lease.md", false).await;
}

#[tokio::test]
async fn the_guide_to_delete_is_followed_on_a_table_that_is_in_use() {
    follow("delete.md", true).await;
}

/// Runs what the guide says while the application writes, then publishes.
async fn follow(guide: &str, publishes_old_rows: bool) {
    let sandbox = super::sandbox(&format!("guide_{}", guide.trim_end_matches(".md"))).await;
    execute(
        &sandbox,
        &format!(
            "create table events (id bigint generated always as identity primary key, aggregate_id text, kind text not null, body jsonb,
                created_at timestamptz not null default now());
             grant select, insert on events to fanout_app;
             insert into events (aggregate_id, kind, body) select nullif('k' || n % 40, 'k7'), 'old', jsonb_build_object('n', n)
               from generate_series(1, {ROWS}) n"
        ),
    )
    .await;
    let file = "select pg_relation_filenode('events')";
    let before = value(&sandbox, file).await;
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write(sandbox.app_url.clone(), stop.clone()));
    let written = "select count(*) from events where kind = 'new'";
    eventually(LIMIT, "the application writes", async || {
        let written = value(&sandbox, written).await.unwrap();
        if written == "0" { Err(written) } else { Ok(()) }
    })
    .await;
    for sql in blocks(guide, "sql") {
        psql(&sandbox, sql).await;
    }
    let config = config(&sandbox, guide);
    assert_eq!(
        value(&sandbox, file).await,
        before,
        "{guide} rewrites nothing"
    );
    let source = super::super::try_source(&sandbox, &config).await.unwrap();
    assert_eq!(fanout_relay::checks::run(&source).await, Ok(()), "{guide}");
    // What a mode would not publish is what was there, and what came before the guide was through.
    let least: i64 = if publishes_old_rows {
        value(&sandbox, "select count(*) from events").await
    } else {
        value(
            &sandbox,
            "select count(*) from events where status = 'pending'",
        )
        .await
    }
    .unwrap()
    .parse()
    .unwrap();
    let _relay = Relay::start(&sandbox, "a", &config).await;
    stop.cancel();
    let new = writer.await.unwrap();
    let expected = if publishes_old_rows {
        ROWS + new
    } else {
        value(
            &sandbox,
            "select count(*) from events where attempts > 0 or status <> 'done'",
        )
        .await
        .unwrap()
        .parse()
        .unwrap()
    };
    assert!(
        least > 0 && expected >= least,
        "{guide}: {least}, then {expected}"
    );
    expect_published(&sandbox, guide, expected).await;
}

/// Waits for `expected` rows in the topic, in the order of their keys.
async fn expect_published(sandbox: &Sandbox, guide: &str, expected: i64) {
    eventually(
        LIMIT,
        "every row is published in the order of its key",
        async || {
            let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
            let mut last: HashMap<Vec<u8>, String> = HashMap::new();
            let mut seen = std::collections::HashSet::new();
            for record in &log.records {
                let sequence = record.header("ce_sequence").unwrap();
                if !seen.insert(sequence.clone()) {
                    continue;
                }
                if let Some(key) = &record.key
                    && let Some(before) = last.insert(key.clone(), sequence.clone())
                {
                    assert!(before < sequence, "{guide}: {before} before {sequence}");
                }
            }
            if i64::try_from(seen.len()).unwrap() == expected {
                Ok(())
            } else {
                Err(format!("{} of {expected}", seen.len()))
            }
        },
    )
    .await;
}

/// What the guides avoid: a stored generated column rewrites the table.
#[tokio::test]
async fn a_stored_generated_shard_rewrites_the_table_and_xid_does_not() {
    let sandbox = super::sandbox("guide_rewrite").await;
    execute(
        &sandbox,
        "create table events as select n as id, 'k' as key from generate_series(1, 1000) n",
    )
    .await;
    let file = "select pg_relation_filenode('events')";
    let before = value(&sandbox, file).await;
    execute(
        &sandbox,
        "alter table events add column xid xid8 not null default pg_current_xact_id()",
    )
    .await;
    assert_eq!(value(&sandbox, file).await, before);
    let shard = "alter table events add column shard smallint not null generated always as ((hashtext(coalesce(key::text, '')) & 63)::smallint) stored";
    execute(&sandbox, shard).await;
    assert_ne!(value(&sandbox, file).await, before);
}
