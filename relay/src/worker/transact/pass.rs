//! A pass with transactions: batches claimed ahead, as many in a transaction as come until its first is answered.

use super::{Commit, Refused, count};
use crate::claim::snapshot::Limits;
use crate::claim::{Batch, Completion, Kind};
use crate::encode::Encoder;
use crate::lease::RENEWAL;
use crate::park::Plan;
use crate::position::Position;
use crate::produce::Producer;
use crate::produce::transaction::Trouble;
use crate::source::{Failure, failure};
use crate::worker::hand_over::hand_over;
use crate::worker::store::{Append, outcome};
use crate::worker::{
    Ended, HAND_OVER_MARGIN, IN_FLIGHT, LINGER, PURGE_MARGIN, Pass, RECOVERED, SETTLE, STALLED,
    Sent, TICK, Worker, halved,
};
use fanout_contract::reason::SourceError;
use fanout_runtime::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a pass has under way.
struct Flight {
    began: Duration,
    producer: Arc<Producer>,
    encoder: Encoder,
    batches: mpsc::Receiver<Result<Batch, Failure>>,
    /// The transaction; `None` while nothing was handed over.
    open: Option<Open>,
    /// A position on its way to the database.
    append: Option<Append>,
    /// When the database was last told.
    told: Duration,
    /// A position that the database must have before anything more is handed over.
    gate: Option<Position>,
    /// Has rows to park: waits until nothing is in flight, because parking may take long.
    waiting: Option<(Batch, Plan)>,
    /// Most that may be in flight.
    limits: Limits,
    /// Batches committed.
    harvested: usize,
    /// How the pass ends once nothing is in flight any more; until then it takes nothing more.
    ending: Option<Pass>,
}

/// A transaction.
struct Open {
    /// Handed over, oldest first.
    sent: Vec<Sent>,
    rows: usize,
    bytes: usize,
    since: Duration,
    /// Behind all of it.
    after: Position,
    commit: Option<Commit>,
}

impl Flight {
    fn is_empty(&self) -> bool {
        self.open.is_none() && self.waiting.is_none() && self.append.is_none()
    }

    fn hand_over(&mut self, batch: &Batch, aside: &[i64], after: Position) -> Result<(), Pass> {
        let sent = hand_over(batch, aside, &self.producer, &self.encoder)?;
        let open = self.open.get_or_insert_with(|| Open {
            sent: Vec::new(),
            rows: 0,
            bytes: 0,
            since: clock::now(),
            after: after.clone(),
            commit: None,
        });
        open.rows += sent.rows;
        open.bytes += sent.bytes;
        open.after = after;
        open.sent.push(sent);
        Ok(())
    }

    /// True where the transaction takes no more: what came while its first batch was on its way is in it.
    fn is_full(&self, open: &Open) -> bool {
        let first = open.sent.first();
        open.rows >= self.limits.rows
            || open.bytes >= self.limits.bytes
            || self.ending.is_some()
            || self.waiting.is_some()
            || self.gate.is_some()
            || first.is_none_or(|first| first.tracker.is_done())
    }

    fn takes_more(&self, left: Duration) -> bool {
        self.ending.is_none()
            && self.gate.is_none()
            && self.waiting.is_none()
            && self.append.is_none()
            && self.open.as_ref().is_none_or(|open| !self.is_full(open))
            && left >= HAND_OVER_MARGIN
    }
}

