//! The autoscaler of one worker between two looks. No I/O, no clock.

use super::target::ScalingTarget;
use crate::scaling::{Decision, History, Observed, Reason, Seconds, scale};

/// A reason that changes nothing shows once it has held for so many looks.
const LOOKS: u32 = 6;

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// Replicas that are wanted.
    pub replicas: u32,
    /// Why.
    pub reason: Reason,
    /// The same in words.
    pub message: String,
    /// When the number last changed.
    pub changed_at: Option<Seconds>,
    /// Thousandths of a record that a busy replica completes per second.
    pub capacity_milli: Option<u64>,
}

/// Decides for one worker.
#[derive(Debug)]
pub(super) struct Autoscaler {
    history: History,
    replicas: u32,
    other: Option<(Reason, u32)>,
    shown: Option<Scaled>,
}

impl Autoscaler {
    /// Goes on from what the status shows.
    pub(super) fn new(target: &ScalingTarget) -> Self {
        Self {
            history: History {
                changed_at: target.changed_at,
                capacity_milli: target.capacity_milli,
                ..History::default()
            },
            replicas: target.replicas.unwrap_or(target.bounds.min),
            other: None,
            shown: None,
        }
    }

    /// Looks at the worker. What shall be shown of it now.
    pub(super) fn look(&mut self, observed: &Observed, target: &ScalingTarget) -> &Scaled {
        let observed = Observed {
            replicas: self.replicas,
            carries: target.carries,
            ..*observed
        };
        let decision = scale(&observed, &target.bounds, &self.history);
        self.history = decision.history;
        let has_changed = decision.replicas != self.replicas;
        self.replicas = decision.replicas;
        let reason = decision.reason;
        if self
            .shown
            .as_ref()
            .is_some_and(|shown| shown.reason == reason)
        {
            self.other = None;
        } else if self.shown.is_some() && !has_changed {
            let looks = self
                .other
                .filter(|(other, _)| *other == reason)
                .map_or(1, |(_, looks)| looks + 1);
            self.other = Some((reason, looks));
        }
        let is_settled = self.other.is_some_and(|(_, looks)| looks >= LOOKS);
        if has_changed || is_settled {
            self.other = None;
            self.shown = None;
        }
        let history = &self.history;
        self.shown.get_or_insert_with(|| scaled(decision, history))
    }
}

fn scaled(decision: Decision, history: &History) -> Scaled {
    Scaled {
        replicas: decision.replicas,
        reason: decision.reason,
        message: decision.message,
        changed_at: history.changed_at,
        capacity_milli: history.capacity_milli,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::Bounds;

    fn target(replicas: Option<u32>) -> ScalingTarget {
        ScalingTarget {
            bounds: Bounds {
                min: 2,
                max: 6,
                target_age_seconds: 60,
                target_depth_per_replica: 1_000,
            },
            carries: 64,
            replicas,
            reason: None,
            changed_at: None,
            capacity_milli: Some(100_000),
        }
    }

    fn behind(now: Seconds, ready: u32) -> Observed {
        Observed {
            now,
            ready,
            depth: Some(60_000),
            largest: Some(10_000),
            age_seconds: Some(300),
            arrival: Some(100.0),
            drain: Some(f64::from(ready) * 100.0),
            in_flight: Some(64),
            retrying: Some(0),
            partitions: Some(6),
            ..Observed::default()
        }
    }

    #[test]
    fn it_goes_on_from_what_the_status_shows() {
        let observed = behind(1_000, 4);
        for (shown, replicas) in [(Some(4), 4), (None, 2)] {
            let mut autoscaler = Autoscaler::new(&target(shown));
            assert_eq!(
                autoscaler.look(&observed, &target(shown)).replicas,
                replicas
            );
        }
    }

    #[test]
    fn a_change_shows_at_once_and_another_reason_once_it_has_held() {
        let target = target(Some(2));
        let mut autoscaler = Autoscaler::new(&target);
        let mut shown = Vec::new();
        for look in 0..40 {
            let ready = autoscaler.replicas;
            let observed = behind(1_000 + 5 * look, ready);
            let seen = autoscaler.look(&observed, &target).clone();
            if shown.last() != Some(&(seen.replicas, seen.reason)) {
                shown.push((seen.replicas, seen.reason));
            }
        }
        assert_eq!(
            shown,
            [
                (2, Reason::Stabilizing),
                (6, Reason::Backlog),
                (6, Reason::AtMaximum)
            ]
        );
    }
}
