//! Rows that can never be published as they are, and the later rows of their keys: set aside, then released or dropped.
//!
//! A row with a reason is *parked*; one without is *held* behind an earlier row of its key. Whoever may write schema `fanout`
//! sets `action` of a parked row; the range's owner carries it out, and goes on with what was held behind it.

use crate::claim::Outbox;
use crate::claim::row::{Row, flag, parsed, text};
use crate::claim::snapshot::Limits;
use crate::encode::Unencodable;
use crate::position::Fence;
use crate::source::{Failure, SCAN_TIMEOUT, Source, classify};
use crate::sql::{bigint_array, literal};
use fanout_contract::relay::OnParked;
use sqlx::postgres::PgRow;
use std::collections::{HashMap, HashSet};

/// A row to set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// `id` of the outbox row.
    pub id: i64,
    /// Why; `None` where it is only held behind an earlier row of its key.
    pub reason: Option<Unencodable>,
}

/// Keys whose rows must wait, each with the id it waits from.
///
/// What comes before that id goes on: a batch that was planned and not stored is read again, with the rows of the key before
/// the parked one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held(HashMap<String, i64>);

impl Held {
    /// True where row `id` of `key` must wait. A row without a key is ordered with nothing.
    pub fn contains(&self, key: Option<&str>, id: i64) -> bool {
        key.and_then(|key| self.0.get(key))
            .is_some_and(|from| id >= *from)
    }

    /// From row `id` on, `key` waits.
    pub fn add(&mut self, key: &str, id: i64) {
        let from = self.0.entry(key.to_owned()).or_insert(id);
        *from = id.min(*from);
    }

    /// Adds what `other` holds.
    pub fn extend(&mut self, other: Self) {
        for (key, id) in other.0 {
            self.add(&key, id);
        }
    }
}

/// Keys of `range` whose rows must wait, and whether anything is to be released or dropped. Read under a fresh lease, before
/// anything is published.
pub async fn look(
    source: &Source,
    range: i64,
    on_parked: OnParked,
) -> Result<(Held, bool), Failure> {
    let held = held_keys(source, range, on_parked).await?;
    let one = Limits { rows: 1, bytes: 0 };
    let due = page(source, range, BEFORE_ALL, on_parked, one).await?;
    Ok((held, !due.rows.is_empty()))
}

/// Keys of `range` whose rows must wait: those of every parked row; where keys go on, those of held rows, which go first.
pub async fn held_keys(source: &Source, range: i64, on_parked: OnParked) -> Result<Held, Failure> {
    let held = match on_parked {
        OnParked::Block => "",
        OnParked::Skip => " and reason is null",
    };
    let rows = source
        .query_within(
            SCAN_TIMEOUT,
            format!(
                "select key, min(id) from fanout.parked where range_id = {range} and key is not null{held} group by key"
            ),
        )
        .await?;
    let mut held = Held::default();
    for row in &rows {
        let (key, id) = decode_held(row).map_err(|error| classify(&error))?;
        held.add(key, id);
    }
    Ok(held)
}

fn decode_held(row: &PgRow) -> Result<(&str, i64), sqlx::Error> {
    Ok((text(row, 0)?.unwrap_or_default(), parsed(row, 1)?))
}

/// Below every id; the smallest number whose negative SQL can write.
pub const BEFORE_ALL: i64 = -i64::MAX;

/// Columns of a parked row as [`Row`] decodes them. The id of a row without an order is made from what identifies it, which
/// nobody needs any more; the event's id stands for it.
fn copied(ordered: bool) -> String {
    let identity = if ordered { "null" } else { "d.event_id" };
    format!(
        "d.id, d.event_id, d.key, d.type, d.subject, d.content_type, d.headers::text, d.traceparent, \
         encode(d.payload, 'hex'), to_json(d.created_at at time zone 'UTC'), {identity}"
    )
}

/// Parked and held rows that are to be published or dropped now, in the order of ids.
#[derive(Debug)]
pub struct Page {
    rows: Vec<PgRow>,
}

impl Page {
    /// Its rows; true with those to drop.
    pub fn rows(&self) -> impl Iterator<Item = Result<(bool, Row<'_>), sqlx::Error>> {
        self.rows
            .iter()
            .map(|row| Ok((flag(row, 0)?, Row::decode(row, 1)?)))
    }

    /// True where nothing is left to do.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Copies `rows` to `fanout.parked` and commits. Answers false, and copies none, when the lease is lost.
///
/// The lease's row is locked meanwhile, so that the next owner, who reads the held keys after it took the lease, can't
/// miss a row that is being parked.
pub async fn store(source: &Source, fence: &Fence, rows: &[Parked]) -> Result<bool, Failure> {
    let sql = statement(&source.outbox, fence, rows);
    let rows = source.query(sql).await?;
    rows.first()
        .map_or(Ok(false), |row| flag(row, 0))
        .map_err(|error| classify(&error))
}

/// The statement of [`store`]; returns whether the lease holds.
pub fn statement(outbox: &Outbox, fence: &Fence, rows: &[Parked]) -> String {
    let columns = &outbox.columns;
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
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
         o.traceparent, {}, o.created_at \
         from (values {}) v(id, reason) join (select {} from {} where {} = any({})) o on o.id = v.id where exists (select from l) \
         on conflict (range_id, id) do nothing) \
         select exists (select from l)",
        fence.holds(),
        fence.range,
        columns.bytes("o.payload"),
        values.join(", "),
        columns.stored(),
        outbox.table.quoted(),
        columns.id(),
        bigint_array(&ids)
    )
}

