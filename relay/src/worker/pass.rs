//! A pass: batches claimed ahead, several in flight, completions stored in order.

use super::hand_over::hand_over;
use super::store::{Append, outcome};
use super::{
    Ended, HAND_OVER_MARGIN, IN_FLIGHT, LINGER, PURGE_MARGIN, Pass, RECOVERED, SETTLE, SLOW,
    STALLED, Sent, TICK, Worker, halved,
};
use crate::broker;
use crate::claim::snapshot::Limits;
use crate::claim::{Batch, Completion, Kind};
use crate::encode::Encoder;
use crate::kafka_error::{self, Meaning};
use crate::park::Plan;
use crate::position::Position;
use crate::produce::Producer;
use crate::source::{Failure, STATEMENT_TIMEOUT};
use fanout_runtime::clock;
use std::collections::VecDeque;
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
    /// Handed over, oldest first.
    sent: VecDeque<Sent>,
    rows: usize,
    bytes: usize,
    /// Acknowledged; not yet being stored.
    acknowledged: Option<Completion>,
    append: Option<Append>,
    /// A position that must be stored before anything more is handed over.
    gate: Option<Position>,
    /// Has rows to park: waits until nothing is in flight, because parking may take long.
    waiting: Option<(Batch, Plan)>,
    /// Most that may be in flight.
    limits: Limits,
    /// Batches acknowledged.
    harvested: usize,
    /// How the pass ends once nothing is in flight any more; until then it takes nothing more.
    ending: Option<Pass>,
}

impl Flight {
    /// True when nothing is left to wait for.
    fn is_empty(&self) -> bool {
        self.sent.is_empty()
            && self.waiting.is_none()
            && self.acknowledged.is_none()
            && self.append.is_none()
    }

    fn age(&self, now: Duration) -> Duration {
        self.sent
            .front()
            .map_or(Duration::ZERO, |sent| now.saturating_sub(sent.since))
    }

    fn hand_over(&mut self, batch: &Batch, aside: &[i64]) -> Result<(), Pass> {
        let sent = hand_over(batch, aside, &self.producer, &self.encoder)?;
        self.rows += sent.rows;
        self.bytes += sent.bytes;
        self.sent.push_back(sent);
        Ok(())
    }

    fn takes_more(&self, now: Duration, left: Duration) -> bool {
        self.ending.is_none()
            && self.gate.is_none()
            && self.waiting.is_none()
            && self.rows < self.limits.rows
            && self.bytes < self.limits.bytes
            // A database that is slower than the brokers is waited for.
            && self.acknowledged.as_ref().map_or(0, Completion::rows) < self.limits.rows
            && self.age(now) < SLOW
            && left >= HAND_OVER_MARGIN
    }
}

impl Worker {
    /// Publishes from the stored position on.
    pub(super) async fn pass(&mut self, stop: &CancellationToken) -> Pass {
        let max_message_bytes = match self.shared.broker.max_message_bytes().await {
            Ok(limit) => limit,
            Err(failure) => return Pass::Failed(failure),
        };
        let producer = match self.shared.broker.producer(max_message_bytes, LINGER).await {
            Ok(producer) => producer,
            Err(failure) => return Pass::Failed(failure),
        };
        self.shared.stats.broker_reached();
        // One batch waits, one is being read: more would only cost memory.
        let (sender, batches) = mpsc::channel(1);
        let claimer = tokio::spawn(self.claimer().run(sender, self.shared.stats.polls.clone()));
        let mut flight = Flight {
            began: clock::now(),
            encoder: self.encoder(max_message_bytes),
            producer,
            batches,
            sent: VecDeque::new(),
            rows: 0,
            bytes: 0,
            acknowledged: None,
            append: None,
            gate: None,
            waiting: None,
            limits: halved(IN_FLIGHT, self.halvings),
            harvested: 0,
            ending: None,
        };
        let ended = loop {
            if let Err(pass) = self.turn(&mut flight, stop).await {
                break pass;
            }
        };
        self.land(flight, claimer, ended).await
    }

    /// One turn of the loop: looks at what changed, then waits for the next change.
    async fn turn(&mut self, flight: &mut Flight, stop: &CancellationToken) -> Result<(), Pass> {
        self.harvest(flight);
        if let Some(code) = flight.producer.failure() {
            return Err(kafka_error::refusal(code).map_or_else(
                || Pass::Failed(self.unclear(&flight.producer, Some(code))),
                Pass::Refused,
            ));
        }
        if flight.append.is_none()
            && let Some(completion) = flight.acknowledged.take()
        {
            flight.append = Some(self.append(completion));
        }
        if self.has_arrived() && flight.ending.is_none() {
            flight.ending = Some(Pass::Ended(Ended::Stopped));
        }
        if flight.is_empty()
            && let Some(ending) = flight.ending.take()
        {
            return Err(ending);
        }
        let now = clock::now();
        let left = self.deadline.left(now);
        if left < PURGE_MARGIN {
            flight.producer.purge();
            return Err(Pass::Ended(Ended::Fenced));
        }
        if flight.age(now) > STALLED {
            return Err(Pass::Failed(self.unclear(&flight.producer, None)));
        }
        // A row is parked only when everything before it is stored: what is parked beyond the stored position is then of
        // the very next batch, which the next position passes.
        if flight.sent.is_empty()
            && flight.append.is_none()
            && let Some(waiting) = flight.waiting.take()
        {
            return self.take_waiting(flight, waiting).await;
        }
        if flight.ending.is_none() && self.releases(flight, now) {
            flight.ending = Some(Pass::Release);
            return Ok(());
        }
        let takes_more = flight.takes_more(now, left);
        tokio::select! {
            holds = outcome(flight.append.as_mut()) => {
                if let Some(append) = flight.append.take() {
                    self.appended(append, holds)?;
                    if flight.gate.as_ref() == Some(&self.stored) {
                        flight.gate = None;
                    }
                }
            }
            () = flight.producer.changed() => {}
            batch = flight.batches.recv(), if takes_more => match batch {
                Some(Ok(batch)) => self.take(flight, batch)?,
                Some(Err(failure)) => return Err(failure.into()),
                // The claimer sends an error before it ends; it panicked.
                None => return Err(crate::source::failure(
                    fanout_contract::reason::SourceError::SourceQueryFailed, "reading stopped").into()),
            },
            () = stop.cancelled(), if !matches!(flight.ending, Some(Pass::Ended(_))) => {
                flight.ending = Some(Pass::Ended(Ended::Stopped));
            }
            () = tokio::time::sleep(TICK) => {}
        }
        Ok(())
    }