impl Worker {
    /// Publishes from the last committed position on.
    pub(in crate::worker) async fn transactional_pass(&mut self, stop: &CancellationToken) -> Pass {
        let limit = match self.shared.broker.max_message_bytes().await {
            Ok(limit) => limit,
            Err(failure) => return Pass::Failed(failure),
        };
        let producer = match self.open(limit, LINGER).await {
            Ok(producer) => producer,
            Err(pass) => return pass,
        };
        self.shared.stats.broker_reached();
        // One batch waits, one is being read: more would only cost memory.
        let (sender, batches) = mpsc::channel(1);
        let claimer = tokio::spawn(self.claimer().run(sender, self.shared.stats.polls.clone()));
        let now = clock::now();
        let mut flight = Flight {
            began: now,
            encoder: self.encoder(limit),
            producer,
            batches,
            open: None,
            append: None,
            told: now,
            gate: None,
            waiting: None,
            limits: halved(IN_FLIGHT, self.halvings),
            harvested: 0,
            ending: None,
        };
        let ended = loop {
            if let Err(pass) = self.transactional_turn(&mut flight, stop).await {
                break pass;
            }
        };
        self.end_transactions(flight, &claimer, ended).await
    }

    async fn transactional_turn(
        &mut self,
        flight: &mut Flight,
        stop: &CancellationToken,
    ) -> Result<(), Pass> {
        if flight.producer.failure().is_some() || flight.producer.is_fenced() {
            return Err(self.trouble(&flight.producer, Trouble::Failed(None)));
        }
        let now = clock::now();
        let left = self.deadline.left(now);
        if left < PURGE_MARGIN {
            return Err(Pass::Ended(Ended::Fenced));
        }
        if self.has_arrived() && flight.ending.is_none() {
            flight.ending = Some(Pass::Ended(Ended::Stopped));
        }
        self.close_or_tell(flight, now)?;
        if flight.is_empty()
            && !self.log.ahead
            && let Some(ending) = flight.ending.take()
        {
            return Err(ending);
        }
        if flight.open.is_none()
            && flight.append.is_none()
            && let Some((batch, plan)) = flight.waiting.take()
        {
            return self.park_then_hand_over(flight, &batch, plan).await;
        }
        if flight.ending.is_none() && self.may_release(flight, now) {
            flight.ending = Some(Pass::Release);
            return Ok(());
        }
        let takes_more = flight.takes_more(left);
        let commit = flight.open.as_mut().and_then(|open| open.commit.as_mut());
        tokio::select! {
            holds = outcome(flight.append.as_mut()) => {
                if let Some(append) = flight.append.take() {
                    self.appended(append, holds)?;
                    if flight.gate.as_ref() == Some(&self.stored) {
                        flight.gate = None;
                    }
                }
            }
            outcome = ended(commit) => self.take_commit(flight, outcome)?,
            () = flight.producer.changed() => {}
            batch = flight.batches.recv(), if takes_more => match batch {
                Some(Ok(batch)) => self.take_transactional(flight, batch)?,
                Some(Err(failure)) => return Err(failure.into()),
                // The claimer sends an error before it ends; it panicked.
                None => return Err(failure(SourceError::SourceQueryFailed, "reading stopped").into()),
            },
            () = stop.cancelled(), if !matches!(flight.ending, Some(Pass::Ended(_))) => {
                flight.ending = Some(Pass::Ended(Ended::Stopped));
            }
            () = tokio::time::sleep(TICK) => {}
        }
        Ok(())
    }

    /// Commits a transaction that takes no more, or, between two, tells the database where the log is.
    fn close_or_tell(&mut self, flight: &mut Flight, now: Duration) -> Result<(), Pass> {
        if let Some(open) = &flight.open {
            if open.commit.is_some() {
                return Ok(());
            }
            if now.saturating_sub(open.since) > STALLED {
                return Err(Pass::Failed(self.unclear(&flight.producer, None)));
            }
            if flight.is_full(open) {
                let commit = self.commit(&flight.producer, open.after.clone(), Vec::new())?;
                if let Some(open) = &mut flight.open {
                    open.commit = Some(commit);
                }
            }
            return Ok(());
        }
        let asked = flight.ending.is_some() || flight.waiting.is_some() || flight.gate.is_some();
        let due = asked || now.saturating_sub(flight.told) >= RENEWAL;
        if self.log.ahead && due && flight.append.is_none() {
            flight.told = now;
            flight.append = Some(self.append(Completion::Position(self.stored.clone())));
        }
        Ok(())
    }

