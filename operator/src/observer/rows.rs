//! What is known of one pod, one topic, one Subscription. No I/O, no clock.

use super::autoscale::Autoscaler;
use super::head::{self, Head};
use super::load::{self, Attempts};
use super::log::Reading;
use super::metrics::{SubscriptionLabels, TopicLabels};
use super::poll::WorkerStatus;
use super::saving::{self, Offsets, Unsaved};
use super::target::{ScalingTarget, SubscriptionTarget, TopicTarget, WorkerTarget};
use super::write::{AtZero, Seen, Shown};
use super::{SubscriptionObservation, TopicObservation, Trigger, TriggerKind, digest};
use crate::scaling::Observed;
use crate::scaling::lag;
use fanout_contract::consumer::SubscriptionStatus as Reported;
use fanout_contract::relay::RelayStatus;
use fanout_runtime::backoff::Backoff;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A report older than this says nothing any more: the pod missed several questions.
const STALE_AFTER: Duration = Duration::from_secs(15);

pub(super) struct Pod {
    pub(super) target: WorkerTarget,
    pub(super) status: Option<Arc<WorkerStatus>>,
    pub(super) reported_at: Option<Instant>,
    pub(super) asked_at: Option<Instant>,
    pub(super) under_way: bool,
}

pub(super) struct Topic {
    pub(super) labels: TopicLabels,
    pub(super) relay: String,
    pub(super) shown: Shown,
    pub(super) seen: TopicObservation,
    pub(super) at_zero: AtZero,
    pub(super) subscriptions: Vec<String>,
    pub(super) backoff: Option<Backoff>,
    pub(super) next_reading: Option<Instant>,
    pub(super) under_way: bool,
}

pub(super) struct Subscription {
    pub(super) labels: SubscriptionLabels,
    pub(super) shown: Shown,
    pub(super) seen: SubscriptionObservation,
    pub(super) at_zero: AtZero,
    pub(super) progress: lag::Progress,
    pub(super) worker: Option<String>,
    attempts: Attempts,
    scaling: Option<ScalingTarget>,
    autoscaler: Option<Autoscaler>,
    topic_id: Option<String>,
    is_served: bool,
    unsaved: Unsaved,
    is_forgotten: bool,
}

impl Pod {
    pub(super) fn new(target: &WorkerTarget) -> Self {
        Self {
            target: target.clone(),
            status: None,
            reported_at: None,
            asked_at: None,
            under_way: false,
        }
    }

    pub(super) fn news(&self, next: Option<&WorkerStatus>) -> BTreeSet<Trigger> {
        digest::news(
            &self.target.namespace,
            &self.target.topic,
            self.status.as_deref(),
            next,
        )
    }

    pub(super) fn is_stale(&self, now: Instant) -> bool {
        self.reported_at
            .is_none_or(|at| now.duration_since(at) >= STALE_AFTER)
    }
}

impl Topic {
    pub(super) fn new(target: &TopicTarget) -> Self {
        Self {
            labels: TopicLabels {
                namespace: target.namespace.clone(),
                topic: target.name.clone(),
            },
            relay: target.relay.clone(),
            shown: Shown::default(),
            seen: TopicObservation::default(),
            at_zero: AtZero::default(),
            subscriptions: Vec::new(),
            backoff: None,
            next_reading: None,
            under_way: false,
        }
    }

    pub(super) fn judge<'a>(
        &mut self,
        relays: impl Iterator<Item = &'a RelayStatus>,
        now: Instant,
    ) {
        let (count, oldest) = head::outbox(relays);
        self.at_zero = self.at_zero.after(count, now);
        self.seen.outbox = Seen {
            count,
            oldest,
            rate_per_second: None,
            committed: None,
        };
    }
}

impl Subscription {
    pub(super) fn new(topic: &TopicTarget, target: &SubscriptionTarget) -> Self {
        Self {
            labels: SubscriptionLabels {
                namespace: topic.namespace.clone(),
                topic: topic.name.clone(),
                subscription: target.name.clone(),
            },
            shown: Shown::default(),
            seen: SubscriptionObservation::default(),
            at_zero: AtZero::default(),
            progress: lag::Progress::default(),
            worker: target.worker.clone(),
            attempts: Attempts::default(),
            scaling: target.scaling.clone(),
            autoscaler: None,
            topic_id: target.topic_id.clone(),
            is_served: target.is_served,
            unsaved: Unsaved::default(),
            is_forgotten: false,
        }
    }

    pub(super) fn list(&mut self, target: &SubscriptionTarget, now: Instant) {
        if self.shown.positions != target.shown.positions {
            self.unsaved = self.unsaved.written(now);
        }
        self.shown.clone_from(&target.shown);
        self.topic_id.clone_from(&target.topic_id);
        self.worker.clone_from(&target.worker);
        self.scaling.clone_from(&target.scaling);
        self.is_served = target.is_served;
    }

