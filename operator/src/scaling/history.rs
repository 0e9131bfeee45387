//! What the autoscaler remembers between two decisions. Whole numbers, so that a status can hold it without a loss.

use super::{Observed, Seconds};

/// A gap in the observations that is longer than this breaks windows: nobody knows what happened in between.
const LONGEST_GAP: Seconds = 60;
/// After a start, at least so much is observed before a window can be over.
const AFTER_START: Seconds = 60;

/// What the autoscaler remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// When this was last looked at; `None` after a start.
    pub seen_at: Option<Seconds>,
    /// When the number of replicas last changed.
    pub changed_at: Option<Seconds>,
    /// Since when fewer would do.
    pub fewer: Option<Fewer>,
    /// Since when more are needed.
    pub more_since: Option<Seconds>,
    /// Since when there is nothing to do.
    pub idle_since: Option<Seconds>,
    /// Since when so many replicas are ready.
    pub ready: Option<(u32, Seconds)>,
    /// Thousandths of a record that a busy replica completes per second.
    pub capacity_milli: Option<u64>,
    /// A scale-out that is not judged yet.
    pub trial: Option<Trial>,
    /// Replicas beyond which the sink takes no more.
    pub ceiling: Option<Ceiling>,
}

/// Fewer replicas would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fewer {
    /// Since when, without a break.
    pub since: Seconds,
    /// The most that were needed at any moment since.
    pub most: u32,
}

/// A scale-out whose effect is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Replicas before.
    pub from: u32,
    /// Thousandths of a record that they completed per second together.
    pub rate_milli: u64,
}

/// More replicas were tried in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// As many make a difference.
    pub replicas: u32,
    /// When more are tried again.
    pub until: Seconds,
    /// Thousandths of a record that they complete per second together.
    pub rate_milli: u64,
    /// How often in a row more were tried in vain.
    pub failures: u32,
}

impl History {
    /// The history seen at the moment of `observed`. Windows that a gap, a start or a clock that was set has torn begin anew.
    pub(super) fn at(mut self, observed: &Observed) -> Self {
        let now = observed.now;
        let earliest = match self.seen_at {
            Some(seen) if (0..=LONGEST_GAP).contains(&(now - seen)) => None,
            Some(_) => Some(now),
            None => Some(now - super::decide::IN_WINDOW + AFTER_START),
        };
        let torn = |since: Seconds| {
            earliest
                .map_or(since, |earliest| since.max(earliest))
                .min(now)
        };
        self.fewer = self.fewer.map(|fewer| Fewer {
            since: torn(fewer.since),
            ..fewer
        });
        self.more_since = self.more_since.map(torn);
        self.idle_since = self.idle_since.map(torn);
        self.changed_at = self.changed_at.map(|at| at.min(now));
        self.ceiling = self.ceiling.map(|ceiling| Ceiling {
            until: ceiling.until.min(now + super::decide::LONGEST_CEILING),
            ..ceiling
        });
        let gap = self.seen_at.is_some() && earliest.is_some();
        self.ready = self
            .ready
            .filter(|(ready, since)| *ready == observed.ready && *since <= now && !gap)
            .or(Some((observed.ready, now)));
        self.seen_at = Some(now);
        self
    }

    /// How long so many replicas have been ready.
    pub(super) fn ready_for(&self, now: Seconds) -> Seconds {
        self.ready.map_or(0, |(_, since)| now - since)
    }

    /// How long ago the last change was; long ago if there was none.
    pub(super) fn unchanged_for(&self, now: Seconds) -> Seconds {
        self.changed_at.map_or(Seconds::MAX, |at| now - at)
    }

    /// Records that a busy replica completes per second.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub(super) fn capacity(&self) -> Option<f64> {
        self.capacity_milli
            .filter(|milli| *milli > 0)
            .map(|milli| milli as f64 / 1000.0)
    }
}

/// A rate in thousandths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates"
)]
pub(super) fn milli(rate: f64) -> u64 {
    (rate * 1000.0).round() as u64
}
