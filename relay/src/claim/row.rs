//! One outbox row as the statements of [`super::snapshot`] return it.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

/// A due row; texts borrow from the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// `id`.
    pub id: i64,
    /// `event_id`.
    pub event_id: &'a str,
    /// `key`.
    pub key: Option<&'a str>,
    /// `type`.
    pub r#type: &'a str,
    /// `subject`.
    pub subject: Option<&'a str>,
    /// `content_type`.
    pub content_type: &'a str,
    /// `headers`: JSON text.
    pub headers: Option<&'a str>,
    /// `traceparent`.
    pub traceparent: Option<&'a str>,
    /// `payload` in lower-case hex.
    pub payload: Option<&'a str>,
    /// `created_at` in UTC as a JSON string: `"2026-01-02T03:04:05.678"`.
    pub created_at: &'a str,
    /// What identifies the row where that is no number; [`Self::id`] is made from it then and orders nothing.
    pub identity: Option<&'a str>,
}

impl<'a> Row<'a> {
    /// Decodes the columns of `row` from number `first` on.
    pub fn decode(row: &'a PgRow, first: usize) -> Result<Self, sqlx::Error> {
        let required = |index| text(row, first + index)?.ok_or_else(|| unexpected("NULL"));
        let optional = |index| text(row, first + index);
        Ok(Self {
            id: required(0)?.parse().map_err(|_| unexpected("no number"))?,
            event_id: required(1)?,
            key: optional(2)?,
            r#type: required(3)?,
            subject: optional(4)?,
            content_type: required(5)?,
            headers: optional(6)?,
            traceparent: optional(7)?,
            payload: optional(8)?,
            created_at: required(9)?,
            // Only rows of an outbox have one.
            identity: if row.len() > first + 10 {
                optional(10)?
            } else {
                None
            },
        })
    }
}

/// Column `index` of `row` as text; `None` for NULL. Answers of the simple protocol are always text.
pub fn text(row: &PgRow, index: usize) -> Result<Option<&str>, sqlx::Error> {
    let value = row.try_get_raw(index)?;
    if sqlx::ValueRef::is_null(&value) {
        return Ok(None);
    }
    value.as_str().map(Some).map_err(sqlx::Error::Decode)
}

/// Column `index` of `row` parsed from its text; NULL is an error.
pub fn parsed<T: std::str::FromStr>(row: &PgRow, index: usize) -> Result<T, sqlx::Error> {
    text(row, index)?
        .ok_or_else(|| unexpected("NULL"))?
        .parse()
        .map_err(|_| unexpected("another type"))
}

/// Column `index` of `row` as a boolean; NULL is false.
pub fn flag(row: &PgRow, index: usize) -> Result<bool, sqlx::Error> {
    Ok(text(row, index)? == Some("t"))
}

fn unexpected(what: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(what.into())
}
