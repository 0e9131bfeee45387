//! How many requests an endpoint takes at once: additively more while it accepts, half of it when it is overloaded.

use std::time::Instant;

/// The limit that was found, within the configured one.
#[derive(Debug)]
pub(crate) struct Concurrency {
    limit: f64,
    /// When the limit was last cut.
    cut: Option<Instant>,
}

impl Default for Concurrency {
    fn default() -> Self {
        // The configured limit is taken as right until the endpoint says otherwise.
        Self {
            limit: f64::INFINITY,
            cut: None,
        }
    }
}

impl Concurrency {
    /// Requests at once, of `most` that are configured.
    pub(crate) fn limit(&self, most: u32) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and `most`"
        )]
        let limit = self.limit.floor().clamp(1.0, f64::from(most.max(1))) as u32;
        limit
    }

    /// A request was accepted: one more at once after each round.
    pub(crate) fn accepted(&mut self, most: u32) {
        let limit = self.limit.min(f64::from(most.max(1)));
        self.limit = (limit + 1.0 / limit).min(f64::from(most.max(1)));
    }

    /// A request that began at `began` found the endpoint overloaded: half as many at once. Those that were under way
    /// together with one that was overloaded before say nothing new.
    pub(crate) fn overloaded(&mut self, began: Instant, now: Instant, most: u32) {
        if self.cut.is_some_and(|cut| began < cut) {
            return;
        }
        self.cut = Some(now);
        self.limit = (self.limit.min(f64::from(most.max(1))) / 2.0).max(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn it_begins_with_what_is_configured() {
        assert_eq!(Concurrency::default().limit(64), 64);
    }

    #[test]
    fn one_overload_halves_it_however_many_were_under_way() {
        let (mut concurrency, begin) = (Concurrency::default(), Instant::now());
        let later = begin + Duration::from_secs(1);
        for _ in 0..64 {
            concurrency.overloaded(begin, later, 64);
        }
        assert_eq!(concurrency.limit(64), 32);
        concurrency.overloaded(later, later + Duration::from_secs(1), 64);
        assert_eq!(concurrency.limit(64), 16);
    }

    #[test]
    fn a_round_of_accepted_requests_adds_one() {
        let (mut concurrency, now) = (Concurrency::default(), Instant::now());
        concurrency.overloaded(now, now, 20);
        for limit in 10..20 {
            assert_eq!(concurrency.limit(20), limit);
            // A little more than a round: the limit grows within it.
            for _ in 0..=limit {
                concurrency.accepted(20);
            }
        }
        assert_eq!(concurrency.limit(20), 20);
    }

    #[test]
    fn another_configured_limit_holds_at_once() {
        let mut concurrency = Concurrency::default();
        concurrency.accepted(64);
        assert_eq!(concurrency.limit(8), 8);
    }

    proptest! {
        #[test]
        fn it_stays_between_one_and_what_is_configured(
            steps in prop::collection::vec((any::<bool>(), 1..1000u32), 1..500),
        ) {
            let (mut concurrency, mut now) = (Concurrency::default(), Instant::now());
            for (accepted, most) in steps {
                now += Duration::from_millis(1);
                if accepted {
                    concurrency.accepted(most);
                } else {
                    concurrency.overloaded(now, now, most);
                }
                prop_assert!((1..=most).contains(&concurrency.limit(most)));
            }
        }
    }
}
