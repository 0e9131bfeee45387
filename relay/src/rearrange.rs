//! Replaces ranges by others over the same shards: a split, or a merge, in one transaction under the terms of the leases.
//!
//! The owner has drained the old ranges before: nothing of them is in flight, and their positions are stored. With the
//! commit they are gone, lease and positions included, and nothing that was written or is still written under their ids
//! counts any more; the new ranges begin at the position that was stored.

use crate::claim::Shards;
use crate::claim::row::parsed;
use crate::claim::snapshot::Snapshot;
use crate::lease::{self, Acquired, LEASE, Member};
use crate::position::{self, Fence, History, Position, Stored, history};
use crate::source::{Failure, Source, Transaction, classify};
use crate::sql::{bigint_array, literal};
use fanout_runtime::clock;
use sqlx::postgres::PgRow;
use std::fmt::Write as _;

/// Ranges with more parked rows than this stay as they are: parked rows move with their range, in the one transaction.
pub const PARKED_MOST: i64 = 10_000;
/// How long the transaction waits for a lock, seconds: leases must be renewed meanwhile.
const LOCK_TIMEOUT: u64 = 3;

/// The ranges that replace others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Their shards, by first shard; together those of the old ones.
    pub into: Vec<Shards>,
    /// So many of them, the first, stay with the owner; the others are free.
    pub keep: usize,
}

/// What came of it.
#[derive(Debug)]
pub enum Rearranged {
    /// Done; these leases the owner has now.
    Done(Vec<(Shards, Acquired)>),
    /// Nothing changed: a lease is lost.
    Lost,
    /// Nothing changed: the old ranges stand at different positions.
    Apart,
    /// Nothing changed: the transaction failed before its commit.
    Failed(Failure),
}

/// True where the ranges have so few parked rows that they may be rearranged.
pub async fn is_light(source: &Source, ranges: &[i64]) -> Result<bool, Failure> {
    let ranges = bigint_array(ranges);
    let rows = source
        .query(format!(
            "select count(*) from (select from fanout.parked where range_id = any({ranges}) limit {}) p",
            PARKED_MOST + 1
        ))
        .await?;
    let found: i64 = first(&rows).map_err(|error| classify(&error))?;
    Ok(found <= PARKED_MOST)
}

/// Replaces the ranges of `fences` as `plan` says. Nothing changes where a lease has another owner or term, or where the
/// old ranges stand at different positions. An error means that the outcome of the commit is not known.
pub async fn rearrange(
    source: &Source,
    member: &Member,
    fences: &[Fence],
    plan: &Plan,
) -> Result<Rearranged, Failure> {
    let asked = clock::now();
    let mut transaction = match source.begin().await {
        Ok(transaction) => transaction,
        Err(failure) => return Ok(Rearranged::Failed(failure)),
    };
    let (position, history, ids) = match under(&mut transaction, member, fences, plan).await {
        Ok(replaced) => replaced,
        Err(outcome) => {
            // Where that fails, the connection is lost, and with it the transaction.
            transaction.rollback().await.ok();
            return Ok(outcome);
        }
    };
    transaction.commit().await?;
    let kept = plan.into.iter().zip(ids).take(plan.keep);
    Ok(Rearranged::Done(
        kept.map(|(shards, range)| {
            let fence = Fence {
                range,
                owner: member.owner.clone(),
                term: 1,
            };
            let acquired = Acquired {
                fence,
                position: position.clone(),
                history: history.clone(),
                ends: asked + LEASE,
            };
            (*shards, acquired)
        })
        .collect(),
    ))
}

/// A snapshot taken now, for ranges that are to be merged: it is newer than every position that was stored before.
pub async fn snapshot(source: &Source) -> Result<Snapshot, Failure> {
    let rows = source
        .query("select pg_current_snapshot() where not pg_is_in_recovery()".to_owned())
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| classify(&sqlx::Error::RowNotFound))?;
    let text: String = parsed(row, 0).map_err(|error| classify(&error))?;
    Ok(Snapshot::new(text))
}

/// What is done before the commit: returns where the new ranges begin, and their ids in the order of `plan`.
async fn under(
    transaction: &mut Transaction,
    member: &Member,
    fences: &[Fence],
    plan: &Plan,
) -> Result<(Position, History, Vec<i64>), Rearranged> {
    let standing = lock(transaction, member, fences)
        .await
        .map_err(Rearranged::Failed)?
        .ok_or(Rearranged::Lost)?;
    let (position, history) = agreed(standing).ok_or(Rearranged::Apart)?;
    let ids = replace(transaction, member, fences, plan, &position, &history)
        .await
        .map_err(Rearranged::Failed)?;
    Ok((position, history, ids))
}

