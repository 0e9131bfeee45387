//! What must be true of the database before anything is claimed. Each finding names the step that is missing.

use crate::claim::Outbox;
use crate::claim::row::{flag, parsed, text};
use crate::source::{Failure, Source, classify, failure};
use crate::sql::{ident, literal};
use fanout_contract::reason::SourceError;
use sqlx::postgres::PgRow;

/// Version of schema `fanout` this relay works with.
pub const SCHEMA_VERSION: i64 = 2;

/// Columns of the outbox and their types; `*` stands for any type that has a text form.
const COLUMNS: [(&str, &[&str]); 12] = [
    ("id", &["int8"]),
    ("event_id", &["uuid"]),
    ("key", &["*"]),
    ("type", &["text", "varchar"]),
    ("subject", &["text", "varchar"]),
    ("content_type", &["text", "varchar"]),
    ("headers", &["jsonb", "json"]),
    ("traceparent", &["text", "varchar"]),
    ("payload", &["bytea"]),
    ("created_at", &["timestamptz"]),
    ("xid", &["xid8"]),
    ("shard", &["int2"]),
];
/// Columns that must not be NULL.
const REQUIRED: [&str; 7] = [
    "id",
    "event_id",
    "type",
    "content_type",
    "created_at",
    "xid",
    "shard",
];
/// Tables of schema `fanout` and what the relay does with them.
const RIGHTS: [(&str, &str); 6] = [
    ("topics", "select,insert"),
    ("ranges", "select,insert"),
    ("leases", "select,insert,update"),
    ("positions", "select,insert,delete"),
    ("parked", "select,insert,update,delete"),
    ("members", "select,insert,update,delete"),
];

/// Runs every check; the first that fails ends it.
pub async fn run(source: &Source) -> Result<(), Failure> {
    not_a_standby(source).await?;
    schema(source).await?;
    let oid = table(source).await?;
    rights(source).await?;
    columns(source, &oid).await?;
    constraint(source, &oid).await?;
    sequence(source, &oid).await?;
    index(source, &oid).await
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
                "spec.source.postgres.table: {} does not exist: run manifests/sql/10-outbox.sql",
                table.quoted()
            ),
        ));
    };
    let read = || Ok((parsed(row, 0)?, flag(row, 1)?, flag(row, 2)?));
    let (oid, is_table, usage): (String, _, _) = read().map_err(|error| classify(&error))?;
    if !is_table {
        return Err(failure(
            SourceError::NotATable,
            format!(
                "spec.source.postgres.table: {} is not a table: name the table that manifests/sql/10-outbox.sql makes",
                table.quoted()
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
    let selected: Vec<String> = checks
        .iter()
        .map(|(table, right)| format!("has_table_privilege({}, '{right}')", literal(table)))
        .collect();
    let rows = rows(source, format!("select {}", selected.join(", "))).await?;
    for (index, (table, right)) in checks.iter().enumerate() {
        if !first(&rows, |row| flag(row, index))? {
            return Err(denied(&format!("{right} on {table}")));
        }
    }
    Ok(())
}

fn denied(right: &str) -> Failure {
    failure(
        SourceError::SourcePermissionDenied,
        format!(
            "the role of spec.source.postgres.urlSecretRef needs {right}: run the grants of manifests/sql"
        ),
    )
}

async fn columns(source: &Source, oid: &str) -> Result<(), Failure> {
    let sql = format!(
        "select a.attname, t.typname, a.attnotnull, a.attgenerated = 's', coalesce(pg_get_expr(d.adbin, d.adrelid), '') \
         from pg_attribute a join pg_type t on t.oid = a.atttypid \
         left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum \
         where a.attrelid = {oid} and a.attnum > 0 and not a.attisdropped"
    );
    let rows = rows(source, sql).await?;
    let columns: Vec<Column> = rows
        .iter()
        .map(Column::read)
        .collect::<Result<_, _>>()
        .map_err(|error| classify(&error))?;
    judge_columns(&source.outbox, &columns).map_err(|message| {
        let message =
            format!("spec.source.postgres.table: {message}; see manifests/sql/10-outbox.sql");
        failure(SourceError::ColumnInvalid, message)
    })
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    r#type: String,
    required: bool,
    generated: bool,
    expression: String,
}

impl Column {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            name: parsed(row, 0)?,
            r#type: parsed(row, 1)?,
            required: flag(row, 2)?,
            generated: flag(row, 3)?,
            expression: parsed(row, 4)?,
        })
    }
}

fn judge_columns(outbox: &Outbox, columns: &[Column]) -> Result<(), String> {
    let table = outbox.table.quoted();
    let find = |name: &str| {
        columns
            .iter()
            .find(|column| column.name == name)
            .ok_or_else(|| format!("column {} of {table} is missing", ident(name)))
    };
    for (name, types) in COLUMNS {
        let column = find(name)?;
        if types != ["*"] && !types.contains(&column.r#type.as_str()) {
            return Err(format!(
                "column {} of {table} has type {}, not {}",
                ident(name),
                column.r#type,
                types.join(" or ")
            ));
        }
        if REQUIRED.contains(&name) && !column.required {
            return Err(format!(
                "column {} of {table} must be not null",
                ident(name)
            ));
        }
    }
    for matched in &outbox.matches {
        find(&matched.column)?;
    }
    if !find("xid")?.expression.contains("pg_current_xact_id()") {
        return Err(format!(
            "column \"xid\" of {table} must default to pg_current_xact_id()"
        ));
    }
    let shard = find("shard")?;
    let expression = shard.expression.to_lowercase();
    if !shard.generated
        || !["hashtext", "coalesce", "63"]
            .iter()
            .all(|part| expression.contains(part))
    {
        return Err(format!(
            "column \"shard\" of {table} must be generated as in manifests/sql/10-outbox.sql: a row without a key needs a shard too"
        ));
    }
    Ok(())
}

