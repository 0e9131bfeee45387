//! Which server answered: behind a service that spreads connections, a pooler, or during a failover, each statement may
//! reach another one, or the same after a crash.

use super::row::{flag, parsed, text};
use super::snapshot;
use crate::position::{History, incarnation};
use crate::source::{Failure, SCAN_TIMEOUT, Source, classify, failure};
use fanout_contract::reason::SourceError;
use sqlx::postgres::PgRow;

/// Whether the server that answers is a standby, its timeline, and its [`crate::position::INCARNATION`]. Every statement
/// that reads rows brings them.
pub(super) const SERVER: &str = concat!(
    "pg_is_in_recovery() as standby, \
     case when not pg_is_in_recovery() then substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end as timeline, ",
    incarnation!(),
    " as incarnation"
);

/// What [`SERVER`] says.
#[derive(Debug)]
pub(super) struct Server {
    standby: bool,
    timeline: Option<String>,
    incarnation: i64,
}

impl Server {
    /// Columns of [`SERVER`].
    pub(super) const COLUMNS: usize = 3;

    /// Decodes the columns of [`SERVER`] from number `first` on.
    pub(super) fn read(row: &PgRow, first: usize) -> Result<Self, sqlx::Error> {
        Ok(Self {
            standby: flag(row, first)?,
            timeline: text(row, first + 1)?.map(str::to_owned),
            incarnation: parsed(row, first + 2)?,
        })
    }

    /// Refuses what a standby says, whose snapshots miss the running transactions and whose tables may lack rows, and what
    /// a server of another timeline than that of `history`, or after a crash, does.
    pub(super) fn trust(&self, history: &History) -> Result<(), Failure> {
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
        if self.incarnation != history.incarnation {
            // What this process read may name transactions as ended whose ids are given out again.
            return Err(failure(
                SourceError::SourceUnreachable,
                "the database crashed and recovered: resuming from the stored position",
            ));
        }
        Ok(())
    }
}

/// Runs a statement whose rows begin with what [`SERVER`] says; returns its rows, none where nothing came with that, once
/// the server is trusted.
pub(super) async fn rows(
    source: &Source,
    history: &History,
    sql: String,
) -> Result<Vec<PgRow>, Failure> {
    let mut rows = source.query_within(SCAN_TIMEOUT, sql).await?;
    let (server, found) = rows
        .first()
        .ok_or(sqlx::Error::RowNotFound)
        .and_then(|row| Ok((Server::read(row, 0)?, text(row, Server::COLUMNS)?.is_some())))
        .map_err(|error| classify(&error))?;
    server.trust(history)?;
    if !found {
        rows.clear();
    }
    Ok(rows)
}

/// The rows `ids`, as [`rows`] returns them.
pub(super) async fn page(
    source: &Source,
    history: &History,
    ids: &[i64],
) -> Result<Vec<PgRow>, Failure> {
    let rows = rows(source, history, snapshot::page(&source.outbox, ids)).await?;
    if rows.len() < ids.len() {
        tracing::warn!(
            rows = ids.len() - rows.len(),
            "committed rows were deleted before they were published"
        );
    }
    Ok(rows)
}
