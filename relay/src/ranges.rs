//! How live relays share the shards of a topic: how many ranges there are, who owns which; decisions only.
//!
//! Every relay looks at the same members and leases and decides alike. The number of ranges follows the number of live
//! relays ([`Layout`]): ranges are halves, quarters, eighths of the shards and so on, so that splitting and merging back
//! meet the same borders. The ranges of one *block*, which are to become one again, count as one *unit*: they go to one
//! relay, which merges them. Units are shared out evenly: whoever has more than its share finishes what is in flight on
//! one, stores the position and gives the lease back; whoever has less takes what is free. Relays that decide on old
//! news do no harm: only a lease permits to publish, and only its owner splits or merges.

use crate::claim::Shards;
use crate::lease::{RangeView, View};

/// Shards of a topic.
const SHARDS: i32 = 64;
/// A topic has at least so many ranges: a relay reads the one while it waits for the other.
const LEAST: usize = 2;

/// How many ranges a topic is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// A wider range is split, shards.
    widest: i32,
    /// Narrower ones are merged, shards.
    narrowest: i32,
}

impl Layout {
    /// For so many live relays. A power of two gets a range each; between two of them so many that no relay has half as
    /// much again as another. There may be more before they are merged, so that one relay more or less changes little.
    pub fn new(relays: usize) -> Self {
        let most = SHARDS.unsigned_abs() as usize;
        let relays = relays.clamp(1, most);
        let rounded = relays.next_power_of_two();
        let (fewest, most) = match relays {
            1 => (LEAST, LEAST),
            _ if relays == rounded => (rounded, (2 * rounded).min(most)),
            _ => ((2 * rounded).min(most), (2 * rounded).min(most)),
        };
        let width = |ranges: usize| SHARDS / i32::try_from(ranges).unwrap_or(SHARDS);
        Self {
            widest: width(fewest),
            narrowest: width(most),
        }
    }
}

/// What a relay does about its ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Free ranges to try for, best first.
    pub acquire: Vec<i64>,
    /// Own ranges to give back.
    pub release: Vec<i64>,
    /// Own ranges to replace by narrower ones.
    pub split: Vec<Split>,
    /// Own neighbours to replace by one range each.
    pub merge: Vec<Vec<i64>>,
    /// This relay has less than its share: look again soon.
    pub hungry: bool,
}

/// How a range is split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The range.
    pub range: i64,
    /// What becomes of it, by first shard.
    pub into: Vec<Shards>,
    /// So many of these, the first, stay with this relay; the others are free.
    pub keep: usize,
}

/// What a decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Members and ranges.
    pub view: &'a View,
    /// This relay.
    pub me: &'a str,
    /// The ranges this relay works on, or leaves to others for a while.
    pub working: &'a [i64],
    /// The number of live relays has been what it is for a while: ranges may be split and merged.
    pub settled: bool,
}

/// Ranges that one relay is to own together.
struct Unit<'a> {
    ranges: Vec<&'a RangeView>,
    /// Who has it: whoever holds its first held range.
    owner: Option<&'a str>,
}

impl Unit<'_> {
    fn ids(&self) -> impl Iterator<Item = i64> {
        self.ranges.iter().map(|range| range.id)
    }
}

/// The live relays in one order for all, and how many units each has.
struct Shares<'a> {
    held: Vec<(&'a str, usize)>,
    free: usize,
    /// Everybody has at least so many, once shared out.
    floor: usize,
    /// Nobody has more.
    ceiling: usize,
}

impl<'a> Shares<'a> {
    fn new(situation: Situation<'a>, units: &[Unit<'a>]) -> Self {
        let mut members: Vec<&str> = situation.view.members.iter().map(String::as_str).collect();
        members.push(situation.me);
        members.sort_unstable();
        members.dedup();
        let held = |name: &str| units.iter().filter(|unit| unit.owner == Some(name)).count();
        Self {
            floor: units.len() / members.len(),
            ceiling: units.len().div_ceil(members.len()),
            held: members.into_iter().map(|name| (name, held(name))).collect(),
            free: units.iter().filter(|unit| unit.owner.is_none()).count(),
        }
    }

    fn of(&self, name: &str) -> usize {
        let mut all = self.held.iter();
        all.find(|(member, _)| *member == name)
            .map_or(0, |(_, held)| *held)
    }

    fn wants(&self, held: usize) -> usize {
        self.floor.saturating_sub(held)
    }

    /// What is missing until everybody has the least share.
    fn wanted(&self) -> usize {
        self.held.iter().map(|(_, held)| self.wants(*held)).sum()
    }

    /// How many units `name` gives back: what is above the largest share; and while others lack theirs, one more where it
    /// is among the first of those that have one to spare.
    fn excess(&self, name: &str) -> usize {
        let held = self.of(name);
        let above = |held: usize| held.saturating_sub(self.ceiling);
        let given: usize = self.held.iter().map(|(_, held)| above(*held)).sum();
        let missing = self.wanted().saturating_sub(self.free + given);
        let donors = self.held.iter().filter(|(_, held)| *held > self.floor);
        let gives_more = donors.take(missing).any(|(member, _)| *member == name);
        // Who is above the ceiling gives down to it first.
        above(held).max(usize::from(gives_more && held > self.floor))
    }

    /// How many free units `name` takes, and how many it leaves to those before it.
    fn takes(&self, name: &str) -> (usize, usize) {
        let held = self.of(name);
        let wanted = self.wants(held);
        // One more where everybody finds the least share without it.
        let spare = self.free > self.wanted() && held + wanted < self.ceiling;
        let before = self.held.iter().take_while(|(member, _)| *member != name);
        let left = if wanted == 0 {
            let beside = before.filter(|(_, held)| (self.floor..self.ceiling).contains(held));
            self.wanted() + beside.count()
        } else {
            before.map(|(_, held)| self.wants(*held)).sum()
        };
        (wanted + usize::from(spare), left)
    }
}

