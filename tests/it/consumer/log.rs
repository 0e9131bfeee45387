//! A test's way into Kafka beside the relay: writes records of any form, reads dead letters and positions.

use super::LIMIT;
use fanout_tests::eventually;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::util::Timeout;
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(10);

/// One topic.
pub(crate) struct Log {
    bootstrap: String,
    topic: String,
    producer: FutureProducer,
}

/// Headers of a CloudEvent with JSON data.
pub(crate) fn cloud_event(id: &str, r#type: &str) -> OwnedHeaders {
    headers(&[
        ("ce_specversion", Some(b"1.0")),
        ("ce_id", Some(id.as_bytes())),
        ("ce_source", Some(b"/test/posts")),
        ("ce_type", Some(r#type.as_bytes())),
        ("ce_time", Some(b"2026-01-02T03:04:05.678Z")),
        ("content-type", Some(b"application/json")),
    ])
}

pub(crate) fn headers(pairs: &[(&str, Option<&[u8]>)]) -> OwnedHeaders {
    pairs
        .iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: *value })
        })
}

/// Headers of a record as pairs, in order.
pub(crate) fn pairs(message: &OwnedMessage) -> Vec<(String, Option<Vec<u8>>)> {
    let headers = message.headers().unwrap();
    headers
        .iter()
        .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
        .collect()
}

impl Log {
    pub(crate) fn new(bootstrap: &str, topic: &str) -> Self {
        Self {
            bootstrap: bootstrap.to_owned(),
            topic: topic.to_owned(),
            producer: client(bootstrap).set("linger.ms", "5").create().unwrap(),
        }
    }

