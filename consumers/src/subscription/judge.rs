//! What follows from the end of an attempt: for the event, and for what is thought of its endpoint.

use super::delivery::{Attempted, Done, Finished, Held, Stage, Tried};
use super::session::Session;
use super::{Exhausted, Subscription, report};
use crate::breaker::{Failed, Weight};
use crate::dead_letter::History;
use crate::key_queues::Id;
use crate::metrics::{Attempt, Outcome};
use crate::retry;
use crate::verdict::{Failure, Verdict};
use fanout_contract::consumer::OnExhausted;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Wait before a dead letter that the broker refused is sent again.
const DEAD_LETTER_RETRY: Duration = Duration::from_secs(5);
/// Wait before the guard is asked again about an endpoint it refused.
pub(super) const ADMISSION: Duration = Duration::from_secs(30);

impl Session<'_> {
    /// Something under way ended.
    pub(super) fn done(&mut self, done: Done, now: Instant) {
        match done.result {
            Finished::Attempt(attempted) => self.judge(done.id, &attempted, now),
            Finished::DeadLetter(Ok(())) => {
                self.subscription.endpoint.dead_letters_refused = false;
                self.complete(done.id, Outcome::DeadLettered);
            }
            Finished::DeadLetter(Err(error)) => {
                let name = &self.subscription.settings.config.name;
                tracing::error!(subscription = name, %error, "the dead letter topic does not take an event");
                self.subscription.endpoint.dead_letters_refused = true;
                self.queues.retry(done.id, now + DEAD_LETTER_RETRY);
            }
        }
    }

    fn judge(&mut self, id: Id, attempted: &Attempted, now: Instant) {
        let Some(held) = self.queues.get_mut(id) else {
            return;
        };
        let place = (held.event.partition, held.event.offset);
        if let Verdict::Retry { .. } = attempted.verdict {
            let successes = self.subscription.endpoint.breaker.successes();
            held.tried.is_suspect |= held.tried.successes.is_some_and(|then| then < successes);
            held.tried.successes = Some(successes);
        }
        let failed = Failed {
            id,
            event: place,
            began: attempted.run,
            is_suspect: held.tried.is_suspect,
        };
        let releasing = self.assignment.is_draining(place.0) || self.is_ending();
        self.subscription.attempted(attempted);
        let run = self.subscription.endpoint.breaker.number();
        let weight = self.subscription.weigh(failed, attempted, now);
        if weight == Weight::Opened {
            self.give_attempts_back(run);
        }
        if attempted.verdict == Verdict::Delivered {
            return self.complete(id, Outcome::Delivered);
        }
        if releasing {
            // Whoever reads it next begins anew: giving partitions up costs no event an attempt.
            return drop(self.queues.finish(id));
        }
        match attempted.verdict {
            Verdict::Delivered => {}
            Verdict::Retry { reason, at_most } => {
                self.retry(id, (reason, at_most), (weight, run), now);
            }
            Verdict::Pause { reason, after } => {
                let paused = &mut self.subscription.endpoint.paused;
                *paused = Some(now + after).max(*paused);
                let policy = &self.subscription.settings.config.delivery.retry;
                let longest = Duration::from_secs(policy.max_age_seconds.into());
                let is_old = |held: &mut Held| held.tried.age(now) >= longest;
                if self.queues.get_mut(id).is_some_and(is_old) {
                    return self.give_up(id, reason);
                }
                self.queues.put_back(id);
            }
            Verdict::Gone => {
                self.subscription.endpoint.gone = true;
                self.queues.put_back(id);
            }
            Verdict::Refused => {
                self.subscription.endpoint.refused = Some(now + ADMISSION);
                self.queues.put_back(id);
            }
            Verdict::Reject(reason) => {
                if let Some(held) = self.queues.get_mut(id) {
                    held.tried.attempts += 1;
                }
                self.give_up(id, reason);
            }
        }
    }

    /// Decides when a failed event is tried again.
    fn retry(
        &mut self,
        id: Id,
        (reason, at_most): (Failure, Option<u32>),
        (weight, run): (Weight, u64),
        now: Instant,
    ) {
        let Some(held) = self.queues.get_mut(id) else {
            return;
        };
        let tried = &mut held.tried;
        tried.tries += 1;
        if weight == Weight::Counts {
            tried.attempts += 1;
            let (of, count) = tried.run;
            tried.run = (run, if of == run { count + 1 } else { 1 });
        }
        let failure = retry::Failure {
            attempts: tried.attempts,
            tries: tried.tries,
            at_most: at_most.filter(|_| weight == Weight::Counts),
            age: tried.age(now),
        };
        let policy = &self.subscription.settings.config.delivery.retry;
        match retry::next(policy, failure, rand::random()) {
            retry::Next::Exhausted => self.give_up(id, reason),
            // The next probe may take it.
            retry::Next::After(_) if self.subscription.endpoint.breaker.is_open().is_some() => {
                self.queues.put_back(id);
            }
            retry::Next::After(delay) => self.queues.retry(id, now + delay),
        }
    }

    /// The breaker has opened: what failed in `run` failed because of the endpoint.
    fn give_attempts_back(&mut self, run: u64) {
        let name = &self.subscription.settings.config.name;
        if let Some(cause) = self.subscription.endpoint.breaker.is_open() {
            tracing::warn!(subscription = name, %cause, "the endpoint is unavailable");
        }
        for held in self.queues.iter_mut() {
            let tried = &mut held.tried;
            if tried.run.0 == run {
                tried.attempts = tried.attempts.saturating_sub(tried.run.1);
            }
            tried.run = (run, 0);
            tried.tries = tried.attempts;
        }
        // The probes are theirs, whenever their own time would have come.
        self.queues
            .wake_early(|held| matches!(held.stage, Stage::Deliver));
    }

    /// An event under way was tried enough, or can't be delivered at all.
    pub(super) fn give_up(&mut self, id: Id, reason: Failure) {
        match self.subscription.settings.config.delivery.on_exhausted {
            OnExhausted::DeadLetter => self.dead_letter(id, reason),
            OnExhausted::Pause => self.stop_at(id, reason),
        }
    }

    /// Stops the subscription at an event. Once it is resumed, the event begins anew.
    fn stop_at(&mut self, id: Id, reason: Failure) {
        if let Some(held) = self.queues.get_mut(id) {
            held.tried = Tried::default();
            if !matches!(reason, Failure::Undecodable) {
                held.stage = Stage::Deliver;
            }
            self.subscription.endpoint.exhausted = Some(Exhausted {
                place: (held.event.partition, held.event.offset),
                reason,
            });
        }
        self.queues.put_back(id);
    }

    /// Sends an event under way to the dead letter topic. It blocks its key until the broker has it.
    fn dead_letter(&mut self, id: Id, reason: Failure) {
        let Some(held) = self.queues.get_mut(id) else {
            return;
        };
        held.stage = Stage::DeadLetter(reason);
        let history = History {
            reason,
            attempts: held.tried.attempts,
            first: held.tried.first.map(|(_, time)| time),
            last: held.tried.last,
        };
        let (worker, event) = (
            Arc::clone(&self.subscription.worker),
            Arc::clone(&held.event),
        );
        let name = self.subscription.settings.config.name.clone();
        self.deliveries.spawn(id, async move {
            let sent = worker.dead_letters.send(&event, &name, history).await;
            Done {
                id,
                result: Finished::DeadLetter(sent),
            }
        });
    }

    /// An event is over: its offset may be passed.
    pub(super) fn complete(&mut self, id: Id, outcome: Outcome) {
        let Some(held) = self.queues.finish(id) else {
            return;
        };
        if let Some(partition) = self.assignment.partitions.get_mut(&held.event.partition) {
            partition.offsets.finish(held.event.offset);
        }
        self.subscription.finished(outcome);
    }
}

