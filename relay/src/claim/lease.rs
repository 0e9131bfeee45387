//! Claim mode `Lease`: the statements that take rows from `pending` to `processing` to `done`.
//!
//! Text only; nothing here talks to a server. Every statement that changes rows is fenced by the lease of the range.

use super::ids::Ids;
use super::server::SERVER;
use super::snapshot::Limits;
use super::{Outbox, Shards};
use crate::position::Fence;

/// A claimed row that its owner neither completed nor gave back is claimed again after this time, seconds: far longer than
/// a batch is ever in flight. What an owner leaves behind when it loses the range is given back at once by the next.
const EXPIRY: i64 = 60;
/// `clock_timestamp()` alone is volatile, so no index condition.
const NOW: &str = "(select clock_timestamp())";

/// The two kinds of rows that can be claimed, as conditions.
fn claimable(outbox: &Outbox, shards: Shards) -> [String; 2] {
    let within = outbox.within(shards);
    [
        format!("{within} and status = 'pending'"),
        format!("{within} and status = 'processing' and lease_expires < {NOW}"),
    ]
}

/// Claims the first rows of `shards`, within `limits` but at least one, and returns what [`SERVER`] says, the smallest
/// claimed number and how far each is above it: `0,1,5`, in order; NULL when none was claimed.
///
/// The lease is locked before any row, so that whoever takes the range over waits for this statement and sees what it
/// claimed; only when there is something to claim, because a lock is a write.
///
/// A row that somebody else has locked is not waited for, but no later row of its key is claimed before it.
///
/// The rows themselves are read by another statement: a result that a frozen client does not take off the wire would keep
/// this transaction, and with it the lease, from ending.
pub fn claim(outbox: &Outbox, shards: Shards, fence: &Fence, limits: Limits) -> String {
    let table = outbox.table.quoted();
    let columns = &outbox.columns;
    let (row, key, weight) = (columns.row(), columns.key(), columns.weight());
    let [pending, expired] = claimable(outbox, shards);
    let holds = fence.holds();
    let Limits { rows, bytes } = limits;
    let branch = |condition: &str| {
        format!(
            "select * from (select {row} as id, {key} as key, {weight} as weight from {table} \
             where {condition} order by {row} limit {rows}) b"
        )
    };
    let (first, second) = (branch(&pending), branch(&expired));
    format!(
        "with c as materialized ({first} union all {second}), \
         l as materialized (select 1 from fanout.leases where {holds} and exists (select from c) for share), \
         f as materialized (select {row} as id from {table} where {row} = any(array(select id from c)) \
         and status in ('pending', 'processing') and exists (select from l) for update skip locked), \
         b as materialized (select key, min(id) as id from c where not exists (select from f where f.id = c.id) group by key), \
         k as materialized (select id, row_number() over w as n, sum(weight) over w - weight as before \
         from c where exists (select from f where f.id = c.id) and not exists (select from b where b.key = c.key and b.id < c.id) \
         window w as (order by id)), \
         u as (update {table} set status = 'processing', lease_expires = clock_timestamp() + interval '{EXPIRY} s', \
         attempts = coalesce(attempts, 0) + 1 \
         where {row} = any(array(select id from k where n <= {rows} and before < {bytes})) returning {row} as id), \
         m as (select min(id) as id from u) \
         select {SERVER}, (select id from m), (select string_agg((u.id - m.id)::text, ',' order by u.id) from u, m)"
    )
}

/// Gives back every claimed row of `shards`, so that it is claimed again before the rows behind it; returns whether the
/// lease holds. Whoever begins to claim a range runs it first.
pub fn reclaim(outbox: &Outbox, shards: Shards, fence: &Fence) -> String {
    let within = outbox.within(shards);
    fenced(
        fence,
        &format!(
            "update {} set status = 'pending', lease_expires = null where {within} and status = 'processing'",
            outbox.table.quoted()
        ),
    )
}

/// Marks the rows `ids` done; returns whether the lease holds.
pub fn complete(outbox: &Outbox, fence: &Fence, ids: &Ids) -> String {
    fenced(
        fence,
        &format!(
            "update {} set status = 'done', lease_expires = null where {} = any({}) and status = 'processing'",
            outbox.table.quoted(),
            outbox.columns.row(),
            ids.array(&outbox.columns)
        ),
    )
}

/// Runs `change`, which ends in a condition, where the lease holds; returns whether it does.
pub(super) fn fenced(fence: &Fence, change: &str) -> String {
    format!(
        "with l as materialized (select 1 from fanout.leases where {}), \
         u as ({change} and exists (select from l)) select exists (select from l)",
        fence.holds()
    )
}

/// Counts the unfinished rows of `shards` up to `cap`, and finds the creation time of the first, and its age in seconds.
pub fn pending(outbox: &Outbox, shards: Shards, cap: i64) -> String {
    let table = outbox.table.quoted();
    let within = outbox.within(shards);
    let (row, created_at) = (outbox.columns.row(), outbox.columns.created_at());
    let pending = format!("from {table} where {within} and status = 'pending'");
    let claimed = format!("from {table} where {within} and status = 'processing'");
    format!(
        "with d as materialized (select * from ((select 1 {pending} limit {cap}) union all (select 1 {claimed} limit {cap})) b limit {cap}), \
         o as (select least((select {created_at} {pending} order by {row} limit 1), \
         (select min({created_at}) {claimed})) as created_at) \
         select (select count(*) from d), to_json(created_at at time zone 'UTC'), \
         extract(epoch from clock_timestamp() - created_at)::float8 from o"
    )
}

/// Deletes at most `limit` rows of `shards` that are done and were created more than `retention_seconds` ago.
pub fn expire(outbox: &Outbox, shards: Shards, retention_seconds: i64, limit: usize) -> String {
    let table = outbox.table.quoted();
    let within = outbox.within(shards);
    let (row, created_at) = (outbox.columns.row(), outbox.columns.created_at());
    format!(
        "delete from {table} where {row} = any(array(select {row} from {table} where {within} and status = 'done' \
         and {created_at} < {NOW} - make_interval(secs => {retention_seconds}) order by {created_at} limit {limit})) \
         and status = 'done'"
    )
}
