//! How much work there is, in busy replicas.

use super::history::{History, milli};
use super::{Bounds, Observed, Seconds};

/// What waits longer than this at the present rate, seconds, keeps the replicas busy: their rate is what they can do.
const BUSY: f64 = 10.0;
/// The window of rates, and time for commits to follow: a rate says what so many replicas do once they have been ready for
/// so long.
pub(super) const SETTLED: Seconds = 40;
/// Replicas that are not ready for so long yet are not said to stand still.
pub(super) const STALL: Seconds = 60;
/// Weight of a new measurement of the capacity.
const WEIGHT: f64 = 0.3;
/// All replicas are taken as busy when the fullest partition does not hold more than one share of this many of what waits.
const EVEN: f64 = 0.75;
/// Below this share of what they were seen to do, what replicas do is falling.
const FALLING: f64 = 0.8;
/// More than this share over what the replicas can do is too much...
const OUT_TOLERANCE: f64 = 1.1;
/// ...and so much more than what is needed is kept when going down.
const IN_HEADROOM: f64 = 1.15;

/// What is known of the work, all of it needed to go down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Records that wait and can move.
    pub(super) movable: u64,
    /// Records that arrive per second.
    pub(super) arrival: f64,
    /// Records that are completed per second.
    pub(super) drain: f64,
    /// The replicas have more than they can do at once.
    pub(super) is_busy: bool,
}

impl Work {
    /// `None` while a part of it is unknown.
    pub(super) fn of(observed: &Observed, bounds: &Bounds) -> Option<Self> {
        let (arrival, drain) = (observed.arrival?, observed.drain?);
        let movable = observed.depth?.saturating_sub(observed.stuck);
        let busy = BUSY
            .min(f64::from(bounds.target_age_seconds) / 2.0)
            .max(2.0);
        let (arrival, drain) = (arrival.max(0.0), drain.max(0.0));
        Some(Self {
            movable,
            arrival,
            drain,
            is_busy: float(movable) > drain * busy && movable > 0,
        })
    }
}

/// The capacity of a replica after this observation, in thousandths.
pub(super) fn capacity(history: &History, observed: &Observed, work: &Work) -> Option<u64> {
    let known = history.capacity_milli;
    if observed.ready == 0 || history.ready_for(observed.now) < SETTLED {
        return known;
    }
    let each = work.drain / f64::from(observed.ready);
    if each <= 0.0 {
        return known;
    }
    // Where one partition holds most of what waits, the owners of the others have little to do.
    let all_busy = work.is_busy && is_even(observed, work, observed.ready);
    match history.capacity() {
        None if all_busy => Some(milli(each)),
        Some(before) if all_busy => Some(milli(before.mul_add(1.0 - WEIGHT, each * WEIGHT))),
        // It does at least what it is seen to do.
        Some(before) if each > before => Some(milli(each)),
        _ => known,
    }
}

/// Do busy replicas do much less than they were seen to do? Then the sink is failing or has just become slower: what more of
/// them would do is not known yet.
pub(super) fn is_falling(observed: &Observed, work: &Work, history: &History) -> bool {
    let Some(capacity) = history.capacity() else {
        return false;
    };
    history.ready_for(observed.now) >= SETTLED
        && is_even(observed, work, observed.ready)
        && work.drain < FALLING * capacity * f64::from(observed.ready)
}

/// Is what waits spread so that `replicas` have about the same to do?
pub(super) fn is_even(observed: &Observed, work: &Work, replicas: u32) -> bool {
    observed
        .largest
        .is_none_or(|largest| float(work.movable) >= EVEN * float(largest) * f64::from(replicas))
}

