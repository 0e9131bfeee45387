//! Filling outboxes.

use fanout_contract::relay::{Claim, RelayConfig, Source};
use fanout_tests::Sandbox;
use fanout_tests::services::dirs;
use fanout_tests::services::postgres::{APP_ROLE, Postgres, RELAY_ROLE};
use sqlx::AssertSqlSafe;

/// Rows of one transaction.
const TRANSACTION: usize = 100;

/// Runs SQL as the superuser.
pub(crate) async fn execute(sandbox: &Sandbox, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(sandbox.pool())
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// A relay's configuration for claim mode `claim`, with the table `public.outbox` made for it.
pub(crate) async fn prepare(sandbox: &Sandbox, server: &Postgres, claim: Claim) -> RelayConfig {
    let mut config = sandbox.relay_config();
    let Source::Postgres(postgres) = &mut config.source;
    postgres.claim = claim;
    if claim == Claim::Lease {
        execute(sandbox, "drop table outbox").await;
        let file = dirs::tests_dir().join("../manifests/sql/outbox-lease.sql");
        let variables = [
            ("table", "public.outbox"),
            ("app_role", APP_ROLE),
            ("relay_role", RELAY_ROLE),
        ];
        tokio::task::block_in_place(|| server.psql_file(&sandbox.database, &file, &variables))
            .unwrap();
    }
    config
}

/// Commits `rows` rows with a payload of 200 bytes and ten thousand keys, a hundred in a transaction.
pub(crate) async fn fill(sandbox: &Sandbox, rows: usize) {
    let some = insert(
        sandbox,
        &format!("i * {TRANSACTION} + 1"),
        &format!("least(i * {TRANSACTION} + {TRANSACTION}, {rows})"),
    );
    let last = rows.div_ceil(TRANSACTION) - 1;
    let all = format!("do $$ begin for i in 0 .. {last} loop {some}; commit; end loop; end $$");
    for sql in [all.as_str(), "vacuum analyze outbox", "checkpoint"] {
        execute(sandbox, sql).await;
    }
}

/// Commits the same rows in one transaction.
pub(crate) async fn commit_at_once(sandbox: &Sandbox, rows: usize) {
    execute(sandbox, &insert(sandbox, "1", &rows.to_string())).await;
}

fn insert(sandbox: &Sandbox, from: &str, to: &str) -> String {
    format!(
        "insert into outbox (topic, key, type, subject, payload)
           select '{}', 'user-' || n % 10000, 'post.created', 'posts/' || n,
                  convert_to(rpad('{{\"n\":' || n || ',\"text\":\"', 198, md5(n::text)) || '\"}}', 'UTF8')
             from generate_series({from}, {to}) n",
        sandbox.topic_name
    )
}
