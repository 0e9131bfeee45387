//! Whether the outbox has the columns that its claim mode and `columns` ask for.

use crate::checks::rows;
use crate::claim::Outbox;
use crate::claim::columns::{Field, TYPE};
use crate::claim::row::{flag, parsed};
use crate::source::{Failure, Source, classify, failure};
use crate::sql::{ident, literal};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{Claim, ColumnSource};
use sqlx::postgres::PgRow;

/// Fields that are columns of the table and nothing else.
const COLUMNS_ONLY: [Field; 3] = [Field::Id, Field::Payload, Field::CreatedAt];
/// Fields whose column must not be NULL in the standard table.
const REQUIRED: [Field; 4] = [
    Field::EventId,
    Field::Type,
    Field::ContentType,
    Field::CreatedAt,
];

/// Columns of claim mode `claim` beside the fields of an event, and their types.
const fn own(claim: Claim) -> &'static [(&'static str, &'static [&'static str])] {
    match claim {
        Claim::Snapshot => &[("xid", &["xid8"]), ("shard", &["int2"])],
        Claim::Lease => &[
            ("status", &["text", "varchar", "enum"]),
            ("lease_expires", &["timestamptz"]),
            ("attempts", &["int4", "int2", "int8"]),
            ("shard", &["int2"]),
        ],
        Claim::Delete => &[],
    }
}

/// The file that makes a table for `claim`.
const fn manifest(claim: Claim) -> &'static str {
    match claim {
        Claim::Snapshot => "see manifests/sql/10-outbox.sql",
        Claim::Lease => "see manifests/sql/outbox-lease.sql",
        Claim::Delete => "map it in spec.source.postgres.columns",
    }
}

/// Checks the columns of the table with `oid`.
pub(super) async fn check(source: &Source, oid: &str) -> Result<(), Failure> {
    let sql = format!(
        "select a.attname, {TYPE}, a.attnotnull, a.attgenerated = 's', coalesce(pg_get_expr(d.adbin, d.adrelid), '') \
         from pg_attribute a join pg_type t on t.oid = a.atttypid left join pg_type b on b.oid = t.typbasetype \
         left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum \
         where a.attrelid = {oid} and a.attnum > 0 and not a.attisdropped"
    );
    let found = rows(source, sql).await?;
    let columns: Vec<Column> = found
        .iter()
        .map(Column::read)
        .collect::<Result<_, _>>()
        .map_err(|error| classify(&error))?;
    let triggers = format!(
        "select coalesce(string_agg(p.prosrc, ' '), '') from pg_trigger g join pg_proc p on p.oid = g.tgfoid \
         where g.tgrelid = {oid} and not g.tgisinternal and g.tgenabled in ('O', 'A') and g.tgtype & 7 = 7"
    );
    let found = rows(source, triggers).await?;
    let triggers: String = super::first(&found, |row| parsed(row, 0))?;
    let claim = source.outbox.claim;
    let invalid = |field: &str, message: String| {
        failure(
            SourceError::ColumnInvalid,
            format!("spec.source.postgres.{field}: {message}"),
        )
    };
    judge(&source.outbox, &columns, &triggers).map_err(|(field, message)| {
        let message = if field == "table" {
            format!("{message}; {}", manifest(claim))
        } else {
            message
        };
        invalid(&field, message)
    })?;
    paths(source).await
}

/// Asks the server whether it understands every path.
async fn paths(source: &Source) -> Result<(), Failure> {
    for field in Field::ALL {
        let Some(ColumnSource::JsonPath(path)) = source.outbox.columns.source(field) else {
            continue;
        };
        let sql = format!(
            "select jsonb_path_query_first('{{}}', {}::jsonpath, '{{}}', true)",
            literal(&path)
        );
        if let Err(error) = rows(source, sql).await {
            if error.class != SourceError::SourceQueryFailed {
                return Err(error);
            }
            return Err(failure(
                SourceError::ColumnInvalid,
                format!(
                    "spec.source.postgres.columns.{}: {path} is not an SQL/JSON path",
                    field.name()
                ),
            ));
        }
    }
    Ok(())
}

/// A column as the catalogue has it.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) r#type: String,
    pub(super) required: bool,
    pub(super) generated: bool,
    pub(super) expression: String,
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

/// What is wrong: the field of the spec, and the text.
type Wrong = (String, String);

