//! The observer's tables: what is known of every worker, topic and Subscription, and what is due. No I/O, no clock.

use super::head::{self, Head};
use super::log::Reading;
use super::metrics::Metrics;
use super::poll::{PollError, WorkerStatus};
use super::rows::{Pod, Subscription, Topic};
use super::target::{TopicTarget, WorkerTarget};
use super::write::{self, Gate, Scheduler, Shown};
use super::{SubscriptionObservation, TopicObservation, Trigger, WorkerReport};
use crate::kafka::KafkaError;
use fanout_runtime::backoff::Backoff;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A log that can't be read is asked less and less often, up to this.
const LOG_RETRY_LONGEST: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(super) struct State {
    /// By pod uid.
    pods: BTreeMap<String, Pod>,
    /// By uid.
    topics: HashMap<String, Topic>,
    /// By uid.
    subscriptions: HashMap<String, Subscription>,
    scheduler: Scheduler,
    gate: Gate,
    /// Objects whose next pass may write numbers.
    granted: HashSet<String>,
    /// A moment on both clocks. Only the one that nobody sets goes on from there.
    anchor: Option<(Instant, Timestamp)>,
}

impl State {
    /// Takes over the lists of what there is; what is gone is forgotten. Returns who lost a report by that.
    pub(super) fn list(
        &mut self,
        workers: &[WorkerTarget],
        topics: &[TopicTarget],
        metrics: &Metrics,
        now: Instant,
    ) -> BTreeSet<Trigger> {
        let mut news = BTreeSet::new();
        let listed: HashSet<&str> = workers
            .iter()
            .map(|target| target.pod_uid.as_str())
            .collect();
        self.pods.retain(|uid, pod| {
            let keep = listed.contains(uid.as_str());
            if !keep {
                news.extend(pod.news(None));
            }
            keep
        });
        for target in workers {
            let pod = self
                .pods
                .entry(target.pod_uid.clone())
                .or_insert_with(|| Pod::new(target));
            pod.target.clone_from(target);
        }
        let listed: HashSet<&str> = topics.iter().map(|topic| topic.uid.as_str()).collect();
        self.topics.retain(|uid, topic| {
            let keep = listed.contains(uid.as_str());
            if !keep {
                metrics.topic(&topic.labels, None, None);
            }
            keep
        });
        let listed: HashSet<&str> = topics
            .iter()
            .flat_map(|topic| &topic.subscriptions)
            .map(|subscription| subscription.uid.as_str())
            .collect();
        self.subscriptions.retain(|uid, subscription| {
            let keep = listed.contains(uid.as_str());
            if !keep {
                metrics.subscription(
                    &subscription.labels,
                    &SubscriptionObservation::default(),
                    None,
                );
            }
            keep
        });
        for target in topics {
            self.list_topic(target, now);
        }
        let (topics, subscriptions) = (&self.topics, &self.subscriptions);
        self.granted
            .retain(|uid| topics.contains_key(uid) || subscriptions.contains_key(uid));
        news
    }

    fn list_topic(&mut self, target: &TopicTarget, now: Instant) {
        let topic = self
            .topics
            .entry(target.uid.clone())
            .or_insert_with(|| Topic::new(target));
        topic.shown.clone_from(&target.shown);
        topic.relay.clone_from(&target.relay);
        topic.subscriptions = target
            .subscriptions
            .iter()
            .map(|subscription| subscription.uid.clone())
            .collect();
        for subscription in &target.subscriptions {
            self.subscriptions
                .entry(subscription.uid.clone())
                .or_insert_with(|| Subscription::new(target, subscription))
                .list(subscription, now);
        }
    }

    /// Pods to ask now, those that waited longest first; they count as under way from here on.
    pub(super) fn due_workers(
        &mut self,
        mut listed: Vec<WorkerTarget>,
        now: Instant,
        every: Duration,
        at_once: usize,
    ) -> Vec<WorkerTarget> {
        let under_way = self.pods.values().filter(|pod| pod.under_way).count();
        let pods = &mut self.pods;
        listed.retain(|target| {
            pods.get(&target.pod_uid).is_some_and(|pod| {
                !pod.under_way
                    && pod
                        .asked_at
                        .is_none_or(|at| now.duration_since(at) >= every)
            })
        });
        listed.sort_by_key(|target| pods.get(&target.pod_uid).and_then(|pod| pod.asked_at));
        listed.truncate(at_once.saturating_sub(under_way));
        for target in &listed {
            if let Some(pod) = pods.get_mut(&target.pod_uid) {
                pod.under_way = true;
                pod.asked_at = Some(now);
            }
        }
        listed
    }

