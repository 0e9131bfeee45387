//! What the workers of a Subscription have under way, and how much of it fails. No I/O, no clock. Missing reports are
//! unknown, never 0.

use crate::scaling::lag::WINDOW;
use fanout_contract::consumer::SubscriptionStatus;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What the workers have under way, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// Requests.
    pub in_flight: u64,
    /// Events that wait for a retry.
    pub retrying: u64,
}

/// Attempts of the last [`WINDOW`].
#[derive(Debug, Default)]
pub(super) struct Attempts {
    samples: VecDeque<(Instant, u64, u64)>,
}

/// What the workers that serve a Subscription have under way: `None` unless all of them said it. `silent` tells that a worker that
/// should serve it did not answer.
pub(super) fn under_way(entries: &[&SubscriptionStatus], silent: bool) -> Option<UnderWay> {
    (!silent && !entries.is_empty()).then(|| UnderWay {
        in_flight: entries.iter().map(|entry| u64::from(entry.in_flight)).sum(),
        retrying: entries.iter().map(|entry| u64::from(entry.retrying)).sum(),
    })
}

impl Attempts {
    /// Takes in the counters of all workers at `now`. Where they went back (a worker is gone, or new) they start anew, as they do
    /// when some are missing.
    pub(super) fn add(&mut self, now: Instant, entries: &[&SubscriptionStatus], silent: bool) {
        if silent || entries.is_empty() {
            self.samples.clear();
            return;
        }
        let total = |of: fn(&SubscriptionStatus) -> u64| entries.iter().copied().map(of).sum();
        let delivered = total(|entry| entry.totals.delivered);
        let failed = total(|entry| entry.totals.failed_attempts);
        let back = self
            .samples
            .back()
            .is_some_and(|(_, before, lost)| delivered < *before || failed < *lost);
        if back {
            self.samples.clear();
        }
        self.samples.push_back((now, delivered, failed));
        while self.samples.len() > 2 && now.duration_since(self.samples[1].0) >= WINDOW {
            self.samples.pop_front();
        }
    }

    /// Failed attempts of all attempts; unknown where there was none.
    pub(super) fn failure_ratio(&self) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let (delivered, failed) = (last.1 - first.1, last.2 - first.2);
        let all = delivered.saturating_add(failed);
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let ratio = failed as f64 / all as f64;
        (all > 0 && last.0.duration_since(first.0) > Duration::ZERO).then_some(ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_contract::consumer::Totals;

    fn entry(in_flight: u32, retrying: u32, delivered: u64, failed: u64) -> SubscriptionStatus {
        SubscriptionStatus {
            in_flight,
            retrying,
            totals: Totals {
                delivered,
                failed_attempts: failed,
                ..Totals::default()
            },
            ..SubscriptionStatus::default()
        }
    }

    #[test]
    fn all_workers_together_or_nothing() {
        let (a, b) = (entry(3, 1, 0, 0), entry(4, 0, 0, 0));
        let both = UnderWay {
            in_flight: 7,
            retrying: 1,
        };
        assert_eq!(under_way(&[&a, &b], false), Some(both));
        assert_eq!(under_way(&[&a], true), None);
        assert_eq!(under_way(&[], false), None);
    }

    #[test]
    fn the_ratio_is_that_of_the_last_half_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut attempts = Attempts::default();
        assert_eq!(attempts.failure_ratio(), None);
        for second in 0..=60 {
            let (delivered, failed) = if second <= 20 {
                (second, 0)
            } else {
                (20, second - 20)
            };
            attempts.add(at(second), &[&entry(0, 0, delivered, failed)], false);
            if second == 30 {
                let ratio = attempts.failure_ratio().unwrap();
                assert!((ratio - 1.0 / 3.0).abs() < 0.001, "{ratio}");
            }
        }
        assert_eq!(attempts.failure_ratio(), Some(1.0));
        // No attempt is no success.
        for second in 61..=100 {
            attempts.add(at(second), &[&entry(0, 0, 20, 40)], false);
        }
        assert_eq!(attempts.failure_ratio(), None);
    }

    #[test]
    fn a_restarted_worker_and_a_missing_report_start_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut attempts = Attempts::default();
        attempts.add(at(0), &[&entry(0, 0, 10, 0)], false);
        attempts.add(at(2), &[&entry(0, 0, 20, 0)], false);
        assert_eq!(attempts.failure_ratio(), Some(0.0));
        attempts.add(at(4), &[&entry(0, 0, 1, 0)], false);
        assert_eq!(attempts.failure_ratio(), None);
        attempts.add(at(6), &[&entry(0, 0, 2, 0)], false);
        assert_eq!(attempts.failure_ratio(), Some(0.0));
        attempts.add(at(8), &[], false);
        assert_eq!(attempts.failure_ratio(), None);
    }
}
