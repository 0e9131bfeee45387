//! The log as the report sees it: which events are in it, which were given up, and how far each group has come.

use anyhow::{Context, ensure};
use fanout_contract::{envelope, names};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Limit of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of reading what has come since the last time.
const READ_LIMIT: Duration = Duration::from_mins(1);

/// Which log.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Kafka's bootstrap servers
    #[arg(long, default_value = "kafka:9092")]
    pub(crate) bootstrap_servers: String,
    /// Namespace of the FanoutTopic
    #[arg(long, default_value = "social")]
    pub(crate) namespace: String,
    /// Name of the FanoutTopic
    #[arg(long, default_value = "posts")]
    pub(crate) topic: String,
}

impl LogArgs {
    pub(crate) fn kafka_topic(&self) -> String {
        names::kafka_topic("", &self.namespace, &self.topic)
    }

    pub(crate) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap_servers);
        config
    }

    fn consumer(&self, group: &str) -> anyhow::Result<BaseConsumer> {
        Ok(self
            .client()
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            // A connection's requests are answered in turn: a fetch that waits holds up the questions behind it.
            .set("fetch.wait.max.ms", "20")
            .create()?)
    }
}

/// One record, as far as the report needs it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// Event id; empty when the record is no event.
    pub(crate) id: String,
    /// In the dead letter topic: `<namespace>/<name>` of the Subscription that gave up.
    pub(crate) subscription: String,
}

/// A topic that is read from its beginning, by and by, outside any group.
pub(crate) struct Reader {
    consumer: BaseConsumer,
    topic: String,
    partitions: Vec<i32>,
    /// Everything read so far.
    pub(crate) records: Vec<Record>,
    /// Next offset for each partition.
    next: HashMap<i32, i64>,
}

impl Reader {
    pub(crate) fn new(args: &LogArgs, topic: &str) -> anyhow::Result<Self> {
        let consumer = args.consumer("fanout-demo-report")?;
        let metadata = consumer
            .fetch_metadata(Some(topic), TIMEOUT)
            .context("Kafka does not answer")?;
        let partitions: Vec<i32> = metadata
            .topics()
            .iter()
            .flat_map(|topic| {
                topic
                    .partitions()
                    .iter()
                    .map(rdkafka::metadata::MetadataPartition::id)
            })
            .collect();
        ensure!(!partitions.is_empty(), "topic {topic} does not exist");
        let mut assignment = TopicPartitionList::new();
        for partition in &partitions {
            assignment.add_partition_offset(topic, *partition, Offset::Beginning)?;
        }
        consumer.assign(&assignment)?;
        Ok(Self {
            consumer,
            topic: topic.to_owned(),
            partitions,
            records: Vec::new(),
            next: HashMap::new(),
        })
    }

    /// Reads up to where the topic ends now; returns the end of each partition.
    pub(crate) fn catch_up(&mut self) -> anyhow::Result<HashMap<i32, i64>> {
        let mut ends = HashMap::new();
        for partition in &self.partitions {
            let (low, high) = self
                .consumer
                .fetch_watermarks(&self.topic, *partition, TIMEOUT)?;
            ends.insert(*partition, high);
            self.next.entry(*partition).or_insert(low);
        }
        let deadline = Instant::now() + READ_LIMIT;
        while ends
            .iter()
            .any(|(partition, end)| self.next[partition] < *end)
        {
            ensure!(
                Instant::now() < deadline,
                "topic {} can't be read to its end",
                self.topic
            );
            match self.consumer.poll(Duration::from_millis(100)) {
                None | Some(Err(KafkaError::PartitionEOF(_))) => {}
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(message)) => {
                    self.next.insert(message.partition(), message.offset() + 1);
                    self.records.push(record(&message));
                }
            }
        }
        Ok(ends)
    }
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let header = |name: &str| {
        message
            .headers()
            .and_then(|headers| headers.iter().find(|header| header.key == name))
            .and_then(|header| std::str::from_utf8(header.value?).ok())
            .unwrap_or_default()
            .to_owned()
    };
    Record {
        partition: message.partition(),
        offset: message.offset(),
        id: header(&format!("{}id", envelope::ATTRIBUTE_PREFIX)),
        subscription: header(envelope::dead_letter::SUBSCRIPTION),
    }
}

/// A group's positions. Asks without joining.
pub(crate) struct Group {
    consumer: BaseConsumer,
    topic: String,
    name: String,
}

impl Group {
    pub(crate) fn new(args: &LogArgs, name: &str) -> anyhow::Result<Self> {
        Ok(Self {
            consumer: args.consumer(name)?,
            topic: args.kafka_topic(),
            name: name.to_owned(),
        })
    }

    /// What it has committed in each partition; a partition without a commit is at 0.
    pub(crate) fn committed(
        &self,
        partitions: impl Iterator<Item = i32>,
    ) -> anyhow::Result<HashMap<i32, i64>> {
        let mut wanted = TopicPartitionList::new();
        for partition in partitions {
            wanted.add_partition(&self.topic, partition);
        }
        let committed = self
            .consumer
            .committed_offsets(wanted, TIMEOUT)
            .with_context(|| format!("offsets of group {}", self.name))?;
        Ok(committed
            .elements()
            .iter()
            .map(|element| match element.offset() {
                Offset::Offset(offset) => (element.partition(), offset),
                _ => (element.partition(), 0),
            })
            .collect())
    }
}

/// Ids of the records that a group has not completed.
pub(crate) fn ahead(records: &[Record], committed: &HashMap<i32, i64>) -> HashSet<String> {
    records
        .iter()
        .filter(|record| record.offset >= committed.get(&record.partition).copied().unwrap_or(0))
        .map(|record| record.id.clone())
        .collect()
}

/// Records that a group has not completed, all partitions together.
pub(crate) fn depth(ends: &HashMap<i32, i64>, committed: &HashMap<i32, i64>) -> i64 {
    ends.iter()
        .map(|(partition, end)| (end - committed.get(partition).copied().unwrap_or(0)).max(0))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_group_has_not_committed_is_ahead_of_it() {
        let record = |partition, offset| Record {
            partition,
            offset,
            id: format!("{partition}/{offset}"),
            subscription: String::new(),
        };
        let records = [record(0, 0), record(0, 1), record(1, 0), record(2, 0)];
        let committed = [(0, 1), (1, 1)].into();
        let expected = ["0/1".to_owned(), "2/0".to_owned()];
        assert_eq!(ahead(&records, &committed), expected.into());
        assert_eq!(depth(&[(0, 2), (1, 1), (2, 1)].into(), &committed), 2);
    }
}
