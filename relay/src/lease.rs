//! Which relay publishes which range: leases with a term that fences, and the members that share the ranges.

use crate::claim::Shards;
use crate::claim::row::{parsed, text};
use crate::position::{self, Fence, History, Position, Stored, history};
use crate::source::{Failure, Source, classify, failure, unexpected};
use crate::sql::literal;
use fanout_contract::names::ACCEPT_SOURCE_ANNOTATION;
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{Delivery, RelayStart};
use fanout_runtime::clock;
use sqlx::postgres::PgRow;
use std::time::Duration;

/// A lease is good for this long after it was last renewed, counted from before the renewal was sent.
pub const LEASE: Duration = Duration::from_secs(10);
/// Leases are renewed this often.
pub const RENEWAL: Duration = Duration::from_secs(3);
/// A new topic's ranges.
const FIRST_RANGES: &str = "(0, 32), (32, 64)";
/// Members that were silent this long are forgotten; they stop counting after [`LEASE`] already.
const FORGET_MEMBERS: &str = "interval '1 hour'";

/// One relay process among those that share a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Row of `fanout.topics`.
    pub topic: i64,
    /// Unique per process, so that a restarted one does not take its predecessor's lease for its own.
    pub owner: String,
}

/// A range and its lease, as the database saw them at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeView {
    /// Id of the range.
    pub id: i64,
    /// Its shards.
    pub shards: Shards,
    /// Term of the lease.
    pub term: i64,
    /// Whom the lease names; `None` once it has expired.
    pub holder: Option<String>,
}

/// What one look at the leases saw.
#[derive(Clone, Debug)]
pub struct View {
    /// Owner names of the live members, this one included.
    pub members: Vec<String>,
    /// Every range of the topic, by first shard.
    pub ranges: Vec<RangeView>,
    /// History of the server that answered.
    pub history: History,
}

/// A lease just taken.
#[derive(Clone, Debug)]
pub struct Acquired {
    /// Fences what is written under it.
    pub fence: Fence,
    /// Where to begin, as far as the database knows; without transactions it is appended already as number 0 of the term.
    pub position: Position,
    /// History the position was appended in.
    pub history: History,
    /// When it ends unless renewed, on [`clock::now`]'s clock.
    pub ends: Duration,
}

/// Finds the row of the topic, and makes it with its ranges and their first position where it is new.
pub async fn register(
    source: &Source,
    cluster: &str,
    topic: &str,
    start: RelayStart,
) -> Result<i64, Failure> {
    let (cluster, topic) = (literal(cluster), literal(topic));
    let table = literal(&source.outbox.table.quoted());
    let matches: serde_json::Map<_, _> = source
        .outbox
        .matches
        .iter()
        .map(|m| (m.column.clone(), m.value.clone().into()))
        .collect();
    let matches = literal(&serde_json::Value::Object(matches).to_string());
    let start = match start {
        RelayStart::Earliest => "'1:1:'::pg_snapshot",
        RelayStart::Latest => "pg_current_snapshot()",
    };
    // Several statements in one message are one transaction; each sees what a relay that was quicker made, because the
    // first waits for it: also where nothing is to be updated, it locks the topic's row.
    let rows = source
        .query(format!(
            "insert into fanout.topics (cluster_id, topic, source_table, match) values ({cluster}, {topic}, {table}, {matches}::jsonb) \
             on conflict (cluster_id, topic) do update set match = excluded.match \
             where topics.source_table = excluded.source_table and topics.match is distinct from excluded.match; \
             with r as (insert into fanout.ranges (topic_id, lo, hi) \
             select t.id, v.lo, v.hi from fanout.topics t, (values {FIRST_RANGES}) v(lo, hi) where cluster_id = {cluster} and topic = {topic} \
             and not exists (select from fanout.ranges where topic_id = t.id) returning id), \
             l as (insert into fanout.leases (range_id) select id from r) \
             insert into fanout.positions (range_id, term, seq, old, system_identifier, timeline) \
             select r.id, 0, 0, {start}, h.system_identifier, h.timeline from r, {}; \
             select id from fanout.topics where cluster_id = {cluster} and topic = {topic}",
            history()
        ))
        .await?;
    let row = rows.last().ok_or_else(unexpected)?;
    parsed(row, 0).map_err(|error| classify(&error))
}

