//! What is wrong with a database is found before anything is claimed, and said in words that name it.

use super::{execute, sandbox, try_source};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{RelayConfig, Source as SourceConfig};
use fanout_relay::checks;
use fanout_relay::source::Failure;
use fanout_tests::Sandbox;

async fn finding(sandbox: &Sandbox, config: &RelayConfig) -> Option<Failure> {
    let source = match try_source(sandbox, config).await {
        Ok(source) => source,
        Err(failure) => return Some(failure),
    };
    checks::run(&source).await.err()
}

/// Breaks a fresh database by `sql` and expects a finding of `class` that mentions `named`.
async fn broken(test: &str, sql: &str, class: SourceError, named: &str) {
    let sandbox = sandbox(test).await;
    assert_eq!(
        finding(&sandbox, &sandbox.relay_config()).await,
        None,
        "sound before"
    );
    execute(&sandbox, sql).await;
    let failure = finding(&sandbox, &sandbox.relay_config()).await;
    let failure = failure.unwrap_or_else(|| panic!("nothing found after {sql}"));
    assert_eq!(failure.class, class, "{failure:?} after {sql}");
    assert!(failure.message.contains(named), "{failure:?} after {sql}");
}

#[tokio::test]
async fn a_missing_or_older_schema_is_found() {
    let class = SourceError::SchemaOutdated;
    broken(
        "check_schema",
        "drop schema fanout cascade",
        class,
        "00-fanout.sql",
    )
    .await;
    broken(
        "check_version",
        "delete from fanout.schema_version",
        class,
        "version 0",
    )
    .await;
}

#[tokio::test]
async fn an_older_schema_is_brought_up_to_date_by_its_step() {
    let sandbox = sandbox("check_upgrade").await;
    let older = "alter table fanout.parked drop column action;
         alter table fanout.ranges drop column predecessors;
         revoke delete on fanout.ranges, fanout.leases from fanout_relay;
         revoke update on fanout.parked from fanout_relay;
         delete from fanout.schema_version where version >= 2";
    execute(&sandbox, older).await;
    let failure = finding(&sandbox, &sandbox.relay_config()).await.unwrap();
    assert_eq!(failure.class, SourceError::SchemaOutdated);
    assert!(failure.message.contains("version 1"), "{failure:?}");
    let step = fanout_tests::documents::root().join("manifests/sql/upgrade/2-parked-actions.sql");
    let step = std::fs::read_to_string(step).unwrap();
    let server = fanout_tests::services::postgres();
    server.psql(&sandbox.database, &step, &[]).unwrap();
    assert_eq!(finding(&sandbox, &sandbox.relay_config()).await, None);
}

#[tokio::test]
async fn a_missing_table_and_one_that_is_none_are_found() {
    let class = SourceError::TableMissing;
    broken(
        "check_table",
        "drop table outbox",
        class,
        "\"public\".\"outbox\" does not exist",
    )
    .await;
    let view = "alter table outbox rename to rows; create view outbox as select * from rows";
    broken("check_view", view, SourceError::NotATable, "not a table").await;
}

#[tokio::test]
async fn missing_and_wrong_columns_are_found() {
    let class = SourceError::ColumnInvalid;
    broken(
        "check_column",
        "alter table outbox drop column subject",
        class,
        "\"subject\"",
    )
    .await;
    broken(
        "check_type",
        "alter table outbox alter payload type int using 0",
        class,
        "\"payload\"",
    )
    .await;
    let shard = "drop index outbox_topic_xid_shard_idx; alter table outbox drop column shard;
         alter table outbox add column shard smallint not null generated always as ((hashtext(key) & 63)::smallint) stored;
         create index on outbox (topic, xid, shard)";
    broken("check_shard", shard, class, "\"shard\"").await;
    broken(
        "check_default",
        "alter table outbox alter xid drop default",
        class,
        "\"xid\"",
    )
    .await;
    broken(
        "check_identity",
        "alter table outbox alter id drop identity",
        class,
        "identity",
    )
    .await;
}

#[tokio::test]
async fn a_missing_constraint_is_found_also_on_one_partition() {
    let class = SourceError::ConstraintMissing;
    broken(
        "check_constraint",
        "alter table outbox drop constraint outbox_xid",
        class,
        "alter table outbox add constraint",
    )
    .await;
    let partitioned = partitioned();
    broken(
        "check_partition",
        &format!("{partitioned}; alter table outbox_1 drop constraint outbox_xid"),
        class,
        "outbox_1",
    )
    .await;
}

/// Replaces the outbox by a partitioned one, as its comment in the manifest says.
fn partitioned() -> String {
    let columns = "id bigint generated always as identity, event_id uuid not null default gen_random_uuid(), topic text not null,
         key text, type text not null, subject text, content_type text not null default 'application/json', headers jsonb,
         traceparent text, payload bytea, created_at timestamptz not null default clock_timestamp(),
         xid xid8 not null default pg_current_xact_id(),
         shard smallint not null generated always as ((hashtext(coalesce(key::text, '')) & 63)::smallint) stored";
    let plain = columns.replace("generated always as identity", "not null");
    format!(
        "drop table outbox; create table outbox ({columns}) partition by range (id);
         create table outbox_1 ({plain}); alter table outbox_1 add constraint outbox_xid check (xid = pg_current_xact_id()) not valid;
         alter table outbox attach partition outbox_1 for values from (1) to (1000000);
         create index on outbox (topic, xid, shard); create index on outbox (id); grant select, delete on outbox to fanout_relay"
    )
}

