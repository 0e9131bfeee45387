//! What the process knows about itself: `/status` and `/metrics`.

use crate::broker;
use crate::claim::{Polls, Shards};
use crate::position::{Fence, Position};
use crate::source;
use fanout_contract::reason::BrokerError;
use fanout_contract::relay::{LongTransaction, Parked, Pending, RangeStatus, RelayStatus};
use prometheus_client::encoding::{EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Label set of [`Stats::errors`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ErrorLabels {
    /// `source` or `broker`.
    pub side: &'static str,
    /// Class.
    pub class: String,
}

/// A range this process works on.
#[derive(Clone, Debug)]
pub struct RangeState {
    /// Its shards.
    pub shards: Shards,
    /// Its lease.
    pub fence: Fence,
    /// Last stored position.
    pub position: Position,
}

#[derive(Debug, Default)]
struct State {
    status: RelayStatus,
    ranges: BTreeMap<i64, RangeState>,
    /// Ranges with parked rows that are to be released or dropped, as last measured.
    release: BTreeSet<i64>,
}

/// Shared by everything in the process.
#[derive(Debug, Default)]
pub struct Stats {
    state: Mutex<State>,
    published: AtomicU64,
    /// Polls of all ranges.
    pub polls: Polls,
    /// Errors by class.
    pub errors: Family<ErrorLabels, Counter>,
    produce_seconds: OnceHistogram,
    /// Moment of the main loop's last turn, milliseconds since the process started.
    turned: AtomicU64,
    started: Started,
}

#[derive(Debug)]
struct Started(Instant);

impl Default for Started {
    fn default() -> Self {
        Self(Instant::now())
    }
}

#[derive(Clone, Debug)]
struct OnceHistogram(Histogram);

impl Default for OnceHistogram {
    fn default() -> Self {
        Self(Histogram::new([
            0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
        ]))
    }
}

impl Stats {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `/status`.
    pub fn status(&self) -> RelayStatus {
        let state = self.state();
        let ranges = state.ranges.values().map(|range| RangeStatus {
            id: range.fence.range,
            lo: range.shards.lo,
            hi: range.shards.hi,
            term: range.fence.term,
        });
        RelayStatus {
            ranges: ranges.collect(),
            published_total: self.published.load(Ordering::Relaxed),
            ..state.status.clone()
        }
    }

    /// A new configuration is in force; what was known under the old one is not known any more.
    pub fn begin(&self, hash: &str, generation: i64, suspended: bool) {
        let mut state = self.state();
        let status = &mut state.status;
        hash.clone_into(&mut status.config_hash);
        status.generation = generation;
        status.suspended = suspended;
        status.source_error = None;
        status.broker_error = None;
        status.source_checked = false;
        status.ordered = None;
        status.positions_deleted = false;
        status.pending = None;
        status.long_transaction = None;
    }

    /// The database holds no position of the topic any more.
    pub fn positions_deleted(&self) {
        let status = &mut self.state().status;
        status.positions_deleted = true;
        status.source_error = None;
    }

    /// Whether the outbox can be read.
    pub fn source(&self, outcome: Result<(), source::Failure>) {
        let mut state = self.state();
        if let Err(failure) = &outcome {
            self.count("source", format!("{:?}", failure.class));
            if state.status.source_error.as_ref() != Some(failure) {
                tracing::warn!(class = ?failure.class, reason = %failure.message, "the outbox can't be read");
            }
            state.status.pending = None;
        }
        state.status.source_checked = outcome.is_ok();
        state.status.source_error = outcome.err();
    }

    /// Whether the rows of the outbox have an order.
    pub fn ordered(&self, ordered: bool) {
        self.state().status.ordered = Some(ordered);
    }

    /// Whether records can be produced.
    pub fn broker(&self, outcome: Result<(), broker::Failure>) {
        let mut state = self.state();
        if let Err(failure) = &outcome {
            self.count("broker", format!("{:?}", failure.class));
            if state.status.broker_error.as_ref() != Some(failure) {
                tracing::warn!(class = ?failure.class, reason = %failure.message, "nothing can be produced");
            }
        }
        state.status.broker_error = outcome.err();
    }

    /// A connection stands, so an error that said otherwise is over, also while there is nothing to produce. Any other
    /// error ends with the next record that is taken.
    pub fn broker_reached(&self) {
        let status = &mut self.state().status;
        status
            .broker_error
            .take_if(|failure| failure.class == BrokerError::Unreachable);
    }

    fn count(&self, side: &'static str, class: String) {
        self.errors
            .get_or_create(&ErrorLabels { side, class })
            .inc();
    }

    /// `rows` were published, `took` after they were handed over.
    pub fn published(&self, rows: usize, took: Duration) {
        self.published.fetch_add(rows as u64, Ordering::Relaxed);
        self.produce_seconds.0.observe(took.as_secs_f64());
    }

    /// Rows published since the process started.
    pub fn published_total(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Works on a range, or stored a position in it.
    pub fn range(&self, range: RangeState) {
        let mut state = self.state();
        state.ranges.insert(range.fence.range, range);
        self.polls
            .readers
            .store(state.ranges.len(), Ordering::Relaxed);
    }

    /// Works on a range no more.
    pub fn forget_range(&self, id: i64) {
        let mut state = self.state();
        state.ranges.remove(&id);
        if state.ranges.is_empty() {
            state.status.pending = None;
        }
        self.polls
            .readers
            .store(state.ranges.len(), Ordering::Relaxed);
    }

    /// The ranges this process works on.
    pub fn ranges(&self) -> Vec<RangeState> {
        self.state().ranges.values().cloned().collect()
    }

    /// Sets what was measured.
    pub fn measured(
        &self,
        pending: Option<Pending>,
        parked: Parked,
        long: Option<LongTransaction>,
    ) {
        let status = &mut self.state().status;
        status.pending = pending;
        status.parked = parked;
        status.long_transaction = long;
    }

    /// Parked rows of these ranges, and of no others, are to be released or dropped.
    pub fn ask_release(&self, ranges: BTreeSet<i64>) {
        self.state().release = ranges;
    }

    /// True where parked rows of the range are to be released or dropped.
    pub fn is_release_asked(&self, range: i64) -> bool {
        self.state().release.contains(&range)
    }

    /// Somebody sees to it.
    pub fn take_release(&self, range: i64) {
        self.state().release.remove(&range);
    }

    /// Sets the rate, rows per second.
    pub fn rate(&self, per_second: f64) {
        self.state().status.rate_per_second = per_second;
    }

    /// The main loop made a turn.
    pub fn turn(&self) {
        let now = self.started.0.elapsed().as_millis();
        self.turned
            .store(now.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Time since the main loop's last turn.
    pub fn since_turn(&self) -> Duration {
        let turned = Duration::from_millis(self.turned.load(Ordering::Relaxed));
        self.started.0.elapsed().saturating_sub(turned)
    }
}

/// Gauges that are computed from the status at each scrape would need a collector; these are set when measured.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Rows waiting, at least.
    pub pending_rows: Gauge,
    /// Age of the first of them.
    pub oldest: Gauge<f64, AtomicU64>,
    /// Rows that can't be produced.
    pub parked_rows: Gauge,
    /// Rows held behind them.
    pub held_rows: Gauge,
    /// Ranges owned.
    pub ranges: Gauge,
}

/// Registers every metric.
pub fn register(stats: &Arc<Stats>, gauges: &Gauges) -> Registry {
    let mut registry = Registry::with_prefix("fanout_relay");
    registry.register(
        "published",
        "Rows published",
        SharedCounter(stats.clone(), Stats::published_total),
    );
    registry.register(
        "polls",
        "Reads of the outbox",
        SharedCounter(stats.clone(), |stats| {
            stats.polls.count.load(Ordering::Relaxed)
        }),
    );
    registry.register("errors", "Errors by side and class", stats.errors.clone());
    registry.register_with_unit(
        "produce",
        "From handing a batch over to its last acknowledgement",
        Unit::Seconds,
        stats.produce_seconds.0.clone(),
    );
    registry.register(
        "pending_rows",
        "Committed rows not yet published, at least",
        gauges.pending_rows.clone(),
    );
    registry.register_with_unit(
        "oldest",
        "Age of the oldest of them",
        Unit::Seconds,
        gauges.oldest.clone(),
    );
    registry.register(
        "parked_rows",
        "Rows that can't be produced as they are",
        gauges.parked_rows.clone(),
    );
    registry.register(
        "held_rows",
        "Rows held behind a parked row of their key",
        gauges.held_rows.clone(),
    );
    registry.register("ranges", "Ranges this process owns", gauges.ranges.clone());
    registry
}

/// Every metric of a relay, with a series for each label: what docs/reference/metrics.md is made from.
///
/// # Errors
/// The metrics can't be encoded.
pub fn sample_metrics() -> Result<String, std::fmt::Error> {
    let stats = Arc::new(Stats::default());
    for side in ["source", "broker"] {
        stats.count(side, "class".to_owned());
    }
    let mut text = String::new();
    let registry = register(&stats, &Gauges::default());
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// A counter whose value lives elsewhere.
#[derive(Debug)]
struct SharedCounter(Arc<Stats>, fn(&Stats) -> u64);

impl prometheus_client::encoding::EncodeMetric for SharedCounter {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::MetricEncoder<'_>,
    ) -> std::fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, u64>(&(self.1)(&self.0), None)
    }

    fn metric_type(&self) -> prometheus_client::metrics::MetricType {
        prometheus_client::metrics::MetricType::Counter
    }
}
