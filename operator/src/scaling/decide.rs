//! The decision.

use super::demand::{self, SETTLED, Wanted, Work};
use super::history::milli;
use super::{Bounds, Ceiling, Decision, Fewer, History, Observed, Reason, Seconds, Trial};

/// Fewer must have been enough for so long before replicas go, seconds.
pub(super) const IN_WINDOW: Seconds = 300;
/// More must have been wanted for so long before replicas come, seconds: two looks, not one.
const OUT_WINDOW: Seconds = 5;
/// After a change, fewer only after this, seconds.
const IN_PAUSE: Seconds = 60;
/// After a change, more only after this, seconds.
const OUT_PAUSE: Seconds = 30;
/// Of the throughput that more replicas promise, so much must come, or they were in vain.
const WORTH: f64 = 0.25;
/// The sink has become faster when so much more is completed.
const FASTER: f64 = 1.3;
/// Where more replicas were in vain, more are tried again after this, twice as long after each failure, seconds.
const FIRST_CEILING: Seconds = 900;
/// The longest of these, seconds.
pub(super) const LONGEST_CEILING: Seconds = 4 * 3600;

/// How many replicas there shall be.
///
/// Never fewer than `bounds.min` nor more than `bounds.max`; where these contradict each other, the minimum is taken down to the
/// maximum. `history` is that of the last decision on the same worker, or the default.
pub fn scale(observed: &Observed, bounds: &Bounds, history: &History) -> Decision {
    let mut look = Look {
        observed,
        bounds,
        min: bounds.min.min(bounds.max),
        history: history.at(observed),
    };
    let (replicas, reason) = look.decide();
    if replicas != observed.replicas {
        look.history.changed_at = Some(observed.now);
        look.history.more_since = None;
        if replicas == 0 || reason != Reason::FewerSuffice {
            look.history.fewer = None;
        }
    }
    let message = look.words(replicas, reason);
    Decision {
        replicas,
        reason,
        message,
        history: look.history,
    }
}

/// One look at a worker.
struct Look<'a> {
    observed: &'a Observed,
    bounds: &'a Bounds,
    min: u32,
    history: History,
}

