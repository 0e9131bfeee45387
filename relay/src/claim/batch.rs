//! Rows claimed together, and what is stored once they are published.

use super::ids::Ids;
use super::row::Row;
use crate::position::Position;
use sqlx::postgres::PgRow;

/// Rows to publish, and what completes them.
#[derive(Debug)]
pub struct Batch {
    rows: Vec<PgRow>,
    /// Column of [`Row`]'s first field.
    first: usize,
    /// What is stored when every row of this batch and of those before is acknowledged.
    pub after: Completion,
    /// What it is.
    pub kind: Kind,
    /// Bytes of payload and headers, about.
    pub bytes: usize,
}

impl Batch {
    /// A batch of `rows`, whose columns begin at number `first`.
    pub fn new(rows: Vec<PgRow>, first: usize, after: Completion, kind: Kind) -> Self {
        Self {
            bytes: weigh(&rows, first),
            rows,
            first,
            after,
            kind,
        }
    }

    /// Its rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Result<Row<'_>, sqlx::Error>> {
        self.rows.iter().map(|row| Row::decode(row, self.first))
    }

    /// Number of rows.
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// True where there is nothing to publish.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// What a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rows.
    Rows,
    /// Nothing was due.
    Idle,
    /// A large difference begins: its position must be stored before anything that follows is published.
    Begin,
    /// A large difference ended.
    End,
}

/// What is stored once everything up to the end of a batch is acknowledged by the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The range stands here: the position is appended.
    Position(Position),
    /// These rows are done: they are marked so, or deleted.
    Rows(Ids),
}

impl Completion {
    /// Both at once, `later` being that of a later batch.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        match (self, later) {
            (Self::Rows(mut rows), Self::Rows(more)) => {
                rows.extend(more);
                Self::Rows(rows)
            }
            (_, later) => later,
        }
    }

    /// Rows that storing it touches.
    pub const fn rows(&self) -> usize {
        match self {
            Self::Position(_) => 0,
            Self::Rows(rows) => rows.len(),
        }
    }
}

/// Bytes of payload and headers in `rows`.
fn weigh(rows: &[PgRow], first: usize) -> usize {
    rows.iter()
        .filter_map(|row| Row::decode(row, first).ok())
        .map(|row| row.payload.map_or(0, |hex| hex.len() / 2) + row.headers.map_or(0, str::len))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::snapshot::Snapshot;

    #[test]
    fn of_two_completions_rows_add_up_and_the_later_position_counts() {
        let of = |ids: &[i64]| Completion::Rows(Ids::Numbers(ids.to_vec()));
        assert_eq!(of(&[1, 3]).and(of(&[2])), of(&[1, 3, 2]));
        let at = |text| Completion::Position(Position::At(Snapshot::new(text)));
        assert_eq!(at("1:1:").and(at("5:5:")), at("5:5:"));
    }
}
