//! Whether the outbox has the indexes that its claim mode reads by, and ids that come in order.

use crate::checks::rows;
use crate::claim::Outbox;
use crate::claim::columns::Field;
use crate::claim::row::{flag, parsed, text};
use crate::source::{Failure, Source, classify, failure};
use crate::sql::{ident, literal};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::Claim;
use sqlx::postgres::PgRow;

/// Checks the ids and the indexes of the table with `oid`.
pub(super) async fn check(source: &Source, oid: &str) -> Result<(), Failure> {
    if source.outbox.columns.ordered() {
        sequence(source).await?;
    }
    let sql = format!(
        "select i.indisvalid and i.indisready, i.indisunique, coalesce(pg_get_expr(i.indpred, i.indrelid), ''), am.amname, \
         array_to_string(array(select a.attname from unnest(i.indkey) with ordinality k(attnum, n) \
         left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum order by k.n), chr(1), chr(2)) \
         from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am am on am.oid = c.relam where i.indrelid = {oid}"
    );
    let found = rows(source, sql).await?;
    let indexes: Vec<Index> = found
        .iter()
        .map(Index::read)
        .collect::<Result<_, _>>()
        .map_err(|error| classify(&error))?;
    judge(&source.outbox, &indexes).map_err(|message| {
        let message = format!("spec.source.postgres.table: {message}");
        failure(SourceError::IndexMissing, message)
    })
}

/// Ids must come in the order in which they are taken.
async fn sequence(source: &Source) -> Result<(), Failure> {
    let outbox = &source.outbox;
    let table = outbox.table.quoted();
    let name = outbox.columns.column(Field::Id).unwrap_or_default();
    let sql = format!(
        "select s.seqcache from pg_sequence s \
         where s.seqrelid = pg_get_serial_sequence({}, {})::regclass",
        literal(&table),
        literal(&name)
    );
    let found = rows(source, sql).await?;
    let cache = found.first().map(|row| parsed::<i64>(row, 0)).transpose();
    match cache.map_err(|error| classify(&error))? {
        Some(1) => Ok(()),
        Some(cache) => Err(failure(
            SourceError::SequenceCached,
            format!(
                "spec.source.postgres.table: the sequence of column {0} of {table} caches {cache} values, so ids are not in order: alter table {table} alter column {0} set cache 1",
                ident(&name)
            ),
        )),
        // The application makes them.
        None if outbox.claim == Claim::Delete => Ok(()),
        None => Err(failure(
            SourceError::ColumnInvalid,
            format!(
                "spec.source.postgres.table: column {} of {table} must be an identity column; see manifests/sql/10-outbox.sql",
                ident(&name)
            ),
        )),
    }
}

/// An index as the catalogue has it.
#[derive(Clone, Debug)]
struct Index {
    valid: bool,
    unique: bool,
    /// Of a partial index, its condition.
    predicate: String,
    method: String,
    columns: Vec<String>,
}

impl Index {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let columns = text(row, 4)?.unwrap_or_default();
        Ok(Self {
            valid: flag(row, 0)?,
            unique: flag(row, 1)?,
            predicate: parsed(row, 2)?,
            method: parsed(row, 3)?,
            columns: columns.split('\u{1}').map(str::to_owned).collect(),
        })
    }
}

/// An index that a claim mode reads by.
struct Wanted {
    /// Columns of the match, in any order.
    leading: Vec<String>,
    /// Columns behind them.
    following: Vec<String>,
    /// Status of the rows in a partial index; `None`: it must have every row.
    status: Option<&'static str>,
    /// No two rows have the same.
    unique: bool,
}

impl Wanted {
    /// The match columns in any order, then those that follow; more may come behind.
    fn served_by(&self, index: &Index) -> bool {
        let count = self.leading.len();
        let mut wanted = self.leading.clone();
        wanted.sort_unstable();
        let Some(mut leading) = index.columns.get(..count).map(<[String]>::to_vec) else {
            return false;
        };
        leading.sort_unstable();
        let covers = match self.status {
            None => index.predicate.is_empty(),
            Some(status) => {
                index.predicate.contains("status")
                    && (index.predicate.contains(&literal(status))
                        || index.predicate.contains("<> 'done'"))
            }
        };
        let following = index.columns.get(count..).unwrap_or_default();
        index.method == "btree"
            && covers
            && leading == wanted
            && following.starts_with(&self.following)
            && (!self.unique || (index.unique && index.columns.len() == 1))
    }

    /// What creates it, without the table.
    fn definition(&self) -> String {
        let columns: Vec<String> = self
            .leading
            .iter()
            .chain(&self.following)
            .map(|column| ident(column))
            .collect();
        let status = self
            .status
            .map_or_else(String::new, |status| format!(" where status = '{status}'"));
        format!("({}){status}", columns.join(", "))
    }
}

/// The indexes that `outbox` is read by.
fn wanted(outbox: &Outbox) -> Vec<Wanted> {
    let leading: Vec<String> = outbox.matches.iter().map(|m| m.column.clone()).collect();
    let row = outbox.columns.column(Field::Id).unwrap_or_default();
    let following = |columns: &[&str]| columns.iter().map(|column| (*column).to_owned()).collect();
    let unique = Wanted {
        leading: Vec::new(),
        following: following(&[&row]),
        status: None,
        unique: true,
    };
    match outbox.claim {
        Claim::Snapshot => vec![Wanted {
            leading,
            following: following(&["xid", "shard"]),
            status: None,
            unique: false,
        }],
        Claim::Lease => vec![
            unique,
            Wanted {
                leading: leading.clone(),
                following: following(&[&row]),
                status: Some("pending"),
                unique: false,
            },
            Wanted {
                leading,
                following: following(&["lease_expires"]),
                status: Some("processing"),
                unique: false,
            },
        ],
        Claim::Delete => vec![unique],
    }
}

fn judge(outbox: &Outbox, indexes: &[Index]) -> Result<(), String> {
    let table = outbox.table.quoted();
    for wanted in wanted(outbox) {
        let mut serving = indexes
            .iter()
            .filter(|index| wanted.served_by(index))
            .peekable();
        let found = serving.peek().is_some();
        if serving.any(|index| index.valid) {
            continue;
        }
        let definition = wanted.definition();
        let unique = if wanted.unique { "unique " } else { "" };
        return Err(if found {
            format!("the index of {table} on {definition} is invalid: reindex it")
        } else {
            format!(
                "{table} has no index for this topic: create {unique}index on {table} {definition}"
            )
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
