//! What a subscription says of itself on `/status`.

use super::session::Session;
use super::{EXPIRED_SHOWN, Subscription};
use crate::breaker::Gate;
use crate::key_queues::KeyQueues;
use fanout_contract::consumer::{
    BreakerState, PartitionStatus, StopReason, SubscriptionConfig, SubscriptionState,
    SubscriptionStatus,
};
use jiff::Timestamp;
use std::time::{Duration, Instant};

/// Failure class of an endpoint that the guard refused.
pub(super) const REFUSED: &str = "AddressRefused";
/// Weight of a new second in the moving average.
const WEIGHT: f64 = 0.2;
/// Below this the rate is none.
const NOTHING: f64 = 0.01;

/// Events completed per second, a moving average.
#[derive(Debug)]
pub(super) struct Rate {
    since: Instant,
    count: u32,
    per_second: f64,
}

impl Rate {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            since: now,
            count: 0,
            per_second: 0.0,
        }
    }

    pub(super) const fn count(&mut self) {
        self.count = self.count.saturating_add(1);
    }

    /// The average at `now`.
    fn at(&mut self, now: Instant) -> f64 {
        let elapsed = now.duration_since(self.since);
        if elapsed >= Duration::from_secs(1) {
            let last = f64::from(self.count) / elapsed.as_secs_f64();
            let keep = (1.0 - WEIGHT).powf(elapsed.as_secs_f64());
            self.per_second = self.per_second.mul_add(keep, last * (1.0 - keep));
            if self.per_second < NOTHING {
                self.per_second = 0.0;
            }
            self.since = now;
            self.count = 0;
        }
        self.per_second
    }
}

/// What a session adds to the report.
pub(super) struct View {
    joined: bool,
    partitions: Vec<PartitionStatus>,
    in_flight: u32,
    retrying: u32,
    missing: Vec<i32>,
    /// The first partition that is not read for what finished beyond its prefix.
    full: Option<i32>,
}

impl Session<'_> {
    pub(super) fn view(&self, now: Instant) -> View {
        let expired = &self.subscription.expired;
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let partitions = self.assignment.partitions.iter();
        View {
            joined: self.assignment.joined,
            partitions: partitions
                .map(|(number, partition)| PartitionStatus {
                    partition: *number,
                    committed: partition.offsets.committed(),
                    oldest_event_time: partition.offsets.oldest().and_then(rfc3339),
                    expired: expired
                        .get(number)
                        .filter(|(_, last)| now.duration_since(*last) < EXPIRED_SHOWN)
                        .map_or(0, |(offsets, _)| *offsets),
                })
                .collect(),
            in_flight: number(KeyQueues::under_way(&self.queues)),
            retrying: number(self.queues.waiting()),
            missing: self.assignment.missing.iter().copied().collect(),
            full: self
                .assignment
                .partitions
                .iter()
                .find(|(_, partition)| !partition.offsets.has_room())
                .map(|(number, _)| *number),
        }
    }
}

/// Report of a subscription that has not joined its group yet.
pub(super) fn starting(config: &SubscriptionConfig) -> SubscriptionStatus {
    SubscriptionStatus {
        name: config.name.clone(),
        uid: config.uid.clone(),
        generation: config.generation,
        state: SubscriptionState::Starting,
        ..SubscriptionStatus::default()
    }
}

impl Subscription {
    /// May events be fetched and delivered?
    pub(super) fn is_open(&self) -> bool {
        !self.settings.config.suspend && self.stopped().is_none()
    }

    /// Why nothing is delivered until somebody acts.
    fn stopped(&self) -> Option<(StopReason, String)> {
        if let Some(fault) = &self.settings.fault {
            return Some((fault.reason, fault.message.clone()));
        }
        if self.endpoint.gone {
            let message =
                "the endpoint answered 410 Gone; change the annotation fanout.dev/resume to go on";
            return Some((StopReason::EndpointGone, message.to_owned()));
        }
        if self.endpoint.refused.is_some() {
            let message =
                "the endpoint's name has an address that is refused; checked again every 30 s";
            return Some((StopReason::AddressRefused, message.to_owned()));
        }
        if let Some(exhausted) = &self.endpoint.exhausted {
            let ((partition, offset), reason) = (exhausted.place, exhausted.reason);
            let message = format!(
                "the event at offset {offset} of partition {partition} was tried enough: {reason}; mend the endpoint, then change \
                 the annotation fanout.dev/resume to try it again, or set spec.delivery.onExhausted to DeadLetter to go on past it"
            );
            return Some((StopReason::DeliveryExhausted, message));
        }
        None
    }

