//! The position of a range as a record of its own Kafka transactions, for `delivery: Transactional`.
//!
//! It lies in a compacted topic beside the log, in the partition that is the range's first shard, under the range's id. It
//! becomes visible together with the records it speaks of. The database has a position too, some seconds older: the one of
//! both that is further counts, as long as the log's was written in the history the database still has.

use crate::broker::{self, Broker};
use crate::claim::row::{parsed, text};
use crate::claim::snapshot::Snapshot;
use crate::kafka_error;
use crate::lease;
use crate::position::{self, Fence, History, Position, Stored, history};
use crate::source::{Failure, Source, classify, unexpected};
use fanout_contract::names;
use rdkafka::Message as _;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reading a position takes at most this long.
const READ: Duration = Duration::from_secs(15);
/// One request.
const REQUEST: Duration = Duration::from_secs(5);
/// Records read at first, from the end of the partition on; each further attempt reads so many times more.
const TAIL: i64 = 2_000;
/// See [`TAIL`].
const FURTHER: i64 = 8;
/// Between two looks at a partition that an open transaction keeps from being read to its end.
const PAUSE: Duration = Duration::from_millis(20);

/// A position as the log has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Logged {
    /// The range.
    pub range: i64,
    /// Term of the lease it was written under.
    pub term: i64,
    /// Counts within the term, together with the positions in the database.
    pub seq: i64,
    /// Who held the lease.
    pub owner: String,
    /// Which schema `fanout` of which database of which server the range is of.
    pub origin: String,
    /// Timeline of that server.
    pub timeline: String,
    old: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_id: Option<i64>,
    /// Parked rows that were published in this transaction, and in those since the position before, and are perhaps not
    /// removed from `fanout.parked` yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<i64>,
}

impl Logged {
    /// `position`, as the owner of `fence` writes it.
    pub fn new(
        fence: &Fence,
        seq: i64,
        position: &Position,
        (origin, timeline): (&str, &str),
        released: Vec<i64>,
    ) -> Self {
        let (old, new, last_id) = match position {
            Position::At(old) => (old, None, None),
            Position::Inside { old, new, last_id } => (old, Some(new), Some(*last_id)),
        };
        Self {
            range: fence.range,
            term: fence.term,
            seq,
            owner: fence.owner.clone(),
            origin: origin.to_owned(),
            timeline: timeline.to_owned(),
            old: old.as_str().to_owned(),
            new: new.map(|new| new.as_str().to_owned()),
            last_id,
            released,
        }
    }

    /// The position.
    pub fn position(&self) -> Position {
        let old = Snapshot::new(self.old.clone());
        match (&self.new, self.last_id) {
            (Some(new), Some(last_id)) => Position::Inside {
                old,
                new: Snapshot::new(new.clone()),
                last_id,
            },
            _ => Position::At(old),
        }
    }

    /// True where it counts for the owner of `fence`, and is further than what `here` has.
    ///
    /// It does not where the database failed over or is another one: what it names then may never have been committed there.
    /// And it does not where its term is not over for this owner: then the database was set back to an older state.
    pub fn is_ahead(&self, fence: &Fence, timeline: &str, here: &Standing) -> bool {
        self.origin == here.origin
            && self.timeline == timeline
            && (self.term < fence.term || (self.term == fence.term && self.owner == fence.owner))
            && (self.term, self.seq) > (here.stored.term, here.stored.seq)
    }
}

/// Where a range stands, as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// See [`Logged::origin`].
    pub origin: String,
    /// What this one was split or merged from.
    pub predecessors: Vec<i64>,
    /// The latest position.
    pub stored: Stored,
}

