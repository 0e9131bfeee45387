//! Rows by what identifies them in their table.

use super::columns::Columns;
use super::row::Row;
use crate::sql::{bigint_array, literal, text_array};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows that were claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ids {
    /// By their numbers.
    Numbers(Vec<i64>),
    /// By an id that is no number, as text.
    Texts(Vec<String>),
}

impl Ids {
    /// None, of a table with `columns`.
    pub fn none(columns: &Columns) -> Self {
        if columns.ordered() {
            Self::Numbers(Vec::new())
        } else {
            Self::Texts(Vec::new())
        }
    }

    /// Adds `row`.
    pub fn push(&mut self, row: &Row<'_>) {
        match self {
            Self::Numbers(numbers) => numbers.push(row.id),
            Self::Texts(texts) => texts.extend(row.identity.map(str::to_owned)),
        }
    }

    /// Adds `later`, which is of the same kind.
    pub fn extend(&mut self, later: Self) {
        match (self, later) {
            (Self::Numbers(numbers), Self::Numbers(more)) => numbers.extend(more),
            (Self::Texts(texts), Self::Texts(more)) => texts.extend(more),
            (these, later) if these.is_empty() => *these = later,
            _ => {}
        }
    }

    /// Number of rows.
    pub const fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Texts(texts) => texts.len(),
        }
    }

    /// True without a row.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As an array of the type of [`Columns::row`].
    pub fn array(&self, columns: &Columns) -> String {
        match self {
            Self::Numbers(numbers) => bigint_array(numbers),
            Self::Texts(texts) => {
                format!("{}::{}[]", literal(&text_array(texts)), columns.row_type())
            }
        }
    }
}

/// Rows that a pass selected and has not deleted yet: they are still in the table, and must not be selected again.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<Mutex<HashSet<Id>>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Id {
    Number(i64),
    Text(String),
}

impl Taken {
    /// Adds `ids`.
    pub fn add(&self, ids: &Ids) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ids {
            Ids::Numbers(numbers) => taken.extend(numbers.iter().copied().map(Id::Number)),
            Ids::Texts(texts) => taken.extend(texts.iter().cloned().map(Id::Text)),
        }
    }

    /// Takes `ids` off: they are deleted.
    pub fn remove(&self, ids: &Ids) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ids {
            Ids::Numbers(numbers) => {
                for number in numbers {
                    taken.remove(&Id::Number(*number));
                }
            }
            Ids::Texts(texts) => {
                for text in texts {
                    taken.remove(&Id::Text(text.clone()));
                }
            }
        }
    }

    /// All of them, of a table with `columns`.
    pub fn ids(&self, columns: &Columns) -> Ids {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ids = Ids::none(columns);
        for id in taken.iter() {
            match (&mut ids, id) {
                (Ids::Numbers(numbers), Id::Number(number)) => numbers.push(*number),
                (Ids::Texts(texts), Id::Text(text)) => texts.push(text.clone()),
                _ => {}
            }
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_is_not_taken_any_more() {
        let columns = Columns::new(None, String::new(), super::super::columns::Types::new());
        let taken = Taken::default();
        taken.add(&Ids::Numbers(vec![1, 2, 3]));
        taken.remove(&Ids::Numbers(vec![1, 3]));
        assert_eq!(taken.ids(&columns), Ids::Numbers(vec![2]));
    }
}
