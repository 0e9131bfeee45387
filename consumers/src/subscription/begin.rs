//! Where a partition that was assigned begins, and what is lost of it. Pure.

use crate::offsets::Offsets;
use crate::source::{self, Position, Start};
use fanout_contract::consumer::StartOffset;
use std::collections::BTreeSet;

/// What decides where partitions begin, beside their commits.
pub(super) struct Rules {
    /// For partitions without a commit.
    pub(super) starts: Vec<StartOffset>,
    /// Partitions whose log did not have the position.
    pub(super) out_of_range: BTreeSet<i32>,
    /// Those of them that a human lets begin anew.
    pub(super) anew: BTreeSet<i32>,
}

/// Progress that a partition begins with, and how many offsets retention took from it.
pub(super) fn begin(position: &Position, rules: &Rules) -> Option<(Offsets, i64)> {
    let (mut offsets, at) = match source::start(position, &rules.starts) {
        Start::Resume { offset, metadata } => (Offsets::resume(offset, &metadata), offset),
        Start::Begin { offset } => (Offsets::start(offset), offset),
        Start::Missing => return None,
    };
    if position.low <= at && rules.out_of_range.contains(&position.partition) {
        // The log ended before the position: it is another log, whatever it holds by now.
        let anew = rules.anew.contains(&position.partition);
        return anew.then(|| (Offsets::start(position.low), 0));
    }
    let expired = offsets.expire(position.low);
    Some((offsets, expired))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(committed: Option<(i64, &str)>, low: i64) -> Position {
        Position {
            partition: 0,
            committed: committed.map(|(offset, metadata)| (offset, metadata.to_owned())),
            low,
        }
    }

    fn rules(out_of_range: &[i32], anew: &[i32]) -> Rules {
        Rules {
            starts: vec![StartOffset {
                partition: 0,
                offset: 5,
            }],
            out_of_range: out_of_range.iter().copied().collect(),
            anew: anew.iter().copied().collect(),
        }
    }

    fn begins(committed: Option<i64>, low: i64, out_of_range: &[i32]) -> Option<(i64, i64)> {
        let committed = committed.map(|offset| (offset, ""));
        begin(&position(committed, low), &rules(out_of_range, &[]))
            .map(|(offsets, expired)| (offsets.prefix(), expired))
    }

    #[test]
    fn a_position_in_the_log_is_taken_as_it_is() {
        assert_eq!(begins(Some(9), 3, &[]), Some((9, 0)));
        assert_eq!(begins(None, 3, &[]), Some((5, 0)));
    }

    #[test]
    fn what_retention_removed_is_counted_and_skipped() {
        assert_eq!(begins(Some(9), 20, &[0]), Some((20, 11)));
        assert_eq!(begins(None, 7, &[]), Some((7, 2)));
    }

    #[test]
    fn what_was_finished_before_it_was_removed_is_not_counted() {
        // Offsets 10 and 12 are finished.
        let position = position(Some((9, "f1:Cg")), 20);
        let (offsets, expired) = begin(&position, &rules(&[], &[])).unwrap();
        assert_eq!((offsets.prefix(), expired), (20, 9));
    }

    #[test]
    fn a_position_behind_the_end_of_the_log_is_not_guessed() {
        assert_eq!(begins(Some(9), 3, &[0]), None);
    }

    #[test]
    fn a_human_may_let_it_begin_at_the_start_of_the_log_and_only_there() {
        let beyond = position(Some((40, "")), 3);
        let begun = begin(&beyond, &rules(&[0], &[0])).map(|(offsets, _)| offsets.prefix());
        assert_eq!(begun, Some(3));
        assert!(begin(&beyond, &rules(&[0], &[])).is_none());
        let within = position(Some((9, "")), 3);
        let begun = begin(&within, &rules(&[], &[0])).map(|(offsets, _)| offsets.prefix());
        assert_eq!(begun, Some(9), "where the log has the position, it is kept");
    }
}
