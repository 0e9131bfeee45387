//! `delivery: Transactional`: records and the position behind them are one Kafka transaction of the range's own producer.
//!
//! Why nothing becomes visible twice: a new owner first raises the term, then initialises the range's `transactional.id`,
//! which ends for ever what others did under it, then reads the last position that was committed, and then appends it to the
//! database, which refuses it to whoever has lost the lease meanwhile. Only then it hands something over. So whatever an
//! earlier owner has committed is read, and whoever initialises the id late finds that its term is over before it commits.
//! After any doubt about a commit the same is done again.
//!
//! The database's position follows at every renewal of the lease, at the end of every worker, and before a row is parked.

mod one_by_one;
mod pass;
mod release;

use super::{Ended, Pass, STALLED, Sent, Worker};
use crate::broker::Unready;
use crate::claim::Completion;
use crate::durable;
use crate::kafka_error;
use crate::logged::{self, Logged};
use crate::park::{self, Releases};
use crate::position::{self, Position};
use crate::produce::transaction::Trouble;
use crate::produce::{Producer, Tracker};
use crate::source::Failure;
use fanout_contract::names;
use fanout_contract::relay::Delivery;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// What a worker knows of the position in the log.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// See [`Logged::origin`].
    origin: String,
    /// The database's position is an older one.
    ahead: bool,
    /// A commit is under way, or its outcome is not known.
    unknown: bool,
}

/// A commit that is under way.
pub(super) struct Commit {
    position: Position,
    outcome: BoxFuture<'static, Result<(), Refused>>,
}

/// Why a commit did not succeed.
enum Refused {
    Source(Failure),
    Log(Trouble),
}

impl Worker {
    /// True with `delivery: Transactional`.
    pub(super) fn is_transactional(&self) -> bool {
        self.shared.delivery == Delivery::Transactional
    }

    /// A producer whose transactions are the only ones of the range, standing behind the last of them.
    pub(super) async fn open(
        &mut self,
        limit: usize,
        linger: Duration,
    ) -> Result<Arc<Producer>, Pass> {
        let broker = self.shared.broker.clone();
        let opened = broker
            .transactional(limit, linger, self.fence.range)
            .await
            .map_err(Pass::from);
        let producer = opened?;
        match self.recover().await {
            Ok(()) => Ok(producer),
            Err(pass) => {
                producer.stop().await;
                Err(pass)
            }
        }
    }

    async fn recover(&mut self) -> Result<(), Pass> {
        let (source, broker) = (self.shared.source.clone(), self.shared.broker.clone());
        let range = self.fence.range;
        let logged = logged::last(&broker, self.shards.lo, range).await?;
        let standing = logged::standing(&source, range).await?;
        if logged.is_none() {
            // Whoever published what this range was made from may still have a transaction open.
            for predecessor in &standing.predecessors {
                broker.fence(*predecessor).await?;
            }
        }
        let timeline = &self.history.timeline;
        let logged = logged.filter(|logged| logged.is_ahead(&self.fence, timeline, &standing));
        let position = match logged {
            Some(logged) => {
                self.forget(&logged.released).await?;
                logged.position()
            }
            None => standing.stored.position,
        };
        self.log.origin = standing.origin;
        self.seq += 1;
        let append = position::append(&self.fence, self.seq, &position, &self.history);
        if source.execute(append).await? == 0 {
            return Err(Pass::Ended(Ended::Fenced));
        }
        self.stored = position;
        self.log.ahead = false;
        self.log.unknown = false;
        self.report();
        Ok(())
    }

    /// Removes parked rows that were published.
    async fn forget(&self, released: &[i64]) -> Result<(), Pass> {
        if released.is_empty() {
            return Ok(());
        }
        let nothing_else = Releases::default();
        if park::settle(&self.shared.source, &self.fence, released, &nothing_else).await? {
            Ok(())
        } else {
            Err(Pass::Ended(Ended::Fenced))
        }
    }

