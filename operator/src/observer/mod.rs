//! Observes workers and logs beside the reconcile loop, while this process leads: what workers report on `/status`, and how
//! far every Subscription is behind.
//!
//! It writes nothing itself. It keeps a snapshot that reconciles read, asks for a reconcile when something changed that
//! matters to conditions, or when a number is due to be written, and keeps the metrics. Every question has a deadline, the
//! number of questions under way is bounded, and what got no answer is unknown.

mod autoscale;
mod digest;
mod head;
mod load;
mod log;
mod metrics;
mod poll;
mod rows;
mod saving;
mod state;
mod target;
mod write;

pub use autoscale::Scaled;
pub(crate) use digest::coarse;
pub use head::Head;
pub use load::UnderWay;
pub use log::TopicState;
pub use poll::WorkerStatus;
pub use target::{
    Log, ScalingTarget, SubscriptionTarget, Targets, TopicTarget, WorkerKind, WorkerTarget,
};
pub use write::{Seen, Shown};

use crate::kafka::{Clusters, ErrorClass};
use crate::scaling::lag::Waiting;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use metrics::Metrics;
use poll::{PollError, Poller};
use prometheus_client::registry::Registry;
use state::State;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Look for what is due.
    pub tick: Duration,
    /// Between two questions to one worker.
    pub workers: Duration,
    /// Between two readings of one log.
    pub logs: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(500),
            workers: Duration::from_secs(2),
            logs: Duration::from_secs(5),
        }
    }
}

/// Questions to workers under way at once.
const POLLS_AT_ONCE: usize = 32;
/// Topics read at once. Each asks its groups side by side, on a client shared per cluster.
const LOGS_AT_ONCE: usize = 64;

/// Kind of an object to reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TriggerKind {
    /// A FanoutTopic.
    FanoutTopic,
    /// A Subscription.
    Subscription,
}

/// An object to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trigger {
    /// Its kind.
    pub kind: TriggerKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What one pod of a worker last reported.
#[derive(Clone, Debug)]
pub struct WorkerReport {
    /// Name of the pod.
    pub pod: String,
    /// Uid of the pod.
    pub pod_uid: String,
    /// The report; `None` while there is none that is young enough to go by.
    pub status: Option<Arc<WorkerStatus>>,
    /// How old the report is.
    pub age: Option<Duration>,
}

/// What is known of a FanoutTopic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicObservation {
    /// Rows that wait, and since when.
    pub outbox: Seen,
    /// Why Kafka could not be read in the last round; `None`: it was read, or not yet.
    pub log_error: Option<ErrorClass>,
    /// Partitions of the Kafka topic.
    pub partitions: Option<usize>,
    /// What the Kafka topic was like in the last round that could read it.
    pub state: Option<TopicState>,
}

/// What is known of a Subscription.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubscriptionObservation {
    /// Depth, head, rate and committed offsets.
    pub progress: Seen,
    /// What waits, by how it moves; `None`: unknown.
    pub waiting: Option<Waiting>,
    /// Records that arrive per second; `None`: unknown.
    pub arrival_per_second: Option<f64>,
    /// What its workers have under way; `None`: unknown.
    pub under_way: Option<UnderWay>,
    /// Failed attempts of all attempts of the last half minute; `None`: unknown, or there was none.
    pub failure_ratio: Option<f64>,
    /// What was decided about the replicas of its worker.
    pub scaled: Option<Scaled>,
    /// True when the brokers refused the consumers' principal the group in the last round.
    pub refused: bool,
    /// Records by partition that retention has removed and that nobody has read, while no worker serves it.
    pub expired: std::collections::BTreeMap<i32, i64>,
}

/// The observer: a snapshot for readers, and the loop that keeps it.
pub struct Observer {
    clusters: Arc<Clusters>,
    poller: Poller,
    metrics: Metrics,
    timing: Timing,
    state: Mutex<State>,
    triggers: Mutex<BTreeSet<Trigger>>,
    triggered: Notify,
}

