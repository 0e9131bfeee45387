//! Where a Subscription starts in each partition. Pure.
//!
//! The first decision is recorded in the status before it is used, and never made again: an end of the log read twice
//! would skip what came in between. Kafka's committed offsets come first; what is recorded only fills in what they lack.

use fanout_contract::consumer::StartOffset;
use fanout_crds::subscription::Position;
use std::collections::BTreeMap;

/// Offsets by partition.
pub(crate) type Offsets = BTreeMap<i32, i64>;

/// The recorded positions as offsets.
pub(crate) fn recorded(positions: &[Position]) -> Offsets {
    positions
        .iter()
        .map(|position| (position.partition, position.offset))
        .collect()
}

/// Offsets as they are recorded, sorted by partition.
pub(crate) fn to_record(offsets: &Offsets) -> Vec<Position> {
    offsets
        .iter()
        .map(|(partition, offset)| Position {
            partition: *partition,
            offset: *offset,
        })
        .collect()
}

/// The recorded positions as a worker's configuration has them.
pub(crate) fn start_offsets(positions: &[Position]) -> Vec<StartOffset> {
    positions
        .iter()
        .map(|position| StartOffset {
            partition: position.partition,
            offset: position.offset,
        })
        .collect()
}

/// What to record: what is recorded already, and for the other partitions of the topic
/// - the committed offset, where the group has one;
/// - offset 0, when other partitions have a position: it was added later, and everything in it is new;
/// - else the offset of `start`, the group's first position.
///
/// `None` when a first position is needed and `start` does not have it.
pub(crate) fn complete(
    partitions: i32,
    recorded: &Offsets,
    committed: &Offsets,
    start: Option<&Offsets>,
) -> Option<Offsets> {
    let known = !recorded.is_empty() || !committed.is_empty();
    let mut all = recorded.clone();
    for partition in 0..partitions {
        if all.contains_key(&partition) {
            continue;
        }
        let offset = match committed.get(&partition) {
            Some(offset) => *offset,
            None if known => 0,
            None => *start?.get(&partition)?,
        };
        all.insert(partition, offset);
    }
    Some(all)
}

/// True when [`complete`] needs a first position.
pub(crate) fn needs_start(recorded: &Offsets, committed: &Offsets) -> bool {
    recorded.is_empty() && committed.is_empty()
}

/// What to record while nobody serves the Subscription: the committed offsets, because those of a group without members
/// expire.
pub(crate) fn saved(recorded: &Offsets, committed: &Offsets) -> Offsets {
    let mut all = recorded.clone();
    all.extend(committed);
    all
}

/// True when a partition has no committed offset.
pub(crate) fn incomplete(partitions: i32, committed: &Offsets) -> bool {
    (0..partitions).any(|partition| !committed.contains_key(&partition))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets<const N: usize>(pairs: [(i32, i64); N]) -> Offsets {
        Offsets::from(pairs)
    }

    #[test]
    fn a_new_group_starts_where_it_is_told() {
        let start = offsets([(0, 7), (1, 9)]);
        assert!(needs_start(&offsets([]), &offsets([])));
        assert_eq!(
            complete(2, &offsets([]), &offsets([]), Some(&start)),
            Some(start)
        );
        assert_eq!(complete(2, &offsets([]), &offsets([]), None), None);
    }

    #[test]
    fn the_recorded_start_is_never_decided_again() {
        let recorded = offsets([(0, 7), (1, 9)]);
        let later = offsets([(0, 70), (1, 90)]);
        assert_eq!(
            complete(2, &recorded, &offsets([]), Some(&later)),
            Some(recorded)
        );
    }

    #[test]
    fn a_group_that_exists_keeps_its_offsets() {
        let committed = offsets([(0, 5), (1, 6)]);
        let start = offsets([(0, 100), (1, 100)]);
        assert_eq!(
            complete(2, &offsets([]), &committed, Some(&start)),
            Some(committed)
        );
    }

    #[test]
    fn a_partition_added_later_starts_at_its_beginning() {
        let recorded = offsets([(0, 7)]);
        let latest = offsets([(0, 100), (1, 100)]);
        assert_eq!(
            complete(2, &recorded, &offsets([]), Some(&latest)),
            Some(offsets([(0, 7), (1, 0)]))
        );
    }

    #[test]
    fn committed_offsets_are_saved_over_older_ones() {
        let saved = saved(&offsets([(0, 7), (1, 9)]), &offsets([(0, 50)]));
        assert_eq!(saved, offsets([(0, 50), (1, 9)]));
        assert_eq!(recorded(&to_record(&saved)), saved);
    }
}
