//! Reads one difference after the other and hands the rows on in batches.

use super::Shards;
use super::row::{Row, flag, parsed, text};
use super::snapshot::{self, Limits, Snapshot};
use crate::position::{History, Position};
use crate::source::{Failure, SCAN_TIMEOUT, Source, classify, failure};
use fanout_contract::reason::SourceError;
use sqlx::postgres::PgRow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Ids of a large difference held at a time (16 MB with their weights).
const IDS: usize = 1_000_000;
/// Below every id; the smallest number whose negative SQL can write.
const BEFORE_ALL: i64 = -i64::MAX;
/// First pause after a poll that found nothing; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// A process that is idle polls at most four times a second: each of its ranges pauses this long times their number.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A position that moved without a row is worth storing this often.
const REFRESH: Duration = Duration::from_mins(1);

/// Rows to publish, and the position once they are.
#[derive(Debug)]
pub struct Batch {
    rows: Vec<PgRow>,
    /// Column of [`Row`]'s first field.
    first: usize,
    /// Where the range stands when every row is published.
    pub after: Position,
    /// What it is.
    pub kind: Kind,
    /// Bytes of payload, about.
    pub bytes: usize,
}

impl Batch {
    /// Its rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Result<Row<'_>, sqlx::Error>> {
        self.rows.iter().map(|row| Row::decode(row, self.first))
    }

    /// Number of rows.
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// True where only the position moves.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// What a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rows.
    Rows,
    /// Nothing was due; the position moved.
    Idle,
    /// A large difference begins: its position must be stored before anything that follows is published.
    Begin,
    /// A large difference ended.
    End,
}

/// Reads a range from a position on.
#[derive(Debug)]
pub struct Reader {
    source: Source,
    shards: Shards,
    limits: Limits,
    history: History,
    position: Position,
    /// Inside a large difference: rows not yet read, with their weights.
    ids: VecDeque<(i64, usize)>,
}

/// Numbers a reader shares with the rest of the process.
#[derive(Clone, Debug, Default)]
pub struct Polls {
    /// Polls made.
    pub count: Arc<AtomicU64>,
    /// Ranges that are read at the moment.
    pub readers: Arc<AtomicUsize>,
}

impl Reader {
    /// Reads `shards` from `position` on; `history` is the one `position` was stored in.
    pub const fn new(
        source: Source,
        shards: Shards,
        limits: Limits,
        history: History,
        position: Position,
    ) -> Self {
        Self {
            source,
            shards,
            limits,
            history,
            position,
            ids: VecDeque::new(),
        }
    }

    /// Sends batches until the receiver is gone; ends after an error, which it sends. Pauses after polls that find
    /// nothing, and sends what they found only now and then.
    pub async fn run(mut self, batches: mpsc::Sender<Result<Batch, Failure>>, polls: Polls) {
        let mut pause = FIRST_PAUSE;
        let mut refreshed = Instant::now();
        loop {
            let next = self.next().await;
            polls.count.fetch_add(1, Ordering::Relaxed);
            let failed = next.is_err();
            let idle = next.as_ref().is_ok_and(|batch| batch.kind == Kind::Idle);
            if !idle || refreshed.elapsed() > REFRESH {
                refreshed = Instant::now();
                if batches.send(next).await.is_err() || failed {
                    return;
                }
            }
            if idle {
                let readers = polls.readers.load(Ordering::Relaxed).max(1);
                let longest = LONGEST_PAUSE * u32::try_from(readers).unwrap_or(u32::MAX);
                pause = (pause * 2).min(longest);
                // Upwards only: the rate is a promise.
                let pause = pause.mul_f64(1.0 + rand::random::<f64>() / 4.0);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = batches.closed() => return,
                }
            } else {
                pause = FIRST_PAUSE;
            }
        }
    }

    /// The next batch. May be empty: nothing is due, or a large difference begins or ends.
    pub async fn next(&mut self) -> Result<Batch, Failure> {
        match self.position.clone() {
            Position::At(old) => self.poll(old).await,
            Position::Inside { old, new, last_id } => self.page(old, new, last_id).await,
        }
    }

    async fn poll(&mut self, old: Snapshot) -> Result<Batch, Failure> {
        let sql = snapshot::poll(&self.source.outbox, self.shards, &old.sql(), self.limits);
        let rows = self.source.query_within(SCAN_TIMEOUT, sql).await?;
        let head = Head::read(&rows).map_err(|error| classify(&error))?;
        self.trust(&head.server)?;
        let (after, kind) = if head.rows {
            (Position::At(head.new), Kind::Rows)
        } else if head.small {
            (Position::At(head.new), Kind::Idle)
        } else {
            let new = head.new;
            let last_id = BEFORE_ALL;
            (Position::Inside { old, new, last_id }, Kind::Begin)
        };
        self.position = after.clone();
        let rows = if head.rows { rows } else { Vec::new() };
        Ok(Batch {
            bytes: weigh(&rows, Head::COLUMNS),
            rows,
            first: Head::COLUMNS,
            after,
            kind,
        })
    }

    /// Refuses what a standby says, whose snapshots miss the running transactions and whose tables may lack rows, and what
    /// a server of another timeline does.
    fn trust(&self, server: &Server) -> Result<(), Failure> {
        if server.standby {
            return Err(failure(
                SourceError::SourceReadOnly,
                "the server is a standby: its snapshots can't be trusted",
            ));
        }
        if server.timeline.as_deref() != Some(self.history.timeline.as_str()) {
            // What this process read ahead may have been lost in the failover; what is stored was not.
            return Err(failure(
                SourceError::SourceUnreachable,
                "the database failed over: resuming from the stored position",
            ));
        }
        Ok(())
    }

    async fn page(&mut self, old: Snapshot, new: Snapshot, last_id: i64) -> Result<Batch, Failure> {
        if self.ids.is_empty() {
            self.read_ids(&old, &new, last_id).await?;
        }
        let ids = cut(&mut self.ids, self.limits);
        let Some(&last) = ids.last() else {
            // The difference is published.
            self.position = Position::At(new);
            return Ok(Batch {
                rows: Vec::new(),
                first: 0,
                after: self.position.clone(),
                kind: Kind::End,
                bytes: 0,
            });
        };
        let sql = snapshot::page(&self.source.outbox, &ids);
        let mut rows = self.source.query_within(SCAN_TIMEOUT, sql).await?;
        let first = Server::COLUMNS;
        let (server, found) = rows
            .first()
            .ok_or(sqlx::Error::RowNotFound)
            .and_then(|row| Ok((Server::read(row, 0)?, text(row, first)?.is_some())))
            .map_err(|error| classify(&error))?;
        self.trust(&server)?;
        if !found {
            rows.clear();
        }
        if rows.len() < ids.len() {
            tracing::warn!(
                rows = ids.len() - rows.len(),
                "committed rows were deleted before they were published"
            );
        }
        self.position = Position::Inside {
            old,
            new,
            last_id: last,
        };
        Ok(Batch {
            bytes: weigh(&rows, first),
            rows,
            first,
            after: self.position.clone(),
            kind: Kind::Rows,
        })
    }

    async fn read_ids(
        &mut self,
        old: &Snapshot,
        new: &Snapshot,
        after: i64,
    ) -> Result<(), Failure> {
        let (old, new) = (old.sql(), new.sql());
        let sql = snapshot::ids(&self.source.outbox, self.shards, (&old, &new), after, IDS);
        let rows = self.source.query_within(SCAN_TIMEOUT, sql).await?;
        let (server, ids) = rows
            .first()
            .ok_or(sqlx::Error::RowNotFound)
            .and_then(|row| Ok((Server::read(row, 0)?, text(row, Server::COLUMNS)?)))
            .map_err(|error| classify(&error))?;
        self.trust(&server)?;
        self.ids = parse_ids(ids.unwrap_or_default()).ok_or_else(|| {
            failure(
                SourceError::SourceQueryFailed,
                "the database answered in an unexpected form",
            )
        })?;
        Ok(())
    }
}