    /// Topics whose log to read now, those that waited longest first; they count as under way from here on.
    pub(super) fn due_logs(
        &mut self,
        mut listed: Vec<TopicTarget>,
        now: Instant,
        every: Duration,
        at_once: usize,
    ) -> Vec<TopicTarget> {
        let under_way = self.topics.values().filter(|topic| topic.under_way).count();
        let topics = &mut self.topics;
        listed.retain(|target| {
            target.log.is_some()
                && topics.get(&target.uid).is_some_and(|topic| {
                    !topic.under_way && topic.next_reading.is_none_or(|at| now >= at)
                })
        });
        listed.sort_by_key(|target| topics.get(&target.uid).and_then(|topic| topic.next_reading));
        listed.truncate(at_once.saturating_sub(under_way));
        for target in &listed {
            if let Some(topic) = topics.get_mut(&target.uid) {
                topic.under_way = true;
                topic.next_reading = Some(now + every);
            }
        }
        listed
    }

    /// Takes in what a pod answered, or that it did not. Returns for whom that is news.
    pub(super) fn reported(
        &mut self,
        target: &WorkerTarget,
        status: Result<WorkerStatus, PollError>,
        now: Instant,
    ) -> BTreeSet<Trigger> {
        let Some(pod) = self.pods.get_mut(&target.pod_uid) else {
            return BTreeSet::new();
        };
        pod.under_way = false;
        match status {
            Ok(status) => {
                let news = pod.news(Some(&status));
                pod.status = Some(Arc::new(status));
                pod.reported_at = Some(now);
                self.heads(&target.namespace, &target.topic, now);
                news
            }
            Err(_) if pod.is_stale(now) => {
                let news = pod.news(None);
                pod.status = None;
                self.heads(&target.namespace, &target.topic, now);
                news
            }
            Err(_) => BTreeSet::new(),
        }
    }

    /// Takes in what was read of a topic's log. Returns for whom that is news.
    pub(super) fn read(
        &mut self,
        uid: &str,
        reading: Result<Reading, KafkaError>,
        now: Instant,
    ) -> BTreeSet<Trigger> {
        let Some(topic) = self.topics.get_mut(uid) else {
            return BTreeSet::new();
        };
        topic.under_way = false;
        let before = (
            topic.seen.log_error,
            topic.seen.partitions,
            topic.seen.state.clone(),
        );
        let reading = match reading {
            Ok(reading) => {
                topic.backoff = None;
                topic.seen.log_error = None;
                topic.seen.partitions = Some(reading.marks.len());
                topic.seen.state = Some(reading.topic.clone());
                Some(reading)
            }
            Err(error) => {
                let backoff = topic
                    .backoff
                    .get_or_insert_with(|| Backoff::new(Duration::from_secs(5), LOG_RETRY_LONGEST));
                topic.next_reading = Some(now + backoff.next_delay());
                topic.seen.log_error = Some(error.class);
                None
            }
        };
        let first = before.1.is_none() && before.0.is_none() && topic.seen.log_error.is_none();
        let seen = &topic.seen;
        let changed = before != (seen.log_error, seen.partitions, seen.state.clone()) && !first;
        let labels = topic.labels.clone();
        let mut news = BTreeSet::new();
        if changed {
            news.insert(labels.trigger());
        }
        for uid in topic.subscriptions.clone() {
            if let Some(subscription) = self.subscriptions.get_mut(&uid) {
                let refused = subscription.seen.refused;
                let is_news = subscription.read(&uid, reading.as_ref(), now);
                if changed || is_news || refused != subscription.seen.refused {
                    news.insert(subscription.labels.trigger());
                }
            }
        }
        self.heads(&labels.namespace, &labels.topic, now);
        news.extend(self.scale(uid, now));
        news
    }

    /// Decides about the replicas of the workers that serve a topic's Subscriptions. Returns for whom that is news.
    fn scale(&mut self, topic: &str, now: Instant) -> BTreeSet<Trigger> {
        let (Some(topic), Some((anchor, time))) = (self.topics.get(topic), self.anchor) else {
            return BTreeSet::new();
        };
        let time = time.checked_add(now.duration_since(anchor)).unwrap_or(time);
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let partitions = topic.seen.partitions.map(number);
        let mut news = BTreeSet::new();
        for uid in &topic.subscriptions {
            let Some(subscription) = self.subscriptions.get_mut(uid) else {
                continue;
            };
            let ready = self.pods.values().filter(|pod| {
                pod.target.namespace == topic.labels.namespace
                    && Some(&pod.target.worker) == subscription.worker.as_ref()
            });
            if subscription.scale(time, number(ready.count()), partitions) {
                news.insert(subscription.labels.trigger());
            }
        }
        news
    }