impl Look<'_> {
    fn decide(&mut self) -> (u32, Reason) {
        let (observed, now, current) = (self.observed, self.observed.now, self.observed.replicas);
        if current > self.bounds.max || current < self.min {
            self.history.trial = None;
            return (
                current.clamp(self.min, self.bounds.max),
                Reason::OutOfBounds,
            );
        }
        if current == 0 {
            return self.wake();
        }
        let floor = self.min.max(1).min(self.bounds.max);
        let Some(work) = Work::of(observed, self.bounds) else {
            self.history.fewer = None;
            self.history.idle_since = None;
            self.history.more_since = None;
            return (current, Reason::Unknown);
        };
        if self.is_idle(&work) {
            let since = *self.history.idle_since.get_or_insert(now);
            self.history.more_since = None;
            if now - since >= IN_WINDOW && current > self.min {
                self.history.trial = None;
                return (self.min, Reason::Idle);
            }
        } else {
            self.history.idle_since = None;
        }
        self.history.capacity_milli = demand::capacity(&self.history, observed, &work);
        if let Some(back) = self.judge(&work) {
            return (back.clamp(floor, current), Reason::SinkSaturated);
        }
        let settled = observed.ready > 0 && self.history.ready_for(now) >= demand::STALL;
        if observed.stuck > 0 && work.movable == 0 && work.drain <= 0.0 && settled {
            self.history.more_since = None;
            self.history.trial = None;
            return match self.fewer(floor, floor) {
                replicas if replicas < current => (replicas, Reason::Stalled),
                _ => (current, Reason::Stalled),
            };
        }
        match demand::wanted(observed, self.bounds, &work, &self.history) {
            Wanted::More(wanted) => {
                self.history.fewer = None;
                self.more(wanted, &work)
            }
            Wanted::Same => {
                self.history.fewer = None;
                self.history.more_since = None;
                (current, Reason::Sufficient)
            }
            Wanted::Fewer(enough) => {
                self.history.more_since = None;
                // What is under way or not known keeps replicas.
                if observed.in_flight.is_none()
                    || observed.retrying.is_none()
                    || (observed.age_seconds.is_none() && observed.depth != Some(0))
                {
                    self.history.fewer = None;
                    return (current, Reason::Unknown);
                }
                let replicas = self.fewer(enough, floor);
                if replicas < current {
                    self.history.trial = None;
                    (replicas, Reason::FewerSuffice)
                } else {
                    (current, Reason::Sufficient)
                }
            }
        }
    }

    /// Nothing waits, nothing is under way, nothing waits for a retry, nothing arrives.
    fn is_idle(&self, work: &Work) -> bool {
        let observed = self.observed;
        observed.depth == Some(0)
            && observed.in_flight == Some(0)
            && observed.retrying == Some(0)
            && work.arrival <= 0.0
    }

    /// From none to as many as what waits needs.
    fn wake(&mut self) -> (u32, Reason) {
        let Some(depth) = self.observed.depth else {
            return (0, Reason::Unknown);
        };
        if depth == 0 {
            return (0, Reason::Idle);
        }
        let trusted = u64::from(self.bounds.target_depth_per_replica.max(1));
        let by_depth = u32::try_from(depth.div_ceil(trusted)).unwrap_or(u32::MAX);
        let most = self.observed.partitions.unwrap_or(u32::MAX).max(1);
        self.history.idle_since = None;
        self.history.trial = None;
        (
            by_depth
                .min(most)
                .min(grown(0))
                .clamp(self.min.max(1).min(self.bounds.max), self.bounds.max),
            Reason::Work,
        )
    }

    /// Judges the last scale-out once its effect can be seen. Some: that many would have done the same.
    fn judge(&mut self, work: &Work) -> Option<u32> {
        let (observed, now) = (self.observed, self.observed.now);
        if let Some(ceiling) = self.history.ceiling {
            let faster = work.is_busy
                && self.history.ready_for(now) >= SETTLED
                && observed.ready == observed.replicas
                && observed.replicas <= ceiling.replicas
                && work.drain > FASTER * rate(ceiling.rate_milli);
            if faster {
                self.history.ceiling = None;
            }
        }
        let trial = self.history.trial?;
        if !work.is_busy {
            // It was enough.
            self.history.trial = None;
            return None;
        }
        if observed.ready < observed.replicas || self.history.ready_for(now) < SETTLED {
            return None;
        }
        self.history.trial = None;
        let before = rate(trial.rate_milli);
        let promised = demand::gain(observed, trial.from, observed.replicas) - 1.0;
        if before <= 0.0 || work.drain >= before * WORTH.mul_add(promised, 1.0) {
            return None;
        }
        let each = before / f64::from(trial.from.max(1));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates"
        )]
        let as_good = (work.drain / each * 0.95).ceil() as u32;
        let back = as_good.max(trial.from);
        let failures = self
            .history
            .ceiling
            .map_or(0, |ceiling| ceiling.failures.saturating_add(1));
        let pause = FIRST_CEILING.saturating_mul(1 << failures.min(8));
        self.history.ceiling = Some(Ceiling {
            replicas: back,
            until: now + pause.min(LONGEST_CEILING),
            rate_milli: milli(work.drain),
            failures,
        });
        // What these replicas were seen to do is what the sink let them do, not what they can.
        self.history.capacity_milli = Some(milli(each));
        Some(back)
    }

    fn more(&mut self, wanted: u32, work: &Work) -> (u32, Reason) {
        let (observed, now, current) = (self.observed, self.observed.now, self.observed.replicas);
        let since = *self.history.more_since.get_or_insert(now);
        if current >= self.bounds.max {
            return (current, Reason::AtMaximum);
        }
        let room = demand::parallelism(observed, work);
        if current >= room {
            return (current, Reason::AtParallelism);
        }
        if observed.ready < current {
            return (current, Reason::NotReady);
        }
        let is_capped = |ceiling: &Ceiling| current >= ceiling.replicas && now < ceiling.until;
        if self.history.ceiling.as_ref().is_some_and(is_capped) {
            return (current, Reason::SinkSaturated);
        }
        // What these replicas can do shows in a moment: better than to guess, and than to guess again and again.
        let unmeasured =
            self.history.capacity_milli.is_none() && self.history.ready_for(now) < SETTLED;
        let waits = unmeasured
            || demand::is_falling(observed, work, &self.history)
            || now - since < OUT_WINDOW
            || self.history.unchanged_for(now) < OUT_PAUSE
            || self.history.trial.is_some();
        if waits {
            return (current, Reason::Stabilizing);
        }
        let next = wanted.min(grown(current)).min(room).min(self.bounds.max);
        let next = demand::sharing_as_well(observed, next);
        if next <= current {
            return (current, Reason::AtParallelism);
        }
        // Where what waits is not spread evenly, nobody can say what more replicas promise.
        if work.is_busy && work.drain > 0.0 && demand::is_even(observed, work, next) {
            self.history.trial = Some(Trial {
                from: current,
                rate_milli: milli(work.drain),
            });
        }
        (next, Reason::Backlog)
    }

    /// Replicas after a look at which `enough` would do.
    fn fewer(&mut self, enough: u32, floor: u32) -> u32 {
        let (now, current) = (self.observed.now, self.observed.replicas);
        let enough = enough.max(floor);
        if enough >= current {
            self.history.fewer = None;
            return current;
        }
        let fewer = self.history.fewer.get_or_insert(Fewer {
            since: now,
            most: enough,
        });
        fewer.most = fewer.most.max(enough);
        let most = fewer.most;
        if most >= current {
            self.history.fewer = None;
            return current;
        }
        if now - fewer.since < IN_WINDOW || self.history.unchanged_for(now) < IN_PAUSE {
            return current;
        }
        // At most half of them at once.
        most.max(current / 2).max(floor)
    }

    fn words(&self, replicas: u32, reason: Reason) -> String {
        let observed = self.observed;
        let depth = match (observed.depth, observed.depth_is_a_floor) {
            (Some(depth), true) => format!("at least {depth} wait"),
            (Some(depth), false) => format!("{depth} wait"),
            (None, _) => "what waits is not known".to_owned(),
        };
        let rates = match (observed.arrival, observed.drain) {
            (Some(arrival), Some(drain)) => {
                format!("{arrival:.0}/s arrive, {drain:.0}/s are completed")
            }
            _ => "rates are not known".to_owned(),
        };
        let each = self.history.capacity().map_or_else(
            || "the rate of a replica is not known".to_owned(),
            |each| format!("a busy replica does {each:.0}/s"),
        );
        let current = observed.replicas;
        let change = match replicas.cmp(&current) {
            std::cmp::Ordering::Equal => format!("stays at {current}"),
            _ => format!("from {current} to {replicas}"),
        };
        let Bounds { min, max, .. } = *self.bounds;
        let target = self.bounds.target_age_seconds;
        match reason {
            Reason::Sufficient => format!("{change}: as many as the work needs"),
            Reason::Backlog => format!(
                "{change}: {depth}, {rates}, {each}; everything shall be done within {target} s"
            ),
            Reason::FewerSuffice => format!(
                "{change}: fewer were enough for {} minutes; {rates}, {each}",
                IN_WINDOW / 60
            ),
            Reason::Idle => format!(
                "{change}: nothing waits, is under way, waits for a retry or arrived for {} minutes",
                IN_WINDOW / 60
            ),
            Reason::Work => format!("{change}: {depth} and no replica runs"),
            Reason::OutOfBounds => format!("{change}: allowed are {min} to {max}"),
            Reason::Unknown => format!("{change}: {depth}, {rates}; nothing is changed on that"),
            Reason::Stabilizing => {
                format!(
                    "{change}: more are wanted, but the last change, or what the replicas complete, can't be judged yet"
                )
            }
            Reason::AtMaximum => format!("{change}: {depth}, {rates}; maxReplicas is reached"),
            Reason::AtParallelism => format!(
                "{change}: {depth}, and more replicas would find nothing to do: what waits is in few partitions"
            ),
            Reason::NotReady => format!(
                "{change}: {} of {current} replicas are ready; more are wanted, but not before these are",
                observed.ready
            ),
            Reason::Stalled => {
                format!("{change}: {depth} and nothing is completed; more replicas would not help")
            }
            Reason::SinkSaturated => {
                format!("{change}: more replicas do not complete more; {rates}")
            }
        }
    }
}

/// The most that `current` replicas become in one step.
const fn grown(current: u32) -> u32 {
    let (double, four) = (current.saturating_mul(2), current.saturating_add(4));
    if double > four { double } else { four }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn rate(milli: u64) -> f64 {
    milli as f64 / 1000.0
}
