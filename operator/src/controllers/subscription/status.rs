//! The status of a Subscription from what one pass found. Pure; runs on success and on failure alike.

use super::expired;
use super::position::Offsets;
use crate::controllers::conditions::{self, Finding, Truth};
use crate::controllers::error::Invalid;
use crate::controllers::fanout_topic::log::Problem;
use crate::controllers::workers::{Pods, Report};
use fanout_contract::consumer::{
    ConsumerStatus, StopReason, SubscriptionState, SubscriptionStatus as Reported,
};
use fanout_crds::condition::{
    DELIVERING, POSITION_INITIALIZED, READY, RECONCILING, RECORDS_EXPIRED, SINK_ACCEPTED, STALLED,
    WORKERS_AVAILABLE, reason,
};
use fanout_crds::subscription::Position;
use fanout_crds::{Subscription, SubscriptionStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

/// What one pass found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Why the spec can't be used.
    pub(crate) invalid: Option<Invalid>,
    /// What Kafka refuses until a human acts.
    pub(crate) refused: Option<Problem>,
    /// Reason and message of a failure that is tried again.
    pub(crate) failure: Option<(&'static str, String)>,
    /// Consumer group, once decided.
    pub(crate) group_id: Option<String>,
    /// Worker, once decided.
    pub(crate) placement: Option<String>,
    /// Recorded positions.
    pub(crate) positions: Vec<Position>,
    /// Kafka topic that they belong to.
    pub(crate) topic_id: Option<String>,
    /// They were compared with the committed offsets in this pass.
    pub(crate) positions_read: bool,
    /// Records by partition that retention removed while no worker serves the Subscription.
    pub(crate) expired: Offsets,
    /// Whether every partition has an offset; `None`: not asked.
    pub(crate) position: Option<Finding>,
    /// The worker; `None`: not looked at.
    pub(crate) worker: Option<Worker>,
    /// What the progress columns shall show.
    pub(crate) progress: Progress,
}

/// The worker of a Subscription.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    /// Counts.
    pub(crate) pods: Pods,
    /// What each ready pod reports.
    pub(crate) reports: Vec<Report<ConsumerStatus>>,
    /// True when the worker has not taken over its whole configuration for so long that it must be said, although it
    /// runs this Subscription's generation (a rotated secret, another broker address).
    pub(crate) overdue: bool,
}

/// The progress columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// Log records not yet completed.
    pub(crate) depth: Option<i64>,
    /// Kafka timestamp of the oldest of them.
    pub(crate) oldest_event_time: Option<Time>,
    /// Events completed per second.
    pub(crate) rate_per_second: Option<i64>,
}

impl Progress {
    /// As the status shows it.
    pub(crate) fn shown(status: &SubscriptionStatus) -> Self {
        Self {
            depth: status.depth,
            oldest_event_time: status.oldest_event_time.clone(),
            rate_per_second: status.rate_per_second,
        }
    }
}