    /// Judges anew, from the reports there are, what waits in a topic's outbox and for its Subscriptions.
    fn heads(&mut self, namespace: &str, name: &str, now: Instant) {
        let statuses: Vec<(String, Arc<WorkerStatus>)> = self
            .pods
            .values()
            .filter(|pod| pod.target.namespace == namespace && pod.target.topic == name)
            .filter_map(|pod| Some((pod.target.worker.clone(), Arc::clone(pod.status.as_ref()?))))
            .collect();
        let silent: HashSet<String> = self
            .pods
            .values()
            .filter(|pod| pod.target.namespace == namespace && pod.target.topic == name)
            .filter(|pod| pod.status.is_none())
            .map(|pod| pod.target.worker.clone())
            .collect();
        let Some(topic) = self
            .topics
            .values_mut()
            .find(|topic| topic.labels.namespace == namespace && topic.labels.topic == name)
        else {
            return;
        };
        let relay = topic.relay.clone();
        let relays = statuses
            .iter()
            .filter_map(|(worker, status)| match &**status {
                WorkerStatus::Relay(status) if *worker == relay => Some(status),
                _ => None,
            });
        topic.judge(relays, now);
        let consumers = statuses.iter().filter_map(|(_, status)| match &**status {
            WorkerStatus::Consumer(status) => Some(status),
            WorkerStatus::Relay(_) => None,
        });
        let consumers: Vec<_> = consumers.collect();
        let oldest = head::oldest(consumers.iter().copied());
        let mut entries: HashMap<&str, Vec<_>> = HashMap::new();
        for entry in consumers.iter().flat_map(|status| &status.subscriptions) {
            entries.entry(entry.uid.as_str()).or_default().push(entry);
        }
        for uid in &topic.subscriptions {
            if let Some(subscription) = self.subscriptions.get_mut(uid) {
                let progress = &mut subscription.seen.progress;
                progress.oldest =
                    head::subscription(oldest.get(uid.as_str()).copied(), progress.count);
                let is_silent = subscription
                    .worker
                    .as_ref()
                    .is_none_or(|worker| silent.contains(worker));
                let reports = entries.get(uid.as_str()).map_or(&[][..], Vec::as_slice);
                subscription.reported(reports, is_silent, now);
            }
        }
    }

    /// Objects whose numbers may be written now.
    pub(super) fn grant(&mut self, now: Instant, time: Timestamp) -> BTreeSet<Trigger> {
        self.anchor.get_or_insert((now, time));
        let topics = self.topics.iter().map(|(uid, topic)| {
            let drift = write::drift(&topic.shown, &topic.seen.outbox, topic.at_zero, time);
            (uid, drift)
        });
        let subscriptions = self.subscriptions.iter().map(|(uid, subscription)| {
            let seen = &subscription.seen.progress;
            let drift = write::drift(&subscription.shown, seen, subscription.at_zero, time);
            (
                uid,
                drift.or_else(|| subscription.is_unsaved(now).then_some(1.0)),
            )
        });
        let due: Vec<(String, f64)> = topics
            .chain(subscriptions)
            .filter_map(|(uid, drift)| Some((uid.clone(), drift?)))
            .collect();
        let chosen = self.scheduler.grant(now, &due);
        let triggers = chosen.iter().filter_map(|uid| self.object(uid)).collect();
        self.granted.extend(chosen);
        triggers
    }

    fn object(&self, uid: &str) -> Option<Trigger> {
        let topic = self.topics.get(uid).map(|topic| topic.labels.trigger());
        topic.or_else(|| Some(self.subscriptions.get(uid)?.labels.trigger()))
    }

    pub(super) fn show(&mut self, uid: &str, shown: &Shown, changed: bool, now: Instant) -> Shown {
        // What the gate refuses keeps its grant for the next pass, and is offered again.
        let may_write = changed || (self.granted.contains(uid) && self.gate.admit(now));
        if !may_write {
            return shown.clone();
        }
        self.granted.remove(uid);
        let topic = self.topics.get(uid).map(|topic| &topic.seen.outbox);
        let seen = topic.or_else(|| Some(&self.subscriptions.get(uid)?.seen.progress));
        seen.map_or_else(|| shown.clone(), |seen| write::next(shown, seen))
    }

    pub(super) fn workers(&self, namespace: &str, worker: &str, now: Instant) -> Vec<WorkerReport> {
        self.pods
            .values()
            .filter(|pod| pod.target.namespace == namespace && pod.target.worker == worker)
            .map(|pod| WorkerReport {
                pod: pod.target.pod.clone(),
                pod_uid: pod.target.pod_uid.clone(),
                status: pod.status.clone(),
                age: pod.reported_at.map(|at| now.duration_since(at)),
            })
            .collect()
    }

    pub(super) fn topic(&self, uid: &str) -> Option<TopicObservation> {
        self.topics.get(uid).map(|topic| topic.seen.clone())
    }

    pub(super) fn subscription(&self, uid: &str) -> Option<SubscriptionObservation> {
        self.subscriptions
            .get(uid)
            .map(|subscription| subscription.seen.clone())
    }

    /// Brings the metrics up to date.
    pub(super) fn measure(&self, metrics: &Metrics, now: Timestamp) {
        for topic in self.topics.values() {
            let seen = &topic.seen.outbox;
            metrics.topic(&topic.labels, seen.count, age(seen.oldest, now));
        }
        for subscription in self.subscriptions.values() {
            let seen = &subscription.seen.progress;
            metrics.subscription(
                &subscription.labels,
                &subscription.seen,
                age(seen.oldest, now),
            );
        }
    }
}

fn age(head: Head, now: Timestamp) -> Option<f64> {
    match head {
        Head::Unknown => None,
        Head::Empty => Some(0.0),
        Head::Since(time) => Some(now.duration_since(time).as_secs_f64().max(0.0)),
    }
}

#[cfg(test)]
mod tests;
