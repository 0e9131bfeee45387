//! How far behind a consumer group is, and how fast it goes. Pure. What is missing is unknown, never 0.

use crate::kafka::Watermarks;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Records not yet completed: the sum over all partitions of end − max(committed, start). Unknown as long as one
/// partition has no committed offset. Records that retention removed unread are not counted: they can't be read.
pub(super) fn depth(
    marks: &BTreeMap<i32, Watermarks>,
    committed: &BTreeMap<i32, i64>,
) -> Option<i64> {
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
const WINDOW: Duration = Duration::from_secs(30);
/// Fewer seconds say nothing.
const SHORTEST: Duration = Duration::from_secs(1);

/// Committed offsets of a group over the last [`WINDOW`].
#[derive(Debug, Default)]
pub(super) struct Progress {
    partitions: usize,
    samples: VecDeque<(Instant, i64)>,
}

impl Progress {
    /// Adds what was read at `now`. Another number of partitions, or a sum that went back, starts anew.
    pub(super) fn add(&mut self, now: Instant, committed: &BTreeMap<i32, i64>) {
        let sum: i64 = committed.values().sum();
        let back = self.samples.back().is_some_and(|(_, last)| sum < *last);
        if back || committed.len() != self.partitions {
            self.samples.clear();
            self.partitions = committed.len();
        }
        self.samples.push_back((now, sum));
        // The sample that is just older than the window stays: the rate spans the whole window.
        while self.samples.len() > 2 && now.duration_since(self.samples[1].0) >= WINDOW {
            self.samples.pop_front();
        }
    }

    /// Records completed per second; unknown before two readings.
    pub(super) fn rate_per_second(&self) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let time = last.0.duration_since(first.0);
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let records = (last.1 - first.1) as f64;
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
    fn the_rate_is_that_of_the_last_half_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::default();
        progress.add(at(0), &committed([0, 0]));
        assert_eq!(progress.rate_per_second(), None);
        for second in 1..=60 {
            progress.add(
                at(second),
                &committed([i64::try_from(second).unwrap() * 7, 0]),
            );
        }
        assert_eq!(progress.rate_per_second(), Some(7.0));
        // Standing still shows within the window, and fully after it.
        for second in 61..=91 {
            progress.add(at(second), &committed([420, 0]));
        }
        assert_eq!(progress.rate_per_second(), Some(0.0));
        assert!(progress.samples.len() < 40);
    }

    #[test]
    fn a_reset_group_and_a_new_partition_start_anew() {
        let start = Instant::now();
        let mut progress = Progress::default();
        progress.add(start, &committed([500]));
        progress.add(start + Duration::from_secs(5), &committed([100]));
        assert_eq!(progress.rate_per_second(), None);
        progress.add(start + Duration::from_secs(10), &committed([100, 9_000]));
        assert_eq!(progress.rate_per_second(), None);
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