/// Why an observer could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client for workers can't be set up")]
pub struct SetupError(#[from] reqwest::Error);

/// Registers the observer's metrics, with a series for each value of their closed labels.
pub(crate) fn sample_metrics(registry: &mut Registry) {
    Metrics::new(registry).sample();
}

/// Something the loop waited for.
enum Done {
    Worker(Box<(WorkerTarget, Result<WorkerStatus, PollError>)>),
    Log(String, Result<log::Reading, crate::kafka::KafkaError>),
}

impl Observer {
    /// An observer that knows nothing yet, with its metrics registered.
    ///
    /// # Errors
    /// The HTTP client can't be set up: no TLS provider is installed.
    pub fn new(
        clusters: Arc<Clusters>,
        timing: Timing,
        registry: &mut Registry,
    ) -> Result<Self, SetupError> {
        Ok(Self {
            clusters,
            poller: Poller::new()?,
            metrics: Metrics::new(registry),
            timing,
            state: Mutex::default(),
            triggers: Mutex::default(),
            triggered: Notify::new(),
        })
    }

    /// The pods of a worker that are ready, with what they last reported.
    pub fn workers(&self, namespace: &str, worker: &str) -> Vec<WorkerReport> {
        self.state().workers(namespace, worker, Instant::now())
    }

    /// What is known of the FanoutTopic with this uid; `None` before it was first listed.
    pub fn topic(&self, uid: &str) -> Option<TopicObservation> {
        self.state().topic(uid)
    }

    /// What is known of the Subscription with this uid; `None` before it was first listed.
    pub fn subscription(&self, uid: &str) -> Option<SubscriptionObservation> {
        self.state().subscription(uid)
    }

    /// What the status of the object `uid` shall show: what it shows (`shown`), or the latest numbers if the status is written
    /// anyway because a condition changed (`changed`), or if a write for the numbers' sake is granted. Uses up the grant.
    pub fn show(&self, uid: &str, shown: &Shown, changed: bool) -> Shown {
        self.state().show(uid, shown, changed, Instant::now())
    }

    /// Waits until something asks for a reconcile, and takes everything that does.
    pub async fn triggers(&self) -> BTreeSet<Trigger> {
        loop {
            let wanted = self.triggered.notified();
            let all =
                std::mem::take(&mut *self.triggers.lock().unwrap_or_else(PoisonError::into_inner));
            if !all.is_empty() {
                return all;
            }
            wanted.await;
        }
    }

    /// Observes what `targets` lists until `shutdown`.
    pub async fn run(&self, targets: &dyn Targets, shutdown: CancellationToken) {
        let mut under_way: FuturesUnordered<BoxFuture<'_, Done>> = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(self.timing.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => self.tick(targets, &mut under_way),
                Some(done) = under_way.next() => self.done(done),
            }
        }
    }

    /// Takes over the lists, starts what is due, and asks for the writes that are.
    fn tick<'a>(
        &'a self,
        targets: &dyn Targets,
        under_way: &mut FuturesUnordered<BoxFuture<'a, Done>>,
    ) {
        let now = Instant::now();
        let (workers, topics) = (targets.workers(), targets.topics());
        let mut state = self.state();
        let mut news = state.list(&workers, &topics, &self.metrics, now);
        for target in state.due_workers(workers, now, self.timing.workers, POLLS_AT_ONCE) {
            under_way.push(Box::pin(async move {
                let status = self.poller.status(&target).await;
                Done::Worker(Box::new((target, status)))
            }));
        }
        for target in state.due_logs(topics, now, self.timing.logs, LOGS_AT_ONCE) {
            under_way.push(Box::pin(async move {
                let reading = log::read(&self.clusters, &target).await;
                Done::Log(target.uid, reading)
            }));
        }
        let granted = state.grant(now, Timestamp::now());
        self.metrics.granted(granted.len());
        news.extend(granted);
        state.measure(&self.metrics, Timestamp::now());
        drop(state);
        self.trigger(news);
    }

    fn done(&self, done: Done) {
        let now = Instant::now();
        let news = match done {
            Done::Worker(answer) => {
                let (target, status) = *answer;
                if let Err(error) = &status {
                    self.metrics.failed(metrics::Source::Worker);
                    tracing::debug!(%error, pod = target.pod, namespace = target.namespace, "status of a worker");
                }
                self.state().reported(&target, status, now)
            }
            Done::Log(uid, reading) => {
                if let Err(error) = &reading {
                    self.metrics.failed(metrics::Source::Kafka);
                    tracing::debug!(%error, uid, "log of a FanoutTopic");
                }
                self.state().read(&uid, reading, now)
            }
        };
        self.trigger(news);
    }

    fn trigger(&self, news: BTreeSet<Trigger>) {
        if news.is_empty() {
            return;
        }
        self.triggers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(news);
        self.triggered.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
