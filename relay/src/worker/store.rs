//! Appending positions, one at a time, in the order in which batches were acknowledged.

use super::{Ended, Pass, Worker};
use crate::position::{self, Position};
use crate::source::Failure;
use futures::FutureExt as _;
use futures::future::BoxFuture;

/// Positions of the term that are kept, for people who look.
const KEEP: i64 = 8;
/// Positions removed at a time.
const PRUNE: usize = 1000;
/// A position is removed every so many appends.
const PRUNE_EVERY: i64 = 100;

/// An append under way.
pub(super) struct Append {
    position: Position,
    statement: BoxFuture<'static, Result<u64, Failure>>,
}

impl Append {
    /// Its outcome: rows inserted. Cancel-safe.
    pub(super) async fn outcome(&mut self) -> Result<u64, Failure> {
        (&mut self.statement).await
    }
}

impl Worker {
    /// Starts to append `position`.
    pub(super) fn append(&mut self, position: Position) -> Append {
        self.seq += 1;
        let seq = self.seq;
        let sql = position::append(&self.fence, seq, &position, &self.history);
        let prune = position::prune(&self.fence, seq, KEEP, PRUNE);
        let source = self.shared.source.clone();
        let statement = async move {
            let appended = source.execute(sql).await?;
            if seq % PRUNE_EVERY == 1 {
                source.execute(prune).await?;
            }
            Ok(appended)
        };
        Append {
            position,
            statement: statement.boxed(),
        }
    }

    /// Takes the outcome of `append` in.
    pub(super) fn appended(
        &mut self,
        append: Append,
        rows: Result<u64, Failure>,
    ) -> Result<(), Pass> {
        match rows {
            Ok(0) => Err(Pass::Ended(Ended::Fenced)),
            Ok(_) => {
                self.stored = append.position;
                self.report();
                Ok(())
            }
            Err(failure) => Err(Pass::Ended(Ended::Source(failure))),
        }
    }

    /// Appends `position` and waits for it.
    pub(super) async fn store(&mut self, position: Position) -> Result<(), Pass> {
        let mut append = self.append(position);
        let rows = append.outcome().await;
        self.appended(append, rows)
    }
}

/// Waits for an append, or for ever when there is none. Cancel-safe.
pub(super) async fn outcome(append: Option<&mut Append>) -> Result<u64, Failure> {
    match append {
        Some(append) => append.outcome().await,
        None => std::future::pending().await,
    }
}
