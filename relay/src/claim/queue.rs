//! Claim modes `Lease` and `Delete`: what is claimed is said by the rows themselves.

use super::batch::{Batch, Completion, Kind};
use super::ids::{Ids, Taken};
use super::row::{Row, flag, parsed, text};
use super::server::{self, Server};
use super::snapshot::Limits;
use super::{Shards, delete, lease};
use crate::position::{Fence, History};
use crate::source::{Failure, SCAN_TIMEOUT, Source, classify, unexpected};
use fanout_contract::relay::Claim;
use sqlx::postgres::PgRow;

/// Claims the rows of a range.
#[derive(Debug)]
pub struct Queue {
    source: Source,
    shards: Shards,
    limits: Limits,
    history: History,
    fence: Fence,
    /// `Lease`: what was claimed before is given back.
    reclaimed: bool,
    /// `Delete`: rows selected and not deleted yet.
    taken: Taken,
}

impl Queue {
    /// Claims rows of `shards` under `fence`. Whoever deletes rows takes them off `taken`.
    pub const fn new(
        source: Source,
        shards: Shards,
        limits: Limits,
        history: History,
        fence: Fence,
        taken: Taken,
    ) -> Self {
        Self {
            source,
            shards,
            limits,
            history,
            fence,
            reclaimed: false,
            taken,
        }
    }

    /// The next batch; empty when nothing is due, or the lease is lost.
    pub async fn next(&mut self) -> Result<Batch, Failure> {
        if self.source.outbox.claim == Claim::Delete {
            return self.select().await;
        }
        if !self.reclaimed {
            let sql = lease::reclaim(&self.source.outbox, self.shards, &self.fence);
            let rows = self.source.query_within(SCAN_TIMEOUT, sql).await?;
            self.reclaimed = holds(&rows)?;
            if !self.reclaimed {
                return Ok(batch(Vec::new(), 0, Ids::Numbers(Vec::new())));
            }
        }
        self.claim().await
    }

    async fn claim(&self) -> Result<Batch, Failure> {
        let outbox = &self.source.outbox;
        let sql = lease::claim(outbox, self.shards, &self.fence, self.limits);
        let rows = self.source.query_within(SCAN_TIMEOUT, sql).await?;
        let first = Server::COLUMNS;
        let row = rows.first().ok_or_else(unexpected)?;
        let read = || -> Result<_, sqlx::Error> {
            let claimed = match text(row, first + 1)? {
                Some(above) => Some((parsed::<i64>(row, first)?, above)),
                None => None,
            };
            Ok((Server::read(row, 0)?, claimed))
        };
        let (server, claimed) = read().map_err(|error| classify(&error))?;
        server.trust(&self.history)?;
        let Some((lowest, above)) = claimed else {
            return Ok(batch(Vec::new(), 0, Ids::Numbers(Vec::new())));
        };
        let ids = parse(lowest, above).ok_or_else(unexpected)?;
        let rows = server::page(&self.source, &self.history, &ids).await?;
        Ok(batch(rows, first, Ids::Numbers(ids)))
    }

    async fn select(&self) -> Result<Batch, Failure> {
        let outbox = &self.source.outbox;
        let taken = self.taken.ids(&outbox.columns);
        let sql = delete::select(outbox, self.shards, &taken, self.limits);
        let rows = server::rows(&self.source, &self.history, sql).await?;
        let mut ids = Ids::none(&outbox.columns);
        for row in &rows {
            let row = Row::decode(row, Server::COLUMNS).map_err(|error| classify(&error))?;
            ids.push(&row);
        }
        self.taken.add(&ids);
        Ok(batch(rows, Server::COLUMNS, ids))
    }
}

/// `rows`, whose columns begin at number `first`, and what completes them.
fn batch(rows: Vec<PgRow>, first: usize, ids: Ids) -> Batch {
    let kind = if ids.is_empty() {
        Kind::Idle
    } else {
        Kind::Rows
    };
    Batch::new(rows, first, Completion::Rows(ids), kind)
}

/// Whether the lease holds, as a fenced statement says.
pub fn holds(rows: &[PgRow]) -> Result<bool, Failure> {
    let row = rows.first().ok_or_else(unexpected)?;
    flag(row, 0).map_err(|error| classify(&error))
}

/// `lowest` and how far each number is above it, separated by commas.
fn parse(lowest: i64, above: &str) -> Option<Vec<i64>> {
    above
        .split(',')
        .map(|more| lowest.checked_add(more.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_numbers_are_parsed() {
        assert_eq!(parse(-3, "0,1,10"), Some(vec![-3, -2, 7]));
        assert_eq!(parse(1, "0,,"), None);
        assert_eq!(parse(i64::MAX, "0,1"), None);
    }
}
