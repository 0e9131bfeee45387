//! Tells an endpoint that is down from an event that fails, and holds everything back while it is down.
//!
//! A plain state machine: no clock, no I/O. Closed: deliveries go as they may. A run of failures without a success in
//! between opens it; what the events of that run failed is then not theirs, and their attempts are given back. Open:
//! nothing goes but one probe at a time, further and further apart. A success half-opens it: requests at once double
//! with each round until all may go again.
//!
//! Where no connection comes about, no event is at fault: few such failures are enough, and none counts as an attempt.
//! An answer that is a failure may be the event's fault: only when several events fail in a row, for a while or often,
//! it is the endpoint's. An event that fails alone keeps failing alone, and exhausts its attempts. So does one that failed
//! before and after a success of others: whatever fails beside it, it proves nothing against the endpoint.

use crate::key_queues::Id;
use crate::verdict::Failure;
use std::time::{Duration, Instant};

/// Connections that fail in a row until nothing more is sent.
const UNREACHABLE: u32 = 3;
/// Events that fail in a row, at least, until the endpoint is to blame.
const EVENTS: usize = 5;
/// Their failures in a row, until the endpoint is to blame, however quickly they came.
const FAILURES: u32 = 20;
/// Time since the first of them, until the endpoint is to blame, however few they are.
const WHILE: Duration = Duration::from_secs(1);
/// Wait before the first probe, and the longest wait.
const PROBE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Events held while it is open. More than one, so that an event which fails by itself does not keep it open: each
/// probe takes another key.
pub(crate) const PROBED: usize = 16;

/// Names an event across restarts of the consumer: partition and offset.
pub(crate) type Place = (i32, i64);

/// What may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// As much as the other limits allow.
    Open,
    /// At most so many requests at once.
    Ramp(u32),
    /// One request.
    Probe,
    /// Nothing.
    Shut,
}

/// What a failure means for the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// It is one of its attempts.
    Counts,
    /// It is not the event's.
    Spared,
    /// Neither this one nor those of its run are the events': the breaker has opened.
    Opened,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    Open {
        probe_at: Instant,
        probe: Option<Id>,
    },
    HalfOpen {
        ramp: u32,
    },
}

/// Failures since the last success.
#[derive(Debug, Default)]
struct Run {
    since: Option<Instant>,
    failures: u32,
    unreachable: u32,
    /// The first few events that failed.
    events: Vec<Place>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: State,
    run: Run,
    /// Number of the run; an attempt that began in an earlier one than the last outage says nothing of today.
    number: u64,
    /// Number of the first run after the last opening.
    opened: u64,
    /// Successes so far.
    successes: u64,
    delay: Duration,
    cause: Option<Failure>,
}

/// Whose attempt failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub(crate) id: Id,
    pub(crate) event: Place,
    /// Run it began in.
    pub(crate) began: u64,
    /// It failed before and after a success of others.
    pub(crate) is_suspect: bool,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            state: State::Closed,
            run: Run::default(),
            number: 0,
            opened: 0,
            successes: 0,
            delay: PROBE.0,
            cause: None,
        }
    }
}

impl Breaker {
    /// What may be sent at `now`.
    pub(crate) fn gate(&self, now: Instant) -> Gate {
        match self.state {
            State::Closed => Gate::Open,
            State::HalfOpen { ramp } => Gate::Ramp(ramp),
            State::Open {
                probe_at,
                probe: None,
            } if now >= probe_at => Gate::Probe,
            State::Open { .. } => Gate::Shut,
        }
    }

    /// Why it is open; none while it is not.
    pub(crate) const fn is_open(&self) -> Option<Failure> {
        match self.state {
            State::Open { .. } => self.cause,
            State::Closed | State::HalfOpen { .. } => None,
        }
    }

    /// Is it neither open nor closed?
    pub(crate) const fn is_half_open(&self) -> bool {
        matches!(self.state, State::HalfOpen { .. })
    }

    /// Number of the run of failures: attempts of one number are given back together, and the number an attempt began
    /// with belongs into its verdict.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Successes so far: what failed when there were fewer has seen others succeed since.
    pub(crate) const fn successes(&self) -> u64 {
        self.successes
    }

