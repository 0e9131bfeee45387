//! Waits until the database has made durable what it was asked for before.
//!
//! After a crash it gives out again the ids of transactions that rolled back and were not flushed. A position that knows
//! them as ended and that is kept elsewhere, where the crash does not reach, would hide the rows of those that get the ids
//! then. A position in the database needs none of this: it is flushed together with everything before it.

use crate::claim::row::{flag, parsed};
use crate::position::{History, history};
use crate::source::{Failure, STATEMENT_TIMEOUT, Source, classify, failure, unexpected};
use fanout_contract::reason::SourceError;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks at a server that flushes late.
const PAUSE: Duration = Duration::from_millis(20);

/// A place in the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    lsn: String,
    /// It is durable already.
    flushed: bool,
}

/// The place behind everything that was written so far, on the server of `history`.
pub async fn place(source: &Source, history: &History) -> Result<Place, Failure> {
    let columns = "pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()";
    look(source, history, columns, |row| {
        let first = History::COLUMNS;
        Ok(Place {
            lsn: parsed(row, first)?,
            flushed: flag(row, first + 1)?,
        })
    })
    .await
}

/// Waits until everything up to `place` is durable; makes it so where it is not by itself.
pub async fn reach(source: &Source, history: &History, place: &Place) -> Result<(), Failure> {
    let until = Instant::now() + STATEMENT_TIMEOUT;
    let columns = format!("pg_current_wal_flush_lsn() >= '{}'::pg_lsn", place.lsn);
    let mut flushed = place.flushed;
    let mut asked = false;
    while !flushed {
        flushed = look(source, history, &columns, |row| flag(row, History::COLUMNS)).await?;
        if flushed {
            break;
        }
        if asked {
            // Somebody made commits of this role asynchronous after all.
            tokio::time::sleep(PAUSE).await;
        }
        if Instant::now() > until {
            return Err(failure(
                SourceError::SourceQueryFailed,
                "the database does not flush its write-ahead log",
            ));
        }
        // A commit flushes everything before it. Nothing reads the message.
        source
            .query(
                "set local synchronous_commit = local; \
                 select pg_logical_emit_message(true, 'fanout', '')::text"
                    .to_owned(),
            )
            .await?;
        asked = true;
    }
    Ok(())
}

async fn look<T>(
    source: &Source,
    expected: &History,
    columns: &str,
    decode: impl Fn(&sqlx::postgres::PgRow) -> Result<T, sqlx::Error>,
) -> Result<T, Failure> {
    let rows = source
        .query(format!("select h.*, {columns} from {}", history()))
        .await?;
    let row = rows.first().ok_or_else(unexpected)?;
    let here = History::decode(row, 0).map_err(|error| classify(&error))?;
    if here != *expected {
        // What is flushed here is something else.
        return Err(failure(
            SourceError::SourceUnreachable,
            "the database failed over or crashed: resuming from the stored position",
        ));
    }
    decode(row).map_err(|error| classify(&error))
}
