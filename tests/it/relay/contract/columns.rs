//! `columns` maps an existing table: what arrives, and what is said about a mapping that is wrong.

use super::{ALL, column, execute, scene, value};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{
    Claim, ColumnMatch, ColumnSource, Columns, RelayConfig, Source as SourceConfig,
};
use fanout_relay::claim::row::Row;
use fanout_relay::claim::snapshot::Limits;
use fanout_relay::claim::{Ids, SERVER_COLUMNS, delete};
use fanout_tests::checker::log::{Log, Record};
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, eventually};

/// A table as an application may have it.
const POSTS: &str = "create table posts_outbox (post_id bigint generated always as identity primary key, status text not null default 'new',
        payload jsonb not null, created_at timestamp default '2026-01-02 03:04:05.678');
    grant select, delete on posts_outbox to fanout_relay";

#[allow(clippy::unnecessary_wraps)] // as the fields of a mapping are
fn constant(value: &str) -> Option<ColumnSource> {
    Some(ColumnSource::Value(value.to_owned()))
}

#[allow(clippy::unnecessary_wraps)] // as the fields of a mapping are
fn path(path: &str) -> Option<ColumnSource> {
    Some(ColumnSource::JsonPath(path.to_owned()))
}

fn posts_columns() -> Columns {
    Columns {
        id: column("post_id"),
        key: path("$.author.id"),
        r#type: constant("post.created"),
        subject: path("$.title"),
        headers: constant(r#"{"x-origin": "posts"}"#),
        ..Columns::default()
    }
}

fn mapped(sandbox: &Sandbox, table: &str, columns: Columns) -> RelayConfig {
    let mut config = sandbox.relay_config();
    let SourceConfig::Postgres(postgres) = &mut config.source;
    postgres.claim = Claim::Delete;
    postgres.table = format!("public.{table}");
    postgres.r#match.clear();
    postgres.columns = Some(columns);
    config
}

async fn records(sandbox: &Sandbox, count: usize) -> Vec<Record> {
    let mut found = Vec::new();
    eventually(super::LIMIT, "the records arrive", async || {
        found = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic)
            .await
            .records;
        found.sort_by_key(|record| record.header("ce_sequence"));
        found.dedup_by_key(|record| record.header("ce_sequence"));
        if found.len() == count {
            Ok(())
        } else {
            Err(format!("{} of {count}", found.len()))
        }
    })
    .await;
    found
}

