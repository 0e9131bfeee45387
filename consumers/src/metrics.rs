//! Metrics of a worker. The labels `namespace` and `subscription` are bounded: a worker serves at most 100
//! subscriptions, and a subscription's series go when it does.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::time::Duration;

/// Bounds of the histogram, seconds.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Subscription {
    namespace: String,
    subscription: String,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Attempt {
    Delivered,
    Failed,
    Paused,
    Gone,
    Refused,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    Delivered,
    Filtered,
    FilterError,
    DeadLettered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    namespace: String,
    subscription: String,
    outcome: Attempt,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    namespace: String,
    subscription: String,
    outcome: Outcome,
}

/// All families.
pub(crate) struct Metrics {
    namespace: String,
    attempts: Family<AttemptLabels, Counter>,
    events: Family<OutcomeLabels, Counter>,
    duration: Family<Subscription, Histogram>,
    in_flight: Family<Subscription, Gauge>,
    retrying: Family<Subscription, Gauge>,
    concurrency: Family<Subscription, Gauge>,
    unavailable: Family<Subscription, Gauge>,
    expired: Family<Subscription, Counter>,
    rebalances: Family<Subscription, Counter>,
    commit_failures: Family<Subscription, Counter>,
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn register(namespace: &str, registry: &mut Registry) -> Arc<Self> {
        let metrics = Self {
            namespace: namespace.to_owned(),
            attempts: Family::default(),
            events: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            in_flight: Family::default(),
            retrying: Family::default(),
            concurrency: Family::default(),
            unavailable: Family::default(),
            expired: Family::default(),
            rebalances: Family::default(),
            commit_failures: Family::default(),
        };
        registry.register(
            "fanout_delivery_attempts",
            "Delivery attempts by outcome",
            metrics.attempts.clone(),
        );
        registry.register(
            "fanout_subscription_events",
            "Events finished by outcome",
            metrics.events.clone(),
        );
        registry.register_with_unit(
            "fanout_delivery_duration",
            "Time of a delivery attempt, from request to answer",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register(
            "fanout_subscription_in_flight",
            "Events being delivered",
            metrics.in_flight.clone(),
        );
        registry.register(
            "fanout_subscription_retrying",
            "Events waiting for a retry",
            metrics.retrying.clone(),
        );
        registry.register(
            "fanout_subscription_concurrency",
            "Requests that may be under way at once: what the endpoint was found to take, at most maxInFlight",
            metrics.concurrency.clone(),
        );
        registry.register(
            "fanout_endpoint_unavailable",
            "1 while the endpoint is taken for down: only probes go to it, and no attempt counts",
            metrics.unavailable.clone(),
        );
        registry.register(
            "fanout_subscription_expired_offsets",
            "Offsets that retention removed before they were read",
            metrics.expired.clone(),
        );
        registry.register(
            "fanout_subscription_rebalances",
            "Assignments and revocations",
            metrics.rebalances.clone(),
        );
        registry.register(
            "fanout_commit_failures",
            "Offset commits that failed",
            metrics.commit_failures.clone(),
        );
        Arc::new(metrics)
    }

    /// Series of one subscription; they go when the handle does.
    pub(crate) fn subscription(self: &Arc<Self>, name: &str) -> Series {
        Series {
            metrics: Arc::clone(self),
            labels: Subscription {
                namespace: self.namespace.clone(),
                subscription: name.to_owned(),
            },
        }
    }
}

/// Outcomes of attempts, all of them.
const ATTEMPTS: [Attempt; 5] = [
    Attempt::Delivered,
    Attempt::Failed,
    Attempt::Paused,
    Attempt::Gone,
    Attempt::Refused,
];
/// Outcomes of events, all of them.
const OUTCOMES: [Outcome; 4] = [
    Outcome::Delivered,
    Outcome::Filtered,
    Outcome::FilterError,
    Outcome::DeadLettered,
];

/// What `/metrics` shows of a subscription to which everything happened.
///
/// # Errors
/// The metrics can't be encoded.
pub(crate) fn sample() -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    let metrics = Metrics::register("namespace", &mut registry);
    let series = metrics.subscription("subscription");
    for outcome in ATTEMPTS {
        series.attempt(outcome, Duration::ZERO);
    }
    for outcome in OUTCOMES {
        series.event(outcome);
    }
    series.held(0, 0);
    series.endpoint(0, false);
    series.expired(0);
    series.rebalance();
    series.commit_failure();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Series of one subscription.
pub(crate) struct Series {
    metrics: Arc<Metrics>,
    labels: Subscription,
}

impl Series {
    pub(crate) fn attempt(&self, outcome: Attempt, took: Duration) {
        let labels = self.attempt_labels(outcome);
        self.metrics.attempts.get_or_create(&labels).inc();
        self.metrics
            .duration
            .get_or_create(&self.labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn event(&self, outcome: Outcome) {
        self.metrics
            .events
            .get_or_create(&self.outcome_labels(outcome))
            .inc();
    }

    pub(crate) fn held(&self, in_flight: usize, retrying: usize) {
        let count = |value| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics
            .in_flight
            .get_or_create(&self.labels)
            .set(count(in_flight));
        self.metrics
            .retrying
            .get_or_create(&self.labels)
            .set(count(retrying));
    }

    pub(crate) fn endpoint(&self, concurrency: u32, is_unavailable: bool) {
        self.metrics
            .concurrency
            .get_or_create(&self.labels)
            .set(concurrency.into());
        self.metrics
            .unavailable
            .get_or_create(&self.labels)
            .set(is_unavailable.into());
    }

    pub(crate) fn expired(&self, offsets: i64) {
        let offsets = u64::try_from(offsets).unwrap_or_default();
        self.metrics
            .expired
            .get_or_create(&self.labels)
            .inc_by(offsets);
    }

    pub(crate) fn rebalance(&self) {
        self.metrics.rebalances.get_or_create(&self.labels).inc();
    }

    pub(crate) fn commit_failure(&self) {
        self.metrics
            .commit_failures
            .get_or_create(&self.labels)
            .inc();
    }

    fn attempt_labels(&self, outcome: Attempt) -> AttemptLabels {
        AttemptLabels {
            namespace: self.labels.namespace.clone(),
            subscription: self.labels.subscription.clone(),
            outcome,
        }
    }

    fn outcome_labels(&self, outcome: Outcome) -> OutcomeLabels {
        OutcomeLabels {
            namespace: self.labels.namespace.clone(),
            subscription: self.labels.subscription.clone(),
            outcome,
        }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let metrics = &self.metrics;
        for outcome in ATTEMPTS {
            metrics.attempts.remove(&self.attempt_labels(outcome));
        }
        for outcome in OUTCOMES {
            metrics.events.remove(&self.outcome_labels(outcome));
        }
        metrics.duration.remove(&self.labels);
        metrics.in_flight.remove(&self.labels);
        metrics.retrying.remove(&self.labels);
        metrics.concurrency.remove(&self.labels);
        metrics.unavailable.remove(&self.labels);
        metrics.expired.remove(&self.labels);
        metrics.rebalances.remove(&self.labels);
        metrics.commit_failures.remove(&self.labels);
    }
}
