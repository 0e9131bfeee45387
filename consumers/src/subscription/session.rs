//! One life of a subscription's consumer, from joining the group to leaving it.

use super::assignment::{Assignment, Step};
use super::delivery::Deliveries;
use super::{Subscription, Versioned};
use crate::breaker::Gate;
use crate::key_queues::{KeyQueues, Limits};
use crate::source::{Signal, Source};
use futures::future::BoxFuture;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Bytes under way at once, per subscription.
const IN_FLIGHT_BYTES: usize = 4 << 20;
/// Events and bytes held at once, per subscription; beyond, fetching waits.
const HELD: usize = 2_000;
const HELD_BYTES: usize = 8 << 20;
/// A turn at least this often: it serves the group's callbacks even when a wake-up was lost.
const TICK: Duration = Duration::from_millis(250);
/// What is under way may finish within this when the subscription stops.
pub(super) const DRAIN: Duration = Duration::from_secs(15);
/// What finished may be committed within this afterwards.
pub(super) const SETTLE: Duration = Duration::from_secs(5);
/// Leaving the group takes no longer than this.
const LEAVE: Duration = Duration::from_secs(5);

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// As asked.
    Stopped,
    /// The consumer has to be started anew.
    Restart,
}

/// A session that is ending.
#[derive(Clone, Copy, Debug)]
struct Ending {
    how: Ended,
    /// Deliveries are given up then.
    deadline: Instant,
}

/// A consumer in its group and everything that goes when it does.
pub(super) struct Session<'s> {
    pub(super) subscription: &'s mut Subscription,
    pub(super) source: Source,
    pub(super) queues: KeyQueues<super::delivery::Held>,
    pub(super) deliveries: Deliveries,
    pub(super) assignment: Assignment,
    /// A rebalance that waits for a broker or for the client.
    pub(super) operation: Option<BoxFuture<'static, Step>>,
    /// A question to the guard whether the endpoint is admitted by now.
    pub(super) admission: Option<BoxFuture<'static, bool>>,
    /// There was more to fetch than one turn takes.
    pub(super) more: bool,
    ending: Option<Ending>,
}

impl<'s> Session<'s> {
    pub(super) fn new(subscription: &'s mut Subscription, source: Source, now: Instant) -> Self {
        Self {
            queues: KeyQueues::new(subscription.limits(Gate::Open)),
            subscription,
            source,
            deliveries: Deliveries::default(),
            assignment: Assignment::new(now),
            operation: None,
            admission: None,
            more: false,
            ending: None,
        }
    }

