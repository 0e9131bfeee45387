//! How far a range is published: appended rows, of which the highest (term, seq) counts.

use crate::claim::row::{flag, parsed, text};
use crate::claim::snapshot::{Due, Snapshot};
use crate::sql::literal;
use sqlx::postgres::PgRow;

/// A point in the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// Everything visible in the snapshot is published.
    At(Snapshot),
    /// Inside a large difference.
    Inside {
        /// Everything visible here is published.
        old: Snapshot,
        /// End of the difference.
        new: Snapshot,
        /// Rows of the difference are published up to this id.
        last_id: i64,
    },
}

impl Position {
    /// The snapshot up to which nothing is missing.
    pub const fn old(&self) -> &Snapshot {
        match self {
            Self::At(old) | Self::Inside { old, .. } => old,
        }
    }

    /// What is due after it.
    pub const fn due(&self) -> Due<'_> {
        match self {
            Self::At(old) => Due { old, inside: None },
            Self::Inside { old, new, last_id } => Due {
                old,
                inside: Some((new, *last_id)),
            },
        }
    }

    /// Values of the columns `old, new, last_id`.
    pub(crate) fn values(&self) -> String {
        match self {
            Self::At(old) => format!("{}, null::pg_snapshot, null::bigint", old.sql()),
            Self::Inside { old, new, last_id } => {
                format!("{}, {}, {last_id}::bigint", old.sql(), new.sql())
            }
        }
    }
}

/// Which database history a server belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// `pg_control_system()`: made by initdb, kept by physical copies.
    pub system_identifier: i64,
    /// Timeline of the write-ahead log, eight hex digits: a promotion begins a new one.
    pub timeline: String,
    /// Changes when the server recovers from a crash, see [`INCARNATION`].
    pub incarnation: i64,
}

/// [`INCARNATION`] for `concat!`.
macro_rules! incarnation {
    () => {
        "coalesce((extract(epoch from pg_stat_get_bgwriter_stat_reset_time()) * 1000000)::bigint, 0)"
    };
}
pub(crate) use incarnation;

/// Between two crashes of the server, one number.
///
/// A crash forgets transactions that rolled back and were not flushed yet; their ids are given out again. A snapshot that
/// was taken before it and never stored calls them ended, and would hide the rows of those that get the ids now. Nobody
/// else says so: a pooler hides that its server was away, and the server's start time stays when one backend crashes. But
/// the cumulative statistics begin anew, as documented, and whoever resets them by hand only makes a relay look again.
pub const INCARNATION: &str = incarnation!();

/// The columns of a [`History`], as read from the server that answers, which must not be a standby. Named
/// `h(system_identifier, timeline, incarnation)`.
pub fn history() -> String {
    format!(
        "(select (select system_identifier from pg_control_system()), \
         substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), {INCARNATION}) h(system_identifier, timeline, incarnation)"
    )
}

impl History {
    /// Number of columns.
    pub const COLUMNS: usize = 3;

    /// Decodes the columns of [`history`] from number `first` on.
    pub fn decode(row: &PgRow, first: usize) -> Result<Self, sqlx::Error> {
        Ok(Self {
            system_identifier: parsed(row, first)?,
            timeline: parsed(row, first + 1)?,
            incarnation: parsed(row, first + 2)?,
        })
    }
}

/// A position as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Fencing token of the relay that wrote it.
    pub term: i64,
    /// Counts within the term.
    pub seq: i64,
    /// The point.
    pub position: Position,
    /// System that wrote it.
    pub system_identifier: i64,
    /// False where the row was dumped and restored, or replicated: it was not written by the transaction it names.
    pub native: bool,
}

impl Stored {
    /// True where the position means something to a server of history `here`. A new timeline of the same system does:
    /// position and rows went through the same failover.
    pub const fn belongs_to(&self, here: &History) -> bool {
        self.native && self.system_identifier == here.system_identifier
    }

    /// Decodes the columns of [`latest`] from number `first` on.
    pub fn decode(row: &PgRow, first: usize) -> Result<Self, sqlx::Error> {
        let snapshot = |index| parsed::<String>(row, first + index).map(Snapshot::new);
        let old = snapshot(2)?;
        let position = if text(row, first + 3)?.is_some() {
            Position::Inside {
                old,
                new: snapshot(3)?,
                last_id: parsed(row, first + 4)?,
            }
        } else {
            Position::At(old)
        };
        Ok(Self {
            term: parsed(row, first)?,
            seq: parsed(row, first + 1)?,
            position,
            system_identifier: parsed(row, first + 5)?,
            native: flag(row, first + 6)?,
        })
    }
}

/// Selects the latest position of a range; `range` is an SQL expression.
pub fn latest(range: &str) -> String {
    format!(
        "select term, seq, old, new, last_id, system_identifier, xid::xid = xmin as native \
         from fanout.positions where range_id = {range} order by term desc, seq desc limit 1"
    )
}

/// Who may append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The range.
    pub range: i64,
    /// Owner named in the lease.
    pub owner: String,
    /// Term of the lease.
    pub term: i64,
}

impl Fence {
    /// Condition on a row of `fanout.leases`: the lease is still this one.
    pub fn holds(&self) -> String {
        format!(
            "range_id = {} and owner = {} and term = {}",
            self.range,
            literal(&self.owner),
            self.term
        )
    }
}

/// Appends `position`. Inserts no row when the lease has another owner or term, or when the server that answers belongs
/// to another history than `history` or crashed since: either way the writer must stop and look again.
pub fn append(fence: &Fence, seq: i64, position: &Position, history: &History) -> String {
    let here = self::history();
    format!(
        "insert into fanout.positions (range_id, term, seq, old, new, last_id, system_identifier, timeline) \
         select {}, {}, {seq}, {}, h.system_identifier, h.timeline from {here} \
         where h.system_identifier = {} and h.timeline = {} and h.incarnation = {} \
         and exists (select from fanout.leases where {})",
        fence.range,
        fence.term,
        position.values(),
        history.system_identifier,
        literal(&history.timeline),
        history.incarnation,
        fence.holds()
    )
}

/// Deletes at most `limit` positions of the fence's range that were passed long ago: all but the newest `keep` of its
/// term.
pub fn prune(fence: &Fence, seq: i64, keep: i64, limit: usize) -> String {
    format!(
        "delete from fanout.positions where ctid = any(array(select ctid from fanout.positions \
         where range_id = {} and (term, seq) < ({}, {}) order by term, seq limit {limit}))",
        fence.range,
        fence.term,
        seq - keep
    )
}
