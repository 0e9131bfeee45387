//! Storing completions, one at a time, in the order in which batches were acknowledged.

use super::{Ended, Pass, Worker};
use crate::claim::{Completion, holds};
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

/// A completion that is being stored.
pub(super) struct Append {
    completion: Completion,
    statement: BoxFuture<'static, Result<bool, Failure>>,
}

impl Append {
    /// Its outcome: false when the lease is lost. Cancel-safe.
    pub(super) async fn outcome(&mut self) -> Result<bool, Failure> {
        (&mut self.statement).await
    }
}

impl Worker {
    /// Starts to store `completion`.
    pub(super) fn append(&mut self, completion: Completion) -> Append {
        self.seq += 1;
        let seq = self.seq;
        let source = self.shared.source.clone();
        let statement = match &completion {
            Completion::Position(position) => {
                let sql = position::append(&self.fence, seq, position, &self.history);
                let prune = position::prune(&self.fence, seq, KEEP, PRUNE);
                // With transactions, appends are rare, and most numbers are the log's.
                let prunes = self.is_transactional() || seq % PRUNE_EVERY == 1;
                async move {
                    let appended = source.execute(sql).await?;
                    if prunes {
                        source.execute(prune).await?;
                    }
                    Ok(appended > 0)
                }
                .boxed()
            }
            // Nothing was claimed.
            Completion::Rows(ids) if ids.is_empty() => std::future::ready(Ok(true)).boxed(),
            Completion::Rows(ids) => {
                let sql = source.outbox.complete(&self.fence, ids);
                async move { holds(&source.query(sql).await?) }.boxed()
            }
        };
        Append {
            completion,
            statement,
        }
    }

    /// Takes the outcome of `append` in.
    pub(super) fn appended(
        &mut self,
        append: Append,
        holds: Result<bool, Failure>,
    ) -> Result<(), Pass> {
        match holds {
            Ok(false) => Err(Pass::Ended(Ended::Fenced)),
            Ok(true) => {
                self.completions += 1;
                // Inside a large difference, rows behind this page may be parked already.
                if !matches!(
                    append.completion,
                    Completion::Position(Position::Inside { .. })
                ) {
                    self.unsettled = false;
                }
                match append.completion {
                    Completion::Position(position) => {
                        self.stored = position;
                        self.settled();
                        self.report();
                    }
                    Completion::Rows(ids) => self.taken.remove(&ids),
                }
                Ok(())
            }
            Err(failure) => Err(Pass::Ended(Ended::Source(failure))),
        }
    }

    /// Stores `completion` and waits for it.
    pub(super) async fn store(&mut self, completion: Completion) -> Result<(), Pass> {
        let mut append = self.append(completion);
        let holds = append.outcome().await;
        self.appended(append, holds)
    }
}

/// Waits for an append, or for ever when there is none. Cancel-safe.
pub(super) async fn outcome(append: Option<&mut Append>) -> Result<bool, Failure> {
    match append {
        Some(append) => append.outcome().await,
        None => std::future::pending().await,
    }
}