/// Locks the leases, and reads where each range stands. `None` where one is lost. The topic is locked first, as by whoever
/// deletes it.
async fn lock(
    transaction: &mut Transaction,
    member: &Member,
    fences: &[Fence],
) -> Result<Option<Vec<(Position, History)>>, Failure> {
    let holds: Vec<String> = fences.iter().map(Fence::holds).collect();
    let latest = position::latest("l.range_id");
    let rows = transaction
        .query(format!(
            "set local lock_timeout = '{LOCK_TIMEOUT}s'; set constraints all deferred; \
             select id from fanout.topics where id = {} for key share; \
             select range_id from fanout.leases where ({}) order by range_id for update",
            member.topic,
            holds.join(") or (")
        ))
        .await?;
    if rows.len() != fences.len() + 1 {
        return Ok(None);
    }
    let rows = transaction
        .query(format!(
            "select h.*, p.* from {} left join fanout.leases l on l.range_id = any({}) left join lateral ({latest}) p on true",
            history(),
            bigint_array(&ids(fences))
        ))
        .await?;
    let standing = |row: &PgRow| {
        let here = History::decode(row, 0).map_err(|error| classify(&error))?;
        let stored =
            Stored::decode(row, History::COLUMNS).map_err(|_| lease::no_position(&here))?;
        lease::belongs(&stored, &here)?;
        Ok((stored.position, here))
    };
    rows.iter()
        .map(standing)
        .collect::<Result<_, _>>()
        .map(Some)
}

/// The position that all have.
fn agreed(standing: Vec<(Position, History)>) -> Option<(Position, History)> {
    let mut all = standing.into_iter();
    let first = all.next()?;
    all.all(|other| other.0 == first.0).then_some(first)
}

/// Returns the ids of the new ranges, in the order of `plan`.
async fn replace(
    transaction: &mut Transaction,
    member: &Member,
    fences: &[Fence],
    plan: &Plan,
    position: &Position,
    history: &History,
) -> Result<Vec<i64>, Failure> {
    let old = bigint_array(&ids(fences));
    let mut shards = String::new();
    for (index, Shards { lo, hi }) in plan.into.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let kept = index < plan.keep;
        // Writing to a String cannot fail.
        let _infallible = write!(shards, "{comma}({lo}, {hi}, {kept})");
    }
    let Member { topic, owner } = member;
    let rows = transaction
        .query(format!(
            "delete from fanout.leases where range_id = any({old}); \
             delete from fanout.positions where range_id = any({old}); \
             delete from fanout.ranges where id = any({old}); \
             with v(lo, hi, kept) as (values {shards}), \
             r as (insert into fanout.ranges (topic_id, lo, hi, predecessors) select {topic}, lo, hi, {old} from v \
             returning id, lo), \
             l as (insert into fanout.leases (range_id, owner, term, expires_at) \
             select r.id, case when v.kept then {owner} end, v.kept::int, \
             case when v.kept then clock_timestamp() + {lease} else '-infinity' end from r join v using (lo)), \
             p as (insert into fanout.positions (range_id, term, seq, old, new, last_id, system_identifier, timeline) \
             select r.id, v.kept::int, 0, {values}, {system}, {timeline} from r join v using (lo)) \
             select id from r order by lo",
            owner = literal(owner),
            lease = lease::lease_interval(),
            values = position.values(),
            system = history.system_identifier,
            timeline = literal(&history.timeline),
        ))
        .await?;
    let new = rows.iter().map(|row| parsed(row, 0));
    let new: Vec<i64> = new
        .collect::<Result<_, _>>()
        .map_err(|error| classify(&error))?;
    // The shard of a parked row is that of its key.
    transaction
        .execute(format!(
            "update fanout.parked p set range_id = coalesce((select r.id from fanout.ranges r where r.id = any({new}) \
             and hashtext(coalesce(p.key, '')) & 63 >= r.lo and hashtext(coalesce(p.key, '')) & 63 < r.hi), {first}) \
             where p.range_id = any({old})",
            first = new.first().ok_or_else(|| classify(&sqlx::Error::RowNotFound))?,
            new = bigint_array(&new)
        ))
        .await?;
    Ok(new)
}

fn ids(fences: &[Fence]) -> Vec<i64> {
    fences.iter().map(|fence| fence.range).collect()
}

fn first(rows: &[PgRow]) -> Result<i64, sqlx::Error> {
    parsed(rows.first().ok_or(sqlx::Error::RowNotFound)?, 0)
}