async fn constraint(source: &Source, oid: &str) -> Result<(), Failure> {
    // Of a partitioned table, every partition needs it: rows are theirs.
    let sql = format!(
        "select p.relid::regclass::text from (select {oid}::oid::regclass as relid \
         union select relid from pg_partition_tree({oid}::oid::regclass)) p \
         join pg_class k on k.oid = p.relid and k.relkind <> 'p' where not exists ( \
         select from pg_constraint c where c.conrelid = p.relid and c.contype = 'c' \
         and pg_get_constraintdef(c.oid) like 'CHECK ((xid = pg_current_xact_id()))%') limit 1"
    );
    let rows = rows(source, sql).await?;
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let table: String = parsed(row, 0).map_err(|error| classify(&error))?;
    Err(failure(
        SourceError::ConstraintMissing,
        format!(
            "spec.source.postgres.table: {table} lacks the constraint outbox_xid: alter table {table} add constraint outbox_xid check (xid = pg_current_xact_id()) not valid"
        ),
    ))
}

async fn sequence(source: &Source, oid: &str) -> Result<(), Failure> {
    let table = source.outbox.table.quoted();
    let sql = format!(
        "select s.seqcache from pg_sequence s \
         where s.seqrelid = pg_get_serial_sequence({}, 'id')::regclass",
        literal(&table)
    );
    let rows = rows(source, sql).await?;
    let cache = rows.first().map(|row| parsed::<i64>(row, 0)).transpose();
    match cache.map_err(|error| classify(&error))? {
        Some(1) => Ok(()),
        Some(cache) => Err(failure(
            SourceError::SequenceCached,
            format!(
                "spec.source.postgres.table: the sequence of column \"id\" of {table} caches {cache} values, so ids are not in order: alter table {table} alter column id set cache 1"
            ),
        )),
        None => Err(failure(
            SourceError::ColumnInvalid,
            format!(
                "spec.source.postgres.table: column \"id\" of {table} (oid {oid}) must be an identity column; see manifests/sql/10-outbox.sql"
            ),
        )),
    }
}

async fn index(source: &Source, oid: &str) -> Result<(), Failure> {
    let sql = format!(
        "select i.indisvalid and i.indisready, i.indpred is null, am.amname, \
         array_to_string(array(select a.attname from unnest(i.indkey) with ordinality k(attnum, n) \
         left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum order by k.n), chr(1), chr(2)) \
         from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am am on am.oid = c.relam where i.indrelid = {oid}"
    );
    let rows = rows(source, sql).await?;
    let indexes: Vec<Index> = rows
        .iter()
        .map(Index::read)
        .collect::<Result<_, _>>()
        .map_err(|error| classify(&error))?;
    judge_indexes(&source.outbox, &indexes).map_err(|message| {
        let message = format!("spec.source.postgres.table: {message}");
        failure(SourceError::IndexMissing, message)
    })
}

#[derive(Clone, Debug)]
struct Index {
    valid: bool,
    whole: bool,
    method: String,
    columns: Vec<String>,
}

impl Index {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let columns = text(row, 3)?.unwrap_or_default();
        Ok(Self {
            valid: flag(row, 0)?,
            whole: flag(row, 1)?,
            method: parsed(row, 2)?,
            columns: columns.split('\u{1}').map(str::to_owned).collect(),
        })
    }

    /// The match columns in any order, then `xid`, then `shard`; more may follow.
    fn serves(&self, outbox: &Outbox) -> bool {
        let count = outbox.matches.len();
        let mut wanted: Vec<&str> = outbox.matches.iter().map(|m| m.column.as_str()).collect();
        wanted.sort_unstable();
        let Some(mut leading) = self
            .columns
            .get(..count)
            .map(|columns| columns.iter().map(String::as_str).collect::<Vec<_>>())
        else {
            return false;
        };
        leading.sort_unstable();
        let following: Vec<&str> = self
            .columns
            .iter()
            .skip(count)
            .map(String::as_str)
            .collect();
        self.whole
            && self.method == "btree"
            && leading == wanted
            && following.starts_with(&["xid", "shard"])
    }
}

fn judge_indexes(outbox: &Outbox, indexes: &[Index]) -> Result<(), String> {
    let mut serving = indexes
        .iter()
        .filter(|index| index.serves(outbox))
        .peekable();
    let table = outbox.table.quoted();
    let mut columns: Vec<String> = outbox.matches.iter().map(|m| ident(&m.column)).collect();
    columns.extend(["xid".to_owned(), "shard".to_owned()]);
    let columns = columns.join(", ");
    let found = serving.peek().is_some();
    if serving.any(|index| index.valid) {
        return Ok(());
    }
    Err(if found {
        format!("the index of {table} on ({columns}) is invalid: reindex it")
    } else {
        format!("{table} has no index for this topic: create index on {table} ({columns})")
    })
}

fn first<T>(rows: &[PgRow], read: impl Fn(&PgRow) -> Result<T, sqlx::Error>) -> Result<T, Failure> {
    rows.first()
        .ok_or(sqlx::Error::RowNotFound)
        .and_then(read)
        .map_err(|error| classify(&error))
}

#[cfg(test)]
mod tests;
