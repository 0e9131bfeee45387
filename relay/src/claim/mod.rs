//! Claiming due rows of an outbox.

mod batch;
mod claimer;
pub mod columns;
pub mod delete;
mod ids;
pub mod lease;
mod queue;
mod reader;
pub mod row;
mod server;
pub mod snapshot;

pub use batch::{Batch, Completion, Kind};
pub use claimer::{Claimer, Polls};
pub use ids::{Ids, Taken};
pub use queue::{Queue, holds};
pub use reader::{BEFORE_ALL, Reader};

use crate::position::{Fence, Position};
use crate::source::{Failure, failure};
use crate::sql::{Table, ident, literal};
use columns::{Columns, Field, Types};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{Claim, ColumnMatch, ColumnSource, PostgresSource};

/// Columns before a [`row::Row`] in what the statements of [`delete`] and [`snapshot::page`] return.
pub const SERVER_COLUMNS: usize = server::Server::COLUMNS;

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
    /// How rows are claimed.
    pub claim: Claim,
    /// Where the fields of an event come from.
    pub columns: Columns,
}

impl Outbox {
    /// The table a configuration names.
    pub fn table(config: &PostgresSource) -> Result<Table, Failure> {
        Table::parse(&config.table).ok_or_else(|| {
            failure(
                SourceError::TableMissing,
                "spec.source.postgres.table must be schema.table",
            )
        })
    }

    /// The outbox a configuration names; `types` are those of the table's columns, `identity` names the FanoutTopic.
    pub fn new(config: &PostgresSource, identity: String, types: Types) -> Result<Self, Failure> {
        let table = Self::table(config)?;
        for ColumnMatch { column, value } in &config.r#match {
            if column.contains('\0') || value.contains('\0') {
                return Err(failure(
                    SourceError::ColumnInvalid,
                    "spec.source.postgres.match must not contain a NUL character",
                ));
            }
        }
        let columns = Columns::new(config.columns.clone(), identity, types);
        let sources = Field::ALL
            .into_iter()
            .filter_map(|field| columns.source(field));
        for source in sources {
            let (ColumnSource::Column(text)
            | ColumnSource::Value(text)
            | ColumnSource::JsonPath(text)) = source;
            if text.contains('\0') {
                return Err(failure(
                    SourceError::ColumnInvalid,
                    "spec.source.postgres.columns must not contain a NUL character",
                ));
            }
        }
        Ok(Self {
            table,
            matches: config.r#match.clone(),
            claim: config.claim,
            columns,
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
        let shard = match self.claim {
            Claim::Snapshot | Claim::Lease => "shard".to_owned(),
            // Any table will do: the shard is computed from the key.
            Claim::Delete => format!("(hashtext(coalesce({}, '')) & 63)", self.columns.key()),
        };
        conditions.push(format!("{shard} >= {lo} and {shard} < {hi}"));
        conditions.join(" and ")
    }

    /// The statement that stores that the rows `ids` are published; returns whether the lease holds.
    pub fn complete(&self, fence: &Fence, ids: &Ids) -> String {
        if self.claim == Claim::Delete {
            delete::complete(self, fence, ids)
        } else {
            lease::complete(self, fence, ids)
        }
    }

    /// The statement that counts what is due in `shards` up to `cap`, and finds the creation time of the first and its age
    /// in seconds.
    pub fn pending(&self, shards: Shards, position: &Position, cap: i64) -> String {
        match self.claim {
            Claim::Snapshot => snapshot::pending(self, shards, position.due(), cap),
            Claim::Lease => lease::pending(self, shards, cap),
            Claim::Delete => delete::pending(self, shards, cap),
        }
    }
}