/// Reads the next of the rows of `range` that are to be published or dropped now, those with an id above `after`.
pub async fn page(
    source: &Source,
    range: i64,
    after: i64,
    on_parked: OnParked,
    limits: Limits,
) -> Result<Page, Failure> {
    let ordered = source.outbox.columns.ordered();
    let sql = page_statement(range, after, on_parked, limits, ordered);
    let rows = source.query_within(SCAN_TIMEOUT, sql).await?;
    Ok(Page { rows })
}

/// The statement of [`page`].
///
/// To be dropped: every row that says so. To be published: what is released, and what was held, but nothing behind the first
/// row of its key that is still parked without an action, unless keys go on.
fn page_statement(
    range: i64,
    after: i64,
    on_parked: OnParked,
    limits: Limits,
    ordered: bool,
) -> String {
    let Limits { rows, bytes } = limits;
    let copied = copied(ordered);
    let blocks = on_parked == OnParked::Block;
    format!(
        "with b as materialized (select key, min(id) as id from fanout.parked where {blocks} and range_id = {range} \
         and key is not null and reason is not null and action is null group by key), \
         due as materialized (select p.id, octet_length(p.payload) as weight from fanout.parked p left join b on b.key = p.key \
         where p.range_id = {range} and p.id > {after} and (p.action = 'Drop' or \
         ((p.reason is null or p.action is not null) and (b.id is null or p.id < b.id))) order by p.id limit {rows}), \
         page as materialized (select id, row_number() over w as n, sum(weight) over w as bytes from due \
         window w as (order by id)) \
         select d.action = 'Drop', {copied} from page join fanout.parked d on d.range_id = {range} and d.id = page.id \
         where page.n = 1 or coalesce(page.bytes, 0) <= {bytes} order by d.id"
    )
}

/// What becomes of the rows of a [`Page`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Releases {
    /// Ids to publish, in order.
    pub publish: Vec<i64>,
    /// Ids that are done with without being published.
    pub dropped: Vec<i64>,
    /// Rows that still can't be published: they stay parked, without an action.
    pub refused: Vec<(i64, Unencodable)>,
    /// Keys of those, whose later rows wait.
    blocked: HashSet<String>,
}

impl Releases {
    /// Adds the next row: what it says, its key, and whether it can be produced.
    pub fn add(
        &mut self,
        on_parked: OnParked,
        drop: bool,
        id: i64,
        key: Option<&str>,
        check: Result<(), Unencodable>,
    ) {
        if drop {
            self.dropped.push(id);
        } else if !self.waits(key) {
            match check {
                Ok(()) => self.publish.push(id),
                Err(reason) => self.refuse(on_parked, id, key, reason),
            }
        }
    }

    /// True where an earlier row of `key` stays parked.
    pub fn waits(&self, key: Option<&str>) -> bool {
        key.is_some_and(|key| self.blocked.contains(key))
    }

    /// The row stays parked for `reason`.
    pub fn refuse(&mut self, on_parked: OnParked, id: i64, key: Option<&str>, reason: Unencodable) {
        self.refused.push((id, reason));
        if on_parked == OnParked::Block {
            self.blocked.extend(key.map(str::to_owned));
        }
    }
}

/// Removes the published `done` and what is dropped from `fanout.parked`, gives those refused their reason, and commits.
/// Answers false, and changes nothing, when the lease is lost: the next owner publishes them again.
pub async fn settle(
    source: &Source,
    fence: &Fence,
    done: &[i64],
    releases: &Releases,
) -> Result<bool, Failure> {
    let rows = source
        .query(settle_statement(fence, done, releases))
        .await?;
    rows.first()
        .map_or(Ok(false), |row| flag(row, 0))
        .map_err(|error| classify(&error))
}

fn settle_statement(fence: &Fence, done: &[i64], releases: &Releases) -> String {
    let range = fence.range;
    let gone: Vec<i64> = done.iter().chain(&releases.dropped).copied().collect();
    let refused = releases
        .refused
        .iter()
        .map(|(id, reason)| format!("({id}::bigint, {})", literal(reason.name())))
        .collect::<Vec<_>>()
        .join(", ");
    let refused = if refused.is_empty() {
        String::new()
    } else {
        format!(
            ", u as (update fanout.parked p set reason = v.reason, action = null from (values {refused}) v(id, reason) \
             where p.range_id = {range} and p.id = v.id and exists (select from l))"
        )
    };
    format!(
        "with l as materialized (select 1 from fanout.leases where {} for share), \
         d as (delete from fanout.parked where range_id = {range} and id = any({}) and exists (select from l)){refused} \
         select exists (select from l)",
        fence.holds(),
        bigint_array(&gone)
    )
}

/// Which rows of a batch are set aside, decided before any is produced.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    on_parked: OnParked,
    /// Rows to park, in order.
    pub parked: Vec<Parked>,
    /// Keys that this batch blocks, beside those blocked before.
    pub keys: Held,
}

impl Plan {
    /// Nothing yet.
    pub fn new(on_parked: OnParked) -> Self {
        Self {
            on_parked,
            parked: Vec::new(),
            keys: Held::default(),
        }
    }

    /// Adds the next row: `key`, and whether it can be produced. `held` are the keys blocked so far. A row without a key
    /// blocks nothing.
    pub fn add(&mut self, held: &Held, id: i64, key: Option<&str>, check: Result<(), Unencodable>) {
        if held.contains(key, id) || self.keys.contains(key, id) {
            self.parked.push(Parked { id, reason: None });
        } else if let Err(reason) = check {
            let reason = Some(reason);
            self.parked.push(Parked { id, reason });
            if let (OnParked::Block, Some(key)) = (self.on_parked, key) {
                self.keys.add(key, id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
