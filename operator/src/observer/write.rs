//! When a number in a status is worth a write. Pure.
//!
//! A status is read by people and watched by programs; each write costs the API server one round through etcd and every
//! watcher one event. Numbers that move all day must not turn into a stream of writes, and what a human reads at three in the
//! morning must not mislead. Live numbers are metrics.

use super::head::Head;
use k8s_openapi::jiff::{Timestamp, Unit};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The progress columns of one object, as a status shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Depth of a Subscription, pending rows of a FanoutTopic.
    pub count: Option<i64>,
    /// Time of the oldest event that waits.
    pub oldest: Option<Timestamp>,
    /// Events per second; of Subscriptions only.
    pub rate_per_second: Option<i64>,
    /// Saved offsets by partition; of Subscriptions only.
    pub positions: BTreeMap<i32, i64>,
}

/// The same as observed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Depth or pending rows; `None`: unknown.
    pub count: Option<i64>,
    /// The oldest event that waits.
    pub oldest: Head,
    /// Events per second; `None`: unknown.
    pub rate_per_second: Option<f64>,
    /// Committed offsets by partition; `None`: unknown, or of another log than the status has positions of.
    pub committed: Option<BTreeMap<i32, i64>>,
}

/// A count has moved when it moved by this many...
const MOVED_BY: u64 = 100;
/// ...and by one part in this many of what is shown.
const MOVED_BY_PART: u64 = 10;
/// An age may be off by this much, or by one tenth of itself.
const AGE_OFF_BY: Duration = Duration::from_secs(30);
/// So many rounds in a row a count is 0, or is not, before that is news.
const ROUNDS_AT_ZERO: u32 = 2;

/// What a write shows: everything that is known; what is unknown stays as it was, and is never 0.
pub(super) fn next(shown: &Shown, seen: &Seen) -> Shown {
    Shown {
        count: seen.count.or(shown.count),
        oldest: match seen.oldest {
            Head::Unknown => shown.oldest,
            Head::Empty => None,
            // A status holds whole seconds.
            Head::Since(time) => Some(time.round(Unit::Second).unwrap_or(time)),
        },
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`as` saturates, and a rate is small"
        )]
        rate_per_second: seen
            .rate_per_second
            .map(|rate| rate.round() as i64)
            .or(shown.rate_per_second),
        // What Kafka has forgotten stays.
        positions: shown
            .positions
            .iter()
            .chain(seen.committed.iter().flatten())
            .map(|(partition, offset)| (*partition, *offset))
            .collect(),
    }
}

/// How far a status is from what is observed, in units of what is worth a write: `None` below one. `at_zero` tells since how
/// many rounds the count is (or is not) 0.
///
/// A rate alone causes no write. The time of the oldest event does, although `depth` did not move: a consumer that keeps up
/// with a steady stream has a steady depth and a head that moves; without a write OLDEST, which ages by itself, would claim
/// that it has been stuck since the last write. An age may be wrong by half a minute, or by a tenth: nobody decides
/// differently for that, and a backlog of an hour then costs a write every six minutes.
pub(super) fn drift(shown: &Shown, seen: &Seen, at_zero: AtZero, now: Timestamp) -> Option<f64> {
    let drift = count_drift(shown.count, seen.count, at_zero).max(age_drift(
        shown.oldest,
        seen.oldest,
        now,
    ));
    (drift >= 1.0).then_some(drift)
}

fn count_drift(shown: Option<i64>, seen: Option<i64>, at_zero: AtZero) -> f64 {
    match (shown, seen) {
        (_, None) => 0.0,
        (None, Some(_)) => 1.0,
        (Some(shown), Some(seen)) => {
            let moved = seen.abs_diff(shown);
            let crossed = (shown == 0) != (seen == 0) && at_zero.rounds >= ROUNDS_AT_ZERO;
            let enough = MOVED_BY.max(shown.unsigned_abs().div_ceil(MOVED_BY_PART));
            #[expect(clippy::cast_precision_loss, reason = "only compared")]
            let moved = moved as f64 / enough as f64;
            if crossed { moved.max(1.0) } else { moved }
        }
    }
}

