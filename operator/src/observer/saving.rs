//! When committed offsets are worth saving in a status, and what retention took unread. Pure.
//!
//! Kafka forgets the offsets of a group that has had no member for a week (`offsets.retention.minutes`). What the status has
//! by then is where the group goes on, so what it lacks is delivered again. A group that just lost its last member is saved
//! at once. The operator may be away in that moment: then the status is as old as the last save, which therefore also
//! happens while workers are at work, now and then, and never when nothing moved.

use crate::kafka::Watermarks;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Offsets by partition.
pub(super) type Offsets = BTreeMap<i32, i64>;

/// While workers are at work, offsets that move are saved this often.
const AT_WORK: Duration = Duration::from_mins(15);
/// Without a worker they stand still, once what was under way is finished.
const AT_REST: Duration = Duration::from_secs(10);

/// Since when the status lacks committed offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unsaved(Option<Instant>);

impl Unsaved {
    /// After `committed` was read at `now`; what could not be read says nothing.
    pub(super) fn after(self, saved: &Offsets, committed: Option<&Offsets>, now: Instant) -> Self {
        match committed {
            None => self,
            Some(committed) if lacks(saved, committed) => Self(self.0.or(Some(now))),
            Some(_) => Self(None),
        }
    }

    /// After the status was written: the time begins anew.
    pub(super) fn written(self, now: Instant) -> Self {
        Self(self.0.map(|_| now))
    }

    /// Is it time to save?
    pub(super) fn is_due(self, served: bool, now: Instant) -> bool {
        let after = if served { AT_WORK } else { AT_REST };
        self.0
            .is_some_and(|since| now.saturating_duration_since(since) >= after)
    }
}

/// True when something is committed that is not saved.
fn lacks(saved: &Offsets, committed: &Offsets) -> bool {
    committed
        .iter()
        .any(|(partition, offset)| saved.get(partition) != Some(offset))
}

/// True when Kafka has forgotten an offset that is saved.
pub(super) fn is_forgotten(saved: &Offsets, committed: &Offsets) -> bool {
    saved
        .keys()
        .any(|partition| !committed.contains_key(partition))
}

/// Records by partition that retention has removed and that the group has not completed.
pub(super) fn expired(marks: &BTreeMap<i32, Watermarks>, committed: &Offsets) -> Offsets {
    marks
        .iter()
        .filter_map(|(partition, marks)| {
            let gap = marks.start - committed.get(partition)?;
            (gap > 0).then_some((*partition, gap))
        })
        .collect()
}

/// True when `after` has lost so much more than `before` that it must be said: a partition more, or twice as many records.
pub(super) fn is_worse(before: &Offsets, after: &Offsets) -> bool {
    after.iter().any(|(partition, records)| {
        let said = before.get(partition).copied().unwrap_or(0);
        records.checked_ilog2() > said.checked_ilog2()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets<const N: usize>(pairs: [(i32, i64); N]) -> Offsets {
        Offsets::from(pairs)
    }

    #[test]
    fn a_group_at_rest_is_saved_soon_and_one_at_work_now_and_then() {
        let start = Instant::now();
        let (saved, committed) = (offsets([(0, 3)]), offsets([(0, 4)]));
        let unsaved = Unsaved::default().after(&saved, Some(&committed), start);
        assert!(!unsaved.is_due(false, start));
        assert!(unsaved.is_due(false, start + AT_REST));
        assert!(!unsaved.is_due(true, start + AT_REST));
        // It moves on: the time counts from the first offset that is not saved.
        let moved = unsaved.after(&saved, Some(&offsets([(0, 9)])), start + AT_REST);
        assert!(moved.is_due(true, start + AT_WORK));
        let written = moved.written(start + AT_WORK);
        assert!(!written.is_due(true, start + (AT_WORK * 2).saturating_sub(AT_REST)));
        assert!(written.is_due(true, start + AT_WORK * 2));
    }

    #[test]
    fn what_is_saved_or_not_known_is_never_due() {
        let start = Instant::now();
        let later = start + AT_WORK * 9;
        let saved = offsets([(0, 3), (1, 5)]);
        for committed in [saved.clone(), offsets([(1, 5)]), offsets([])] {
            let same = Unsaved::default().after(&saved, Some(&committed), start);
            assert!(!same.written(start).is_due(false, later), "{committed:?}");
        }
        assert!(
            !Unsaved::default()
                .after(&saved, None, start)
                .is_due(false, later)
        );
        let unsaved = Unsaved::default().after(&saved, Some(&offsets([(0, 4)])), start);
        assert_eq!(unsaved.after(&saved, None, later), unsaved);
        assert_eq!(
            unsaved.after(&saved, Some(&saved), later),
            Unsaved::default()
        );
    }

    #[test]
    fn an_offset_that_went_back_is_saved_as_well() {
        // Somebody wants events again, and they shall get them even if Kafka forgets it.
        let unsaved =
            Unsaved::default().after(&offsets([(0, 9)]), Some(&offsets([(0, 2)])), Instant::now());
        assert_ne!(unsaved, Unsaved::default());
    }

    #[test]
    fn a_group_is_forgotten_partition_by_partition() {
        let saved = offsets([(0, 3), (1, 5)]);
        assert!(!is_forgotten(&saved, &saved));
        assert!(is_forgotten(&saved, &offsets([(0, 3)])));
        assert!(is_forgotten(&saved, &offsets([])));
        assert!(!is_forgotten(&offsets([]), &offsets([])));
    }

    #[test]
    fn what_retention_removed_unread_is_said_when_it_doubles() {
        let marks = BTreeMap::from([
            (0, Watermarks { start: 8, end: 10 }),
            (1, Watermarks { start: 8, end: 10 }),
            (2, Watermarks { start: 8, end: 10 }),
        ]);
        let lost = expired(&marks, &offsets([(0, 5), (1, 8)]));
        assert_eq!(lost, offsets([(0, 3)]));
        assert!(is_worse(&offsets([]), &lost));
        assert!(!is_worse(&lost, &offsets([(0, 3)])));
        assert!(is_worse(&lost, &offsets([(0, 4)])));
        assert!(!is_worse(&offsets([(0, 4)]), &offsets([(0, 7)])));
        assert!(is_worse(&lost, &offsets([(0, 3), (2, 1)])));
        assert!(!is_worse(&lost, &offsets([])));
    }
}
