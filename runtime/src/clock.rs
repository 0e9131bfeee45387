//! The clock leases are measured with: it goes on while the machine is suspended.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time since boot, suspended time included; never goes back.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or_default(),
        time.tv_nsec.try_into().unwrap_or_default(),
    )
}

/// The end of a lease: moved by whoever renews it, watched by whoever works under it.
#[derive(Debug)]
pub struct Deadline(AtomicU64);

impl Deadline {
    /// Ends at `at` on [`now`]'s clock.
    pub fn new(at: Duration) -> Self {
        Self(AtomicU64::new(nanos(at)))
    }

    /// Moves the end to `at`.
    pub fn set(&self, at: Duration) {
        self.0.store(nanos(at), Ordering::Release);
    }

    /// What is left at `now`; zero once it has passed.
    pub fn left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Acquire)).saturating_sub(now)
    }
}

fn nanos(at: Duration) -> u64 {
    at.as_nanos().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_moves_and_passes() {
        let second = Duration::from_secs(1);
        let deadline = Deadline::new(second * 10);
        assert_eq!(deadline.left(second * 4), second * 6);
        assert_eq!(deadline.left(second * 11), Duration::ZERO);
        deadline.set(second * 13);
        assert_eq!(deadline.left(second * 11), second * 2);
        assert!(now() > Duration::ZERO);
    }
}
