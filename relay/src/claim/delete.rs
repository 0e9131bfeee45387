//! Claim mode `Delete`: the statements that select rows, and delete them once they are published.
//!
//! Text only; nothing here talks to a server.

use super::ids::Ids;
use super::lease::fenced;
use super::server::SERVER;
use super::snapshot::Limits;
use super::{Outbox, Shards};
use crate::position::Fence;

/// The first rows of `shards` that are not among `taken`, within `limits` but at least one, each behind what [`SERVER`]
/// says. Always returns at least one row.
pub fn select(outbox: &Outbox, shards: Shards, taken: &Ids, limits: Limits) -> String {
    let table = outbox.table.quoted();
    let columns = &outbox.columns;
    let within = outbox.within(shards);
    let (row, weight) = (columns.row(), columns.weight());
    let Limits { rows, bytes } = limits;
    let free = if taken.is_empty() {
        String::new()
    } else {
        format!(" and {row} <> all({})", taken.array(columns))
    };
    let order = if columns.ordered() {
        format!(" order by {row}")
    } else {
        String::new()
    };
    format!(
        "with c as materialized (select {row} as r, {weight} as weight from {table} where {within}{free}{order} limit {rows}), \
         k as materialized (select r, sum(weight) over (order by r) - weight as before from c) \
         select s.standby, s.timeline, s.incarnation, {} from (select {SERVER}) s \
         left join (select {} from {table} where {row} = any(array(select r from k where before < {bytes}))) d on true \
         order by d.id",
        columns.encoded(),
        columns.stored()
    )
}

/// Deletes the rows `ids`; returns whether the lease holds.
pub fn complete(outbox: &Outbox, fence: &Fence, ids: &Ids) -> String {
    fenced(
        fence,
        &format!(
            "delete from {} where {} = any({})",
            outbox.table.quoted(),
            outbox.columns.row(),
            ids.array(&outbox.columns)
        ),
    )
}

/// Counts the rows of `shards` up to `cap`, and finds the creation time of the first, and its age in seconds. Without an
/// order none is the first.
pub fn pending(outbox: &Outbox, shards: Shards, cap: i64) -> String {
    let table = outbox.table.quoted();
    let within = outbox.within(shards);
    let (row, created_at) = (outbox.columns.row(), outbox.columns.created_at());
    let first = if outbox.columns.ordered() {
        format!("select {created_at} from {table} where {within} order by {row} limit 1")
    } else {
        format!("select min({created_at}) from {table} where {within}")
    };
    format!(
        "with d as materialized (select 1 from {table} where {within} limit {cap}), o as (select ({first}) as created_at) \
         select (select count(*) from d), to_json(created_at at time zone 'UTC'), \
         extract(epoch from clock_timestamp() - created_at)::float8 from o"
    )
}
