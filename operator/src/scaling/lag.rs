//! How far behind a consumer group is, and how fast it goes. What is missing is unknown, never 0.

use crate::kafka::Watermarks;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Records not yet completed: the sum over all partitions of end − max(committed, start). Unknown as long as one
/// partition has no committed offset. Records that retention removed unread are not counted: they can't be read.
pub fn depth(marks: &BTreeMap<i32, Watermarks>, committed: &BTreeMap<i32, i64>) -> Option<i64> {
    if marks.is_empty() {
        return None;
    }
    marks
        .iter()
        .map(|(partition, marks)| {
            let committed = *committed.get(partition)?;
            // A commit beyond the end was made for another incarnation of the topic, or on a log that lost its
            // tail: nothing of it waits.
            Some((marks.end - committed.max(marks.start)).max(0))
        })
        .sum()
}

/// Rates are taken over this time: long enough to be steady, short enough to show a change within a minute.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Fewer seconds say nothing.
const SHORTEST: Duration = Duration::from_secs(1);
/// A partition whose committed offset has not moved for so long, although records wait in it, is stuck.
pub const STUCK_AFTER: Duration = Duration::from_mins(1);

/// What waits, by how it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Records not yet completed.
    pub depth: i64,
    /// Those of them that wait in partitions that are stuck.
    pub stuck: i64,
    /// Those that wait in the fullest partition that is not stuck.
    pub largest: i64,
}

/// Offsets of a group and of its log over the last [`WINDOW`].
#[derive(Debug, Default)]
pub struct Progress {
    partitions: BTreeMap<i32, Partition>,
    samples: VecDeque<Sample>,
}

/// Sums over all partitions.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    committed: i64,
    end: i64,
}

#[derive(Clone, Copy, Debug)]
struct Partition {
    committed: i64,
    lag: i64,
    /// Since when records wait and the offset stands still.
    still_since: Option<Instant>,
}

impl Progress {
    /// Adds what was read at `now`. Other partitions, or a sum that went back, start anew.
    pub fn add(
        &mut self,
        now: Instant,
        marks: &BTreeMap<i32, Watermarks>,
        committed: &BTreeMap<i32, i64>,
    ) {
        let sample = Sample {
            at: now,
            committed: committed.values().sum(),
            end: marks.values().map(|marks| marks.end).sum(),
        };
        let back = self
            .samples
            .back()
            .is_some_and(|last| sample.committed < last.committed || sample.end < last.end);
        if back || !committed.keys().eq(self.partitions.keys()) {
            self.samples.clear();
            self.partitions.clear();
        }
        self.samples.push_back(sample);
        // The sample that is just older than the window stays: the rate spans the whole window.
        while self.samples.len() > 2 && now.duration_since(self.samples[1].at) >= WINDOW {
            self.samples.pop_front();
        }
        for (number, committed) in committed {
            let lag = marks
                .get(number)
                .map_or(0, |marks| (marks.end - committed.max(&marks.start)).max(0));
            let before = self.partitions.get(number);
            let still_since = before
                .filter(|before| before.committed == *committed && before.lag > 0)
                .and_then(|before| before.still_since)
                .or(Some(now))
                .filter(|_| lag > 0);
            let partition = Partition {
                committed: *committed,
                lag,
                still_since,
            };
            self.partitions.insert(*number, partition);
        }
    }

    /// What waited when the offsets were last read, seen at `now`; all 0 before that.
    pub fn waiting(&self, now: Instant) -> Waiting {
        let mut waiting = Waiting::default();
        for partition in self.partitions.values() {
            let is_stuck = partition
                .still_since
                .is_some_and(|since| now.duration_since(since) >= STUCK_AFTER);
            waiting.depth += partition.lag;
            if is_stuck {
                waiting.stuck += partition.lag;
            } else {
                waiting.largest = waiting.largest.max(partition.lag);
            }
        }
        waiting
    }

    /// Records completed per second; unknown before two readings.
    pub fn rate_per_second(&self) -> Option<f64> {
        self.per_second(|sample| sample.committed)
    }

    /// Records that arrived per second; unknown before two readings.
    pub fn arrival_per_second(&self) -> Option<f64> {
        self.per_second(|sample| sample.end)
    }