/// Which server answered.
struct Server {
    standby: bool,
    timeline: Option<String>,
}

impl Server {
    const COLUMNS: usize = 2;

    fn read(row: &PgRow, first: usize) -> Result<Self, sqlx::Error> {
        Ok(Self {
            standby: flag(row, first)?,
            timeline: text(row, first + 1)?.map(str::to_owned),
        })
    }
}

/// What every poll returns beside rows.
struct Head {
    new: Snapshot,
    server: Server,
    small: bool,
    rows: bool,
}

impl Head {
    const COLUMNS: usize = 4;

    fn read(rows: &[PgRow]) -> Result<Self, sqlx::Error> {
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Self {
            new: Snapshot::new(parsed::<String>(row, 0)?),
            server: Server::read(row, 1)?,
            small: flag(row, 3)?,
            rows: text(row, Self::COLUMNS)?.is_some(),
        })
    }
}

/// Bytes of payload in `rows`.
fn weigh(rows: &[PgRow], first: usize) -> usize {
    rows.iter()
        .filter_map(|row| Row::decode(row, first).ok())
        .map(|row| row.payload.map_or(0, |hex| hex.len() / 2) + row.headers.map_or(0, str::len))
        .sum()
}

/// Takes ids off the front for one page; at least one, whatever it weighs.
fn cut(ids: &mut VecDeque<(i64, usize)>, limits: Limits) -> Vec<i64> {
    let mut bytes = 0;
    let mut page = Vec::with_capacity(limits.rows.min(ids.len()));
    while let Some(&(id, weight)) = ids.front() {
        bytes += weight;
        if page.len() == limits.rows || (bytes > limits.bytes && !page.is_empty()) {
            break;
        }
        page.push(id);
        ids.pop_front();
    }
    page
}

/// `id:weight,…`
fn parse_ids(text: &str) -> Option<VecDeque<(i64, usize)>> {
    if text.is_empty() {
        return Some(VecDeque::new());
    }
    text.split(',')
        .map(|pair| {
            let (id, weight) = pair.split_once(':')?;
            Some((id.parse().ok()?, weight.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed() {
        assert_eq!(parse_ids(""), Some(VecDeque::new()));
        assert_eq!(parse_ids("5:200,7:0"), Some(vec![(5, 200), (7, 0)].into()));
        assert_eq!(parse_ids("5"), None);
    }

    #[test]
    fn a_page_is_bounded_by_rows_and_bytes_but_never_empty() {
        let limits = Limits {
            rows: 3,
            bytes: 100,
        };
        let mut ids: VecDeque<_> = [
            (1, 40),
            (2, 40),
            (3, 40),
            (4, 500),
            (5, 1),
            (6, 1),
            (7, 1),
            (8, 1),
        ]
        .into();
        assert_eq!(cut(&mut ids, limits), [1, 2]);
        assert_eq!(cut(&mut ids, limits), [3]);
        assert_eq!(cut(&mut ids, limits), [4]);
        assert_eq!(cut(&mut ids, limits), [5, 6, 7]);
        assert_eq!(cut(&mut ids, limits), [8]);
        assert_eq!(cut(&mut ids, limits), Vec::<i64>::new());
    }
}
