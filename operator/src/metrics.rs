//! What the reconcile loop did. Labels are closed sets: no object names.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Kind of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Kind {
    FanoutTopic,
    Subscription,
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Passed {
    Ok,
    /// Somebody else wrote at the same time.
    Conflict,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: Kind,
    result: Passed,
}

/// Counters of the reconcile loop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    reconciles: Family<Labels, Counter>,
}

impl Metrics {
    /// Registered in `registry`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "fanout_operator_reconciles",
            "Passes over objects by kind and result",
            metrics.reconciles.clone(),
        );
        metrics
    }

    /// Gives every family a series for each value of its labels.
    pub(crate) fn sample(&self) {
        for kind in [Kind::FanoutTopic, Kind::Subscription] {
            for result in [Passed::Ok, Passed::Conflict, Passed::Failed] {
                self.reconciled(kind, result);
            }
        }
    }

    /// One pass ended.
    pub(crate) fn reconciled(&self, kind: Kind, result: Passed) {
        self.reconciles
            .get_or_create(&Labels { kind, result })
            .inc();
    }
}
