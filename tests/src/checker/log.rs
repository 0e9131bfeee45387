//! Observer of a Kafka topic: a raw reader of all partitions, outside every consumer group.

use super::content::{self, Form};
use crate::Deadline;
use crate::verdict::Event;
use fanout_contract::envelope::{Attributes, dead_letter};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// For one answer of the broker.
const LIMIT: Duration = Duration::from_secs(30);
/// For a broker that comes back.
const PATIENCE: Duration = Duration::from_mins(1);

/// The records of a topic at one moment.
#[derive(Debug)]
pub struct Log {
    /// By partition, in offset order.
    pub records: Vec<Record>,
}

/// One record.
#[derive(Clone, Debug)]
pub struct Record {
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Kafka timestamp, milliseconds since the epoch.
    pub timestamp: Option<i64>,
    /// Record key.
    pub key: Option<Vec<u8>>,
    /// Headers as they are, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Value.
    pub payload: Option<Vec<u8>>,
}

impl Record {
    /// CloudEvents attributes; panics where the record is no CloudEvent.
    pub fn attributes(&self) -> Attributes {
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), Some(value.as_slice())));
        Attributes::from_headers(headers).unwrap_or_else(|error| {
            panic!(
                "partition {} offset {}: {error}",
                self.partition, self.offset
            )
        })
    }

    /// Value of a header as text.
    pub fn header(&self, name: &str) -> Option<String> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// For the verdict. The sequence number is the committed row's business.
    pub(super) fn event(&self) -> Event {
        let attributes = self.attributes();
        let data = self.payload.as_deref().unwrap_or_default();
        Event {
            content: content::digest(&attributes, data, Form::Exact),
            id: attributes.id,
            key: self
                .key
                .as_ref()
                .map(|key| String::from_utf8_lossy(key).into_owned()),
            sequence: 0,
        }
    }
}

impl Log {
    /// Reads every partition of `topic` from its start to its present end.
    pub async fn read(bootstrap: &str, topic: &str) -> Self {
        let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
        patiently("the log", move || read(&bootstrap, &topic)).await
    }

    /// Ids of the events at or beyond `offsets`, by partition.
    pub fn from(&self, offsets: &HashMap<i32, i64>) -> HashSet<String> {
        self.records
            .iter()
            .filter(|record| {
                let committed = offsets.get(&record.partition).copied();
                record.offset >= committed.unwrap_or_default()
            })
            .map(|record| record.attributes().id)
            .collect()
    }

    /// In a dead letter topic: ids of the events that `subscription` (`<namespace>/<name>`) gave up.
    pub fn dead_lettered_by(&self, subscription: &str) -> HashSet<String> {
        self.records
            .iter()
            .filter(|r| r.header(dead_letter::SUBSCRIPTION).as_deref() == Some(subscription))
            .map(|record| record.attributes().id)
            .collect()
    }

    /// Keys that occur in more than one partition.
    pub fn scattered_keys(&self) -> BTreeSet<String> {
        let mut homes: HashMap<&[u8], i32> = HashMap::new();
        self.records
            .iter()
            .filter_map(|record| Some((record.key.as_deref()?, record.partition)))
            .filter(|(key, partition)| *homes.entry(key).or_insert(*partition) != *partition)
            .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
            .collect()
    }
}

/// Committed offsets of `group` on `topic`, by partition; partitions without one are left out.
pub async fn committed(bootstrap: &str, group: &str, topic: &str) -> HashMap<i32, i64> {
    let mut config = client(bootstrap);
    config.set("group.id", group);
    let topic = topic.to_owned();
    patiently("committed offsets", move || {
        // Never subscribed, so it does not become a member.
        let consumer: BaseConsumer = config.create()?;
        let mut list = TopicPartitionList::new();
        for partition in partitions(&consumer, &topic)? {
            list.add_partition(&topic, partition);
        }
        Ok(consumer.committed_offsets(list, LIMIT)?)
    })
    .await
    .elements()
    .iter()
    .filter_map(|element| match element.offset() {
        Offset::Offset(offset) => Some((element.partition(), offset)),
        _ => None,
    })
    .collect()
}

/// Runs a blocking `read` again while the broker that a test struck is not itself yet.
async fn patiently<T: Send + 'static>(
    what: &'static str,
    mut read: impl FnMut() -> anyhow::Result<T> + Send + 'static,
) -> T {
    tokio::task::spawn_blocking(move || {
        let deadline = Deadline::after(PATIENCE);
        loop {
            match read() {
                Ok(value) => return value,
                Err(error) => assert!(!deadline.passed(), "{what} can't be read: {error:#}"),
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
    })
    .await
    .expect("the reader ends")
}

fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("enable.auto.commit", "false");
    config
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> anyhow::Result<Vec<i32>> {
    let metadata = consumer.fetch_metadata(Some(topic), LIMIT)?;
    let known = metadata
        .topics()
        .first()
        .map_or(&[][..], |t| t.partitions());
    anyhow::ensure!(!known.is_empty(), "topic {topic} has no partitions");
    Ok(known
        .iter()
        .map(rdkafka::metadata::MetadataPartition::id)
        .collect())
}

fn read(bootstrap: &str, topic: &str) -> anyhow::Result<Log> {
    let consumer: BaseConsumer = client(bootstrap)
        .set("group.id", "fanout-checker")
        .set("auto.offset.reset", "error")
        // What ends a transaction is at the end of a partition, too, and is no record.
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", "50")
        .create()?;
    let partitions = partitions(&consumer, topic)?;
    let mut missing: HashMap<i32, i64> = HashMap::new();
    let mut assignment = TopicPartitionList::new();
    for partition in partitions {
        let (low, high) = consumer.fetch_watermarks(topic, partition, LIMIT)?;
        if low < high {
            assignment.add_partition_offset(topic, partition, Offset::Offset(low))?;
            missing.insert(partition, high);
        }
    }
    consumer.assign(&assignment)?;
    let mut records = Vec::new();
    while !missing.is_empty() {
        let next = consumer
            .poll(LIMIT)
            .ok_or_else(|| anyhow::anyhow!("no record within {LIMIT:?}"))?;
        if let Err(KafkaError::PartitionEOF(partition)) = next {
            missing.remove(&partition);
            continue;
        }
        let message = next?;
        let end = missing.get(&message.partition()).copied();
        // A partition that is read to its end may go on meanwhile.
        if end.is_none_or(|end| message.offset() >= end) {
            continue;
        }
        if end == Some(message.offset() + 1) {
            missing.remove(&message.partition());
        }
        records.push(record(&message));
    }
    records.sort_by_key(|record: &Record| (record.partition, record.offset));
    Ok(Log { records })
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map(|headers| {
        headers
            .iter()
            .map(|h| (h.key.to_owned(), h.value.unwrap_or_default().to_vec()))
            .collect()
    });
    Record {
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        payload: message.payload().map(<[u8]>::to_vec),
    }
}