/// Checks that every stored position of the topic belongs to this outbox table and to the history of the server that
/// answers. In another table of the same database a position would hide every row that was there before it.
pub async fn check_history(source: &Source, topic: i64) -> Result<(), Failure> {
    let latest = position::latest("r.id");
    let rows = source
        .query(format!(
            "select h.*, t.source_table, p.* from {} join fanout.topics t on true join fanout.ranges r on r.topic_id = t.id \
             left join lateral ({latest}) p on true where t.id = {topic}",
            history()
        ))
        .await?;
    for row in &rows {
        let here = History::decode(row, 0).map_err(|error| classify(&error))?;
        let table: String = parsed(row, History::COLUMNS).map_err(|error| classify(&error))?;
        if table != source.outbox.table.quoted() {
            return Err(failure(
                SourceError::SourceChanged,
                format!(
                    "the positions in fanout.positions are those of table {table}: they say nothing about the rows of \
                     another one; if it was renamed, change source_table in fanout.topics, else use another Kafka topic"
                ),
            ));
        }
        let stored = Stored::decode(row, History::COLUMNS + 1).map_err(|_| no_position(&here))?;
        belongs(&stored, &here)?;
    }
    Ok(())
}

pub(crate) fn belongs(stored: &Stored, here: &History) -> Result<(), Failure> {
    if stored.belongs_to(here) {
        return Ok(());
    }
    let there = stored.system_identifier;
    let message = if there == here.system_identifier {
        "the positions in fanout.positions were copied here from another database of this server"
            .to_owned()
    } else {
        format!(
            "the positions in fanout.positions were written by system {there}, this server is system {}",
            here.system_identifier
        )
    };
    Err(failure(
        SourceError::SourceChanged,
        format!(
            "{message}: they say nothing about the rows here, and nothing is published; {}",
            to_accept(here)
        ),
    ))
}

pub(crate) fn no_position(here: &History) -> Failure {
    failure(
        SourceError::SourceChanged,
        format!(
            "fanout.positions has no row for a range of this topic: what was published is not known; {}",
            to_accept(here)
        ),
    )
}

/// The step that releases a topic, see [`crate::adopt`].
fn to_accept(here: &History) -> String {
    format!(
        "if it is meant to be this database, annotate the FanoutTopic with {ACCEPT_SOURCE_ANNOTATION}: \"{}\"",
        here.system_identifier
    )
}

/// Says that this member is up, renews its leases when `renew` is not empty, and looks at all.
///
/// A lease that was renewed shows as held by this member at its term. Its new end counts from before this call.
pub async fn look(source: &Source, member: &Member, renew: &[Fence]) -> Result<View, Failure> {
    let Member { topic, owner } = member;
    let owner = literal(owner);
    let lease = lease_interval();
    let mut statements = vec![format!(
        "insert into fanout.members (topic_id, owner) values ({topic}, {owner}) \
         on conflict (topic_id, owner) do update set seen_at = clock_timestamp()"
    )];
    statements.extend(renew.iter().map(Fence::holds).map(|holds| {
        format!("update fanout.leases set expires_at = clock_timestamp() + {lease} where {holds}")
    }));
    statements.push(observation(*topic));
    decode_view(&source.query(statements.join("; ")).await?)
}

/// Looks at members and leases without writing.
pub async fn observe(source: &Source, member: &Member) -> Result<View, Failure> {
    decode_view(&source.query(observation(member.topic)).await?)
}

fn observation(topic: i64) -> String {
    format!(
        "select h.*, (select json_agg(owner) from fanout.members where topic_id = {topic} \
         and seen_at > clock_timestamp() - {lease} and seen_at <= clock_timestamp() + {lease}), \
         r.id, r.lo, r.hi, l.term, case when not {} then l.owner end \
         from {} join fanout.ranges r on true join fanout.leases l on l.range_id = r.id where r.topic_id = {topic} order by r.lo",
        ended(),
        history(),
        lease = lease_interval(),
    )
}

