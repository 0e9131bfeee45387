//! Delays between attempts: doubling, capped, with jitter.

use std::time::Duration;

/// Doubling delays from `initial` up to `max`, each drawn at random from its upper half, so that workers which
/// failed together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts at `initial` (or `max`, whichever is smaller) and never waits longer than `max`.
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            next: initial,
        }
    }

    /// Delay before the next attempt: between half and the whole of the current step, which then doubles.
    pub fn next_delay(&mut self) -> Duration {
        let whole = self.next.min(self.max);
        self.next = whole.saturating_mul(2).min(self.max);
        jittered(whole, rand::random())
    }

    /// Begins again at the first step; called after a success.
    pub const fn reset(&mut self) {
        self.next = self.initial;
    }
}

/// The delay for a random `unit` in [0, 1): from half of `whole` up to `whole`.
fn jittered(whole: Duration, unit: f64) -> Duration {
    // The clamp takes back what rounding of large floats adds.
    whole.mul_f64(0.5 + unit / 2.0).clamp(whole / 2, whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_double_up_to_the_cap_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        for whole in [1, 2, 4, 5, 5] {
            let whole = Duration::from_secs(whole);
            let delay = backoff.next_delay();
            assert!(
                delay >= whole / 2 && delay <= whole,
                "{delay:?} of {whole:?}"
            );
        }
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_secs(1));
    }

    #[test]
    fn jitter_spans_the_upper_half() {
        let whole = Duration::from_secs(8);
        assert_eq!(jittered(whole, 0.0), Duration::from_secs(4));
        assert_eq!(jittered(whole, 0.5), Duration::from_secs(6));
    }

    proptest! {
        #[test]
        fn a_delay_never_leaves_its_bounds(initial in 0u64..=u64::MAX / 2, max in 0u64..=u64::MAX / 2, calls in 1usize..200) {
            let (initial, max) = (Duration::from_nanos(initial), Duration::from_nanos(max));
            let mut backoff = Backoff::new(initial, max);
            let mut whole = initial.min(max);
            for _ in 0..calls {
                let delay = backoff.next_delay();
                prop_assert!(delay >= whole / 2 && delay <= whole, "{delay:?} of {whole:?}");
                whole = whole.saturating_mul(2).min(max);
            }
        }
    }
}
