//! Claim mode `Snapshot`: reads one difference after the other and makes batches of the rows.

use super::Shards;
use super::batch::{Batch, Completion, Kind};
use super::row::{flag, parsed, text};
use super::server::{self, Server};
use super::snapshot::{self, Limits, Snapshot};
use crate::position::{History, Position};
use crate::source::{Failure, SCAN_TIMEOUT, Source, classify, unexpected};
use sqlx::postgres::PgRow;
use std::collections::VecDeque;

/// Ids of a large difference held at a time (16 MB with their weights).
const IDS: usize = 1_000_000;
/// Below every id; the smallest number whose negative SQL can write.
pub const BEFORE_ALL: i64 = -i64::MAX;

/// Reads a range from a position on.
#[derive(Debug)]
pub struct Reader {
    source: Source,
    shards: Shards,
    limits: Limits,
    history: History,
    position: Position,
    /// Nothing newer is read.
    goal: Option<Snapshot>,
    /// Inside a large difference: rows not yet read, with their weights.
    ids: VecDeque<(i64, usize)>,
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
            goal: None,
            ids: VecDeque::new(),
        }
    }

    /// The same up to `goal` and no further.
    #[must_use]
    pub fn until(mut self, goal: Option<Snapshot>) -> Self {
        self.goal = goal;
        self
    }

    /// True where everything up to the goal is read.
    pub fn has_arrived(&self) -> bool {
        matches!((&self.goal, &self.position), (Some(goal), Position::At(old)) if goal == old)
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
        head.server.trust(&self.history)?;
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
        let after = Completion::Position(after);
        Ok(Batch::new(rows, Head::COLUMNS, after, kind))
    }

    async fn page(&mut self, old: Snapshot, new: Snapshot, last_id: i64) -> Result<Batch, Failure> {
        if self.ids.is_empty() {
            self.read_ids(&old, &new, last_id).await?;
        }
        let ids = cut(&mut self.ids, self.limits);
        let Some(&last) = ids.last() else {
            // The difference is published.
            self.position = Position::At(new);
            let after = Completion::Position(self.position.clone());
            return Ok(Batch::new(Vec::new(), 0, after, Kind::End));
        };
        let rows = server::page(&self.source, &self.history, &ids).await?;
        self.position = Position::Inside {
            old,
            new,
            last_id: last,
        };
        let after = Completion::Position(self.position.clone());
        Ok(Batch::new(rows, Server::COLUMNS, after, Kind::Rows))
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
        server.trust(&self.history)?;
        self.ids = parse_ids(ids.unwrap_or_default()).ok_or_else(unexpected)?;
        Ok(())
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
    const COLUMNS: usize = 5;

    fn read(rows: &[PgRow]) -> Result<Self, sqlx::Error> {
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Self {
            new: Snapshot::new(parsed::<String>(row, 0)?),
            server: Server::read(row, 1)?,
            small: flag(row, 4)?,
            rows: text(row, Self::COLUMNS)?.is_some(),
        })
    }
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
