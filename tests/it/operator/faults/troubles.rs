//! An API server in trouble, or far away.

use super::Stage;
use fanout_tests::faults::Fault;
use fanout_tests::faults::api_proxy::ApiWrite;
use std::sync::Arc;
use std::time::Duration;

/// One write in so many is refused.
const EVERY: usize = 9;

/// What is wrong with it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// Writes are refused: somebody else wrote.
    Conflicts,
    /// Writes are refused: come again later.
    Busy,
    /// Writes fail.
    Broken,
    /// Writes are not answered; half of them are done.
    Unanswered,
    /// Watches end with 410 Gone.
    Expiring,
    /// The caches are seconds behind.
    Stale,
}

impl Trouble {
    pub(crate) const ALL: [Self; 6] = [
        Self::Conflicts,
        Self::Busy,
        Self::Broken,
        Self::Unanswered,
        Self::Expiring,
        Self::Stale,
    ];

    /// From now on.
    pub(crate) fn begin(self, stage: &mut Stage<'_>) {
        let refuse = |code, retry_after_seconds| {
            move |write: &ApiWrite| {
                (write.number % EVERY == 4).then_some(Fault::Refuse {
                    code,
                    retry_after_seconds,
                })
            }
        };
        match self {
            Self::Conflicts => stage.api.script().rule(refuse(409, None)),
            Self::Busy => stage.api.script().rule(refuse(429, Some(1))),
            Self::Broken => stage.api.script().rule(refuse(500, None)),
            // Each costs the operator its patience.
            Self::Unanswered => stage.api.script().rule(|write| match write.number {
                3 => Some(Fault::Swallow),
                9 => Some(Fault::After(Arc::new(|| {}))),
                _ => None,
            }),
            Self::Expiring => stage.expiring = true,
            Self::Stale => stage.api.delay_watches(Duration::from_secs(3)),
        }
    }
}
