//! Live numbers. A series exists only while its value is known, so that nothing stale or made up is scraped.

use super::{Seen, SubscriptionObservation};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SubscriptionLabels {
    pub(super) namespace: String,
    pub(super) topic: String,
    pub(super) subscription: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TopicLabels {
    pub(super) namespace: String,
    pub(super) topic: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    source: Source,
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Source {
    /// A worker's `/status`.
    Worker,
    /// Kafka.
    Kafka,
}

type Fraction = Gauge<f64, AtomicU64>;

/// The observer's metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    lag: Family<SubscriptionLabels, Gauge>,
    subscription_oldest: Family<SubscriptionLabels, Fraction>,
    arrival: Family<SubscriptionLabels, Fraction>,
    drain: Family<SubscriptionLabels, Fraction>,
    failing: Family<SubscriptionLabels, Fraction>,
    replicas: Family<SubscriptionLabels, Gauge>,
    rows: Family<TopicLabels, Gauge>,
    outbox_oldest: Family<TopicLabels, Fraction>,
    failures: Family<FailureLabels, Counter>,
    writes: Counter,
}

impl Metrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "fanout_subscription_lag_records",
            "Log records a Subscription has not completed, before its filter",
            metrics.lag.clone(),
        );
        registry.register_with_unit(
            "fanout_subscription_oldest",
            "Age of the oldest record a Subscription has not completed; 0 when none waits",
            Unit::Seconds,
            metrics.subscription_oldest.clone(),
        );
        registry.register(
            "fanout_subscription_arrival_rate",
            "Log records that arrive per second for a Subscription, before its filter, over half a minute",
            metrics.arrival.clone(),
        );
        registry.register(
            "fanout_subscription_drain_rate",
            "Log records that a Subscription completes per second, over half a minute",
            metrics.drain.clone(),
        );
        registry.register(
            "fanout_subscription_failure_ratio",
            "Failed attempts of all attempts of the last half minute; no series while there is none",
            metrics.failing.clone(),
        );
        registry.register(
            "fanout_subscription_replicas",
            "Replicas that are wanted of a Subscription's worker, where they follow the work",
            metrics.replicas.clone(),
        );
        registry.register(
            "fanout_outbox_rows",
            "Committed outbox rows not yet published; 1000000 means at least so many",
            metrics.rows.clone(),
        );
        registry.register_with_unit(
            "fanout_outbox_oldest",
            "Age of the oldest outbox row not yet published; 0 when none waits",
            Unit::Seconds,
            metrics.outbox_oldest.clone(),
        );
        registry.register(
            "fanout_observer_failures",
            "Questions of the operator that got no answer",
            metrics.failures.clone(),
        );
        registry.register(
            "fanout_observer_writes_granted",
            "Status writes that moved numbers alone asked for",
            metrics.writes.clone(),
        );
        metrics
    }

    /// Gives every family a series for each value of its closed labels.
    pub(super) fn sample(&self) {
        let text = |text: &str| text.to_owned();
        let labels = SubscriptionLabels {
            namespace: text("namespace"),
            topic: text("topic"),
            subscription: text("subscription"),
        };
        let seen = SubscriptionObservation {
            progress: Seen {
                count: Some(0),
                rate_per_second: Some(0.0),
                ..Seen::default()
            },
            arrival_per_second: Some(0.0),
            failure_ratio: Some(0.0),
            scaled: Some(super::Scaled {
                replicas: 1,
                reason: crate::scaling::Reason::Sufficient,
                message: String::new(),
                changed_at: None,
                capacity_milli: None,
            }),
            ..SubscriptionObservation::default()
        };
        self.subscription(&labels, &seen, Some(0.0));
        let labels = TopicLabels {
            namespace: text("namespace"),
            topic: text("topic"),
        };
        self.topic(&labels, Some(0), Some(0.0));
        self.failed(Source::Worker);
        self.failed(Source::Kafka);
    }

    pub(super) fn failed(&self, source: Source) {
        self.failures.get_or_create(&FailureLabels { source }).inc();
    }

    pub(super) fn granted(&self, writes: usize) {
        self.writes
            .inc_by(u64::try_from(writes).unwrap_or(u64::MAX));
    }

    pub(super) fn subscription(
        &self,
        labels: &SubscriptionLabels,
        seen: &SubscriptionObservation,
        age: Option<f64>,
    ) {
        set(&self.lag, labels, seen.progress.count);
        set_fraction(&self.arrival, labels, seen.arrival_per_second);
        set_fraction(&self.drain, labels, seen.progress.rate_per_second);
        set_fraction(&self.failing, labels, seen.failure_ratio);
        let replicas = seen
            .scaled
            .as_ref()
            .map(|scaled| i64::from(scaled.replicas));
        set(&self.replicas, labels, replicas);
        set_fraction(&self.subscription_oldest, labels, age);
    }

    pub(super) fn topic(&self, labels: &TopicLabels, rows: Option<i64>, age: Option<f64>) {
        set(&self.rows, labels, rows);
        set_fraction(&self.outbox_oldest, labels, age);
    }
}

fn set<L>(family: &Family<L, Gauge>, labels: &L, value: Option<i64>)
where
    L: Clone + std::hash::Hash + Eq,
{
    match value {
        Some(value) => {
            family.get_or_create(labels).set(value);
        }
        None => {
            family.remove(labels);
        }
    }
}

fn set_fraction<L>(family: &Family<L, Fraction>, labels: &L, value: Option<f64>)
where
    L: Clone + std::hash::Hash + Eq,
{
    match value {
        Some(value) => {
            family.get_or_create(labels).set(value);
        }
        None => {
            family.remove(labels);
        }
    }
}