    /// Appends events of type `test`, each with its id without the number as key.
    pub(crate) async fn append(&self, ids: &[String]) {
        let sends = ids.iter().map(|id| {
            let (key, _) = id.rsplit_once('-').unwrap();
            self.event(Some(key), id, "test", r#"{"visibility":"public"}"#)
        });
        for sent in sends.collect::<Vec<_>>() {
            sent.await;
        }
    }

    /// Appends one event. It is queued when this returns and written when the result is awaited.
    pub(crate) fn event(
        &self,
        key: Option<&str>,
        id: &str,
        r#type: &str,
        data: &str,
    ) -> impl Future<Output = (i32, i64)> + use<> {
        let mut record = FutureRecord::<str, str>::to(&self.topic)
            .payload(data)
            .headers(cloud_event(id, r#type));
        record.key = key;
        let sent = self
            .producer
            .send_result(record)
            .map_err(|(error, _)| error)
            .unwrap();
        async move {
            let delivery = sent.await.unwrap().unwrap();
            (delivery.partition, delivery.offset)
        }
    }

    /// Appends one event without a key to `partition`; see [`Self::event`].
    pub(crate) fn event_to(
        &self,
        partition: i32,
        id: &str,
        r#type: &str,
    ) -> impl Future<Output = ()> + use<> {
        self.event_with(partition, id, r#type, "{}")
    }

    /// The same with `data`.
    pub(crate) fn event_with(
        &self,
        partition: i32,
        id: &str,
        r#type: &str,
        data: &str,
    ) -> impl Future<Output = ()> + use<> {
        let record = FutureRecord::<str, str>::to(&self.topic)
            .partition(partition)
            .payload(data)
            .headers(cloud_event(id, r#type));
        let sent = self
            .producer
            .send_result(record)
            .map_err(|(error, _)| error)
            .unwrap();
        async move {
            sent.await.unwrap().unwrap();
        }
    }

    /// Appends a record of any form to partition 0.
    pub(crate) async fn raw(
        &self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: Option<OwnedHeaders>,
    ) -> i64 {
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.topic).partition(0);
        record.key = key;
        record.payload = value;
        record.headers = headers;
        self.producer
            .send(record, Timeout::Never)
            .await
            .unwrap()
            .offset
    }

    /// Appends `ids` in one Kafka transaction that is committed or aborted.
    pub(crate) async fn transaction(&self, ids: &[String], commit: bool) {
        let producer: FutureProducer = client(&self.bootstrap)
            .set(
                "transactional.id",
                format!("{}-{:x}", self.topic, rand::random::<u32>()),
            )
            .create()
            .unwrap();
        let log = Self {
            bootstrap: self.bootstrap.clone(),
            topic: self.topic.clone(),
            producer: producer.clone(),
        };
        let begun = producer.clone();
        blocking(move || {
            begun.init_transactions(LIMIT).unwrap();
            begun.begin_transaction().unwrap();
        })
        .await;
        log.append(ids).await;
        blocking(move || {
            if commit {
                producer.commit_transaction(LIMIT).unwrap();
            } else {
                producer.abort_transaction(LIMIT).unwrap();
            }
        })
        .await;
    }

    /// What `group` has not committed yet, by partition; `None` where it has no position. Fails while the group
    /// looks for its coordinator.
    pub(crate) async fn behind(&self, group: &str) -> KafkaResult<Vec<Option<i64>>> {
        let consumer: BaseConsumer = client(&self.bootstrap)
            .set("group.id", group)
            .set("isolation.level", "read_committed")
            .create()?;
        let topic = self.topic.clone();
        blocking(move || {
            let metadata = consumer.fetch_metadata(Some(&topic), ANSWER)?;
            let mut list = TopicPartitionList::new();
            for partition in metadata.topics()[0].partitions() {
                list.add_partition(&topic, partition.id());
            }
            let committed = consumer.committed_offsets(list, ANSWER)?;
            let behind = committed.elements().into_iter().map(|element| {
                let (_, high) = consumer.fetch_watermarks(&topic, element.partition(), ANSWER)?;
                Ok(match element.offset() {
                    Offset::Offset(offset) => Some(high - offset),
                    _ => None,
                })
            });
            behind.collect()
        })
        .await
    }

    /// Waits until what `group` has not committed is as `accept` wants it.
    pub(crate) async fn wait_behind(
        &self,
        group: &str,
        what: &str,
        accept: impl Fn(&[Option<i64>]) -> bool,
    ) {
        eventually(LIMIT, what, async || {
            let behind = self
                .behind(group)
                .await
                .map_err(|error| error.to_string())?;
            if accept(&behind) {
                Ok(())
            } else {
                Err(format!("{behind:?}"))
            }
        })
        .await;
    }

    /// Waits until `group` has committed everything.
    pub(crate) async fn drained(&self, group: &str) {
        self.wait_behind(group, "the group has committed everything", |behind| {
            behind.iter().all(|behind| *behind == Some(0))
        })
        .await;
    }

    /// Members of `group`.
    pub(crate) async fn members(&self, group: &str) -> usize {
        let consumer: BaseConsumer = client(&self.bootstrap).create().unwrap();
        let group = group.to_owned();
        blocking(move || {
            let list = consumer.fetch_group_list(Some(&group), ANSWER).unwrap();
            list.groups()
                .first()
                .map_or(0, |group| group.members().len())
        })
        .await
    }

    /// Waits until the topic has `count` records, and returns them.
    pub(crate) async fn records(&self, count: usize) -> Vec<OwnedMessage> {
        let consumer: BaseConsumer = client(&self.bootstrap)
            .set("group.id", format!("{}-reader", self.topic))
            .create()
            .unwrap();
        let topic = self.topic.clone();
        blocking(move || {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(&topic, 0, Offset::Beginning)
                .unwrap();
            consumer.assign(&list).unwrap();
            let mut records = Vec::new();
            let deadline = fanout_tests::Deadline::after(LIMIT);
            while records.len() < count && !deadline.passed() {
                if let Some(record) = consumer.poll(Duration::from_millis(200)) {
                    records.push(record.unwrap().detach());
                }
            }
            assert_eq!(records.len(), count, "records in {topic}");
            records
        })
        .await
    }

    /// Records the topic holds.
    pub(crate) async fn len(&self) -> i64 {
        let consumer: BaseConsumer = client(&self.bootstrap).create().unwrap();
        let topic = self.topic.clone();
        blocking(move || {
            let (low, high) = consumer.fetch_watermarks(&topic, 0, ANSWER).unwrap();
            high - low
        })
        .await
    }
}

fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(call).await.unwrap()
}

/// Text of the header `key`.
pub(crate) fn header(message: &OwnedMessage, key: &str) -> Option<String> {
    let found = pairs(message)
        .into_iter()
        .rev()
        .find(|(name, _)| name == key)?;
    Some(String::from_utf8(found.1?).unwrap())
}

/// Payload of a record.
pub(crate) fn payload(message: &OwnedMessage) -> Option<&[u8]> {
    message.payload()
}
