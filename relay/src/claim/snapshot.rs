//! Claim mode `Snapshot`: the statements that read the difference between two snapshots.
//!
//! A row is due when it is visible in the new snapshot and was not in the old one. Text only; nothing here talks to a
//! server. The parameters that are SQL expressions (`old`, `new`) let a statement be tested as a generic plan.

use super::server::SERVER;
use super::{Outbox, Shards};
use crate::sql::{bigint_array, literal};

/// A `pg_snapshot` as PostgreSQL writes it: `xmin:xmax:xip,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(String);

impl Snapshot {
    /// A snapshot read from PostgreSQL.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The snapshot in which no row is visible.
    pub fn nothing() -> Self {
        Self("1:1:".to_owned())
    }

    /// As PostgreSQL writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As an SQL expression.
    pub fn sql(&self) -> String {
        format!("{}::pg_snapshot", literal(&self.0))
    }
}

/// How much one statement may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows.
    pub rows: usize,
    /// Bytes of payload and headers.
    pub bytes: usize,
}

/// The two branches of a difference, both selecting `columns`: transactions that began after `old` was taken, and those
/// that were running then and have ended since.
pub fn difference(outbox: &Outbox, shards: Shards, columns: &str, old: &str, new: &str) -> String {
    let began = began(outbox, shards, columns, old, new);
    let ended = ended(outbox, shards, columns, old, new);
    format!("({began}) union all ({ended})")
}

/// Rows of transactions that began after `old` was taken.
fn began(outbox: &Outbox, shards: Shards, columns: &str, old: &str, new: &str) -> String {
    let table = outbox.table.quoted();
    let within = outbox.within(shards);
    format!(
        "select {columns} from {table} where {within} and xid >= pg_snapshot_xmax({old}) \
         and xid < pg_snapshot_xmax({new}) and pg_visible_in_snapshot(xid, {new})"
    )
}

/// Rows of transactions that were running when `old` was taken and have ended since.
///
/// Only the ended ones: all of `old`'s running transactions would have their rows read again at each poll. One by one:
/// `xid = any(array)` may be made a filter behind an index scan over all that is kept (PostgreSQL 15 does so with stale
/// statistics); an equality can't, and `offset 0` keeps the planner from making a join of it.
fn ended(outbox: &Outbox, shards: Shards, columns: &str, old: &str, new: &str) -> String {
    let table = outbox.table.quoted();
    let within = outbox.within(shards);
    format!(
        "select e.* from pg_snapshot_xip({old}) x \
         cross join lateral (select {columns} from {table} where {within} and xid = x offset 0) e \
         where pg_visible_in_snapshot(x, {new})"
    )
}

/// Takes a snapshot and reads the difference to `old` under it, in one statement, which sees one snapshot in READ
/// COMMITTED. Always returns at least one row: the snapshot, whether the server is a standby (its snapshots miss the
/// running transactions), the timeline, and whether the difference is small. When it is not, no rows come with it.
///
/// Sorting happens outside the materialized part: `order by id limit n` on the table would let the planner walk the
/// primary key.
pub fn poll(outbox: &Outbox, shards: Shards, old: &str, limits: Limits) -> String {
    let columns = &outbox.columns;
    let d = difference(
        outbox,
        shards,
        &columns.stored(),
        old,
        "(select new from s)",
    );
    let (encoded, weight) = (columns.encoded(), columns.stored_weight());
    let Limits { rows, bytes } = limits;
    format!(
        "with s as materialized (select pg_current_snapshot() as new, {SERVER}), \
         d as materialized ({d} limit {}), \
         t as (select count(*) <= {rows} and coalesce(sum({weight}), 0) <= {bytes} as small from d) \
         select s.new, s.standby, s.timeline, s.incarnation, t.small, {encoded} \
         from s cross join t left join d on t.small order by d.id",
        rows + 1
    )
}

