//! What must be true of the database before anything is claimed. Each finding names the step that is missing.

mod columns;
mod indexes;

use crate::claim::row::{flag, parsed};
use crate::source::{Failure, Source, classify, failure};
use crate::sql::{ident, literal};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::Claim;
use sqlx::postgres::PgRow;

/// Version of schema `fanout` this relay works with.
pub const SCHEMA_VERSION: i64 = 2;

/// Tables of schema `fanout` and what the relay does with them.
const RIGHTS: [(&str, &str); 6] = [
    ("topics", "select,insert"),
    ("ranges", "select,insert,delete"),
    ("leases", "select,insert,update,delete"),
    ("positions", "select,insert,delete"),
    ("parked", "select,insert,update,delete"),
    ("members", "select,insert,update,delete"),
];

/// Runs every check; the first that fails ends it.
pub async fn run(source: &Source) -> Result<(), Failure> {
    not_a_standby(source).await?;
    encoding(source).await?;
    schema(source).await?;
    let oid = table(source).await?;
    columns::check(source, &oid).await?;
    rights(source).await?;
    match source.outbox.claim {
        Claim::Snapshot => constraint(source, &oid).await?,
        Claim::Lease => no_constraint(source, &oid).await?,
        Claim::Delete => {}
    }
    indexes::check(source, &oid).await
}

async fn rows(source: &Source, sql: String) -> Result<Vec<PgRow>, Failure> {
    source.query(sql).await
}

async fn not_a_standby(source: &Source) -> Result<(), Failure> {
    let rows = rows(source, "select pg_is_in_recovery()".to_owned()).await?;
    if first(&rows, |row| flag(row, 0))? {
        return Err(failure(
            SourceError::SourceReadOnly,
            "spec.source.postgres.urlSecretRef leads to a standby: it must lead to the primary",
        ));
    }
    Ok(())
}

/// Where the database does not know how texts are encoded, one of them that is no UTF-8 would stop every row behind it.
async fn encoding(source: &Source) -> Result<(), Failure> {
    let sql = "select pg_encoding_to_char(encoding) = 'SQL_ASCII' from pg_database where datname = current_database()";
    if first(&rows(source, sql.to_owned()).await?, |row| flag(row, 0))? {
        return Err(failure(
            SourceError::ColumnInvalid,
            "spec.source.postgres.urlSecretRef: the database has encoding SQL_ASCII, so its texts may be no UTF-8, which keys, types and payloads must be: move the table to a database with encoding UTF8",
        ));
    }
    Ok(())
}

async fn schema(source: &Source) -> Result<(), Failure> {
    let outdated = |message: String| failure(SourceError::SchemaOutdated, message);
    let exists = "select exists (select from pg_namespace n join pg_class c on c.relnamespace = n.oid \
         where n.nspname = 'fanout' and c.relname = 'schema_version')";
    if !first(&rows(source, exists.to_owned()).await?, |row| flag(row, 0))? {
        return Err(outdated(
            "schema fanout is missing in the database of spec.source.postgres.urlSecretRef: run manifests/sql/00-fanout.sql there".to_owned(),
        ));
    }
    let usage = "select has_schema_privilege('fanout', 'usage') and has_table_privilege('fanout.schema_version', 'select')";
    // Without USAGE the second call fails; both say the same.
    let readable = match rows(source, usage.to_owned()).await {
        Ok(rows) => first(&rows, |row| flag(row, 0))?,
        Err(error) if error.class == SourceError::SourcePermissionDenied => false,
        Err(error) => return Err(error),
    };
    if !readable {
        return Err(denied("usage on schema fanout and select on its tables"));
    }
    let version = "select coalesce(max(version), 0) from fanout.schema_version";
    let found: i64 = first(&rows(source, version.to_owned()).await?, |row| {
        parsed(row, 0)
    })?;
    if found < SCHEMA_VERSION {
        return Err(outdated(format!(
            "schema fanout in the database of spec.source.postgres.urlSecretRef is at version {found}, this relay needs {SCHEMA_VERSION}: run the newer steps of manifests/sql/upgrade"
        )));
    }
    Ok(())
}

/// The table's oid.
async fn table(source: &Source) -> Result<String, Failure> {
    let table = &source.outbox.table;
    let sql = format!(
        "select c.oid, c.relkind in ('r', 'p'), has_schema_privilege(n.oid, 'usage') from pg_class c join pg_namespace n on n.oid = c.relnamespace \
         where n.nspname = {} and c.relname = {}",
        literal(&table.schema),
        literal(&table.name)
    );
    let rows = rows(source, sql).await?;
    let Some(row) = rows.first() else {
        return Err(failure(
            SourceError::TableMissing,
            format!(
                "spec.source.postgres.table: {} does not exist: {}",
                table.quoted(),
                making(source.outbox.claim)
            ),
        ));
    };
    let read = || Ok((parsed(row, 0)?, flag(row, 1)?, flag(row, 2)?));
    let (oid, is_table, usage): (String, _, _) = read().map_err(|error| classify(&error))?;
    if !is_table {
        return Err(failure(
            SourceError::NotATable,
            format!(
                "spec.source.postgres.table: {} is not a table: name one, or {}",
                table.quoted(),
                making(source.outbox.claim)
            ),
        ));
    }
    if !usage {
        return Err(denied(&format!("usage on schema {}", ident(&table.schema))));
    }
    Ok(oid)
}

