//! When a failed event is tried again, and when it has been tried enough.

use fanout_contract::consumer::Retry;
use std::time::Duration;

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Try again after this long.
    After(Duration),
    /// Enough.
    Exhausted,
}

/// What is known of a failed event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// Attempts that counted so far, this one included if it does.
    pub attempts: u32,
    /// Attempts made in a row, counted or not: what the delay grows with.
    pub tries: u32,
    /// Fewer attempts than the policy grants, where the answer makes success unlikely.
    pub at_most: Option<u32>,
    /// Time since the first attempt began.
    pub age: Duration,
}

/// Decides after a failed attempt. `unit` is a random number in [0, 1): delays lie between half and the whole of
/// a step that doubles from the initial backoff up to the longest. The last attempt comes no later than the
/// greatest age.
pub(crate) fn next(policy: &Retry, failure: Failure, unit: f64) -> Next {
    let attempts = failure
        .at_most
        .map_or(policy.max_attempts, |few| few.min(policy.max_attempts));
    let max_age = Duration::from_secs(policy.max_age_seconds.into());
    let left = max_age.saturating_sub(failure.age);
    if failure.attempts >= attempts || left.is_zero() {
        return Next::Exhausted;
    }
    let initial = Duration::from_millis(policy.initial_backoff_milliseconds.into());
    let longest = Duration::from_secs(policy.max_backoff_seconds.into());
    let doublings = failure.tries.saturating_sub(1).min(31);
    let step = initial.saturating_mul(1 << doublings).min(longest);
    Next::After(step.mul_f64(0.5 + unit / 2.0).min(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: Retry = Retry {
        max_attempts: 6,
        initial_backoff_milliseconds: 1000,
        max_backoff_seconds: 5,
        max_age_seconds: 60,
    };

    fn after(attempts: u32, age: u64, unit: f64) -> Next {
        let failure = Failure {
            attempts,
            tries: attempts,
            at_most: None,
            age: Duration::from_secs(age),
        };
        next(&POLICY, failure, unit)
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        for (attempts, whole) in [(1, 1), (2, 2), (3, 4), (4, 5), (5, 5)] {
            let whole = Duration::from_secs(whole);
            assert_eq!(
                after(attempts, 0, 0.0),
                Next::After(whole / 2),
                "{attempts}"
            );
            let Next::After(longest) = after(attempts, 0, 0.999_999) else {
                panic!("exhausted after {attempts}");
            };
            assert!(longest <= whole && longest > whole.mul_f64(0.99));
        }
    }

    #[test]
    fn attempts_and_age_end_it_whichever_comes_first() {
        assert_eq!(after(6, 0, 0.5), Next::Exhausted);
        assert_eq!(after(1, 60, 0.5), Next::Exhausted);
        assert_eq!(after(1, 61, 0.5), Next::Exhausted);
    }

    #[test]
    fn the_last_attempt_is_not_later_than_the_greatest_age() {
        assert_eq!(after(5, 58, 0.999), Next::After(Duration::from_secs(2)));
    }

    #[test]
    fn a_hopeless_answer_gets_few_attempts_and_never_more_than_the_policy() {
        let few = |attempts, max_attempts| {
            let failure = Failure {
                attempts,
                tries: attempts,
                at_most: Some(3),
                age: Duration::ZERO,
            };
            let policy = Retry {
                max_attempts,
                ..POLICY
            };
            next(&policy, failure, 0.0)
        };
        assert!(matches!(few(2, 6), Next::After(_)));
        assert_eq!(few(3, 6), Next::Exhausted);
        assert_eq!(few(2, 2), Next::Exhausted);
    }

    proptest! {
        #[test]
        fn a_delay_never_exceeds_the_longest_nor_the_age_left(
            attempts in 1..u32::MAX, initial: u32, longest: u32, max_age: u32, age: u32, unit in 0.0..1.0f64,
        ) {
            let policy = Retry {
                max_attempts: u32::MAX,
                initial_backoff_milliseconds: initial,
                max_backoff_seconds: longest,
                max_age_seconds: max_age,
            };
            let failure = Failure { attempts, tries: attempts, at_most: None, age: Duration::from_secs(age.into()) };
            match next(&policy, failure, unit) {
                Next::After(delay) => {
                    prop_assert!(delay <= Duration::from_secs(longest.into()));
                    prop_assert!(failure.age + delay <= Duration::from_secs(max_age.into()));
                }
                Next::Exhausted => prop_assert!(age >= max_age),
            }
        }
    }
}