/// The next status of `subscription`.
pub(crate) fn next(
    subscription: &Subscription,
    outcome: &Outcome,
    now: Timestamp,
) -> SubscriptionStatus {
    let old = subscription.status.clone().unwrap_or_default();
    let generation = subscription.metadata.generation.unwrap_or_default();
    let before = |kind| conditions::get(&old.conditions, kind).unwrap_or_else(pending);
    let reported = reported(subscription, outcome.worker.as_ref());
    let stopped = stopped(&reported, generation);
    let position = outcome
        .position
        .clone()
        .unwrap_or_else(|| before(POSITION_INITIALIZED));
    let sink = sink_accepted(outcome, stopped);
    let workers = outcome.worker.as_ref().map_or_else(
        || before(WORKERS_AVAILABLE),
        |worker| workers_available(worker, &reported, generation, &before(WORKERS_AVAILABLE)),
    );
    // What can't be used is in no worker's configuration, however well the worker is.
    let workers = outcome.invalid.as_ref().map_or(workers, |invalid| {
        Finding::no(
            invalid.reason,
            "no worker serves it until its spec is mended",
        )
    });
    let told = delivering(&reported);
    let delivering = told
        .clone()
        .unwrap_or_else(|| idle(before(DELIVERING), &reported));
    let trouble = trouble(&reported);
    let stalled = stalled(outcome, stopped.or(trouble), &reported);
    let partitions = entries(&reported).flat_map(|entry| &entry.partitions);
    let expired = expired::finding(partitions, &outcome.expired, &old.conditions, now);
    let ready = ready(
        subscription,
        outcome,
        &stalled,
        [&position, &sink, &workers],
        Outlook::new(&reported, told.as_ref(), &delivering),
        &expired,
    );
    let reconciling = if ready.holds() || stalled.holds() {
        Finding::no(reason::SUCCEEDED, "")
    } else {
        Finding::yes(reason::PROGRESSING, ready.message.clone())
    };
    SubscriptionStatus {
        observed_generation: Some(generation),
        conditions: conditions::documented(conditions::merge(
            &old.conditions,
            generation,
            now,
            vec![
                (READY, ready),
                (RECONCILING, reconciling),
                (STALLED, stalled),
                (POSITION_INITIALIZED, position),
                (SINK_ACCEPTED, sink),
                (WORKERS_AVAILABLE, workers),
                (DELIVERING, delivering),
                (RECORDS_EXPIRED, expired),
            ],
        )),
        sink: Some(subscription.spec.sink.kind().to_owned()),
        group_id: outcome.group_id.clone().or(old.group_id),
        positions: outcome.positions.clone(),
        topic_id: outcome.topic_id.clone().or(old.topic_id),
        depth: outcome.progress.depth,
        oldest_event_time: outcome.progress.oldest_event_time.clone(),
        rate_per_second: outcome.progress.rate_per_second,
        placement: outcome.placement.clone().or(old.placement),
        workers: outcome
            .worker
            .as_ref()
            .map_or(old.workers, |worker| Some(worker.pods.column())),
        scaling: old.scaling,
    }
}

fn pending() -> Finding {
    Finding::unknown(reason::PENDING, "")
}

/// What one pod of its worker reports of this Subscription.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen<'a> {
    /// Its status is not known.
    Unknown,
    /// It does not have the Subscription.
    Absent,
    /// It has it.
    Entry(&'a Reported),
}

/// What is to be seen of delivery beside the conditions that are needed.
#[derive(Clone, Copy, Debug)]
struct Outlook<'a> {
    /// A worker is kept from the log.
    no_log: bool,
    /// Why nothing gets through, as far as it is known now.
    failing: Option<&'a Finding>,
}

impl<'a> Outlook<'a> {
    fn new(reported: &[Seen<'_>], told: Option<&'a Finding>, delivering: &'a Finding) -> Self {
        // An answer that is missing is no news: what it said before counts.
        let seen = if is_unknown(reported) {
            Some(delivering)
        } else {
            told
        };
        Self {
            no_log: trouble(reported).is_some(),
            failing: seen.filter(|finding| finding.truth == Truth::False),
        }
    }
}

fn is_unknown(reported: &[Seen<'_>]) -> bool {
    reported.is_empty() || reported.contains(&Seen::Unknown)
}

fn reported<'a>(subscription: &Subscription, worker: Option<&'a Worker>) -> Vec<Seen<'a>> {
    let uid = subscription.uid().unwrap_or_default();
    worker
        .into_iter()
        .flat_map(|worker| &worker.reports)
        .map(|report| {
            report.status.as_ref().map_or(Seen::Unknown, |status| {
                let entry = status.subscriptions.iter().find(|entry| entry.uid == uid);
                entry.map_or(Seen::Absent, Seen::Entry)
            })
        })
        .collect()
}

fn entries<'a>(reported: &[Seen<'a>]) -> impl Iterator<Item = &'a Reported> {
    reported.iter().filter_map(|seen| match seen {
        Seen::Entry(entry) => Some(*entry),
        Seen::Unknown | Seen::Absent => None,
    })
}

/// Reasons that say that the sink can't be used as it is.
const fn is_sink_problem(reason: StopReason) -> bool {
    matches!(
        reason,
        StopReason::EndpointGone | StopReason::AddressRefused | StopReason::SinkInvalid
    )
}

