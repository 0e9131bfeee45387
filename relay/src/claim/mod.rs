//! Claiming due rows of an outbox.

mod batch;
mod claimer;
mod reader;
pub mod row;
mod server;
pub mod snapshot;

pub use batch::{Batch, Completion, Kind};
pub use claimer::{Claimer, Polls};
pub use reader::Reader;

use crate::source::{Failure, failure};
use crate::sql::{Table, ident, literal};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{ColumnMatch, PostgresSource};

/// Shards, residues of a key's hash modulo 64: `lo` (inclusive) to `hi` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// First shard.
    pub lo: i32,
    /// One past the last.
    pub hi: i32,
}

/// The rows of one topic in an outbox table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbox {
    /// The table.
    pub table: Table,
    /// Rows of the table that belong to the topic: all of these must hold.
    pub matches: Vec<ColumnMatch>,
}

impl Outbox {
    /// The outbox a configuration names.
    pub fn new(config: &PostgresSource) -> Result<Self, Failure> {
        let table = Table::parse(&config.table).ok_or_else(|| {
            failure(
                SourceError::TableMissing,
                "spec.source.postgres.table must be schema.table",
            )
        })?;
        for ColumnMatch { column, value } in &config.r#match {
            if column.contains('\0') || value.contains('\0') {
                return Err(failure(
                    SourceError::ColumnInvalid,
                    "spec.source.postgres.match must not contain a NUL character",
                ));
            }
        }
        Ok(Self {
            table,
            matches: config.r#match.clone(),
        })
    }

    /// The match, condition by condition.
    fn matching(&self) -> Vec<String> {
        self.matches
            .iter()
            .map(|ColumnMatch { column, value }| format!("{} = {}", ident(column), literal(value)))
            .collect()
    }

    /// The condition for rows of the topic.
    pub(crate) fn matched(&self) -> String {
        let mut conditions = self.matching();
        conditions.push("true".to_owned());
        conditions.join(" and ")
    }

    /// The condition for rows of the topic in `shards`.
    pub(crate) fn within(&self, shards: Shards) -> String {
        let Shards { lo, hi } = shards;
        let mut conditions = self.matching();
        conditions.push(format!("shard >= {lo} and shard < {hi}"));
        conditions.join(" and ")
    }
}