    /// Takes turns until the subscription stops or its consumer fails.
    pub(super) async fn serve(
        mut self,
        settings: &mut watch::Receiver<Versioned>,
        stop: &CancellationToken,
    ) -> anyhow::Result<Ended> {
        let wake = self.source.wake();
        loop {
            self.turn(Instant::now());
            if let Some(ended) = self.ended(Instant::now()) {
                return self.leave(ended).await;
            }
            let until = tokio::time::Instant::from_std(self.next_turn(Instant::now()));
            tokio::select! {
                () = stop.cancelled(), if self.ending.is_none_or(|ending| ending.how == Ended::Restart) => {
                    self.end(Ended::Stopped, Instant::now());
                }
                Ok(()) = settings.changed() => {
                    let new = settings.borrow_and_update().clone();
                    self.apply(new);
                }
                finished = self.deliveries.next() => self.done(finished?, Instant::now()),
                taken = pending_or(&mut self.operation) => {
                    self.operation = None;
                    self.stepped(taken);
                }
                admitted = pending_or(&mut self.admission) => {
                    self.admission = None;
                    self.asked(admitted, Instant::now());
                }
                () = wake.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
            while let Some(done) = self.deliveries.try_next()? {
                self.done(done, Instant::now());
            }
        }
    }

    /// Everything that can be done now.
    fn turn(&mut self, now: Instant) {
        for signal in self.source.poll() {
            self.signal(signal, now);
        }
        self.rebalance(now);
        self.more = false;
        if self.ending.is_none() {
            self.ask(now);
            if self.subscription.is_open() {
                if self.wants_more() {
                    self.fetch(now);
                }
                self.start(now);
            }
            self.reposition(now);
        }
        self.commit(now, false);
        self.subscription.shared.turned(now);
        let status = self.subscription.status(now, Some(&self.view(now)));
        self.subscription.shared.report(status);
        let subscription = &self.subscription;
        subscription
            .series
            .held(self.queues.under_way(), self.queues.waiting());
        subscription.series.endpoint(
            subscription.concurrency(now),
            subscription.endpoint.breaker.is_open().is_some(),
        );
    }

    fn signal(&mut self, signal: Signal, now: Instant) {
        let name = &self.subscription.settings.config.name;
        match signal {
            Signal::Assign(_) | Signal::Revoke { .. } => self.assignment.waiting.push_back(signal),
            Signal::Committed(answers) => self.committed(&answers, now),
            Signal::Ends(ends) => self.assignment.ends(&ends),
            Signal::Connected => self.subscription.broker.connection = None,
            Signal::Disconnected(fault) => {
                if self.subscription.broker.disconnected(fault) {
                    tracing::warn!(
                        subscription = name,
                        fault = fault.message,
                        "Kafka can't be reached"
                    );
                }
            }
            Signal::Refused(fault) => {
                if self.subscription.broker.refused(fault) {
                    tracing::warn!(subscription = name, fault = fault.message, "Kafka refuses");
                }
            }
            Signal::Fatal(fault) => {
                tracing::error!(
                    subscription = name,
                    fault = fault.message,
                    "the Kafka client failed, starting anew"
                );
                self.fail(now);
            }
        }
    }

    /// Gives the client up, and starts anew unless it is to stop. Its partitions may be another's already: nothing more to finish or to commit.
    pub(super) fn fail(&mut self, now: Instant) {
        self.ending = Some(Ending {
            how: self.ending.map_or(Ended::Restart, |ending| ending.how),
            deadline: now.checked_sub(SETTLE).unwrap_or(now),
        });
    }

    /// Begins to end. What is under way may finish, nothing new starts.
    pub(super) fn end(&mut self, how: Ended, now: Instant) {
        self.ending = Some(Ending {
            how,
            deadline: now + DRAIN,
        });
    }

    /// Is it ending?
    pub(super) const fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// How it ended, once nothing is left to finish or to commit, or time is up.
    fn ended(&mut self, now: Instant) -> Option<Ended> {
        let ending = self.ending?;
        if self.queues.under_way() > 0 && now < ending.deadline {
            return None;
        }
        let given_up = self.queues.drop_all(|_| true);
        self.deliveries.abort(&given_up);
        if now >= ending.deadline + SETTLE {
            return Some(ending.how);
        }
        self.commit(now, true);
        self.assignment.is_settled(|_| true).then_some(ending.how)
    }

    async fn leave(self, how: Ended) -> anyhow::Result<Ended> {
        let Self {
            subscription,
            source,
            operation,
            assignment,
            ..
        } = self;
        drop(operation);
        let open = assignment.into_unanswered();
        match tokio::time::timeout(LEAVE, source.close(open)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(subscription = subscription.settings.config.name, %error, "leaving the group failed");
            }
            Err(_) => {
                tracing::warn!(
                    subscription = subscription.settings.config.name,
                    "leaving the group takes too long"
                );
            }
        }
        Ok(how)
    }

    fn apply(&mut self, new: Versioned) {
        self.subscription.apply(new);
        let starts = &self.subscription.settings.config.start_offsets;
        let waits = self.assignment.waits_for(starts, &self.subscription.anew);
        if waits && self.ending.is_none() {
            self.end(Ended::Restart, Instant::now());
        }
    }

    /// When the next turn is due whatever happens.
    fn next_turn(&self, now: Instant) -> Instant {
        if self.more {
            return now;
        }
        let retry = self
            .queues
            .next_wake()
            .filter(|_| self.subscription.is_open());
        let paused = self.subscription.endpoint.paused;
        let due = retry
            .max(paused.filter(|_| retry.is_some()))
            .unwrap_or(now + TICK);
        due.min(now + TICK)
    }
}

impl Subscription {
    /// Bounds of its queues, as far as `gate` lets deliveries go.
    pub(super) fn limits(&self, gate: Gate) -> Limits {
        let number = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        let most = self.settings.config.delivery.max_in_flight.max(1);
        let found = self.endpoint.concurrency.limit(most);
        let in_flight = match gate {
            Gate::Ramp(ramp) => found.min(ramp),
            Gate::Open => found,
            // Whoever waits for an answer from before does not keep the endpoint from being asked.
            Gate::Probe | Gate::Shut => most,
        };
        Limits {
            in_flight: number(in_flight),
            in_flight_bytes: IN_FLIGHT_BYTES,
            held: HELD.max(number(most).saturating_mul(2)),
            held_bytes: HELD_BYTES,
        }
    }
}

/// The result of `operation`, never where there is none.
async fn pending_or<T>(operation: &mut Option<BoxFuture<'static, T>>) -> T {
    match operation {
        Some(operation) => operation.await,
        None => std::future::pending().await,
    }
}