#[tokio::test]
async fn a_table_with_four_columns_is_published() {
    let sandbox = super::sandbox("columns_posts").await;
    execute(&sandbox, POSTS).await;
    let mut config = mapped(&sandbox, "posts_outbox", posts_columns());
    let SourceConfig::Postgres(postgres) = &mut config.source;
    let (column, value_of) = ("status".to_owned(), "new".to_owned());
    postgres.r#match = vec![ColumnMatch {
        column,
        value: value_of,
    }];
    let rows = r#"insert into posts_outbox (payload) values ('{"author": {"id": 7}, "title": "one"}'), ('{"author": null}');
        insert into posts_outbox (status, payload) values ('draft', '{}')"#;
    execute(&sandbox, rows).await;
    let relay = Relay::start(&sandbox, "a", &config).await;
    let found = records(&sandbox, 2).await;
    let [first, second] = found.as_slice() else {
        panic!("{found:?}");
    };
    let attributes = first.attributes();
    assert_eq!(first.key.as_deref(), Some(&b"7"[..]));
    assert_eq!(attributes.r#type, "post.created");
    assert_eq!(attributes.subject.as_deref(), Some("one"));
    assert_eq!(attributes.content_type.as_deref(), Some("application/json"));
    assert_eq!(
        first.header("ce_time").as_deref(),
        Some("2026-01-02T03:04:05.678Z")
    );
    assert_eq!(first.header("x-origin").as_deref(), Some("posts"));
    assert_eq!(
        first.payload.as_deref(),
        Some(&br#"{"title": "one", "author": {"id": 7}}"#[..])
    );
    assert_eq!(
        (second.key.as_deref(), second.attributes().subject),
        (None, None)
    );
    let ids = [attributes.id, second.attributes().id];
    assert_ne!(ids[0], ids[1]);
    relay.kill();

    // The same rows, published once more by another relay, are the same events.
    let again = "insert into posts_outbox (post_id, payload) overriding system value values (1, '{}'), (2, '{}')";
    execute(&sandbox, again).await;
    let source = super::super::try_source(&sandbox, &config).await.unwrap();
    let limits = Limits {
        rows: 10,
        bytes: 1 << 20,
    };
    let sql = delete::select(&source.outbox, ALL, &Ids::Numbers(Vec::new()), limits);
    let rows = source.query(sql).await.unwrap();
    let derived: Vec<&str> = rows
        .iter()
        .map(|row| Row::decode(row, SERVER_COLUMNS).unwrap().event_id)
        .collect();
    assert_eq!(derived, ids);
    // A UUID like any other.
    let version = format!(
        "select '{}'::uuid::text like '________-____-8___-8___-____________'",
        ids[0]
    );
    assert_eq!(value(&sandbox, &version).await.as_deref(), Some("true"));
}

#[tokio::test]
async fn payloads_and_keys_of_every_type_arrive_unchanged() {
    let sandbox = super::sandbox("columns_types").await;
    let uuid = "0d9f8a52-1111-4222-8333-123456789abc";
    for (payload_type, payload, bytes) in [
        ("bytea", r"'\x00ff5c78'", "00ff5c78"),
        (
            "jsonb",
            r#"'{"b":1,  "a":"ü\u2028"}'"#,
            "7b2261223a2022c3bce280a8222c202262223a20317d",
        ),
        (
            "json",
            r#"'{"b":1,  "a":1.50}'"#,
            "7b2262223a312c20202261223a312e35307d",
        ),
        ("text", r"E'a\\x41\nü'", "615c7834310ac3bc"),
    ] {
        for (key_type, key, text) in [
            ("uuid", format!("'{uuid}'"), Some(uuid)),
            (
                "bigint",
                "9007199254740993".to_owned(),
                Some("9007199254740993"),
            ),
            ("text", "'ü'".to_owned(), Some("ü")),
            ("text", "null".to_owned(), None),
        ] {
            execute(
                &sandbox,
                &format!(
                    "drop table if exists t; create table t (id int generated always as identity primary key, k {key_type}, p {payload_type}, created_at timestamptz);
                     grant select, delete on t to fanout_relay; alter database {} set bytea_output = 'escape';
                     insert into t (k, p, created_at) values ({key}, {payload}, now()), ({key}, null, null)",
                    sandbox.database
                ),
            )
            .await;
            let columns = Columns {
                key: column("k"),
                payload: column("p"),
                r#type: constant("t"),
                ..Columns::default()
            };
            let config = mapped(&sandbox, "t", columns);
            let source = super::super::try_source(&sandbox, &config).await.unwrap();
            fanout_relay::checks::run(&source).await.unwrap();
            let limits = Limits {
                rows: 10,
                bytes: 1 << 20,
            };
            let sql = delete::select(&source.outbox, ALL, &Ids::Numbers(Vec::new()), limits);
            let rows = source.query(sql).await.unwrap();
            let decoded: Vec<Row<'_>> = rows
                .iter()
                .map(|row| Row::decode(row, SERVER_COLUMNS).unwrap())
                .collect();
            let seen: Vec<_> = decoded
                .iter()
                .map(|row| (row.id, row.key, row.payload))
                .collect();
            assert_eq!(
                seen,
                [(1, text, Some(bytes)), (2, text, None)],
                "{payload_type} {key_type}"
            );
            // No time is no event: such a row is parked.
            assert_eq!(decoded[1].created_at, "\"infinity\"");
        }
    }
}

/// Expects that `columns` of the table of four columns is refused with a message that contains each of `named`.
async fn refused(sandbox: &Sandbox, columns: Columns, class: SourceError, named: &[&str]) {
    let config = mapped(sandbox, "posts_outbox", columns.clone());
    let source = super::super::try_source(sandbox, &config).await.unwrap();
    let failure = fanout_relay::checks::run(&source).await;
    let failure = failure.expect_err(&format!("{columns:?}"));
    assert_eq!(failure.class, class, "{failure:?}");
    for part in named {
        assert!(failure.message.contains(part), "{failure:?} names {part}");
    }
}

#[tokio::test]
async fn a_wrong_mapping_names_the_column() {
    let sandbox = super::sandbox("columns_wrong").await;
    execute(&sandbox, POSTS).await;
    let invalid = SourceError::ColumnInvalid;
    let right = posts_columns;
    let sound = mapped(&sandbox, "posts_outbox", right());
    let source = super::super::try_source(&sandbox, &sound).await.unwrap();
    assert_eq!(fanout_relay::checks::run(&source).await, Ok(()));

    let missing = Columns {
        key: column("author"),
        ..right()
    };
    refused(
        &sandbox,
        missing,
        invalid,
        &["spec.source.postgres.columns.key", "\"author\"", "missing"],
    )
    .await;
    let unnamed = Columns {
        key: None,
        ..right()
    };
    refused(
        &sandbox,
        unnamed,
        invalid,
        &["columns.key", "\"key\"", "missing"],
    )
    .await;
    let wrong = Columns {
        created_at: column("status"),
        ..right()
    };
    refused(
        &sandbox,
        wrong,
        invalid,
        &[
            "columns.createdAt",
            "\"status\"",
            "has type text, not timestamptz",
        ],
    )
    .await;
    let headers = Columns {
        headers: constant("[1]"),
        ..right()
    };
    refused(
        &sandbox,
        headers,
        invalid,
        &["columns.headers", "JSON object"],
    )
    .await;
    let no_path = Columns {
        subject: path("$.a b["),
        ..right()
    };
    refused(&sandbox, no_path, invalid, &["columns.subject", "$.a b["]).await;
    let same = Columns {
        event_id: constant("1"),
        ..right()
    };
    refused(&sandbox, same, invalid, &["columns.eventId"]).await;
    let fixed = Columns {
        payload: constant("{}"),
        ..right()
    };
    refused(
        &sandbox,
        fixed,
        invalid,
        &["columns.payload", "must be a column"],
    )
    .await;
}

#[tokio::test]
async fn a_mapped_table_that_changes_is_judged_again() {
    let sandbox = super::sandbox("columns_changed").await;
    execute(&sandbox, POSTS).await;
    let invalid = SourceError::ColumnInvalid;
    let right = posts_columns;
    execute(&sandbox, "alter table posts_outbox alter payload type json").await;
    refused(
        &sandbox,
        right(),
        invalid,
        &["columns.key", "jsonb", "\"payload\""],
    )
    .await;
    execute(
        &sandbox,
        "alter table posts_outbox alter payload type jsonb, alter post_id set cache 50",
    )
    .await;
    refused(
        &sandbox,
        right(),
        SourceError::SequenceCached,
        &["\"post_id\"", "caches 50"],
    )
    .await;
    execute(
        &sandbox,
        "alter table posts_outbox alter post_id set cache 1, drop constraint posts_outbox_pkey",
    )
    .await;
    refused(
        &sandbox,
        right(),
        SourceError::IndexMissing,
        &["create unique index", "\"post_id\""],
    )
    .await;
    execute(&sandbox, "alter table posts_outbox add primary key (post_id); revoke delete on posts_outbox from fanout_relay").await;
    refused(
        &sandbox,
        right(),
        SourceError::SourcePermissionDenied,
        &["delete on \"public\".\"posts_outbox\""],
    )
    .await;
    execute(
        &sandbox,
        "alter table posts_outbox rename to t; create view posts_outbox as select * from t",
    )
    .await;
    refused(&sandbox, right(), SourceError::NotATable, &["not a table"]).await;
}

/// What is wrong with a table of claim mode `Lease`, by the statement that makes it so.
#[tokio::test]
async fn a_table_without_the_columns_of_its_mode_is_found() {
    let (sandbox, config) = scene("columns_lease", Claim::Lease).await;
    let finding = async || {
        let source = super::super::try_source(&sandbox, &config).await.unwrap();
        fanout_relay::checks::run(&source).await.err()
    };
    assert_eq!(finding().await, None);
    for (breaks, mends, class, named) in [
        (
            "alter table outbox rename lease_expires to x",
            "alter table outbox rename x to lease_expires",
            SourceError::ColumnInvalid,
            "\"lease_expires\"",
        ),
        (
            "alter table outbox alter attempts type text",
            "alter table outbox alter attempts drop default, alter attempts type int using 0, alter attempts set default 0",
            SourceError::ColumnInvalid,
            "\"attempts\"",
        ),
        (
            "alter table outbox alter status drop not null",
            "alter table outbox alter status set not null",
            SourceError::ColumnInvalid,
            "\"status\"",
        ),
        (
            "revoke update (status) on outbox from fanout_relay",
            "grant update (status) on outbox to fanout_relay",
            SourceError::SourcePermissionDenied,
            "update (status)",
        ),
        (
            "alter table outbox alter id set cache 9",
            "alter table outbox alter id set cache 1",
            SourceError::SequenceCached,
            "caches 9",
        ),
        (
            "alter index outbox_topic_id_shard_idx rename to x; drop index x",
            "create index on outbox (topic, id, shard) where status = 'pending'",
            SourceError::IndexMissing,
            "where status = 'pending'",
        ),
        (
            "drop index outbox_topic_lease_expires_shard_idx",
            "create index on outbox (topic, lease_expires) where status <> 'done'",
            SourceError::IndexMissing,
            "where status = 'processing'",
        ),
    ] {
        execute(&sandbox, breaks).await;
        let failure = finding()
            .await
            .unwrap_or_else(|| panic!("nothing found after {breaks}"));
        assert_eq!(failure.class, class, "{failure:?} after {breaks}");
        assert!(
            failure.message.contains(named),
            "{failure:?} after {breaks}"
        );
        execute(&sandbox, mends).await;
        assert_eq!(finding().await, None, "{mends}");
    }
    let mut snapshot = config.clone();
    let SourceConfig::Postgres(postgres) = &mut snapshot.source;
    postgres.claim = Claim::Snapshot;
    let source = super::super::try_source(&sandbox, &snapshot).await.unwrap();
    let failure = fanout_relay::checks::run(&source).await.unwrap_err();
    assert_eq!(failure.class, SourceError::ColumnInvalid);
    assert!(failure.message.contains("\"xid\""), "{failure:?}");
}