/// Reads what the database knows of `range`.
pub async fn standing(source: &Source, range: i64) -> Result<Standing, Failure> {
    let latest = position::latest("r.id");
    // The number of the table tells a schema from one that was made anew, whose ids begin at 1 again.
    let sql = format!(
        "select h.*, h.system_identifier || '/' || (select oid from pg_database where datname = current_database()) \
         || '/' || 'fanout.ranges'::regclass::oid, array_to_string(r.predecessors, ','), p.* \
         from {} join fanout.ranges r on r.id = {range} left join lateral ({latest}) p on true",
        history()
    );
    let rows = source.query(sql).await?;
    let row = rows.first().ok_or_else(unexpected)?;
    let first = History::COLUMNS;
    let decode = || -> Result<_, sqlx::Error> {
        let predecessors = text(row, first + 1)?.unwrap_or_default();
        Ok((
            History::decode(row, 0)?,
            parsed(row, first)?,
            predecessors.split(',').filter_map(|id| id.parse().ok()),
        ))
    };
    let (here, origin, predecessors) = decode().map_err(|error| classify(&error))?;
    let stored = Stored::decode(row, first + 2).map_err(|_| lease::no_position(&here))?;
    lease::belongs(&stored, &here)?;
    Ok(Standing {
        origin,
        predecessors: predecessors.collect(),
        stored,
    })
}

/// Reads the last committed position of `range`, whose first shard is `lo`. Everybody who might still commit one must have
/// been fenced before.
pub async fn last(
    broker: &Arc<Broker>,
    lo: i32,
    range: i64,
) -> Result<Option<Logged>, broker::Failure> {
    let topic = names::positions_topic(&broker.topic);
    let config = broker.client_config();
    let name = topic.clone();
    let read = tokio::task::spawn_blocking(move || read(&config, (&topic, lo), range));
    let read = read.await.unwrap_or(Ok(None));
    read.map_err(|code| kafka_error::explain(code, &name))
}

fn read(
    config: &ClientConfig,
    (topic, partition): (&str, i32),
    range: i64,
) -> Result<Option<Logged>, Option<RDKafkaErrorCode>> {
    let until = Instant::now() + READ;
    let code = |error: KafkaError| error.rdkafka_error_code();
    // The end that others see who read everything: "committed" ends before the first transaction that is still open, and what
    // another has committed behind that would be missed.
    let all = consumer(config, "read_uncommitted").map_err(code)?;
    let committed = consumer(config, "read_committed").map_err(code)?;
    let (begin, end) = all
        .fetch_watermarks(topic, partition, REQUEST)
        .map_err(code)?;
    drop(all);
    while committed
        .fetch_watermarks(topic, partition, REQUEST)
        .map_err(code)?
        .1
        < end
    {
        if Instant::now() > until {
            return Err(None);
        }
        // Nothing is assigned yet: it waits.
        drop(committed.poll(PAUSE));
    }
    let mut back = TAIL;
    loop {
        let from = (end - back).max(begin);
        let found = scan(&committed, (topic, partition), from, range, until)?;
        if found.is_some() || from == begin {
            return Ok(found);
        }
        back *= FURTHER;
    }
}

fn consumer(config: &ClientConfig, isolation: &str) -> KafkaResult<BaseConsumer> {
    let mut config = config.clone();
    config
        // Partitions are assigned by hand and nothing is committed: no group comes to be.
        .set("group.id", "fanout-relay")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", isolation)
        // The end is only told by an answer without records.
        .set("fetch.wait.max.ms", "10");
    config.create()
}

/// The last position of `range` from offset `from` on.
fn scan(
    consumer: &BaseConsumer,
    (topic, partition): (&str, i32),
    from: i64,
    range: i64,
    until: Instant,
) -> Result<Option<Logged>, Option<RDKafkaErrorCode>> {
    let code = |error: KafkaError| error.rdkafka_error_code();
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(topic, partition, Offset::Offset(from))
        .map_err(code)?;
    consumer.assign(&assignment).map_err(code)?;
    let key = range.to_string();
    let mut last = None;
    let mut trouble = None;
    while Instant::now() < until {
        match consumer.poll(PAUSE) {
            Some(Ok(message)) if message.key() == Some(key.as_bytes()) => {
                // What is not a position is not ours.
                let payload = message.payload().unwrap_or_default();
                last = serde_json::from_slice(payload).ok().or(last);
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(last),
            Some(Err(error)) => trouble = error.rdkafka_error_code(),
            Some(Ok(_)) | None => {}
        }
    }
    Err(trouble)
}

#[cfg(test)]
mod tests;
