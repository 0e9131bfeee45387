//! How many replicas a worker shall have: from what is observed, what is allowed and what was decided before. Pure: no I/O,
//! no clock.
//!
//! The demand is a number of busy replicas: records arrive at some rate, what waits shall be gone within the target age, and
//! a replica that always had work was seen to complete so many records per second. [`scale`] follows the demand up within
//! seconds and down after minutes, within bounds, and says why in words. It never goes down on data that is not known.

mod decide;
mod demand;
mod history;
pub mod lag;
mod reason;

pub use decide::scale;
pub use history::{Ceiling, Fewer, History, Trial};
pub use reason::Reason;

/// Seconds since the Unix epoch.
pub type Seconds = i64;

/// Records wait shorter than this or than the target age, whichever is longer, before anybody is called late.
pub const DEFAULT_TARGET_AGE_SECONDS: u32 = 60;
/// Records that one replica is trusted with before it was seen at work.
pub const DEFAULT_TARGET_DEPTH: u32 = 1_000;

/// What the user allows and wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Fewest replicas; 0 allows none while there is nothing to do.
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// What waits shall be completed within this time, seconds.
    pub target_age_seconds: u32,
    /// Records that one replica is trusted with, as long as its rate is not known.
    pub target_depth_per_replica: u32,
}

/// What is observed at one moment. `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// This moment.
    pub now: Seconds,
    /// Replicas that are wanted now.
    pub replicas: u32,
    /// Replicas that are ready.
    pub ready: u32,
    /// Records or rows that wait.
    pub depth: Option<u64>,
    /// The depth is a count that stopped at its limit: at least so many wait.
    pub depth_is_a_floor: bool,
    /// Those of them that wait where nothing moves.
    pub stuck: u64,
    /// Those of them that wait in the fullest partition that moves; `None`: they can be split at will.
    pub largest: Option<u64>,
    /// Age of the oldest that waits, seconds.
    pub age_seconds: Option<u64>,
    /// Records that arrive per second.
    pub arrival: Option<f64>,
    /// Records that are completed per second, by all replicas.
    pub drain: Option<f64>,
    /// Records under way in the replicas.
    pub in_flight: Option<u64>,
    /// Records that wait for a retry.
    pub retrying: Option<u64>,
    /// Partitions: more replicas than these have nothing to do. `None`: work can be split at will.
    pub partitions: Option<u32>,
    /// Records that one replica works on at once.
    pub carries: u32,
}

/// What shall be.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Replicas.
    pub replicas: u32,
    /// Why.
    pub reason: Reason,
    /// The same in words and numbers.
    pub message: String,
    /// What to hand to the next call.
    pub history: History,
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