/// Whether a lease has ended, as an SQL condition.
///
/// One that ends later than any that is given out now was written before the database's clock went back: without this
/// nobody would take the range until the clock has come as far again. An owner that is alive renews it; where another
/// one is quicker, it is fenced as by any takeover.
pub(crate) fn ended() -> String {
    let lease = lease_interval();
    format!("(expires_at <= clock_timestamp() or expires_at > clock_timestamp() + 2 * {lease})")
}

pub(crate) fn lease_interval() -> String {
    format!("interval '{} s'", LEASE.as_secs())
}

fn decode_view(rows: &[PgRow]) -> Result<View, Failure> {
    let first = rows.first().ok_or_else(unexpected)?;
    let decode = || -> Result<View, sqlx::Error> {
        let range = |row: &PgRow| {
            Ok(RangeView {
                id: parsed(row, 4)?,
                shards: Shards {
                    lo: parsed(row, 5)?,
                    hi: parsed(row, 6)?,
                },
                term: parsed(row, 7)?,
                holder: text(row, 8)?.map(str::to_owned),
            })
        };
        Ok(View {
            history: History::decode(first, 0)?,
            members: text(first, History::COLUMNS)?
                .map_or_else(|| Ok(Vec::new()), serde_json::from_str)
                .map_err(|error| sqlx::Error::Decode(error.into()))?,
            ranges: rows.iter().map(range).collect::<Result<_, sqlx::Error>>()?,
        })
    };
    decode().map_err(|error| classify(&error))
}

/// Takes the lease of `range` if nobody holds it: in one transaction the term rises, and the position is read and
/// appended under the new term. `None` where another was quicker.
pub async fn acquire(
    source: &Source,
    member: &Member,
    range: i64,
) -> Result<Option<Acquired>, Failure> {
    take(source, member, range, Delivery::Standard).await
}

/// The same; with transactions nothing is appended yet, because the log may have a position that is further. As long as
/// nothing is, the latest position is still one of the terms before, for whoever takes the lease next.
pub async fn take(
    source: &Source,
    member: &Member,
    range: i64,
    delivery: Delivery,
) -> Result<Option<Acquired>, Failure> {
    let asked = clock::now();
    let mut transaction = source.begin().await?;
    let rows = transaction
        .query(format!(
            "update fanout.leases set owner = {}, term = term + 1, expires_at = clock_timestamp() + {} \
             where range_id = {range} and {} returning term",
            literal(&member.owner),
            lease_interval(),
            ended()
        ))
        .await?;
    let Some(row) = rows.first() else {
        transaction.rollback().await?;
        return Ok(None);
    };
    let fence = Fence {
        range,
        owner: member.owner.clone(),
        term: parsed(row, 0).map_err(|error| classify(&error))?,
    };
    let latest = position::latest(&range.to_string());
    let rows = transaction
        .query(format!(
            "select h.*, p.* from {} left join ({latest}) p on true",
            history()
        ))
        .await?;
    let row = rows.first().ok_or_else(unexpected)?;
    let history = History::decode(row, 0).map_err(|error| classify(&error))?;
    let stored = Stored::decode(row, History::COLUMNS).map_err(|_| no_position(&history))?;
    belongs(&stored, &history)?;
    if delivery == Delivery::Standard {
        transaction
            .query(position::append(&fence, 0, &stored.position, &history))
            .await?;
    }
    transaction.commit().await?;
    Ok(Some(Acquired {
        fence,
        position: stored.position,
        history,
        ends: asked + LEASE,
    }))
}

/// Gives a lease back, so that another relay takes the range at once. Nothing happens where it is lost already.
pub async fn release(source: &Source, fence: &Fence) -> Result<(), Failure> {
    source
        .execute(format!(
            "update fanout.leases set owner = null, expires_at = '-infinity' where {}",
            fence.holds()
        ))
        .await
        .map(drop)
}

/// Says that this member leaves, and forgets those that are long gone.
pub async fn leave(source: &Source, member: &Member) -> Result<(), Failure> {
    let Member { topic, owner } = member;
    source
        .execute(format!(
            "delete from fanout.members where topic_id = {topic} \
             and (owner = {} or seen_at < clock_timestamp() - {FORGET_MEMBERS})",
            literal(owner)
        ))
        .await
        .map(drop)
}
