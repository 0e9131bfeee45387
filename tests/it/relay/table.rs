//! The table of `manifests/sql`: what its columns and its constraint guarantee.

use super::{execute, sandbox, value};
use fanout_tests::services;
use fanout_tests::services::postgres::TEMPLATE;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

#[tokio::test]
async fn a_row_without_a_key_has_a_shard() {
    let sandbox = sandbox("table_null_key").await;
    execute(
        &sandbox,
        "insert into outbox (topic, type) values ('posts', 't')",
    )
    .await;
    assert_eq!(
        value(&sandbox, "select shard is not null from outbox")
            .await
            .as_deref(),
        Some("true")
    );
    // Without the coalesce it has none, and no range would ever claim it.
    let bare = "select (hashtext(null::text) & 63) is null";
    assert_eq!(value(&sandbox, bare).await.as_deref(), Some("true"));
}

async fn refused(sandbox: &fanout_tests::Sandbox, sql: &str) -> bool {
    let refused = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(sandbox.pool())
        .await;
    let Err(sqlx::Error::Database(error)) = refused else {
        return false;
    };
    error.constraint() == Some("outbox_xid")
}

#[tokio::test]
async fn forged_transaction_ids_and_updates_are_refused() {
    let sandbox = sandbox("table_forged").await;
    execute(
        &sandbox,
        "insert into outbox (topic, type) values ('posts', 't')",
    )
    .await;
    let forged = "insert into outbox (topic, type, xid) values ('posts', 't', '3')";
    assert!(refused(&sandbox, forged).await);
    assert!(refused(&sandbox, "update outbox set type = 'u'").await);
    assert_eq!(
        value(&sandbox, "select type from outbox").await.as_deref(),
        Some("t")
    );
}

#[tokio::test]
async fn the_constraint_survives_dump_and_restore_and_old_rows_with_it() {
    let sandbox = sandbox("table_dump").await;
    execute(
        &sandbox,
        "insert into outbox (topic, type) values ('posts', 't')",
    )
    .await;
    let copy = restore(&sandbox).await;
    let mut copied = PgConnection::connect(&services::postgres().url(&copy))
        .await
        .unwrap();
    let rows: i64 = sqlx::query_scalar("select count(*) from outbox")
        .fetch_one(&mut copied)
        .await
        .unwrap();
    assert_eq!(rows, 1);
    let forged = "insert into outbox (topic, type, xid) values ('posts', 't', '3')";
    assert!(sqlx::raw_sql(forged).execute(&mut copied).await.is_err());
    sqlx::raw_sql("insert into outbox (topic, type) values ('posts', 't')")
        .execute(&mut copied)
        .await
        .unwrap();

    // Inside CREATE TABLE "not valid" is dropped, and the same dump can't be restored.
    execute(&sandbox, "create table inside (xid xid8 default pg_current_xact_id(), constraint c check (xid = pg_current_xact_id()) not valid)").await;
    let valid = "select convalidated from pg_constraint where conname = 'c' and conrelid = 'inside'::regclass";
    assert_eq!(value(&sandbox, valid).await.as_deref(), Some("true"));
}

/// Dumps the sandbox's database and restores it into a new one, whose name it returns.
pub(super) async fn restore(sandbox: &fanout_tests::Sandbox) -> String {
    let copy = format!("{}_copy", sandbox.database);
    execute(
        sandbox,
        &format!("create database {copy} template template0"),
    )
    .await;
    let (from, to) = (sandbox.url.clone(), services::postgres().url(&copy));
    tokio::task::spawn_blocking(move || {
        let command = format!(
            "set -e -o pipefail; pg_dump '{from}' | psql -X -q -v ON_ERROR_STOP=1 -d '{to}' > /dev/null"
        );
        services::run(std::process::Command::new("bash").args(["-c", &command])).unwrap();
    })
    .await
    .unwrap();
    copy
}

#[tokio::test]
async fn the_relay_has_the_rights_it_needs_and_no_others() {
    let sandbox = sandbox("table_rights").await;
    let mut relay = PgConnection::connect(&sandbox.relay_url).await.unwrap();
    for forbidden in [
        "insert into outbox (topic, type) values ('posts', 't')",
        "update outbox set type = 'u'",
        "create table fanout.t (a int)",
        "update fanout.positions set seq = 0",
        "delete from fanout.schema_version",
        "update fanout.topics set cluster_id = ''",
        "truncate outbox",
    ] {
        let outcome = sqlx::raw_sql(forbidden).execute(&mut relay).await;
        let code = outcome.err().and_then(|error| {
            error
                .as_database_error()?
                .code()
                .map(std::borrow::Cow::into_owned)
        });
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}");
    }
    let mut app = PgConnection::connect(&sandbox.app_url).await.unwrap();
    for forbidden in [
        "insert into outbox (topic, type, xid) values ('posts', 't', pg_current_xact_id())",
        "select payload from outbox",
        "delete from outbox",
        "select * from fanout.positions",
    ] {
        let outcome = sqlx::raw_sql(forbidden).execute(&mut app).await;
        assert!(outcome.is_err(), "{forbidden}");
    }
    assert_ne!(sandbox.database, TEMPLATE);
}