/// Reasons that keep the worker from the log.
const LOG_PROBLEMS: [StopReason; 5] = [
    StopReason::BrokerUnreachable,
    StopReason::BrokerAuthenticationFailed,
    StopReason::BrokerTlsFailed,
    StopReason::BrokerRefused,
    StopReason::TopicMissing,
];

fn is_log_problem(reason: StopReason) -> bool {
    LOG_PROBLEMS.contains(&reason)
}

/// Reasons that only a human mends.
const fn needs_human(reason: StopReason) -> bool {
    is_sink_problem(reason)
        || matches!(
            reason,
            StopReason::FilterInvalid
                | StopReason::DeliveryExhausted
                | StopReason::BrokerAuthenticationFailed
                | StopReason::BrokerTlsFailed
                | StopReason::BrokerRefused
        )
}

const fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndpointGone => reason::ENDPOINT_GONE,
        StopReason::AddressRefused => reason::ADDRESS_REFUSED,
        StopReason::FilterInvalid => reason::FILTER_INVALID,
        StopReason::SinkInvalid => reason::SINK_INVALID,
        StopReason::PositionMissing => reason::PENDING,
        StopReason::PositionOutOfRange => reason::POSITION_OUT_OF_RANGE,
        StopReason::BrokerUnreachable => reason::BROKER_UNREACHABLE,
        StopReason::BrokerAuthenticationFailed => reason::BROKER_AUTHENTICATION_FAILED,
        StopReason::BrokerTlsFailed => reason::BROKER_TLS_FAILED,
        StopReason::BrokerRefused => reason::BROKER_REFUSED,
        StopReason::TopicMissing => reason::TOPIC_NOT_READY,
        StopReason::DeadLettersRefused => reason::DEAD_LETTERS_REFUSED,
        StopReason::DeliveryFailing => reason::DELIVERY_FAILING,
        StopReason::EndpointUnavailable => reason::ENDPOINT_UNAVAILABLE,
        StopReason::DeliveryExhausted => reason::DELIVERY_EXHAUSTED,
        StopReason::PrefixFull => reason::PREFIX_FULL,
    }
}

/// A reason of a human's kind that this generation stopped for. What an older one stopped for may be mended.
fn stopped<'a>(reported: &[Seen<'a>], generation: i64) -> Option<(StopReason, &'a Reported)> {
    entries(reported)
        .filter(|entry| entry.state == SubscriptionState::Stopped && entry.generation == generation)
        .find_map(|entry| {
            let reason = entry.reason.filter(|reason| needs_human(*reason))?;
            Some((reason, entry))
        })
}

/// What keeps a worker from the log, whichever generation it runs.
fn trouble<'a>(reported: &[Seen<'a>]) -> Option<(StopReason, &'a Reported)> {
    entries(reported).find_map(|entry| {
        let reason = entry.reason.filter(|reason| is_log_problem(*reason))?;
        Some((reason, entry))
    })
}

fn sink_accepted(outcome: &Outcome, stopped: Option<(StopReason, &Reported)>) -> Finding {
    if let Some(invalid) = &outcome.invalid
        && ![reason::FILTER_INVALID, reason::ORDERING_UNAVAILABLE].contains(&invalid.reason)
    {
        return Finding::no(invalid.reason, &invalid.message);
    }
    if let Some((reason, entry)) = stopped.filter(|(reason, _)| is_sink_problem(*reason)) {
        return Finding::no(
            stop_reason(reason),
            entry.message.clone().unwrap_or_default(),
        );
    }
    Finding::yes(reason::SUCCEEDED, "")
}

fn workers_available(
    worker: &Worker,
    reported: &[Seen<'_>],
    generation: i64,
    before: &Finding,
) -> Finding {
    if worker.pods.ready == 0 {
        return Finding::no(
            reason::PODS_NOT_READY,
            format!("0 of {} pods are ready", worker.pods.wanted),
        );
    }
    if is_unknown(reported) {
        // One answer that is missing is no news.
        return if before.holds() {
            before.clone()
        } else {
            Finding::unknown(
                reason::STATUS_UNKNOWN,
                "/status of the worker was not read yet",
            )
        };
    }
    let current = |seen: &Seen<'_>| {
        matches!(seen, Seen::Entry(entry)
            if entry.generation == generation && entry.state != SubscriptionState::Starting)
    };
    if !reported.iter().all(current) || worker.overdue {
        return Finding::no(
            reason::CONFIGURATION_PENDING,
            "the worker does not run the current configuration yet",
        );
    }
    Finding::yes(reason::SUCCEEDED, "")
}