    /// Brings the database up to the log, so that nobody who looks there alone repeats anything.
    pub(super) async fn settle(&mut self) -> Result<(), Pass> {
        if self.log.unknown {
            // Whoever takes the range next finds out.
            return Err(Pass::Ended(Ended::Fenced));
        }
        if self.log.ahead {
            self.store(Completion::Position(self.stored.clone()))
                .await?;
        }
        Ok(())
    }

    /// Notes that the database has the latest position.
    pub(super) const fn settled(&mut self) {
        self.log.ahead = false;
    }

    /// Closes the transaction: `position`, and which parked rows were `released`, go into it as the last record.
    fn commit(
        &mut self,
        producer: &Arc<Producer>,
        position: Position,
        released: Vec<i64>,
    ) -> Result<Commit, Pass> {
        self.seq += 1;
        let here = (self.log.origin.as_str(), self.history.timeline.as_str());
        let record = Logged::new(&self.fence, self.seq, &position, here, released);
        // A structure of texts and numbers.
        let payload = serde_json::to_vec(&record).unwrap_or_default();
        let topic = names::positions_topic(&self.shared.broker.topic);
        let tracker = Tracker::new();
        let key = self.fence.range.to_string();
        let sent = producer.send_to((&topic, self.shards.lo), &key, &payload, &tracker);
        tracker.close();
        sent.map_err(|code| self.trouble(producer, Trouble::Failed(Some(code))))?;
        self.log.unknown = true;
        let (source, history) = (self.shared.source.clone(), self.history.clone());
        let producer = producer.clone();
        let outcome = async move {
            // Behind every snapshot that was read; mostly durable by the time the brokers have answered.
            let place = durable::place(&source, &history).await?;
            producer.flush(STALLED).await.map_err(Refused::Log)?;
            durable::reach(&source, &history, &place).await?;
            producer.commit(STALLED).await.map_err(Refused::Log)
        }
        .boxed();
        Ok(Commit { position, outcome })
    }

    /// Takes the outcome of `commit` in.
    fn committed(
        &mut self,
        producer: &Producer,
        commit: Commit,
        outcome: Result<(), Refused>,
    ) -> Result<(), Pass> {
        match outcome {
            Ok(()) => {
                self.log.unknown = false;
                self.log.ahead = true;
                self.completions += 1;
                // Inside a large difference, rows behind this page may be parked already.
                if !matches!(commit.position, Position::Inside { .. }) {
                    self.unsettled = false;
                }
                self.stored = commit.position;
                self.report();
                self.shared.stats.broker(Ok(()));
                Ok(())
            }
            Err(Refused::Source(failure)) => Err(failure.into()),
            Err(Refused::Log(trouble)) => Err(self.trouble(producer, trouble)),
        }
    }

    /// Commits `position` with what was handed over, and waits.
    async fn commit_now(
        &mut self,
        producer: &Arc<Producer>,
        position: Position,
        released: Vec<i64>,
    ) -> Result<(), Pass> {
        let mut commit = self.commit(producer, position, released)?;
        let outcome = (&mut commit.outcome).await;
        self.committed(producer, commit, outcome)
    }

    fn trouble(&self, producer: &Producer, trouble: Trouble) -> Pass {
        if producer.is_fenced() || trouble == Trouble::Fenced {
            return Pass::Ended(Ended::Fenced);
        }
        let Trouble::Failed(code) = trouble else {
            return Pass::Ended(Ended::Fenced);
        };
        // A record that was refused says more than the commit that failed with it.
        let code = producer.failure().or(code);
        let refusal = code.and_then(kafka_error::refusal);
        refusal.map_or_else(|| Pass::Failed(self.unclear(producer, code)), Pass::Refused)
    }
}

impl From<Unready> for Pass {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Fenced => Self::Ended(Ended::Fenced),
            Unready::Failed(failure) => Self::Failed(failure),
        }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Source(failure)
    }
}

/// Tells how many rows of `sent` are visible now.
fn count(worker: &Worker, sent: &[Sent], now: Duration) {
    for sent in sent.iter().filter(|sent| sent.rows > 0) {
        let took = now.saturating_sub(sent.since);
        worker.shared.stats.published(sent.rows, took);
    }
}
