//! Which server answered: behind a service that spreads connections, or during a failover, each may reach another one.

use super::row::{flag, text};
use crate::position::History;
use crate::source::{Failure, failure};
use fanout_contract::reason::SourceError;
use sqlx::postgres::PgRow;

/// Whether the server that answers is a standby, and its timeline. Every statement that reads rows brings them.
pub const SERVER: &str = "pg_is_in_recovery() as standby, \
     case when not pg_is_in_recovery() then substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end as timeline";

/// What [`SERVER`] says.
#[derive(Debug)]
pub struct Server {
    standby: bool,
    timeline: Option<String>,
}

impl Server {
    /// Columns of [`SERVER`].
    pub const COLUMNS: usize = 2;

    /// Decodes the columns of [`SERVER`] from number `first` on.
    pub fn read(row: &PgRow, first: usize) -> Result<Self, sqlx::Error> {
        Ok(Self {
            standby: flag(row, first)?,
            timeline: text(row, first + 1)?.map(str::to_owned),
        })
    }

    /// Refuses what a standby says, whose snapshots miss the running transactions and whose tables may lack rows, and what
    /// a server of another timeline than that of `history` does.
    pub fn trust(&self, history: &History) -> Result<(), Failure> {
        if self.standby {
            return Err(failure(
                SourceError::SourceReadOnly,
                "the server is a standby: its snapshots can't be trusted",
            ));
        }
        if self.timeline.as_deref() != Some(history.timeline.as_str()) {
            // What this process read ahead may have been lost in the failover; what is stored was not.
            return Err(failure(
                SourceError::SourceUnreachable,
                "the database failed over: resuming from the stored position",
            ));
        }
        Ok(())
    }
}