    fn per_second(&self, of: fn(&Sample) -> i64) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let time = last.at.duration_since(first.at);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let records = (of(last) - of(first)) as f64;
        (time >= SHORTEST).then(|| records / time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marks<const N: usize>(of: [(i64, i64); N]) -> BTreeMap<i32, Watermarks> {
        (0..)
            .zip(of.map(|(start, end)| Watermarks { start, end }))
            .collect()
    }

    fn committed<const N: usize>(of: [i64; N]) -> BTreeMap<i32, i64> {
        (0..).zip(of).collect()
    }

    #[test]
    fn depth_counts_what_can_still_be_read() {
        assert_eq!(
            depth(&marks([(0, 10), (0, 5)]), &committed([4, 5])),
            Some(6)
        );
        // Retention removed offsets 4 to 7 unread.
        assert_eq!(depth(&marks([(8, 10)]), &committed([4])), Some(2));
        assert_eq!(depth(&marks([(10, 10)]), &committed([4])), Some(0));
        assert_eq!(depth(&marks([(0, 3)]), &committed([7])), Some(0));
    }

    #[test]
    fn a_partition_without_an_offset_makes_the_depth_unknown() {
        assert_eq!(depth(&marks([(0, 10), (0, 5)]), &committed([4])), None);
        assert_eq!(depth(&marks([(0, 0)]), &committed([])), None);
        assert_eq!(depth(&BTreeMap::new(), &committed([4])), None);
    }

    #[test]
    fn rates_are_those_of_the_last_half_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::default();
        progress.add(at(0), &marks([(0, 0), (0, 0)]), &committed([0, 0]));
        assert_eq!(progress.rate_per_second(), None);
        assert_eq!(progress.arrival_per_second(), None);
        for second in 1..=60 {
            let done = i64::try_from(second).unwrap() * 7;
            progress.add(
                at(second),
                &marks([(0, 2 * done), (0, 0)]),
                &committed([done, 0]),
            );
        }
        assert_eq!(progress.rate_per_second(), Some(7.0));
        assert_eq!(progress.arrival_per_second(), Some(14.0));
        // Standing still shows within the window, and fully after it.
        for second in 61..=91 {
            progress.add(at(second), &marks([(0, 840), (0, 0)]), &committed([420, 0]));
        }
        assert_eq!(progress.rate_per_second(), Some(0.0));
        assert_eq!(progress.arrival_per_second(), Some(0.0));
        assert!(progress.samples.len() < 40);
    }

    #[test]
    fn a_reset_group_a_new_partition_and_another_log_start_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::default();
        progress.add(start, &marks([(0, 900)]), &committed([500]));
        progress.add(at(5), &marks([(0, 900)]), &committed([100]));
        assert_eq!(progress.rate_per_second(), None);
        progress.add(
            at(10),
            &marks([(0, 900), (0, 9_000)]),
            &committed([100, 9_000]),
        );
        assert_eq!(progress.rate_per_second(), None);
        progress.add(at(15), &marks([(0, 10), (0, 10)]), &committed([100, 9_000]));
        assert_eq!(progress.arrival_per_second(), None);
    }

    #[test]
    fn what_stands_still_while_records_wait_is_stuck() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::default();
        for second in 0..=60 {
            let done = i64::try_from(second).unwrap();
            // The first goes on, the second is stuck, the third has nothing to do until the last moment.
            let idle = if second < 60 { 5 } else { 6 };
            let marks = marks([(0, 100), (0, 40), (0, idle)]);
            progress.add(at(second), &marks, &committed([done, 0, 5]));
            let waiting = progress.waiting(at(second));
            let stuck = if second < 60 { 0 } else { 40 };
            assert_eq!(waiting.stuck, stuck, "after {second} s");
        }
        let expected = Waiting {
            depth: 40 + 40 + 1,
            stuck: 40,
            largest: 40,
        };
        assert_eq!(progress.waiting(at(60)), expected);
        // It moves: not stuck any more.
        progress.add(
            at(61),
            &marks([(0, 100), (0, 40), (0, 6)]),
            &committed([61, 1, 5]),
        );
        assert_eq!(progress.waiting(at(61)).stuck, 0);
    }

    proptest! {
        #[test]
        fn depth_is_never_negative_nor_more_than_the_log(
            of in proptest::collection::vec((0_i64..1_000, 0_i64..1_000, 0_i64..3_000), 1..8),
        ) {
            let marks: BTreeMap<_, _> = (0..)
                .zip(of.iter().map(|(start, size, _)| Watermarks { start: *start, end: start + size }))
                .collect();
            let committed = (0..).zip(of.iter().map(|(.., offset)| *offset)).collect();
            let whole: i64 = of.iter().map(|(_, size, _)| size).sum();
            let depth = depth(&marks, &committed).unwrap();
            prop_assert!((0..=whole).contains(&depth));
        }
    }
}
