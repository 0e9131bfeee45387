//! Whether this process leads, and how far it has come: what `/readyz` answers.

use std::sync::atomic::{AtomicU8, Ordering};
use tokio_util::sync::CancellationToken;

const STANDING_BY: u8 = 0;
const FILLING_CACHES: u8 = 1;
const WORKING: u8 = 2;

/// State of this process.
#[derive(Debug, Default)]
pub(crate) struct Leadership(AtomicU8);

impl Leadership {
    /// The Lease is held.
    pub(crate) fn begin(&self) {
        self.0.store(FILLING_CACHES, Ordering::Release);
    }

    /// The controllers work.
    pub(crate) fn caches_filled(&self) {
        self.0.store(WORKING, Ordering::Release);
    }

    /// True while the Lease is held.
    pub(crate) fn is_leader(&self) -> bool {
        self.0.load(Ordering::Acquire) != STANDING_BY
    }

    /// A process that stands by is as ready as it can be.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match self.0.load(Ordering::Acquire) {
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