/// Replicas for the work: as many as keep up with what arrives and complete what waits within the target age. What partitions
/// can't share evenly counts. `spare` is the share to have on top.
fn replicas(observed: &Observed, bounds: &Bounds, work: &Work, capacity: f64, spare: f64) -> u32 {
    let rate = work.arrival + float(work.movable) / f64::from(bounds.target_age_seconds.max(1));
    let load = rate / capacity * spare;
    let whole = |load: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates"
        )]
        let whole = load.ceil() as u32;
        whole
    };
    let Some(partitions) = observed.partitions.filter(|partitions| *partitions > 0) else {
        return whole(load);
    };
    // A replica has whole partitions: what counts is how many of them one replica can have.
    let each = partitions.checked_div(whole(load)).unwrap_or(partitions);
    if each == 0 {
        return whole(load);
    }
    partitions.div_ceil(each)
}

/// The fewest replicas that share the partitions as well as `replicas` do: the one with the most of them decides.
pub(super) fn sharing_as_well(observed: &Observed, replicas: u32) -> u32 {
    let shared = observed
        .partitions
        .and_then(|partitions| Some((partitions, busiest(partitions, replicas)?)));
    shared.map_or(replicas, |(partitions, each)| {
        partitions.div_ceil(each).min(replicas)
    })
}

/// How many times as much `to` replicas can complete as `from`.
pub(super) fn gain(observed: &Observed, from: u32, to: u32) -> f64 {
    let (from, to) = (from.max(1), to.max(1));
    let shared = observed
        .partitions
        .and_then(|partitions| Some((busiest(partitions, from)?, busiest(partitions, to)?)));
    shared.map_or_else(
        || f64::from(to) / f64::from(from),
        |(before, after)| f64::from(before) / f64::from(after),
    )
}

/// Partitions of the replica that has the most.
fn busiest(partitions: u32, replicas: u32) -> Option<u32> {
    (partitions > 0 && replicas > 0).then(|| partitions.div_ceil(replicas))
}

/// How many are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// More.
    More(u32),
    /// As many as there are.
    Same,
    /// Fewer would do.
    Fewer(u32),
}

/// How many replicas the work wants.
pub(super) fn wanted(
    observed: &Observed,
    bounds: &Bounds,
    work: &Work,
    history: &History,
) -> Wanted {
    let current = observed.replicas;
    let is_late = observed
        .age_seconds
        .is_some_and(|age| age > u64::from(bounds.target_age_seconds));
    let Some(capacity) = history.capacity() else {
        let depth = u64::from(bounds.target_depth_per_replica.max(1));
        let by_depth = u32::try_from(work.movable.div_ceil(depth)).unwrap_or(u32::MAX);
        return if work.is_busy && by_depth > current {
            Wanted::More(by_depth)
        } else if work.is_busy || is_late {
            Wanted::Same
        } else {
            // Nobody knows what a replica can do: one fewer at a time.
            Wanted::Fewer(current.saturating_sub(1))
        };
    };
    let demand = |spare| replicas(observed, bounds, work, capacity, spare);
    let needed = demand(1.0 / OUT_TOLERANCE);
    if needed > current && work.is_busy {
        return Wanted::More(demand(1.0).max(needed));
    }
    if observed.depth_is_a_floor && is_late && work.is_busy {
        return Wanted::More(current.saturating_add(1));
    }
    let enough = demand(IN_HEADROOM);
    if enough < current && !work.is_busy && !is_late {
        Wanted::Fewer(enough)
    } else {
        Wanted::Same
    }
}

/// Most replicas that can work side by side: one for each partition; no more than the fullest partition leaves others to do,
/// and one for what arrives elsewhere; no more than it takes to have everything under way at once.
pub(super) fn parallelism(observed: &Observed, work: &Work) -> u32 {
    let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let partitions = observed.partitions.unwrap_or(u32::MAX);
    let spread = match observed.largest {
        Some(0) => 0,
        Some(largest) => narrow(work.movable / largest).saturating_add(1),
        None => u32::MAX,
    };
    let carried = if observed.depth_is_a_floor {
        u32::MAX
    } else {
        narrow(work.movable.div_ceil(u64::from(observed.carries.max(1))))
    };
    partitions.min(spread).min(carried).max(1)
}

#[expect(clippy::cast_precision_loss, reason = "a count, for a rate")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}