/// Ids and weights of the rows between `old` and `new` with an id above `after`: one text, `id:weight,…` in the order of
/// ids, at most `limit` of them; NULL when there are none. One text because a million rows of the protocol would cost
/// more than all the rest. Before it what [`SERVER`] says.
pub fn ids(
    outbox: &Outbox,
    shards: Shards,
    (old, new): (&str, &str),
    after: i64,
    limit: usize,
) -> String {
    let columns = &outbox.columns;
    let columns = format!("{} as id, {} as weight", columns.id(), columns.weight());
    let d = difference(outbox, shards, &columns, old, new);
    format!(
        "with d as materialized ({d}), \
         page as materialized (select id, weight from d where id > {after} order by id limit {limit}) \
         select {SERVER}, (select string_agg(id || ':' || weight, ',' order by id) from page)"
    )
}

/// The rows `ids`, in the order of ids, each behind what [`SERVER`] says. Always returns at least one row.
pub fn page(outbox: &Outbox, ids: &[i64]) -> String {
    let columns = &outbox.columns;
    format!(
        "select s.standby, s.timeline, s.incarnation, {} from (select {SERVER}) s \
         left join (select {} from {} where {} = any({})) d on true order by d.id",
        columns.encoded(),
        columns.stored(),
        outbox.table.quoted(),
        columns.row(),
        bigint_array(ids)
    )
}

/// What is due after a position.
#[derive(Clone, Copy, Debug)]
pub struct Due<'a> {
    /// Everything visible here is published.
    pub old: &'a Snapshot,
    /// Inside a large difference: of what is visible here, ids up to this one are published.
    pub inside: Option<(&'a Snapshot, i64)>,
}

/// Counts due rows up to `cap`, and finds the creation time of the first, by transaction id, and its age in seconds.
pub fn pending(outbox: &Outbox, shards: Shards, due: Due<'_>, cap: i64) -> String {
    let old = due.old.sql();
    let skip = due.inside.map_or_else(String::new, |(frozen, last)| {
        format!(
            " and not ({} <= {last} and pg_visible_in_snapshot(xid, {}))",
            outbox.columns.row(),
            frozen.sql()
        )
    });
    let columns = format!("xid, {} as created_at", outbox.columns.created_at());
    let new = "(select new from s)";
    let began = began(outbox, shards, &columns, &old, new) + &skip;
    // The condition belongs to the rows, not to the transactions.
    let ended = format!(
        "select * from ({}) o where true{skip}",
        ended(
            outbox,
            shards,
            &format!("{columns}, {}", outbox.columns.row()),
            &old,
            new
        )
    );
    format!(
        "with s as materialized (select pg_current_snapshot() as new), \
         d as materialized ((select 1 from ({began}) b union all select 1 from ({ended}) e) limit {cap}), \
         o as (select least((select created_at from ({began} order by xid limit 1) b), \
         (select min(created_at) from ({ended}) e)) as created_at) \
         select (select count(*) from d), to_json(created_at at time zone 'UTC'), \
         extract(epoch from clock_timestamp() - created_at)::float8 from o"
    )
}

/// Deletes at most `limit` rows of `shards` that are visible in every one of `published` and were created more than
/// `retention_seconds` ago; looks at the oldest `limit` transactions' rows only. Whoever holds the lease of the shards
/// runs it, so no two relays want the same rows and none needs to lock them.
pub fn expire(
    outbox: &Outbox,
    shards: Shards,
    published: &[Snapshot],
    retention_seconds: i64,
    limit: usize,
) -> String {
    let table = outbox.table.quoted();
    let within = outbox.within(shards);
    let conditions: Vec<String> = std::iter::once(within)
        .chain(published.iter().map(Snapshot::sql).map(|old| {
            format!("xid < pg_snapshot_xmax({old}) and pg_visible_in_snapshot(xid, {old})")
        }))
        .collect();
    let conditions = conditions.join(" and ");
    let (row, created_at) = (outbox.columns.row(), outbox.columns.created_at());
    format!(
        "with oldest as materialized (select {row} as id, {created_at} as created_at from {table} where {conditions} \
         order by xid limit {limit}) \
         delete from {table} where {row} = any(array(select id from oldest \
         where created_at < clock_timestamp() - make_interval(secs => {retention_seconds})))"
    )
}