    /// Requests that may be under way at once.
    pub(super) fn concurrency(&self, now: Instant) -> u32 {
        let most = self.settings.config.delivery.max_in_flight;
        let found = self.endpoint.concurrency.limit(most);
        match self.endpoint.breaker.gate(now) {
            Gate::Open => found,
            Gate::Ramp(ramp) => found.min(ramp),
            Gate::Probe | Gate::Shut => 1,
        }
    }

    /// The breaker as it is reported.
    fn breaker(&self) -> BreakerState {
        let breaker = &self.endpoint.breaker;
        if breaker.is_open().is_some() {
            BreakerState::Open
        } else if breaker.is_half_open() {
            BreakerState::HalfOpen
        } else {
            BreakerState::Closed
        }
    }

    /// The report at `now`.
    pub(super) fn status(&mut self, now: Instant, view: Option<&View>) -> SubscriptionStatus {
        let stopped = self.stopped();
        let state = if self.settings.config.suspend {
            SubscriptionState::Suspended
        } else if stopped.is_some() {
            SubscriptionState::Stopped
        } else if view.is_some_and(|view| view.joined) {
            SubscriptionState::Running
        } else {
            SubscriptionState::Starting
        };
        let why = match state {
            SubscriptionState::Stopped => stopped,
            _ => self.trouble(view, state),
        };
        let (reason, message) = why.unzip();
        let mut status = SubscriptionStatus {
            state,
            reason,
            message,
            delivering: self.endpoint.delivering,
            rate_per_second: self.rate.at(now),
            totals: self.totals,
            breaker: self.breaker(),
            concurrency: self.concurrency(now),
            ..starting(&self.settings.config)
        };
        if let Some(view) = view {
            status.partitions.clone_from(&view.partitions);
            status.in_flight = view.in_flight;
            status.retrying = view.retrying;
        }
        status
    }

    /// Why `partition` is assigned and not read.
    fn unplaced(&self, partition: i32) -> (StopReason, String) {
        if self.out_of_range.contains(&partition) {
            let message = format!(
                "the log of partition {partition} ends before the committed offset: the brokers lost records, or the topic was \
                 replaced; change the annotation fanout.dev/resume to deliver everything the partition holds now"
            );
            return (StopReason::PositionOutOfRange, message);
        }
        let message = format!(
            "partition {partition} has neither a committed offset nor a start offset; the operator adds one"
        );
        (StopReason::PositionMissing, message)
    }

    /// Why a subscription that is meant to run does not get through.
    fn trouble(
        &self,
        view: Option<&View>,
        state: SubscriptionState,
    ) -> Option<(StopReason, String)> {
        if let Some(fault) = self.broker.refusal.or(self.broker.connection) {
            return Some((fault.reason, fault.message.to_owned()));
        }
        if let Some(partition) = view.and_then(|view| view.missing.first()) {
            return Some(self.unplaced(*partition));
        }
        if state == SubscriptionState::Suspended {
            return None;
        }
        if self.endpoint.dead_letters_refused {
            let message = "the dead letter topic does not take an event; grant Write on it to the principal of the FanoutTopic's spec.broker.kafka.consumerAuth (auth where that is absent)";
            return Some((StopReason::DeadLettersRefused, message.to_owned()));
        }
        if let Some(cause) = self.endpoint.breaker.is_open() {
            let message = format!(
                "nothing gets through: {cause}; deliveries wait, no attempt counts, and the endpoint is asked at least every 30 s"
            );
            return Some((StopReason::EndpointUnavailable, message));
        }
        if let Some(partition) = view.and_then(|view| view.full) {
            let message = format!(
                "16384 offsets beyond an event of partition {partition} that is not over are finished, no more are read; last \
                 failure: {}",
                self.endpoint.failure.as_deref().unwrap_or("none")
            );
            return Some((StopReason::PrefixFull, message));
        }
        let failure = self.endpoint.failure.as_ref()?;
        let message = format!("the last attempt failed: {failure}");
        Some((StopReason::DeliveryFailing, message))
    }
}

fn rfc3339(milliseconds: i64) -> Option<String> {
    Timestamp::from_millisecond(milliseconds)
        .ok()
        .map(|time| format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_what_is_completed_and_decays_to_nothing() {
        let begin = Instant::now();
        let mut rate = Rate::new(begin);
        let second = |n| begin + Duration::from_secs(n);
        for n in 1..=60 {
            for _ in 0..100 {
                rate.count();
            }
            rate.at(second(n));
        }
        assert!((rate.at(second(60)) - 100.0).abs() < 1.0);
        assert!(rate.at(second(61)) < 85.0);
        assert!(rate.at(second(200)) <= 0.0);
    }

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        assert_eq!(
            rfc3339(1_700_000_000_123).unwrap(),
            "2023-11-14T22:13:20.123Z"
        );
    }
}
