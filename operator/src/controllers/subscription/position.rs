//! Where a Subscription starts in each partition. Pure.
//!
//! The first decision is recorded in the status before it is used, and never made again: an end of the log read twice
//! would skip what came in between. Kafka's committed offsets come first; what is recorded only fills in what they lack,
//! because a group without members is forgotten by Kafka after `offsets.retention.minutes`.

use fanout_contract::consumer::StartOffset;
use fanout_crds::subscription::Position;
use std::collections::BTreeMap;

/// Offsets by partition.
pub(crate) type Offsets = BTreeMap<i32, i64>;

/// What a status has recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Positions in the log as it is.
    pub(crate) offsets: Offsets,
    /// The positions belonged to another log: everything in this one is new.
    pub(crate) replaced: bool,
}

/// The recorded positions as far as they belong to the log with the id `log`. Those without an id (`of`) are this log's.
pub(crate) fn recorded(positions: &[Position], of: Option<&str>, log: &str) -> Recorded {
    if of.is_some_and(|of| of != log) {
        return Recorded {
            offsets: Offsets::new(),
            replaced: true,
        };
    }
    Recorded {
        offsets: offsets(positions),
        replaced: false,
    }
}

/// Positions as offsets.
pub(crate) fn offsets(positions: &[Position]) -> Offsets {
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
/// - offset 0, when other partitions have a position, or had one in a log that was replaced: the partition was added
///   later, and everything in it is new;
/// - else the offset of `start`, the group's first position.
///
/// `None` when a first position is needed and `start` does not have it.
pub(crate) fn complete(
    partitions: i32,
    recorded: &Recorded,
    committed: &Offsets,
    start: Option<&Offsets>,
) -> Option<Offsets> {
    let known = !needs_start(recorded, committed);
    let mut all = recorded.offsets.clone();
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
pub(crate) fn needs_start(recorded: &Recorded, committed: &Offsets) -> bool {
    recorded.offsets.is_empty() && committed.is_empty() && !recorded.replaced
}

/// What to record so that the position outlives the group: the committed offsets, and what is recorded where the group
/// has forgotten them.
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
mod tests;