fn age_drift(shown: Option<Timestamp>, seen: Head, now: Timestamp) -> f64 {
    let age = |time: Timestamp| now.duration_since(time).as_secs_f64().max(0.0);
    let seen = match seen {
        Head::Unknown => return 0.0,
        Head::Empty => 0.0,
        Head::Since(time) => age(time),
    };
    let off = (shown.map_or(0.0, age) - seen).abs();
    off / (seen / 10.0).max(AGE_OFF_BY.as_secs_f64())
}

/// For how many rounds in a row a count has been 0, or has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AtZero {
    zero: bool,
    rounds: u32,
    counted: Option<Instant>,
}

/// What comes within this time of the last is the same round: the pods of a worker answer one by one.
const SAME_ROUND: Duration = Duration::from_secs(1);

impl AtZero {
    /// After the count was judged at `now`; an unknown count is no round.
    pub(super) fn after(self, count: Option<i64>, now: Instant) -> Self {
        let Some(count) = count else {
            return self;
        };
        let (zero, counted) = (count == 0, Some(now));
        match self.counted {
            Some(last) if zero == self.zero && now.duration_since(last) < SAME_ROUND => self,
            Some(_) if zero == self.zero => Self {
                rounds: self.rounds.saturating_add(1),
                counted,
                ..self
            },
            _ => Self {
                zero,
                rounds: 1,
                counted,
            },
        }
    }
}

/// Writes that numbers may cause within [`SPAN`], over all objects.
const AT_MOST: usize = 5;
/// A second, and what a request may take longer than another: the API server sees no more than five a second.
const SPAN: Duration = Duration::from_millis(1_500);
/// A write that has waited for this long counts as twice as far off: the largest come first, and none waits for ever.
const DOUBLED_AFTER: Duration = Duration::from_secs(10);
/// A granted write that nobody did is offered again after this time; one that was done shows in the watch caches by then.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Says which of the objects whose numbers are off may be written now.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    /// Since when an object has been waiting.
    waiting: BTreeMap<String, Instant>,
    /// Grants of the last [`AGAIN_AFTER`], in order.
    granted: VecDeque<(Instant, String)>,
}

impl Scheduler {
    /// Of the objects that are `due` now (uid and drift), those that may be written now, most urgent first.
    pub(super) fn grant(&mut self, now: Instant, due: &[(String, f64)]) -> Vec<String> {
        while self
            .granted
            .front()
            .is_some_and(|(at, _)| now.duration_since(*at) >= AGAIN_AFTER)
        {
            self.granted.pop_front();
        }
        let waiting: BTreeMap<String, Instant> = due
            .iter()
            .filter(|(uid, _)| !self.granted.iter().any(|(_, granted)| granted == uid))
            .map(|(uid, _)| (uid.clone(), self.waiting.get(uid).copied().unwrap_or(now)))
            .collect();
        let recent = self
            .granted
            .iter()
            .filter(|(at, _)| now.duration_since(*at) < SPAN)
            .count();
        let mut ordered: Vec<(f64, &String)> = due
            .iter()
            .filter_map(|(uid, drift)| {
                let waited = now.duration_since(*waiting.get(uid)?);
                Some((
                    drift * (1.0 + waited.as_secs_f64() / DOUBLED_AFTER.as_secs_f64()),
                    uid,
                ))
            })
            .collect();
        ordered.sort_by(|one, two| two.0.total_cmp(&one.0).then_with(|| one.1.cmp(two.1)));
        let chosen: Vec<String> = ordered
            .into_iter()
            .take(AT_MOST.saturating_sub(recent))
            .map(|(_, uid)| uid.clone())
            .collect();
        self.waiting = waiting;
        for uid in &chosen {
            self.waiting.remove(uid);
            self.granted.push_back((now, uid.clone()));
        }
        chosen
    }
}

/// Counts the writes that numbers cause when they are made: a grant that is used late comes close to the next ones.
#[derive(Debug, Default)]
pub(super) struct Gate(VecDeque<Instant>);

impl Gate {
    /// True when one more write may be made at `now`; it counts from then on.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        let passed = |at: &Instant| now.duration_since(*at) >= SPAN;
        while self.0.front().is_some_and(passed) {
            self.0.pop_front();
        }
        let admitted = self.0.len() < AT_MOST;
        if admitted {
            self.0.push_back(now);
        }
        admitted
    }
}

#[cfg(test)]
mod tests;
