//! The status of a FanoutTopic from what one pass found. Pure; runs on success and on failure alike.

use super::log::Problem;
use crate::controllers::conditions::{self, Finding};
use crate::controllers::error::Invalid;
use crate::controllers::workers::{self, Availability, Pods, Report};
use crate::observer::coarse;
use fanout_contract::reason::BrokerError;
use fanout_contract::relay;
use fanout_crds::condition::{
    LOG_READY, OUTBOX_BLOCKED, READY, RECONCILING, RELAY_AVAILABLE, SOURCE_REACHABLE, STALLED,
    reason,
};
use fanout_crds::fanout_topic::RelayStatus;
use fanout_crds::{FanoutTopic, FanoutTopicStatus};
use k8s_openapi::jiff::Timestamp;

/// What one pass found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Why the spec can't be used.
    pub(crate) invalid: Option<Invalid>,
    /// Reason and message of a failure that is tried again.
    pub(crate) failure: Option<(&'static str, String)>,
    /// The Kafka topics; `None`: not asked.
    pub(crate) log: Option<Result<LogState, Problem>>,
    /// The Kafka topics as far as they were ever identified.
    pub(crate) identity: Identity,
    /// The relays; `None`: not looked at.
    pub(crate) relay: Option<Relays>,
    /// Subscriptions that refer to the topic.
    pub(crate) subscriptions: usize,
}

/// What was recorded of the Kafka topics: never replaced by something else, only completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Cluster.
    pub(crate) cluster_id: Option<String>,
    /// Name of the topic.
    pub(crate) topic_name: Option<String>,
    /// UUID of the topic.
    pub(crate) topic_id: Option<String>,
    /// UUID of the dead letter topic.
    pub(crate) dead_letter_topic_id: Option<String>,
    /// UUID of the topic of positions; absent where relays never needed one.
    pub(crate) positions_topic_id: Option<String>,
}

impl Identity {
    /// What the status says.
    pub(crate) fn recorded(topic: &FanoutTopic) -> Self {
        topic.status.as_ref().map(Self::from).unwrap_or_default()
    }

    /// True when both topics were identified, so that workers can be configured without asking Kafka again.
    pub(crate) const fn is_complete(&self) -> bool {
        self.topic_id.is_some() && self.dead_letter_topic_id.is_some()
    }
}

impl From<&FanoutTopicStatus> for Identity {
    fn from(status: &FanoutTopicStatus) -> Self {
        Self {
            cluster_id: status.cluster_id.clone(),
            topic_name: status.topic_name.clone(),
            topic_id: status.topic_id.clone(),
            dead_letter_topic_id: status.dead_letter_topic_id.clone(),
            positions_topic_id: status.positions_topic_id.clone(),
        }
    }
}

/// Both Kafka topics are there and ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogState {
    /// What differs from the spec and is left alone.
    pub(crate) drift: Vec<String>,
}

/// The relays of a topic.
#[derive(Clone, Debug)]
pub(crate) struct Relays {
    /// Counts.
    pub(crate) pods: Pods,
    /// Hash that they should report.
    pub(crate) hash: String,
    /// What each ready pod reports.
    pub(crate) reports: Vec<Report<relay::RelayStatus>>,
}