    /// The probe under way.
    pub(crate) const fn probe(&self) -> Option<Id> {
        match self.state {
            State::Open { probe, .. } => probe,
            State::Closed | State::HalfOpen { .. } => None,
        }
    }

    /// A probe is under way.
    pub(crate) const fn probing(&mut self, id: Id) {
        if let State::Open { probe, .. } = &mut self.state {
            *probe = Some(id);
        }
    }

    /// The probe under way ends without a verdict, or with one that says nothing: another one may go.
    pub(crate) const fn forget_probe(&mut self) {
        if let State::Open { probe, .. } = &mut self.state {
            *probe = None;
        }
    }

    /// The endpoint took an event, or refused one for what it is. `ceiling`: requests at once when all may go.
    pub(crate) fn success(&mut self, ceiling: u32) {
        self.end_run();
        self.successes += 1;
        self.state = match self.state {
            State::Open { .. } => State::HalfOpen { ramp: 1 },
            State::HalfOpen { ramp } if ramp < ceiling => State::HalfOpen { ramp: ramp + 1 },
            State::Closed | State::HalfOpen { .. } => {
                self.delay = PROBE.0;
                self.cause = None;
                State::Closed
            }
        };
    }

    /// The probe was asked to come back later. The pause itself is for others to keep.
    pub(crate) fn postponed(&mut self, id: Id, now: Instant) {
        if self.probe() == Some(id) {
            self.state = State::Open {
                probe_at: now,
                probe: None,
            };
        }
    }

    /// An attempt failed. `unit` is a random number in [0, 1).
    pub(crate) fn failure(
        &mut self,
        failure: Failure,
        failed: Failed,
        now: Instant,
        unit: f64,
    ) -> Weight {
        match self.state {
            State::Open { probe, .. } if probe == Some(failed.id) => {
                return self.probe_failed(failure, failed, now, unit);
            }
            // Late answers to what was sent before it opened.
            State::Open { .. } => return Weight::Spared,
            _ if failed.began < self.opened => return Weight::Spared,
            State::Closed | State::HalfOpen { .. } => {}
        }
        self.run.note(failure, failed, now);
        if self.run.is_outage(self.is_half_open(), now) {
            self.open(failure, now, unit);
            return Weight::Opened;
        }
        if failure.is_unreachable() {
            Weight::Spared
        } else {
            Weight::Counts
        }
    }

    fn probe_failed(
        &mut self,
        failure: Failure,
        failed: Failed,
        now: Instant,
        unit: f64,
    ) -> Weight {
        let was_unreachable = self.cause.is_some_and(Failure::is_unreachable);
        if was_unreachable && !failure.is_unreachable() {
            // It answers again. What it answers may be this event's fault.
            self.end_run();
            self.run.note(failure, failed, now);
            self.state = State::HalfOpen { ramp: 1 };
            return Weight::Counts;
        }
        self.open(failure, now, unit);
        Weight::Spared
    }

    fn open(&mut self, failure: Failure, now: Instant, unit: f64) {
        self.end_run();
        self.opened = self.number;
        self.cause = Some(failure);
        self.state = State::Open {
            probe_at: now + self.delay.mul_f64(0.5 + unit / 2.0),
            probe: None,
        };
        self.delay = (self.delay * 2).min(PROBE.1);
    }

    fn end_run(&mut self) {
        self.number += 1;
        self.run = Run::default();
    }
}

impl Run {
    fn note(&mut self, failure: Failure, failed: Failed, now: Instant) {
        self.unreachable = if failure.is_unreachable() {
            self.unreachable + 1
        } else {
            0
        };
        if failed.is_suspect {
            return;
        }
        let event = failed.event;
        self.since.get_or_insert(now);
        self.failures += 1;
        if self.events.len() < EVENTS && !self.events.contains(&event) {
            self.events.push(event);
        }
    }

    fn is_outage(&self, is_suspect: bool, now: Instant) -> bool {
        if self.unreachable >= UNREACHABLE || (is_suspect && self.unreachable > 0) {
            return true;
        }
        let for_long = self
            .since
            .is_some_and(|since| now.duration_since(since) >= WHILE);
        self.events.len() >= EVENTS && (for_long || self.failures >= FAILURES)
    }
}

#[cfg(test)]
mod tests;
