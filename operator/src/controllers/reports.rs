//! What the observer knows, in the form that a reconcile uses.

use super::subscription::position::{self, Offsets};
use super::subscription::status::Progress;
use super::workers::Report;
use crate::context::Context;
use crate::observer::{Shown, WorkerReport, WorkerStatus};
use fanout_contract::consumer::{ConsumerStatus, SubscriptionConfig, SubscriptionState};
use fanout_contract::relay::RelayStatus;
use fanout_crds::fanout_topic::OutboxStatus;
use fanout_crds::{FanoutTopic, ScalingStatus, Subscription, SubscriptionStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// What the ready pods of a relay report.
pub(crate) fn relays(ctx: &Context, namespace: &str, worker: &str) -> Vec<Report<RelayStatus>> {
    reports(ctx, namespace, worker, |status| match status {
        WorkerStatus::Relay(status) => Some(status.clone()),
        WorkerStatus::Consumer(_) => None,
    })
}

/// What the ready pods of a consumer report of the Subscription `uid`.
pub(crate) fn consumers(
    ctx: &Context,
    namespace: &str,
    worker: &str,
    uid: &str,
) -> Vec<Report<ConsumerStatus>> {
    reports(ctx, namespace, worker, |status| match status {
        WorkerStatus::Consumer(status) => Some(ConsumerStatus {
            config_hash: status.config_hash.clone(),
            subscriptions: status
                .subscriptions
                .iter()
                .filter(|entry| entry.uid == uid)
                .cloned()
                .collect(),
        }),
        WorkerStatus::Relay(_) => None,
    })
}

fn reports<S>(
    ctx: &Context,
    namespace: &str,
    worker: &str,
    part: impl Fn(&WorkerStatus) -> Option<S>,
) -> Vec<Report<S>> {
    ctx.observer
        .workers(namespace, worker)
        .into_iter()
        .map(|report| Report {
            status: report.status.as_deref().and_then(&part),
            pod: report.pod,
        })
        .collect()
}

/// Names of the pods of a worker that report the configuration with `hash`.
pub(crate) fn running(ctx: &Context, namespace: &str, worker: &str, hash: &str) -> Vec<String> {
    let runs = |report: &WorkerReport| match report.status.as_deref() {
        Some(WorkerStatus::Relay(status)) => status.config_hash == hash,
        Some(WorkerStatus::Consumer(status)) => status.config_hash == hash,
        None => false,
    };
    ctx.observer
        .workers(namespace, worker)
        .into_iter()
        .filter(runs)
        .map(|report| report.pod)
        .collect()
}

/// True when a pod of the worker has taken over this generation of the Subscription.
pub(crate) fn runs(
    ctx: &Context,
    namespace: &str,
    worker: &str,
    config: &SubscriptionConfig,
) -> bool {
    consumers(ctx, namespace, worker, &config.uid)
        .iter()
        .flat_map(|report| &report.status)
        .flat_map(|status| &status.subscriptions)
        .any(|entry| {
            entry.generation == config.generation && entry.state != SubscriptionState::Starting
        })
}

/// What the outbox columns of `topic` shall show; `changed`: its status is written anyway.
pub(crate) fn outbox(ctx: &Context, topic: &FanoutTopic, changed: bool) -> Option<OutboxStatus> {
    let old = topic
        .status
        .as_ref()
        .and_then(|status| status.outbox.clone());
    let shown = Shown {
        count: old.as_ref().and_then(|outbox| outbox.pending),
        oldest: old
            .as_ref()
            .and_then(|outbox| outbox.oldest_event_time.as_ref())
            .map(|time| time.0),
        ..Shown::default()
    };
    let show = ctx.observer.show(
        topic.metadata.uid.as_deref().unwrap_or_default(),
        &shown,
        changed,
    );
    (old.is_some() || show != Shown::default()).then(|| OutboxStatus {
        pending: show.count,
        oldest_event_time: show.oldest.map(Time),
    })
}

/// What the progress columns and the saved positions of `subscription` shall show, where `next` is its status otherwise;
/// `changed`: it is written anyway.
pub(crate) fn progress(
    ctx: &Context,
    subscription: &Subscription,
    next: &SubscriptionStatus,
    changed: bool,
) -> (Progress, Offsets) {
    let shown = Shown {
        count: next.depth,
        oldest: next.oldest_event_time.as_ref().map(|time| time.0),
        rate_per_second: next.rate_per_second,
        positions: position::offsets(&next.positions),
    };
    let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
    let show = ctx.observer.show(uid, &shown, changed);
    let progress = Progress {
        depth: show.count,
        oldest_event_time: show.oldest.map(Time),
        rate_per_second: show.rate_per_second,
    };
    (progress, show.positions)
}

/// What was decided about the replicas of the worker of `subscription`; what its status has while nothing is known.
pub(crate) fn scaling(ctx: &Context, subscription: &Subscription) -> Option<ScalingStatus> {
    subscription.spec.scaling.as_ref()?;
    let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
    let seen = ctx.observer.subscription(uid);
    let Some(scaled) = seen.and_then(|seen| seen.scaled) else {
        return subscription.status.as_ref()?.scaling.clone();
    };
    let time = |seconds| Timestamp::from_second(seconds).ok().map(Time);
    let rate = |milli| i64::try_from(milli / 1000).ok();
    Some(ScalingStatus {
        replicas: i32::try_from(scaled.replicas).unwrap_or(i32::MAX),
        reason: scaled.reason.as_str().to_owned(),
        message: scaled.message,
        change_time: scaled.changed_at.and_then(time),
        rate_per_replica: scaled.capacity_milli.and_then(rate),
    })
}

/// Partitions of the Kafka topic, where they are known.
pub(crate) fn partitions(ctx: &Context, topic: &FanoutTopic) -> Option<usize> {
    let uid = topic.metadata.uid.as_deref()?;
    ctx.observer.topic(uid)?.partitions
}

/// Records by partition that retention has removed and that nobody has read, while no worker serves `subscription`.
pub(crate) fn expired(ctx: &Context, subscription: &Subscription) -> Offsets {
    let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
    let seen = ctx.observer.subscription(uid);
    seen.map(|seen| seen.expired).unwrap_or_default()
}