    fn take_commit(
        &mut self,
        flight: &mut Flight,
        outcome: Result<(), Refused>,
    ) -> Result<(), Pass> {
        let Some(Open {
            sent,
            commit: Some(commit),
            ..
        }) = flight.open.take()
        else {
            return Ok(());
        };
        self.committed(&flight.producer, commit, outcome)?;
        count(self, &sent, clock::now());
        flight.harvested += sent.len();
        if self.halvings > 0 && flight.harvested >= RECOVERED && flight.ending.is_none() {
            flight.ending = Some(Pass::Recovered);
        }
        Ok(())
    }

    /// Takes a batch: hands it over, or lets it wait where rows must be parked first.
    fn take_transactional(&mut self, flight: &mut Flight, batch: Batch) -> Result<(), Pass> {
        let after = position(&batch)?;
        if batch.kind == Kind::Begin {
            flight.gate = Some(after.clone());
        }
        if batch.is_empty() {
            match &mut flight.open {
                Some(open) => open.after = after,
                None => flight.append = Some(self.append(batch.after)),
            }
            return Ok(());
        }
        let plan = self.plan(&batch, &flight.encoder)?;
        if plan.parked.is_empty() {
            return flight.hand_over(&batch, &[], after);
        }
        flight.waiting = Some((batch, plan));
        Ok(())
    }

    /// Parks what has to be, then hands the rest of the batch over. The database has everything before it.
    async fn park_then_hand_over(
        &mut self,
        flight: &mut Flight,
        batch: &Batch,
        plan: Plan,
    ) -> Result<(), Pass> {
        let after = position(batch)?;
        let limit = flight.producer.max_message_bytes;
        let aside = self.set_aside(plan, limit).await?;
        // That took its time: is enough of the lease left?
        if self.left() < HAND_OVER_MARGIN {
            return Err(Pass::Again);
        }
        if aside.len() == batch.len() {
            flight.append = Some(self.append(Completion::Position(after)));
            return Ok(());
        }
        flight.hand_over(batch, &aside, after)
    }

    /// See [`Worker::releases`](super::super::pass).
    fn may_release(&self, flight: &Flight, now: Duration) -> bool {
        let asked = self.releasing || self.shared.stats.is_release_asked(self.fence.range);
        let idle = || flight.is_empty() && now.saturating_sub(flight.began) > SETTLE;
        asked && (!self.unsettled || idle())
    }

    /// Ends a pass: what is not committed is given up.
    async fn end_transactions(
        &mut self,
        mut flight: Flight,
        claimer: &JoinHandle<()>,
        ended: Pass,
    ) -> Pass {
        claimer.abort();
        if !matches!(
            ended,
            Pass::Ended(Ended::Stopped) | Pass::Release | Pass::Recovered
        ) {
            flight.producer.abort().await;
        }
        flight.producer.stop().await;
        if matches!(ended, Pass::Ended(Ended::Fenced | Ended::Source(_))) {
            return ended;
        }
        if let Some(mut append) = flight.append.take() {
            let holds = append.outcome().await;
            if let Err(pass) = self.appended(append, holds) {
                return pass;
            }
        }
        ended
    }
}

/// What is behind `batch`.
fn position(batch: &Batch) -> Result<Position, Pass> {
    match &batch.after {
        Completion::Position(position) => Ok(position.clone()),
        Completion::Rows(_) => Err(failure(
            SourceError::SourceQueryFailed,
            "spec.relay.delivery Transactional needs spec.source.postgres.claim Snapshot",
        )
        .into()),
    }
}

/// Waits for a commit, or for ever when there is none. Cancel-safe.
async fn ended(commit: Option<&mut Commit>) -> Result<(), Refused> {
    match commit {
        Some(commit) => (&mut commit.outcome).await,
        None => std::future::pending().await,
    }
}