/// `None` while nothing says otherwise than before.
fn delivering(reported: &[Seen<'_>]) -> Option<Finding> {
    let failing = entries(reported).find(|entry| {
        entry.state == SubscriptionState::Stopped
            || entry.delivering == Some(false)
            || entry.reason.is_some_and(|reason| {
                is_log_problem(reason)
                    || matches!(
                        reason,
                        StopReason::PrefixFull
                            | StopReason::EndpointUnavailable
                            | StopReason::DeadLettersRefused
                            | StopReason::PositionOutOfRange
                    )
            })
    });
    if let Some(entry) = failing {
        let reason = entry.reason.map_or(reason::DELIVERY_FAILING, stop_reason);
        return Some(Finding::no(
            reason,
            entry.message.clone().unwrap_or_default(),
        ));
    }
    entries(reported)
        .any(|entry| entry.delivering == Some(true))
        .then(|| Finding::yes(reason::SUCCEEDED, ""))
}

/// What is said of delivery while nothing arrives: the same as before. Only that a worker was kept from the log is over
/// when it is.
fn idle(before: Finding, reported: &[Seen<'_>]) -> Finding {
    let of_the_log = LOG_PROBLEMS
        .into_iter()
        .chain([StopReason::PositionOutOfRange])
        .any(|problem| stop_reason(problem) == before.reason);
    if of_the_log && !is_unknown(reported) {
        return pending();
    }
    before
}

fn stalled(
    outcome: &Outcome,
    stopped: Option<(StopReason, &Reported)>,
    reported: &[Seen<'_>],
) -> Finding {
    if let Some(invalid) = &outcome.invalid {
        return Finding::yes(invalid.reason, &invalid.message);
    }
    if let Some(refused) = &outcome.refused {
        return Finding::yes(refused.reason, &refused.message);
    }
    if let Some((reason, entry)) = stopped.filter(|(reason, _)| needs_human(*reason)) {
        return Finding::yes(
            stop_reason(reason),
            entry.message.clone().unwrap_or_default(),
        );
    }
    // Its other partitions go on, whatever the generation.
    let out_of_range =
        entries(reported).find(|entry| entry.reason == Some(StopReason::PositionOutOfRange));
    if let Some(entry) = out_of_range {
        return Finding::yes(
            reason::POSITION_OUT_OF_RANGE,
            entry.message.clone().unwrap_or_default(),
        );
    }
    Finding::no(reason::SUCCEEDED, "")
}

fn ready(
    subscription: &Subscription,
    outcome: &Outcome,
    stalled: &Finding,
    needed: [&Finding; 3],
    outlook: Outlook<'_>,
    expired: &Finding,
) -> Finding {
    if stalled.holds() {
        return Finding::no(&stalled.reason, &stalled.message);
    }
    if let Some((reason, message)) = &outcome.failure {
        return Finding::no(*reason, message);
    }
    let [position, sink, workers] = needed;
    // A worker that can't reach the log can't join its group either: the cause before what follows from it.
    let log = outlook.failing.filter(|_| outlook.no_log);
    let mut all = [position, sink].into_iter().chain(log).chain([workers]);
    if let Some(missing) = all.find(|finding| !finding.holds()) {
        return Finding::no(&missing.reason, &missing.message);
    }
    if subscription.spec.suspend {
        return Finding::yes(
            reason::SUSPENDED,
            "nothing is delivered; the position is kept",
        );
    }
    if let Some(delivering) = outlook.failing {
        // The workers do what they should; why nothing arrives must be seen all the same.
        return Finding::yes(&delivering.reason, &delivering.message);
    }
    if expired.holds() {
        return Finding::yes(&expired.reason, &expired.message);
    }
    Finding::yes(reason::SUCCEEDED, "")
}