/// Judges `columns`; `triggers` is the source of what runs before each row is inserted.
pub(super) fn judge(outbox: &Outbox, columns: &[Column], triggers: &str) -> Result<(), Wrong> {
    let table = outbox.table.quoted();
    let find = |field: &str, name: &str| {
        columns
            .iter()
            .find(|column| column.name == name)
            .ok_or_else(|| {
                let message = format!("column {} of {table} is missing", ident(name));
                (field.to_owned(), message)
            })
    };
    let with_type = |field: &str, name: &str, types: &[&str]| {
        let column = find(field, name)?;
        if types != ["*"] && !types.contains(&column.r#type.as_str()) {
            let message = format!(
                "column {} of {table} has type {}, not {}",
                ident(name),
                column.r#type,
                types.join(" or ")
            );
            return Err((field.to_owned(), message));
        }
        if outbox.columns.type_of(name) != Some(&column.r#type) {
            // The statements were made for another one: whoever connects anew makes others.
            let message = format!("the type of column {} of {table} has changed", ident(name));
            return Err((field.to_owned(), message));
        }
        Ok(column)
    };
    let not_null = |field: &str, column: &Column| {
        if column.required {
            return Ok(());
        }
        let message = format!("column {} of {table} must be not null", ident(&column.name));
        Err((field.to_owned(), message))
    };
    for field in Field::ALL {
        let at = if outbox.columns.mapped() {
            format!("columns.{}", field.name())
        } else {
            "table".to_owned()
        };
        match outbox.columns.source(field) {
            None => {}
            Some(ColumnSource::Column(name)) => {
                let types = match field {
                    // Without an order rows are identified by anything.
                    Field::Id if outbox.claim == Claim::Delete => &["*"],
                    _ => field.types(),
                };
                let column = with_type(&at, &name, types)?;
                if field == Field::Id || (REQUIRED.contains(&field) && !outbox.columns.mapped()) {
                    not_null(&at, column)?;
                }
            }
            Some(source) => constant(outbox, field, &source).map_err(|message| (at, message))?,
        }
    }
    for (name, types) in own(outbox.claim) {
        let column = with_type("table", name, types)?;
        if matches!(*name, "xid" | "shard" | "status") {
            not_null("table", column)?;
        }
    }
    for matched in &outbox.matches {
        find("match", &matched.column)?;
    }
    if outbox.claim == Claim::Snapshot
        && !find("table", "xid")?
            .expression
            .contains("pg_current_xact_id()")
    {
        let message = format!("column \"xid\" of {table} must default to pg_current_xact_id()");
        return Err(("table".to_owned(), message));
    }
    if outbox.claim == Claim::Delete {
        return Ok(());
    }
    shard(outbox, find("table", "shard")?, triggers)
        .map_err(|message| ("table".to_owned(), message))
}

/// Judges a field that no column has.
fn constant(outbox: &Outbox, field: Field, source: &ColumnSource) -> Result<(), String> {
    if COLUMNS_ONLY.contains(&field) {
        return Err("must be a column".to_owned());
    }
    if field == Field::Key && outbox.claim != Claim::Delete {
        return Err(format!(
            "must be a column: in claim mode {:?} column \"shard\" follows it",
            outbox.claim
        ));
    }
    match source {
        ColumnSource::JsonPath(_) => {
            // One that is no column, or missing, is told for itself.
            if let Some(payload) = outbox.columns.column(Field::Payload)
                && let Some(found) = outbox.columns.type_of(&payload)
                && found != "jsonb"
            {
                return Err(format!(
                    "a path needs a payload of type jsonb, column {} has type {found}",
                    ident(&payload)
                ));
            }
        }
        ColumnSource::Value(_) if field == Field::EventId => {
            return Err("every event must have an id of its own".to_owned());
        }
        ColumnSource::Value(text) if field == Field::Headers => {
            let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
            if object.is_err() {
                return Err("the value must be a JSON object".to_owned());
            }
        }
        ColumnSource::Value(_) | ColumnSource::Column(_) => {}
    }
    Ok(())
}

/// The shard must follow the key alone, and a row without a key needs one too: generated, or set by a trigger.
fn shard(outbox: &Outbox, shard: &Column, triggers: &str) -> Result<(), String> {
    let expression = if shard.generated {
        shard.expression.to_lowercase()
    } else {
        triggers.to_lowercase()
    };
    let key = outbox.columns.column(Field::Key).unwrap_or_default();
    let sound = ["hashtext", "coalesce", "63", &key.to_lowercase()]
        .iter()
        .all(|part| expression.contains(part));
    if sound {
        return Ok(());
    }
    Err(format!(
        "column \"shard\" of {} must be generated, or set by a trigger, as (hashtext(coalesce({}::text, '')) & 63): a row without a key needs a shard too",
        outbox.table.quoted(),
        ident(&key)
    ))
}