/// The next status of `topic`.
pub(crate) fn next(topic: &FanoutTopic, outcome: &Outcome, now: Timestamp) -> FanoutTopicStatus {
    let old = topic.status.clone().unwrap_or_default();
    let generation = topic.metadata.generation.unwrap_or_default();
    let relays = outcome.relay.as_ref();
    let log = log_ready(outcome, &old);
    let source = source_reachable(relays);
    let available = relays.map_or_else(
        || Availability {
            finding: conditions::get(&old.conditions, RELAY_AVAILABLE).unwrap_or_else(pending),
            settled: false,
        },
        |relays| {
            workers::availability(relays.pods, &relays.reports, |status| {
                status.config_hash == relays.hash
            })
        },
    );
    let stalled = stalled(outcome, relays);
    let ready = ready(topic, outcome, &stalled, [&log, &source], &available);
    let reconciling = if ready.holds() || stalled.holds() {
        Finding::no(reason::SUCCEEDED, "")
    } else {
        Finding::yes(reason::PROGRESSING, ready.message.clone())
    };
    let blocked = outbox_blocked(relays);
    FanoutTopicStatus {
        observed_generation: Some(generation),
        conditions: conditions::documented(conditions::merge(
            &old.conditions,
            generation,
            now,
            vec![
                (READY, ready),
                (RECONCILING, reconciling),
                (STALLED, stalled),
                (SOURCE_REACHABLE, source),
                (LOG_READY, log),
                (RELAY_AVAILABLE, available.finding),
                (OUTBOX_BLOCKED, blocked),
            ],
        )),
        broker: Some(topic.spec.broker.kind().to_owned()),
        cluster_id: outcome.identity.cluster_id.clone(),
        topic_name: outcome.identity.topic_name.clone(),
        topic_id: outcome.identity.topic_id.clone(),
        dead_letter_topic_id: outcome.identity.dead_letter_topic_id.clone(),
        positions_topic_id: outcome.identity.positions_topic_id.clone(),
        outbox: old.outbox,
        parked: parked_rows(relays, old.parked),
        ordered: relays.map_or(old.ordered, |relays| ordered(&relays.reports, old.ordered)),
        relay: relays.map_or(old.relay, |relays| {
            Some(RelayStatus {
                ready: Some(relays.pods.column()),
            })
        }),
        subscriptions: Some(i32::try_from(outcome.subscriptions).unwrap_or(i32::MAX)),
    }
}

/// Whether the rows of the outbox have an order, as `reports` of its relays say; `before` where none has read it yet.
pub(super) fn ordered(
    reports: &[Report<relay::RelayStatus>],
    before: Option<bool>,
) -> Option<bool> {
    reports
        .iter()
        .filter_map(|report| report.status.as_ref())
        .find_map(|status| status.ordered)
        .or(before)
}

fn pending() -> Finding {
    Finding::unknown(reason::PENDING, "")
}

/// What the relays report of producing comes before what the operator found itself: they are who must get through.
fn log_ready(outcome: &Outcome, old: &FanoutTopicStatus) -> Finding {
    match &outcome.log {
        Some(Err(problem)) => Finding::no(problem.reason, &problem.message),
        Some(Ok(state)) => {
            let broken =
                statuses(outcome.relay.as_ref()).find_map(|status| status.broker_error.as_ref());
            match broken {
                Some(problem) => Finding::no(broker_reason(problem.class), &problem.message),
                None if state.drift.is_empty() => Finding::yes(reason::SUCCEEDED, ""),
                None => Finding::yes(reason::TOPIC_DRIFTED, state.drift.join("; ")),
            }
        }
        None => conditions::get(&old.conditions, LOG_READY).unwrap_or_else(pending),
    }
}

pub(super) const fn broker_reason(class: BrokerError) -> &'static str {
    match class {
        BrokerError::Unreachable => reason::BROKER_UNREACHABLE,
        BrokerError::AuthenticationFailed => reason::BROKER_AUTHENTICATION_FAILED,
        BrokerError::TlsFailed => reason::BROKER_TLS_FAILED,
        BrokerError::TopicMissing
        | BrokerError::PermissionDenied
        | BrokerError::TransactionsUnavailable
        | BrokerError::ProduceFailed => reason::BROKER_REFUSED,
    }
}

fn statuses(relays: Option<&Relays>) -> impl Iterator<Item = &relay::RelayStatus> {
    relays.into_iter().flat_map(|relays| {
        relays
            .reports
            .iter()
            .filter_map(|report| report.status.as_ref())
    })
}

