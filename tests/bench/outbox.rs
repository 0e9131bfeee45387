//! Outboxes that are full before anybody reads them.

use fanout_contract::relay::{Claim, RelayConfig, Source};
use fanout_tests::Sandbox;
use fanout_tests::services::postgres::{APP_ROLE, Postgres, RELAY_ROLE};
use sqlx::AssertSqlSafe;
use std::path::Path;

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
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/sql/outbox-lease.sql");
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
    let sql = format!(
        "do $$ begin for i in 0 .. {} loop
           insert into outbox (topic, key, type, subject, payload)
           select '{}', 'user-' || n % 10000, 'post.created', 'posts/' || n,
                  convert_to(rpad('{{\"n\":' || n || ',\"text\":\"', 198, md5(n::text)) || '\"}}', 'UTF8')
             from generate_series(i * {TRANSACTION} + 1, least(i * {TRANSACTION} + {TRANSACTION}, {rows})) n;
           commit;
         end loop; end $$",
        rows.div_ceil(TRANSACTION) - 1,
        sandbox.topic_name
    );
    for sql in [sql.as_str(), "vacuum analyze outbox", "checkpoint"] {
        execute(sandbox, sql).await;
    }
}
