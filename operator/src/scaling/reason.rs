//! Why a worker has as many replicas as it has.

/// Why. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// As many as the work needs.
    Sufficient,
    /// More: records wait longer than they shall, or will.
    Backlog,
    /// Fewer have been enough for the whole window.
    FewerSuffice,
    /// Nothing to do for the whole window.
    Idle,
    /// None was running, and there is work.
    Work,
    /// Outside of what is allowed.
    OutOfBounds,
    /// Something needed for a decision is not known.
    Unknown,
    /// A change is wanted, but the last one, or the wish, is too young.
    Stabilizing,
    /// More are wanted than are allowed.
    AtMaximum,
    /// More are wanted than can work side by side.
    AtParallelism,
    /// More are wanted, but those there are are not all ready.
    NotReady,
    /// Records wait and nothing moves: more replicas change nothing.
    Stalled,
    /// More replicas did not complete more.
    SinkSaturated,
}

impl Reason {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sufficient => "Sufficient",
            Self::Backlog => "Backlog",
            Self::FewerSuffice => "FewerSuffice",
            Self::Idle => "Idle",
            Self::Work => "Work",
            Self::OutOfBounds => "OutOfBounds",
            Self::Unknown => "Unknown",
            Self::Stabilizing => "Stabilizing",
            Self::AtMaximum => "AtMaximum",
            Self::AtParallelism => "AtParallelism",
            Self::NotReady => "NotReady",
            Self::Stalled => "Stalled",
            Self::SinkSaturated => "SinkSaturated",
        }
    }
}