fn source_reachable(relays: Option<&Relays>) -> Finding {
    if let Some(problem) = statuses(relays).find_map(|status| status.source_error.as_ref()) {
        return Finding::no(format!("{:?}", problem.class), &problem.message);
    }
    if statuses(relays).any(|status| status.source_checked) {
        return Finding::yes(reason::SUCCEEDED, "");
    }
    Finding::unknown(reason::STATUS_UNKNOWN, "no relay has read the outbox yet")
}

/// What column PARKED shows; `shown` at present.
fn parked_rows(relays: Option<&Relays>, shown: Option<i64>) -> Option<i64> {
    let seen = statuses(relays).map(|status| status.parked.total()).max();
    // A number that hardly moved is not worth a write.
    match (shown, seen) {
        (Some(shown), Some(seen)) if coarse(shown) == coarse(seen) => Some(shown),
        _ => seen.or(shown),
    }
}

/// Parked rows and the long transaction are the whole topic's, whichever relay tells them.
fn outbox_blocked(relays: Option<&Relays>) -> Finding {
    let parked = statuses(relays)
        .map(|status| status.parked)
        .max_by_key(|parked| (parked.rows, parked.held));
    let longest = statuses(relays)
        .filter_map(|status| status.long_transaction.as_ref())
        .max_by_key(|transaction| transaction.age_seconds);
    match (parked, longest) {
        (None, _) => Finding::unknown(reason::STATUS_UNKNOWN, ""),
        // No count in the message: it would change with every held row.
        (Some(parked), _) if parked.rows > 0 || parked.held > 0 => Finding::yes(
            reason::ROWS_PARKED,
            "rows that can't be published were set aside with what is held behind them; see fanout.parked",
        ),
        (_, Some(transaction)) => Finding::yes(
            reason::LONG_TRANSACTION,
            format!(
                "server process {} has held a writing transaction open for more than 60 seconds",
                transaction.pid
            ),
        ),
        _ => Finding::no(reason::SUCCEEDED, ""),
    }
}

fn stalled(outcome: &Outcome, relays: Option<&Relays>) -> Finding {
    if let Some(invalid) = &outcome.invalid {
        return Finding::yes(invalid.reason, &invalid.message);
    }
    if let Some(Err(problem)) = &outcome.log
        && problem.needs_human
    {
        return Finding::yes(problem.reason, &problem.message);
    }
    let source = statuses(relays)
        .filter_map(|status| status.source_error.as_ref())
        .find(|problem| problem.class.needs_human());
    if let Some(problem) = source {
        return Finding::yes(format!("{:?}", problem.class), &problem.message);
    }
    let broker = statuses(relays)
        .filter_map(|status| status.broker_error.as_ref())
        .find(|problem| problem.class.needs_human());
    if let Some(problem) = broker {
        return Finding::yes(broker_reason(problem.class), &problem.message);
    }
    Finding::no(reason::SUCCEEDED, "")
}

fn ready(
    topic: &FanoutTopic,
    outcome: &Outcome,
    stalled: &Finding,
    needed: [&Finding; 2],
    available: &Availability,
) -> Finding {
    if stalled.holds() {
        return Finding::no(&stalled.reason, &stalled.message);
    }
    if let Some((reason, message)) = &outcome.failure {
        return Finding::no(*reason, message);
    }
    if let Some(missing) = needed.into_iter().find(|finding| !finding.holds()) {
        return Finding::no(&missing.reason, &missing.message);
    }
    if !available.settled {
        return Finding::no(&available.finding.reason, &available.finding.message);
    }
    if topic.spec.suspend {
        return Finding::yes(
            reason::SUSPENDED,
            "nothing is published; the position is kept",
        );
    }
    let [log, _] = needed;
    if log.reason == reason::TOPIC_DRIFTED {
        return Finding::yes(&log.reason, &log.message);
    }
    Finding::yes(reason::SUCCEEDED, "")
}
