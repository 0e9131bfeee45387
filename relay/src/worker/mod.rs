//! Publishes one range for as long as its lease holds.
//!
//! A *pass* claims what is not completed, hands batches over, and stores each batch's completion (a position, or which rows
//! are done) once every record of it and of those before is acknowledged. A pass that fails is thrown away, producer
//! included, and the next begins at what is stored. After the broker refused a record, that batch is sent one by one, to find the record and park it.
//! Parked rows that are released are published between two passes, so before any new row of their keys.

mod hand_over;
mod one_by_one;
mod pass;
mod release;
mod store;
mod transact;

use crate::broker::{self, Broker};
use crate::claim::snapshot::{Limits, Snapshot};
use crate::claim::{BEFORE_ALL, Batch, Claimer, Completion, Queue, Reader, Shards, Taken};
use crate::encode::{Encoder, Encoding, Unencodable};
use crate::park::{self, Held};
use crate::position::{Fence, History, Position};
use crate::produce::MESSAGE_TIMEOUT;
use crate::source::{Failure, Source};
use crate::stats::{RangeState, Stats};
use fanout_contract::relay::{Claim, Delivery, OnParked};
use fanout_runtime::backoff::Backoff;
use fanout_runtime::clock::{self, Deadline};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Rows and bytes of one batch.
pub const BATCH: Limits = Limits {
    rows: 5_000,
    bytes: 8 << 20,
};
/// Handed over and not acknowledged, at most (about).
const IN_FLIGHT: Limits = Limits {
    rows: 30_000,
    bytes: 32 << 20,
};
/// How often [`BATCH`] and [`IN_FLIGHT`] are halved, at most, for brokers that are too slow for them.
const HALVINGS: u32 = 10;
/// Batches acknowledged in time before one halving is taken back.
const RECOVERED: usize = 20;
/// Records are handed over while this much of the lease is left: they are answered or taken back before it ends.
const HAND_OVER_MARGIN: Duration = MESSAGE_TIMEOUT.saturating_add(Duration::from_millis(200));
/// With less than this left, nothing of this process may be sent any more.
const PURGE_MARGIN: Duration = Duration::from_secs(1);
/// Nothing more is handed over while a batch waits this long, so that what waits has about the same age.
const SLOW: Duration = Duration::from_secs(1);
/// A batch that waits this long is taken back, with all that were handed over after it.
const STALLED: Duration = Duration::from_millis(5_500);
/// How often the clock is looked at when nothing happens.
const TICK: Duration = Duration::from_millis(100);
/// A pass that has had nothing to do for this long looks by itself whether the position has passed what is parked.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the producer waits for more records of a batch.
const LINGER: Duration = Duration::from_millis(2);
/// A range whose records fail this long is given up, so that a relay that reaches the brokers can have it.
const GIVE_UP: Duration = Duration::from_secs(30);

/// What a worker is given.
#[derive(Debug)]
pub struct Assignment {
    /// The range's shards.
    pub shards: Shards,
    /// The lease.
    pub fence: Fence,
    /// Number of the stored position within the term.
    pub seq: i64,
    /// Stored position.
    pub position: Position,
    /// History it was stored in.
    pub history: History,
    /// End of the lease; moved by whoever renews it.
    pub deadline: Arc<Deadline>,
    /// Publish up to here and no further; newer than the position, which is not inside a difference.
    pub goal: Option<Snapshot>,
}

/// What all workers of a topic share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The outbox.
    pub source: Source,
    /// The log.
    pub broker: Arc<Broker>,
    /// How rows become records.
    pub encoding: Encoding,
    /// Publish nothing.
    pub suspended: bool,
    /// What becomes of the later rows of a parked row's key.
    pub on_parked: OnParked,
    /// Whether a repeat may become visible.
    pub delivery: Delivery,
    /// What `/status` shows.
    pub stats: Arc<Stats>,
}

/// Why a worker ended.
#[derive(Debug)]
pub enum Ended {
    /// It was asked to, or is where it was to go; everything handed over is acknowledged and stored.
    Stopped,
    /// The lease is lost, about to end, or the history changed.
    Fenced,
    /// The outbox can't be read or written.
    Source(Failure),
    /// The brokers take nothing.
    Broker(broker::Failure),
}