    /// Takes in what all workers that have it report. `silent`: one that shall serve it did not answer.
    pub(super) fn reported(&mut self, entries: &[&Reported], silent: bool, now: Instant) {
        self.attempts.add(now, entries, silent);
        self.seen.under_way = load::under_way(entries, silent);
        self.seen.failure_ratio = self.attempts.failure_ratio();
    }

    /// Decides at `time` about the replicas of its worker, of which `ready` are ready; the log has `partitions`. True where what the
    /// status shows is old.
    pub(super) fn scale(&mut self, time: Timestamp, ready: u32, partitions: Option<u32>) -> bool {
        let Some(target) = &self.scaling else {
            self.autoscaler = None;
            self.seen.scaled = None;
            return false;
        };
        let progress = &self.seen.progress;
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        let observed = Observed {
            now: time.as_second(),
            ready,
            depth: progress.count.map(count),
            stuck: self.seen.waiting.map_or(0, |waiting| count(waiting.stuck)),
            largest: self.seen.waiting.map(|waiting| count(waiting.largest)),
            age_seconds: match progress.oldest {
                Head::Since(since) => Some(count(time.duration_since(since).as_secs())),
                Head::Empty | Head::Unknown => None,
            },
            arrival: self.seen.arrival_per_second,
            drain: progress.rate_per_second,
            in_flight: self.seen.under_way.map(|load| load.in_flight),
            retrying: self.seen.under_way.map(|load| load.retrying),
            partitions,
            ..Observed::default()
        };
        let autoscaler = self
            .autoscaler
            .get_or_insert_with(|| Autoscaler::new(target));
        let scaled = autoscaler.look(&observed, target);
        let is_old = target.replicas != Some(scaled.replicas)
            || target.reason.as_deref() != Some(scaled.reason.as_str());
        self.seen.scaled = Some(scaled.clone());
        is_old
    }

    /// Is it time to save the committed offsets?
    pub(super) fn is_unsaved(&self, now: Instant) -> bool {
        self.unsaved.is_due(self.is_served, now)
    }

    /// Takes in what was read of the log and the group. True where it is news: without a worker nobody else notices that
    /// Kafka has forgotten the group, or that retention overtook it.
    pub(super) fn read(&mut self, uid: &str, reading: Option<&Reading>, now: Instant) -> bool {
        let read = reading.and_then(|reading| Some((reading, reading.committed.get(uid)?)));
        let seen = &mut self.seen.progress;
        if let Some((reading, committed)) = read {
            self.progress.add(now, &reading.marks, committed);
            seen.count = lag::depth(&reading.marks, committed);
            seen.rate_per_second = self.progress.rate_per_second();
        } else {
            seen.count = None;
            seen.rate_per_second = None;
        }
        let is_known = seen.count.is_some();
        self.seen.waiting = is_known.then(|| self.progress.waiting(now));
        self.seen.arrival_per_second = self.progress.arrival_per_second().filter(|_| is_known);
        let seen = &mut self.seen.progress;
        self.at_zero = self.at_zero.after(seen.count, now);
        self.seen.refused = reading.is_some_and(|reading| reading.refused.contains(uid));
        // Offsets of another topic of that name are none that could be saved.
        let read = read
            .filter(|(reading, _)| self.topic_id.is_some() && reading.topic.id == self.topic_id);
        seen.committed = read.map(|(_, committed)| committed.clone());
        let Some((reading, committed)) = read else {
            self.seen.expired.clear();
            return false;
        };
        let saved = &self.shown.positions;
        self.unsaved = self.unsaved.after(saved, seen.committed.as_ref(), now);
        let is_forgotten = !self.is_served && saving::is_forgotten(saved, committed);
        let expired = if self.is_served {
            Offsets::new()
        } else {
            saving::expired(&reading.marks, committed)
        };
        let is_news =
            (is_forgotten && !self.is_forgotten) || saving::is_worse(&self.seen.expired, &expired);
        self.is_forgotten = is_forgotten;
        self.seen.expired = expired;
        is_news
    }
}

impl TopicLabels {
    pub(super) fn trigger(&self) -> Trigger {
        Trigger {
            kind: TriggerKind::FanoutTopic,
            namespace: self.namespace.clone(),
            name: self.topic.clone(),
        }
    }
}

impl SubscriptionLabels {
    pub(super) fn trigger(&self) -> Trigger {
        Trigger {
            kind: TriggerKind::Subscription,
            namespace: self.namespace.clone(),
            name: self.subscription.clone(),
        }
    }
}
