//! Where a partition begins when it is assigned.

use fanout_contract::consumer::StartOffset;

/// What the broker says of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Partition number.
    pub partition: i32,
    /// Committed offset and its metadata.
    pub committed: Option<(i64, String)>,
    /// First offset that retention has left.
    pub low: i64,
}

/// Where to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Behind a commit.
    Resume { offset: i64, metadata: String },
    /// At a start offset, which has to be committed.
    Begin { offset: i64 },
    /// Not at all: guessing would skip or repeat events.
    Missing,
}

/// Decides for `position` with the configured `starts`.
pub(crate) fn start(position: &Position, starts: &[StartOffset]) -> Start {
    if let Some((offset, metadata)) = &position.committed {
        return Start::Resume {
            offset: *offset,
            metadata: metadata.clone(),
        };
    }
    starts
        .iter()
        .find(|start| start.partition == position.partition)
        .map_or(Start::Missing, |start| Start::Begin {
            offset: start.offset,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(committed: Option<i64>) -> Position {
        Position {
            partition: 1,
            committed: committed.map(|offset| (offset, "f1:AA".to_owned())),
            low: 0,
        }
    }

    const STARTS: &[StartOffset] = &[
        StartOffset {
            partition: 0,
            offset: 3,
        },
        StartOffset {
            partition: 1,
            offset: 4,
        },
    ];

    #[test]
    fn a_commit_wins_over_the_configured_start() {
        let metadata = "f1:AA".to_owned();
        let expected = Start::Resume {
            offset: 9,
            metadata,
        };
        assert_eq!(start(&position(Some(9)), STARTS), expected);
    }

    #[test]
    fn a_partition_without_a_commit_begins_where_it_is_told_or_not_at_all() {
        assert_eq!(start(&position(None), STARTS), Start::Begin { offset: 4 });
        assert_eq!(start(&position(None), &STARTS[..1]), Start::Missing);
    }
}
