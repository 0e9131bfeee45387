//! Whether this process leads, how far it has come (what `/readyz` answers), and until when it may change anything.
//!
//! The election alone does not keep two processes from writing: one that was stopped, or starved, for longer than the
//! Lease goes on in the middle of a pass before it looks at the clock. So every change asks here at the moment it is sent.

use fanout_runtime::clock::{self, Deadline};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Others take the Lease over once it was not renewed for this long.
pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// A process that could not renew for this long changes nothing more, counted from before the renewal was sent. What is
/// left of [`LEASE`] is for changes under way.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Between two renewals, and between two looks of who stands by.
pub(crate) const RETRY_PERIOD: Duration = Duration::from_secs(2);

const STANDING_BY: u8 = 0;
const FILLING_CACHES: u8 = 1;
const WORKING: u8 = 2;
const ENDED: u8 = 3;

/// State of this process.
#[derive(Debug)]
pub(crate) struct Leadership {
    state: AtomicU8,
    /// When changes end unless the Lease is renewed.
    ends: Deadline,
}

impl Default for Leadership {
    fn default() -> Self {
        Self {
            state: AtomicU8::new(STANDING_BY),
            ends: Deadline::new(Duration::ZERO),
        }
    }
}

impl Leadership {
    /// The Lease is held.
    pub(crate) fn begin(&self) {
        self.state.store(FILLING_CACHES, Ordering::Release);
    }

    /// The controllers work.
    pub(crate) fn caches_filled(&self) {
        self.state.store(WORKING, Ordering::Release);
    }

    /// Nothing may be changed any more, for as long as this process lives.
    pub(crate) fn end(&self) {
        self.state.store(ENDED, Ordering::Release);
    }

    /// The Lease was taken or renewed by a request that was sent at `sent` on [`clock::now`]'s clock.
    pub(crate) fn renewed(&self, sent: Duration) {
        self.ends.set(sent + RENEW_DEADLINE);
    }

    /// True while this process may change something.
    pub(crate) fn may_change(&self) -> bool {
        self.is_leader() && !self.ends.left(clock::now()).is_zero()
    }

    /// True from the first moment with the Lease to the end of the work.
    pub(crate) fn is_leader(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), FILLING_CACHES | WORKING)
    }

    /// A process that stands by is as ready as it can be.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match self.state.load(Ordering::Acquire) {
            FILLING_CACHES => Err(
                "caches are being filled: are the CRDs installed and the rights granted?"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// Ends with `shutdown` if the Lease is not held then; the leader's work ends by itself.
    pub(crate) async fn stopped_without_it(&self, shutdown: &CancellationToken) {
        shutdown.cancelled().await;
        if self.is_leader() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_may_change_things_until_it_could_not_renew_for_too_long() {
        let leadership = Leadership::default();
        let now = clock::now();
        leadership.renewed(now);
        assert!(!leadership.may_change(), "it has not begun");
        leadership.begin();
        assert!(leadership.may_change());
        leadership.caches_filled();
        assert!(leadership.may_change());
        leadership.renewed(now.saturating_sub(RENEW_DEADLINE));
        assert!(!leadership.may_change(), "the renewal is too old");
        leadership.renewed(now);
        leadership.end();
        assert!(!leadership.may_change(), "its work has ended");
    }
}