async fn rights(source: &Source) -> Result<(), Failure> {
    let outbox = source.outbox.table.quoted();
    let mut checks = vec![(outbox, "select"), (source.outbox.table.quoted(), "delete")];
    for (table, privileges) in RIGHTS {
        checks.extend(
            privileges
                .split(',')
                .map(|right| (format!("fanout.{table}"), right)),
        );
    }
    let table = source.outbox.table.quoted();
    let updates: Vec<(String, &str)> = updated_columns(source)
        .iter()
        .map(|column| (table.clone(), *column))
        .collect();
    let selected: Vec<String> = checks
        .iter()
        .map(|(table, right)| format!("has_table_privilege({}, '{right}')", literal(table)))
        .chain(updates.iter().map(|(table, column)| {
            format!(
                "has_column_privilege({}, {}, 'update')",
                literal(table),
                literal(column)
            )
        }))
        .collect();
    let rows = rows(source, format!("select {}", selected.join(", "))).await?;
    let rights = checks
        .iter()
        .map(|(table, right)| format!("{right} on {table}"));
    let columns = updates
        .iter()
        .map(|(table, column)| format!("update ({column}) on {table}"));
    for (index, right) in rights.chain(columns).enumerate() {
        if !first(&rows, |row| flag(row, index))? {
            return Err(denied(&right));
        }
    }
    Ok(())
}

/// What makes a table for `claim`.
const fn making(claim: Claim) -> &'static str {
    match claim {
        Claim::Snapshot => "run manifests/sql/10-outbox.sql",
        Claim::Lease => "run manifests/sql/outbox-lease.sql",
        Claim::Delete => "create it",
    }
}

/// Columns of the outbox that the relay changes.
fn updated_columns(source: &Source) -> &'static [&'static str] {
    match source.outbox.claim {
        Claim::Lease => &["status", "lease_expires", "attempts"],
        Claim::Snapshot | Claim::Delete => &[],
    }
}

fn denied(right: &str) -> Failure {
    failure(
        SourceError::SourcePermissionDenied,
        format!(
            "the role of spec.source.postgres.urlSecretRef needs {right}: run the grants of manifests/sql"
        ),
    )
}

/// One of the tables that hold the rows, all partitions of a partitioned one, that has the `xid` constraint, or that has not.
async fn constrained(source: &Source, oid: &str, has: bool) -> Result<Option<String>, Failure> {
    let not = if has { "" } else { "not" };
    let sql = format!(
        "select p.relid::regclass::text from (select {oid}::oid::regclass as relid \
         union select relid from pg_partition_tree({oid}::oid::regclass)) p \
         join pg_class k on k.oid = p.relid and k.relkind <> 'p' where {not} exists ( \
         select from pg_constraint c where c.conrelid = p.relid and c.contype = 'c' \
         and pg_get_constraintdef(c.oid) like 'CHECK ((xid = pg_current_xact_id()))%') limit 1"
    );
    let rows = rows(source, sql).await?;
    let table = rows.first().map(|row| parsed(row, 0)).transpose();
    table.map_err(|error| classify(&error))
}

/// It refuses every update, which claim mode `Lease` makes of each row.
async fn no_constraint(source: &Source, oid: &str) -> Result<(), Failure> {
    let Some(table) = constrained(source, oid, true).await? else {
        return Ok(());
    };
    Err(failure(
        SourceError::ColumnInvalid,
        format!(
            "spec.source.postgres.claim: {table} has the constraint outbox_xid of claim mode Snapshot, which refuses every update: change the table as docs/claim-modes.md says"
        ),
    ))
}

async fn constraint(source: &Source, oid: &str) -> Result<(), Failure> {
    let Some(table) = constrained(source, oid, false).await? else {
        return Ok(());
    };
    Err(failure(
        SourceError::ConstraintMissing,
        format!(
            "spec.source.postgres.table: {table} lacks the constraint outbox_xid: alter table {table} add constraint outbox_xid check (xid = pg_current_xact_id()) not valid"
        ),
    ))
}

fn first<T>(rows: &[PgRow], read: impl Fn(&PgRow) -> Result<T, sqlx::Error>) -> Result<T, Failure> {
    rows.first()
        .ok_or(sqlx::Error::RowNotFound)
        .and_then(read)
        .map_err(|error| classify(&error))
}