#[tokio::test]
async fn a_partitioned_outbox_is_as_good() {
    let sandbox = sandbox("check_partitioned").await;
    execute(&sandbox, &partitioned()).await;
    // The parent has no rows of its own and no constraint.
    assert_eq!(finding(&sandbox, &sandbox.relay_config()).await, None);
    let _relay = fanout_tests::process::Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    super::insert(&sandbox, 500, 7).await;
    let verdict = super::settled(&sandbox, &fanout_tests::checker::load::Journal::default()).await;
    assert!(verdict.is_sound(), "{verdict:?}");
}

#[tokio::test]
async fn a_missing_or_unusable_index_is_found() {
    let class = SourceError::IndexMissing;
    broken(
        "check_index",
        "drop index outbox_topic_xid_shard_idx",
        class,
        "create index",
    )
    .await;
    let order = "drop index outbox_topic_xid_shard_idx; create index on outbox (topic, shard, xid)";
    broken("check_index_order", order, class, "create index").await;
    let invalid = "update pg_index set indisvalid = false where indexrelid = 'outbox_topic_xid_shard_idx'::regclass";
    broken("check_index_invalid", invalid, class, "invalid").await;
}

/// A database that takes texts which are no UTF-8: one of them would stop every row behind it.
#[tokio::test]
async fn a_database_without_an_encoding_is_found() {
    let sandbox = sandbox("check_encoding").await;
    let database = format!("{}_ascii", sandbox.database);
    execute(
        &sandbox,
        &format!(
            "create database {database} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0"
        ),
    )
    .await;
    let url = sandbox.relay_url.replace(&sandbox.database, &database);
    let mut files = fanout_runtime::config::Files(sandbox.secret_files());
    let url_file = fanout_tests::configs::URL_FILE.to_owned();
    files.0.insert(url_file, url.into_bytes());
    let config = sandbox.relay_config();
    let source = fanout_relay::source::Source::connect(&config, &files).await;
    let failure = checks::run(&source.unwrap()).await.unwrap_err();
    assert_eq!(failure.class, SourceError::ColumnInvalid);
    assert!(failure.message.contains("SQL_ASCII"), "{failure:?}");
}

#[tokio::test]
async fn a_sequence_that_caches_is_found() {
    let class = SourceError::SequenceCached;
    broken(
        "check_cache",
        "alter table outbox alter id set cache 50",
        class,
        "caches 50",
    )
    .await;
}

#[tokio::test]
async fn missing_rights_are_found() {
    let class = SourceError::SourcePermissionDenied;
    broken(
        "check_select",
        "revoke select on outbox from fanout_relay",
        class,
        "select on \"public\".\"outbox\"",
    )
    .await;
    broken(
        "check_delete",
        "revoke delete on outbox from fanout_relay",
        class,
        "delete on \"public\".\"outbox\"",
    )
    .await;
    broken(
        "check_lease",
        "revoke update on fanout.leases from fanout_relay",
        class,
        "update on fanout.leases",
    )
    .await;
    broken(
        "check_usage",
        "revoke usage on schema fanout from fanout_relay",
        class,
        "schema fanout",
    )
    .await;
}

#[tokio::test]
async fn a_connection_that_can_not_be_made_has_a_class() {
    let sandbox = sandbox("check_connection").await;
    let refused = async |url: &str| {
        let config = sandbox.relay_config();
        let SourceConfig::Postgres(postgres) = &config.source;
        let mut files = fanout_runtime::config::Files(sandbox.secret_files());
        files
            .0
            .insert(postgres.url_file.clone(), url.as_bytes().to_vec());
        let failure = fanout_relay::source::Source::connect(&config, &files)
            .await
            .unwrap_err();
        assert!(
            !["PlantedSecret-word", "s3cret-word"]
                .iter()
                .any(|word| failure.message.contains(word)),
            "{failure:?}"
        );
        failure.class
    };
    let password = sandbox.relay_url.replace(
        fanout_tests::services::postgres::PASSWORD,
        "PlantedSecret-word",
    );
    assert_eq!(
        refused(&password).await,
        SourceError::SourceAuthenticationFailed
    );
    let database = format!("{}-s3cret-word", sandbox.relay_url);
    assert_eq!(refused(&database).await, SourceError::DatabaseMissing);
    assert_eq!(
        refused("postgres://u:PlantedSecret-word@127.0.0.1:1/db").await,
        SourceError::SourceUnreachable
    );
    assert_eq!(
        refused("PlantedSecret-word").await,
        SourceError::SourceUrlInvalid
    );
    let tls = format!("{}?sslmode=require", sandbox.relay_url);
    assert_eq!(refused(&tls).await, SourceError::SourceTlsFailed);
}
