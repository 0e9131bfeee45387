//! One subscription: a task that owns its consumer, its queues and its deliveries, and shares nothing with others.
//!
//! The task takes turns. A turn serves callbacks, fetches what there is room for, starts what may start, commits
//! and reports; none of it waits. Between turns the task sleeps until something happens.
//!
//! A subscription that is suspended or stopped stays in its group: it keeps its partitions and its position, and
//! takes nothing from the client, which holds at most a few records of each partition ready.

mod assignment;
mod begin;
mod delivery;
mod judge;
mod report;
mod session;

use crate::breaker::{Breaker, Place};
use crate::concurrency::Concurrency;
use crate::dead_letter::DeadLetters;
use crate::metrics::Series;
use crate::settings::{Connection, Settings};
use crate::source::{Source, Trouble};
use crate::verdict::Failure;
use fanout_contract::consumer::{SubscriptionStatus, Totals};
use fanout_runtime::backoff::Backoff;
use report::Rate;
use session::{Ended, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Wait before a consumer that failed is started anew.
const RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What retention removed is reported for so long.
const EXPIRED_SHOWN: Duration = Duration::from_hours(24);

/// What all subscriptions of a worker share.
pub(crate) struct Worker {
    /// This process, as brokers log it.
    pub instance: String,
    /// How to reach the log.
    pub connection: Connection,
    /// Where events go that can't be delivered.
    pub dead_letters: DeadLetters,
}

/// What the rest of the process sees of a subscription.
pub(crate) struct Shared {
    status: Mutex<SubscriptionStatus>,
    started: Instant,
    /// Milliseconds from `started` to the last turn.
    last_turn: AtomicU64,
    /// Version of the settings in force.
    pub applied: watch::Sender<u64>,
}

impl Shared {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            status: Mutex::new(report::starting(&settings.config)),
            started: Instant::now(),
            last_turn: AtomicU64::new(0),
            applied: watch::Sender::new(0),
        }
    }

    /// The status last reported.
    pub(crate) fn status(&self) -> SubscriptionStatus {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Time since the last turn.
    pub(crate) fn idle(&self) -> Duration {
        let last = Duration::from_millis(self.last_turn.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last)
    }

    fn turned(&self, now: Instant) {
        let since = now.duration_since(self.started).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.last_turn.store(since, Ordering::Relaxed);
    }

    fn report(&self, status: SubscriptionStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// Settings with the number of their generation.
pub(crate) type Versioned = (u64, Arc<Settings>);

/// What survives when the consumer is started anew.
pub(crate) struct Subscription {
    worker: Arc<Worker>,
    shared: Arc<Shared>,
    series: Series,
    settings: Arc<Settings>,
    version: u64,
    totals: Totals,
    rate: Rate,
    endpoint: Endpoint,
    broker: Broker,
    /// Partitions whose position the log does not have.
    out_of_range: BTreeSet<i32>,
    /// Those of them that a human lets begin anew.
    anew: BTreeSet<i32>,
    /// Offsets by partition that retention removed unread, and when that was last noticed.
    expired: BTreeMap<i32, (i64, Instant)>,
}

/// What is known of the log.
#[derive(Debug, Default)]
struct Broker {
    /// Why no broker can be used; over with the next connection.
    connection: Option<Trouble>,
    /// What a broker refuses; over when something works again.
    refusal: Option<Trouble>,
}

impl Broker {
    /// Notes a fault; true where it is news.
    fn disconnected(&mut self, fault: Trouble) -> bool {
        // That no broker answers follows from every other fault: the first says more.
        let news = self.connection.is_none();
        self.connection.get_or_insert(fault);
        news
    }

    fn refused(&mut self, fault: Trouble) -> bool {
        self.refusal.replace(fault) != Some(fault)
    }
}

/// What is known of the endpoint.
#[derive(Debug, Default)]
struct Endpoint {
    /// It answered 410.
    gone: bool,
    /// The guard refused it; asked again at this time.
    refused: Option<Instant>,
    /// It asked for a pause until then.
    paused: Option<Instant>,
    /// Did the last attempt succeed?
    delivering: Option<bool>,
    /// Class of the last failure, while the last attempt failed.
    failure: Option<String>,
    /// The dead letter topic refused the last event it was given.
    dead_letters_refused: bool,
    /// Is it down?
    breaker: Breaker,
    /// Requests it takes at once.
    concurrency: Concurrency,
    /// The event that was tried enough, where the subscription stops then.
    exhausted: Option<Exhausted>,
}

/// An event that was tried enough.
#[derive(Clone, Copy, Debug)]
struct Exhausted {
    place: Place,
    reason: Failure,
}

impl Subscription {
    /// A subscription that is not running yet.
    pub(crate) fn new(
        worker: Arc<Worker>,
        shared: Arc<Shared>,
        series: Series,
        (version, settings): Versioned,
    ) -> Self {
        Self {
            worker,
            shared,
            series,
            settings,
            version,
            totals: Totals::default(),
            rate: Rate::new(Instant::now()),
            endpoint: Endpoint::default(),
            broker: Broker::default(),
            out_of_range: BTreeSet::new(),
            anew: BTreeSet::new(),
            expired: BTreeMap::new(),
        }
    }

    /// Notes what retention took from a partition.
    fn expired(&mut self, partition: i32, offsets: i64, now: Instant) {
        self.series.expired(offsets);
        self.totals.expired += offsets.unsigned_abs();
        let (sum, last) = self.expired.entry(partition).or_insert((0, now));
        if now.duration_since(*last) >= EXPIRED_SHOWN {
            *sum = 0;
        }
        *sum = sum.saturating_add(offsets);
        *last = now;
    }

    /// Runs until `stop`: then what is under way is finished, its offsets are committed and the group is left.
    ///
    /// # Errors
    /// A delivery panicked.
    pub(crate) async fn run(
        mut self,
        mut settings: watch::Receiver<Versioned>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut backoff = Backoff::new(RESTART.0, RESTART.1);
        self.shared.applied.send_replace(self.version);
        loop {
            let begin = Instant::now();
            match self.open().await {
                Ok(source) => {
                    let session = Session::new(&mut self, source, begin);
                    match session.serve(&mut settings, &stop).await? {
                        Ended::Stopped => return Ok(()),
                        Ended::Restart => {}
                    }
                    if begin.elapsed() > RESTART.1 {
                        backoff.reset();
                    }
                }
                Err(error) => {
                    self.broker.refusal = Some(Trouble::UNUSABLE);
                    tracing::warn!(subscription = self.settings.config.name, %error, "no consumer");
                }
            }
            if !self.rest(backoff.next_delay(), &mut settings, &stop).await {
                return Ok(());
            }
        }
    }

    async fn open(&self) -> rdkafka::error::KafkaResult<Source> {
        let connection = &self.worker.connection;
        Source::open(
            connection.properties.clone(),
            &connection.topic,
            &self.settings.config.group_id,
            &self.worker.instance,
        )
        .await
    }

    /// Waits without a consumer, taking new settings. False: it is time to stop.
    async fn rest(
        &mut self,
        delay: Duration,
        settings: &mut watch::Receiver<Versioned>,
        stop: &CancellationToken,
    ) -> bool {
        let until = tokio::time::Instant::now() + delay;
        loop {
            let now = Instant::now();
            self.shared.turned(now);
            let status = self.status(now, None);
            self.shared.report(status);
            tokio::select! {
                () = stop.cancelled() => return false,
                Ok(()) = settings.changed() => {
                    let new = settings.borrow_and_update().clone();
                    self.apply(new);
                }
                () = tokio::time::sleep_until(until) => return true,
            }
        }
    }

    /// Puts settings in force. Deliveries under way finish under the former.
    fn apply(&mut self, (version, settings): Versioned) {
        let former = std::mem::replace(&mut self.settings, settings);
        let same_sink = match (&former.sink, &self.settings.sink) {
            (Ok(former), Ok(new)) => Arc::ptr_eq(former, new),
            _ => false,
        };
        let resumed = former.config.resume != self.settings.config.resume;
        if resumed {
            self.anew.clone_from(&self.out_of_range);
        }
        let (before, now) = (&former.config.delivery, &self.settings.config.delivery);
        if before.on_exhausted != now.on_exhausted {
            self.endpoint.exhausted = None;
        }
        if !same_sink || resumed {
            self.endpoint = Endpoint {
                delivering: self.endpoint.delivering,
                failure: self.endpoint.failure.take(),
                ..Endpoint::default()
            };
        }
        self.version = version;
        self.shared.applied.send_replace(version);
    }
}
