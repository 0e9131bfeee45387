//! Rows that can never be published as they are, and the later rows of their keys.

use crate::claim::row::{flag, text};
use crate::encode::Unencodable;
use crate::position::Fence;
use crate::source::{Failure, Source, classify};
use crate::sql::literal;
use std::collections::HashSet;

/// A row to set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// `id` of the outbox row.
    pub id: i64,
    /// Why; `None` where it is only held behind an earlier row of its key.
    pub reason: Option<Unencodable>,
}

/// Keys of `range` that a parked row blocks. Read under a fresh lease, before anything is published.
pub async fn held_keys(source: &Source, range: i64) -> Result<HashSet<String>, Failure> {
    let rows = source
        .query(format!(
            "select distinct key from fanout.parked where range_id = {range} and key is not null"
        ))
        .await?;
    rows.iter()
        .filter_map(|row| text(row, 0).transpose())
        .map(|key| key.map(str::to_owned).map_err(|error| classify(&error)))
        .collect()
}

/// Copies `rows` to `fanout.parked` and commits. Answers false, and copies none, when the lease is lost.
///
/// The lease's row is locked meanwhile, so that the next owner, who reads the held keys after it took the lease, can't
/// miss a row that is being parked.
pub async fn store(source: &Source, fence: &Fence, rows: &[Parked]) -> Result<bool, Failure> {
    let sql = statement(&source.outbox.table.quoted(), fence, rows);
    let rows = source.query(sql).await?;
    rows.first()
        .map_or(Ok(false), |row| flag(row, 0))
        .map_err(|error| classify(&error))
}

/// The statement of [`store`]; returns whether the lease holds.
pub fn statement(table: &str, fence: &Fence, rows: &[Parked]) -> String {
    let values: Vec<String> = rows
        .iter()
        .map(|Parked { id, reason }| {
            let reason = reason.map_or_else(|| "null".to_owned(), |reason| literal(reason.name()));
            format!("({id}::bigint, {reason}::text)")
        })
        .collect();
    format!(
        "with l as materialized (select 1 from fanout.leases where {} for share), \
         i as (insert into fanout.parked (range_id, id, reason, event_id, key, type, subject, content_type, headers, \
         traceparent, payload, created_at) \
         select {}, o.id, v.reason, o.event_id, o.key, o.type, o.subject, o.content_type, o.headers, \
         o.traceparent, o.payload, o.created_at \
         from (values {}) v(id, reason) join {table} o on o.id = v.id where exists (select from l) \
         on conflict (range_id, id) do nothing) \
         select exists (select from l)",
        fence.holds(),
        fence.range,
        values.join(", ")
    )
}

/// Which rows of a batch are set aside, decided before any is produced.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Rows to park, in order.
    pub parked: Vec<Parked>,
    /// Keys that this batch blocks, beside those blocked before.
    pub keys: HashSet<String>,
}

impl Plan {
    /// Adds the next row: `key`, and whether it can be produced. `held` are the keys blocked so far. A row without a key
    /// is ordered with nothing and blocks nothing.
    pub fn add(
        &mut self,
        held: &HashSet<String>,
        id: i64,
        key: Option<&str>,
        check: Result<(), Unencodable>,
    ) {
        if key.is_some_and(|key| held.contains(key) || self.keys.contains(key)) {
            self.parked.push(Parked { id, reason: None });
        } else if let Err(reason) = check {
            let reason = Some(reason);
            self.parked.push(Parked { id, reason });
            self.keys.extend(key.map(str::to_owned));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_rows_of_a_parked_key_are_held_and_others_go_on() {
        let held = HashSet::from(["old".to_owned()]);
        let mut plan = Plan::default();
        let large = Err(Unencodable::RecordTooLarge);
        plan.add(&held, 1, Some("a"), Ok(()));
        plan.add(&held, 2, Some("a"), large);
        plan.add(&held, 3, Some("a"), Ok(()));
        plan.add(&held, 4, Some("b"), Ok(()));
        plan.add(&held, 5, Some("old"), Ok(()));
        plan.add(&held, 6, None, large);
        plan.add(&held, 7, None, Ok(()));
        plan.add(&held, 8, Some("a"), large);
        let parked: Vec<_> = plan.parked.iter().map(|p| (p.id, p.reason)).collect();
        let reason = Some(Unencodable::RecordTooLarge);
        assert_eq!(
            parked,
            [(2, reason), (3, None), (5, None), (6, reason), (8, None)]
        );
        assert_eq!(plan.keys, HashSet::from(["a".to_owned()]));
    }
}