/// How a pass ended.
#[derive(Debug)]
enum Pass {
    /// For good.
    Ended(Ended),
    /// The broker refused a record, for this reason.
    Refused(Unencodable),
    /// Nothing is in flight, and parked rows are to be released or dropped.
    Release,
    /// The topic's limit is another one now, or a batch was sent one by one: begin again.
    Again,
    /// The brokers kept up with less: try more.
    Recovered,
    /// The brokers did not take records.
    Failed(broker::Failure),
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Publishes.
    Pass,
    /// Publishes one batch record by record.
    OneByOne,
    /// Publishes or drops parked rows.
    Release,
}

impl Step {
    /// The step after this one ended with `pass`.
    const fn after(self, pass: &Pass) -> Self {
        match (self, pass) {
            // In the second case the record that was refused is not found yet.
            (_, Pass::Refused(_)) | (Self::OneByOne, Pass::Failed(_) | Pass::Recovered) => {
                Self::OneByOne
            }
            (_, Pass::Release) => Self::Release,
            _ => Self::Pass,
        }
    }
}

impl From<Failure> for Pass {
    fn from(failure: Failure) -> Self {
        Self::Ended(Ended::Source(failure))
    }
}

impl From<broker::Failure> for Pass {
    fn from(failure: broker::Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    shared: Shared,
    shards: Shards,
    fence: Fence,
    history: History,
    deadline: Arc<Deadline>,
    /// Number of the last position appended in this term.
    seq: i64,
    /// Last position stored.
    stored: Position,
    /// Rows of the present pass that are published and not deleted yet.
    taken: Taken,
    /// Completions stored.
    completions: u64,
    /// Where to stop.
    goal: Option<Snapshot>,
    /// Keys behind parked rows.
    held: Held,
    /// Parked rows are to be released or dropped, as far as this worker knows.
    releasing: bool,
    /// Rows may be parked that the stored position has not passed. Released or dropped before it has, they would come again.
    unsettled: bool,
    /// How often [`BATCH`] and [`IN_FLIGHT`] are halved at present. What is in flight must be acknowledged within
    /// [`STALLED`], or it would be sent again and again over a connection that can't carry it in that time.
    halvings: u32,
    /// With `delivery: Transactional`.
    log: transact::Log,
}

impl Worker {
    /// A worker for a lease just taken.
    pub fn new(shared: Shared, assignment: Assignment) -> Self {
        let Assignment {
            shards,
            fence,
            seq,
            position,
            history,
            deadline,
            goal,
        } = assignment;
        Self {
            shared,
            shards,
            fence,
            history,
            deadline,
            seq,
            stored: position,
            taken: Taken::default(),
            completions: 0,
            goal,
            held: Held::default(),
            releasing: false,
            unsettled: true,
            halvings: 0,
            log: transact::Log::default(),
        }
    }

    /// What a worker that goes on where this one ended is given.
    pub fn into_assignment(self) -> Assignment {
        Assignment {
            shards: self.shards,
            fence: self.fence,
            seq: self.seq,
            position: self.stored,
            history: self.history,
            deadline: self.deadline,
            goal: None,
        }
    }

    /// Publishes until `stop` or the goal, then finishes what is in flight; ends by itself when it can't go on.
    pub async fn run(&mut self, stop: CancellationToken) -> Ended {
        let ended = self.work(stop).await;
        if matches!(ended, Ended::Stopped)
            && let Err(Pass::Ended(ended)) = self.settle().await
        {
            return ended;
        }
        ended
    }