/// Decides what the relay does next.
pub fn decide(situation: Situation<'_>) -> Decision {
    let Situation {
        view,
        me,
        working,
        settled,
    } = situation;
    let layout = settled.then(|| Layout::new(view.members.len()));
    let units = units(situation, layout.map_or(1, |layout| layout.narrowest));
    let shares = Shares::new(situation, &units);
    let mine = |unit: &&Unit<'_>| unit.owner == Some(me);
    let works = |id: &i64| working.contains(id);

    // The last ones go, so that every relay agrees on which stay; and what belongs to another's unit.
    let excess = shares.excess(me);
    let given: Vec<&Unit<'_>> = units.iter().rev().filter(mine).take(excess).collect();
    let strangers = units.iter().filter(|unit| !mine(unit));
    let release: Vec<i64> = given
        .iter()
        .copied()
        .chain(strangers)
        .flat_map(Unit::ids)
        .filter(works)
        .collect();

    let (takes, left) = shares.takes(me);
    let free = units.iter().filter(|unit| unit.owner.is_none());
    let mut free: Vec<&Unit<'_>> = free.collect();
    // Relays that take at once try for different ones.
    let first = left % free.len().max(1);
    free.rotate_left(first);
    // What is given back is given whole.
    let rests = units.iter().filter(mine).rev().skip(excess);
    let acquire: Vec<i64> = free
        .into_iter()
        .take(takes)
        .chain(rests)
        .flat_map(|unit| unit.ranges.iter())
        .filter(|range| range.holder.is_none() && !works(&range.id))
        .map(|range| range.id)
        .filter(|id| !release.contains(id))
        .collect();

    let kept: Vec<&Unit<'_>> = units
        .iter()
        .filter(mine)
        .filter(|unit| unit.ids().all(|id| works(&id) && !release.contains(&id)))
        .collect();
    let mut decision = Decision {
        hungry: takes > 0 || !acquire.is_empty(),
        acquire,
        release,
        ..Decision::default()
    };
    if let Some(layout) = layout {
        decision.split = splits(view, &shares, &kept, layout.widest);
        let merge = kept.iter().filter(|unit| unit.ranges.len() > 1);
        decision.merge = merge.map(|unit| unit.ids().collect()).collect();
    }
    decision
}

/// The ranges of each block of so many shards together; wider ones alone.
fn units<'a>(situation: Situation<'a>, block: i32) -> Vec<Unit<'a>> {
    let mut units: Vec<Unit<'a>> = Vec::new();
    let number = |range: &RangeView| range.shards.lo / block;
    for range in &situation.view.ranges {
        let holder = if situation.working.contains(&range.id) {
            Some(situation.me)
        } else {
            range.holder.as_deref()
        };
        match units.last_mut() {
            Some(unit)
                if unit
                    .ranges
                    .last()
                    .is_some_and(|last| number(last) == number(range)) =>
            {
                unit.ranges.push(range);
                unit.owner = unit.owner.or(holder);
            }
            _ => units.push(Unit {
                ranges: vec![range],
                owner: holder,
            }),
        }
    }
    units
}

/// How the ranges of `kept` that are wider than `widest` are split.
fn splits(view: &View, shares: &Shares<'_>, kept: &[&Unit<'_>], widest: i32) -> Vec<Split> {
    let pieces = |range: &RangeView| {
        (range.shards.hi - range.shards.lo)
            .div_euclid(widest)
            .max(1)
    };
    let ranges: i32 = view.ranges.iter().map(pieces).sum();
    let share = usize::try_from(ranges).unwrap_or_default() / shares.held.len();
    let wide = |unit: &&Unit<'_>| unit.ranges.iter().all(|range| pieces(range) > 1);
    // What stays whole counts first.
    let mut mine = kept.iter().copied().filter(|unit| !wide(unit)).count();
    let wide = kept.iter().copied().filter(wide);
    let splits = wide.flat_map(|unit| unit.ranges.iter()).map(|range| {
        let Shards { lo, hi } = range.shards;
        let into: Vec<Shards> = (lo..hi)
            .step_by(widest.unsigned_abs() as usize)
            .map(|lo| Shards {
                lo,
                hi: (lo + widest).min(hi),
            })
            .collect();
        let keep = share.saturating_sub(mine).clamp(1, into.len());
        mine += keep;
        Split {
            range: range.id,
            into,
            keep,
        }
    });
    splits.collect()
}

#[cfg(test)]
mod tests;