    /// Takes a batch: hands it over, or lets it wait where rows must be parked first.
    fn take(&mut self, flight: &mut Flight, batch: Batch) -> Result<(), Pass> {
        if let (Kind::Begin, Completion::Position(begin)) = (batch.kind, &batch.after) {
            flight.gate = Some(begin.clone());
        }
        let plan = self.plan(&batch, &flight.encoder)?;
        if plan.parked.is_empty() {
            return flight.hand_over(&batch, &[]);
        }
        flight.waiting = Some((batch, plan));
        Ok(())
    }

    /// Parks what has to be, then hands the rest of the batch over.
    async fn take_waiting(
        &mut self,
        flight: &mut Flight,
        (batch, plan): (Batch, Plan),
    ) -> Result<(), Pass> {
        let limit = flight.producer.max_message_bytes;
        let aside = self.set_aside(plan, limit).await?;
        // That took its time: is enough of the lease left?
        if self.left() < HAND_OVER_MARGIN {
            return Err(Pass::Again);
        }
        flight.hand_over(&batch, &aside)
    }

    /// Takes acknowledged batches off the front.
    fn harvest(&self, flight: &mut Flight) {
        while let Some(sent) = flight
            .sent
            .pop_front_if(|sent| sent.tracker.is_done() && !sent.tracker.has_failed())
        {
            flight.rows -= sent.rows;
            flight.bytes -= sent.bytes;
            if sent.rows > 0 {
                let took = clock::now().saturating_sub(sent.since);
                self.shared.stats.published(sent.rows, took);
                self.shared.stats.broker(Ok(()));
            }
            flight.acknowledged = Some(and(flight.acknowledged.take(), sent.after));
            flight.harvested += 1;
        }
        if self.halvings > 0 && flight.harvested >= RECOVERED && flight.ending.is_none() {
            flight.ending = Some(Pass::Recovered);
        }
    }

    /// True where parked rows are to be released or dropped and may be: the stored position has passed them, or a pass that
    /// has nothing to do can find out. Nothing is published meanwhile, so new rows of their keys come after them.
    fn releases(&self, flight: &Flight, now: Duration) -> bool {
        let asked = self.releasing || self.shared.stats.is_release_asked(self.fence.range);
        let idle = || flight.is_empty() && now.saturating_sub(flight.began) > SETTLE;
        asked && (!self.unsettled || idle())
    }

    /// The failure behind `code`; the connection's own error says more than a timeout.
    pub(super) fn unclear(
        &self,
        producer: &Producer,
        code: Option<rdkafka::types::RDKafkaErrorCode>,
    ) -> broker::Failure {
        let code = code.filter(|code| kafka_error::meaning(*code) != Meaning::Unclear);
        let code = code.or_else(|| producer.connection_error());
        kafka_error::explain(code, &self.shared.broker.topic)
    }

    /// Ends a pass: nothing is sent any more, and what was acknowledged meanwhile is stored.
    async fn land(&mut self, mut flight: Flight, mut claimer: JoinHandle<()>, ended: Pass) -> Pass {
        flight.producer.stop().await;
        flight.batches.close();
        let mut ended = ended;
        // The next pass of this term begins with what the last claim left: it must be over. A new term fences it.
        if matches!(ended, Pass::Ended(_)) {
            claimer.abort();
        } else if tokio::time::timeout(STATEMENT_TIMEOUT, &mut claimer)
            .await
            .is_err()
        {
            claimer.abort();
            ended = Pass::Ended(Ended::Fenced);
        }
        if matches!(ended, Pass::Ended(Ended::Fenced | Ended::Source(_))) {
            return ended;
        }
        if let Some(mut append) = flight.append.take() {
            let holds = append.outcome().await;
            if let Err(pass) = self.appended(append, holds) {
                return pass;
            }
        }
        let mut last = flight.acknowledged.take();
        while let Some(sent) = flight
            .sent
            .pop_front_if(|sent| sent.tracker.is_done() && !sent.tracker.has_failed())
        {
            last = Some(and(last, sent.after));
        }
        if let Some(completion) = last
            && let Err(pass) = self.store(completion).await
        {
            return pass;
        }
        ended
    }
}

/// `later`, and what was not stored before it.
fn and(before: Option<Completion>, later: Completion) -> Completion {
    match before {
        Some(before) => before.and(later),
        None => later,
    }
}