impl Tried {
    /// Time since the first attempt began.
    fn age(&self, now: Instant) -> Duration {
        self.first
            .map_or(Duration::ZERO, |(first, _)| now.duration_since(first))
    }
}

impl Subscription {
    /// What an attempt says of the endpoint, and whether it is the event's.
    fn weigh(&mut self, failed: Failed, attempted: &Attempted, now: Instant) -> Weight {
        let most = self.settings.config.delivery.max_in_flight;
        let endpoint = &mut self.endpoint;
        let failure = match attempted.verdict {
            Verdict::Delivered => {
                endpoint.concurrency.accepted(most);
                None
            }
            Verdict::Retry { reason, .. } | Verdict::Pause { reason, .. } => Some(reason),
            Verdict::Reject(_) | Verdict::Gone | Verdict::Refused => None,
        };
        if failure.is_some_and(Failure::is_overload) {
            endpoint.concurrency.overloaded(attempted.began, now, most);
        }
        match attempted.verdict {
            Verdict::Delivered | Verdict::Reject(Failure::Status(_)) => {
                if endpoint.breaker.is_open().is_some() {
                    let name = &self.settings.config.name;
                    tracing::info!(subscription = name, "the endpoint is back");
                }
                endpoint.breaker.success(most);
                Weight::Counts
            }
            Verdict::Retry { reason, .. } => {
                let unit = rand::random();
                endpoint.breaker.failure(reason, failed, now, unit)
            }
            Verdict::Pause { .. } => {
                endpoint.breaker.postponed(failed.id, now);
                Weight::Spared
            }
            Verdict::Reject(_) | Verdict::Gone | Verdict::Refused => Weight::Counts,
        }
    }

    pub(super) fn finished(&mut self, outcome: Outcome) {
        self.series.event(outcome);
        self.rate.count();
        let totals = &mut self.totals;
        let counter = match outcome {
            Outcome::Delivered => &mut totals.delivered,
            Outcome::Filtered => &mut totals.filtered,
            Outcome::FilterError => &mut totals.filter_errors,
            Outcome::DeadLettered => &mut totals.dead_lettered,
        };
        *counter += 1;
    }

    fn attempted(&mut self, attempted: &Attempted) {
        let (outcome, failure) = match &attempted.verdict {
            Verdict::Delivered => (Attempt::Delivered, None),
            Verdict::Retry { reason, .. } | Verdict::Reject(reason) => {
                (Attempt::Failed, Some(reason.to_string()))
            }
            Verdict::Pause { reason, .. } => (Attempt::Paused, Some(reason.to_string())),
            Verdict::Gone => (Attempt::Gone, Some(Failure::Status(410).to_string())),
            Verdict::Refused => (Attempt::Refused, Some(report::REFUSED.to_owned())),
        };
        self.series.attempt(outcome, attempted.took);
        self.totals.failed_attempts += u64::from(failure.is_some());
        self.endpoint.delivering = Some(failure.is_none());
        self.endpoint.failure = failure;
    }
}