    async fn work(&mut self, stop: CancellationToken) -> Ended {
        self.report();
        match park::look(&self.shared.source, self.fence.range, self.shared.on_parked).await {
            Ok((held, releasing)) => (self.held, self.releasing) = (held, releasing),
            Err(failure) => return Ended::Source(failure),
        }
        if self.shared.suspended {
            return self.watch(&stop).await;
        }
        if let Err(Pass::Ended(ended)) = self.freeze().await {
            return ended;
        }
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut failing_since = None;
        let mut next = Step::Pass;
        loop {
            if self.has_arrived() {
                return Ended::Stopped;
            }
            let before = self.completions;
            let pass = match next {
                Step::Pass if self.is_transactional() => self.transactional_pass(&stop).await,
                Step::Pass => self.pass(&stop).await,
                Step::OneByOne => self.one_by_one(&stop).await,
                Step::Release => self.release(&stop).await,
            };
            if self.completions != before {
                failing_since = None;
                backoff.reset();
            }
            next = next.after(&pass);
            match pass {
                Pass::Ended(ended) => return ended,
                Pass::Refused(_) | Pass::Release | Pass::Again => {}
                Pass::Recovered => self.halvings = self.halvings.saturating_sub(1),
                Pass::Failed(failure) => {
                    self.shared.stats.broker(Err(failure.clone()));
                    self.halvings = (self.halvings + 1).min(HALVINGS);
                    let since = *failing_since.get_or_insert_with(clock::now);
                    if clock::now().saturating_sub(since) > GIVE_UP {
                        return Ended::Broker(failure);
                    }
                    tokio::select! {
                        () = tokio::time::sleep(backoff.next_delay()) => {}
                        () = stop.cancelled() => return Ended::Stopped,
                    }
                }
            }
        }
    }

    /// Holds the range without publishing.
    async fn watch(&self, stop: &CancellationToken) -> Ended {
        loop {
            if self.left() < PURGE_MARGIN {
                return Ended::Fenced;
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = stop.cancelled() => return Ended::Stopped,
            }
        }
    }

    /// Makes the way to the goal a difference of its own, whose end is the goal.
    async fn freeze(&mut self) -> Result<(), Pass> {
        let (Some(goal), Position::At(old)) = (&self.goal, &self.stored) else {
            return Ok(());
        };
        if goal == old {
            return Ok(());
        }
        let (old, new, last_id) = (old.clone(), goal.clone(), BEFORE_ALL);
        let frozen = Position::Inside { old, new, last_id };
        self.store(Completion::Position(frozen)).await
    }

    /// True where this worker stands at its goal.
    fn has_arrived(&self) -> bool {
        matches!((&self.goal, &self.stored), (Some(goal), Position::At(old)) if goal == old)
    }

    fn left(&self) -> Duration {
        self.deadline.left(clock::now())
    }

    fn report(&self) {
        self.shared.stats.range(RangeState {
            shards: self.shards,
            fence: self.fence.clone(),
            position: self.stored.clone(),
        });
    }

    fn encoder(&self, max_message_bytes: usize) -> Encoder {
        Encoder::new(self.shared.encoding.clone(), max_message_bytes)
    }

    /// Claims what is not completed.
    fn claimer(&mut self) -> Claimer {
        let source = self.shared.source.clone();
        let limits = halved(BATCH, self.halvings);
        let history = self.history.clone();
        if source.outbox.claim == Claim::Snapshot {
            let position = self.stored.clone();
            let reader = Reader::new(source, self.shards, limits, history, position);
            return Claimer::Snapshot(reader.until(self.goal.clone()));
        }
        self.taken = Taken::default();
        let (fence, taken) = (self.fence.clone(), self.taken.clone());
        Claimer::Queue(Queue::new(
            source,
            self.shards,
            limits,
            history,
            fence,
            taken,
        ))
    }
}

/// `limits` halved so many times; never nothing.
fn halved(limits: Limits, times: u32) -> Limits {
    Limits {
        rows: (limits.rows >> times).max(1),
        bytes: (limits.bytes >> times).max(1),
    }
}

/// A batch handed over.
#[derive(Debug)]
struct Sent {
    tracker: Arc<crate::produce::Tracker>,
    after: Completion,
    rows: usize,
    bytes: usize,
    since: Duration,
}

impl Sent {
    fn new(batch: &Batch, tracker: Arc<crate::produce::Tracker>, rows: usize) -> Self {
        Self {
            tracker,
            after: batch.after.clone(),
            rows,
            bytes: batch.bytes,
            since: clock::now(),
        }
    }
}
