//! Handing records to Kafka and learning what became of them.
//!
//! What a producer has made durable is, for each partition, a gapless beginning of what it was given: it is idempotent,
//! it stops for good when a batch is refused (`enable.gapless.guarantee`), and librdkafka never gives a record up because it
//! waited (`message.timeout.ms` 0): it would drop the record and still send younger ones of its key. The relay takes back
//! all of them at once instead, when they wait for too long or the lease ends. A failed producer is thrown away. So whatever is sent again from the stored position on, first occurrences stay in order.

use crate::broker;
use crate::claim::row::Row;
use crate::encode::Encoder;
use crate::kafka_error;
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders, ToBytes};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{
    BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

/// A record is answered within this time, or taken back by the worker with all others. Less than what is left of a lease
/// when records are handed over.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(6);
/// Largest batch that is put together, bytes before compression.
const BATCH_BYTES: usize = 1_000_000;
/// Headers of a record that brings none of its own.
const HEADERS: usize = 9;

/// Records of one batch that are not answered yet.
#[derive(Debug)]
pub struct Tracker {
    /// One more than the records without an answer while the batch is being handed over.
    open: AtomicUsize,
    failed: AtomicBool,
}

impl Tracker {
    /// For a batch about to be handed over.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            open: AtomicUsize::new(1),
            failed: AtomicBool::new(false),
        })
    }

    /// True once every record is answered.
    pub fn is_done(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// True once a record failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Says that the whole batch is handed over.
    pub fn close(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a producer's records report to.
#[derive(Debug, Default)]
struct Answers {
    changed: Notify,
    /// The first refusal of a record, which says more than the failures it drags along.
    refusal: OnceLock<RDKafkaErrorCode>,
    failure: OnceLock<RDKafkaErrorCode>,
    connection: broker::Probe,
}

impl Answers {
    fn fail(&self, code: RDKafkaErrorCode) {
        let first = if kafka_error::is_cause(code) {
            &self.refusal
        } else {
            &self.failure
        };
        first.get_or_init(|| code);
        self.changed.notify_one();
    }
}

struct Context(Arc<Answers>);

impl ClientContext for Context {
    fn error(&self, error: KafkaError, _reason: &str) {
        self.0.connection.note(&error);
    }

    fn log(&self, _level: rdkafka::config::RDKafkaLogLevel, fac: &str, _message: &str) {
        // The text is a peer's.
        tracing::debug!(fac, "librdkafka");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Arc<Tracker>;

    fn delivery(&self, result: &DeliveryResult<'_>, tracker: Arc<Tracker>) {
        if let Err((error, _)) = result {
            tracker.failed.store(true, Ordering::Release);
            self.0
                .fail(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail));
        }
        if tracker.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_one();
        }
    }
}

/// An idempotent producer for one topic; transactional where it has a `transactional.id`, see [`transaction`].
pub struct Producer {
    inner: ThreadedProducer<Context>,
    answers: Arc<Answers>,
    topic: String,
    /// Largest record batch the topic takes, bytes.
    pub max_message_bytes: usize,
}

impl Producer {
    /// A producer with the connection properties `config`.
    pub fn new(
        mut config: ClientConfig,
        topic: &str,
        max_message_bytes: usize,
        linger: Duration,
        transactional_id: Option<&str>,
    ) -> KafkaResult<Self> {
        match transactional_id {
            Some(id) => transaction::configure(&mut config, id),
            None => drop(config.set("enable.gapless.guarantee", "true")),
        }
        let set = [
            ("enable.idempotence", "true".to_owned()),
            ("acks", "all".to_owned()),
            ("compression.codec", "lz4".to_owned()),
            ("max.in.flight.requests.per.connection", "5".to_owned()),
            // As Java clients do it: a key has the same partition whoever writes it, and no key spreads.
            ("partitioner", "murmur2_random".to_owned()),
            ("linger.ms", linger.as_millis().to_string()),
            ("batch.num.messages", "10000".to_owned()),
            ("batch.size", max_message_bytes.min(BATCH_BYTES).to_string()),
            // Sizes are checked before, exactly; librdkafka's own check is coarser.
            (
                "message.max.bytes",
                (max_message_bytes + 1024)
                    .clamp(1000, 1_000_000_000)
                    .to_string(),
            ),
            // Never: the guarantee above does not cover what times out, and a process that was stopped for seconds
            // would find its oldest records too old and send the rest.
            ("message.timeout.ms", "0".to_owned()),
            (
                "request.timeout.ms",
                MESSAGE_TIMEOUT.as_millis().to_string(),
            ),
            // The worker bounds what is in flight; these only must not be the tighter bound.
            ("queue.buffering.max.messages", "1000000".to_owned()),
            ("queue.buffering.max.kbytes", "2097151".to_owned()),
        ];
        for (name, value) in set {
            config.set(name, value);
        }
        let answers = Arc::new(Answers::default());
        Ok(Self {
            inner: config.create_with_context(Context(answers.clone()))?,
            answers,
            topic: topic.to_owned(),
            max_message_bytes,
        })
    }

    /// Connects and finds the topic's partitions, so that a record's time is spent on the record. Fails with the code
    /// that says most.
    pub async fn warm_up(self: &Arc<Self>) -> Result<(), Option<RDKafkaErrorCode>> {
        let producer = self.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let metadata = producer
                .inner
                .client()
                .fetch_metadata(Some(&producer.topic), MESSAGE_TIMEOUT)
                .map_err(|error| {
                    let code = producer.connection_error();
                    code.or_else(|| error.rdkafka_error_code())
                })?;
            let error = metadata.topics().iter().find_map(MetadataTopic::error);
            error.map_or(Ok(()), |code| Err(Some(code.into())))
        });
        looked.await.unwrap_or(Err(None))
    }

    /// Hands one row over; `payload` is scratch space. The row must have passed [`Encoder::check`]. Where the producer does
    /// not take it, the batch of `tracker` has failed as if a broker had refused it: of a dead producer nothing else is
    /// heard, and a batch without an answer outstanding would pass for a published one.
    pub fn send(
        &self,
        row: &Row<'_>,
        encoder: &Encoder,
        tracker: &Arc<Tracker>,
        payload: &mut Vec<u8>,
    ) -> Result<(), RDKafkaErrorCode> {
        self.enqueue(row, encoder, tracker, payload)
            .inspect_err(|code| {
                tracker.failed.store(true, Ordering::Release);
                self.answers.fail(*code);
            })
    }

    fn enqueue(
        &self,
        row: &Row<'_>,
        encoder: &Encoder,
        tracker: &Arc<Tracker>,
        payload: &mut Vec<u8>,
    ) -> Result<(), RDKafkaErrorCode> {
        let mut headers = OwnedHeaders::new_with_capacity(HEADERS);
        let complete = encoder.each_header(row, |key, value| {
            let previous = std::mem::take(&mut headers);
            headers = previous.insert(Header {
                key,
                value: Some(value),
            });
        });
        complete.map_err(|_| RDKafkaErrorCode::InvalidRecord)?;
        let opaque = tracker.clone();
        let mut record =
            BaseRecord::<str, [u8], _>::with_opaque_to(&self.topic, opaque).headers(headers);
        if let Some(hex) = encoder.value(row) {
            payload.resize(hex.len() / 2, 0);
            hex::decode_to_slice(hex, payload).map_err(|_| RDKafkaErrorCode::InvalidRecord)?;
            record = record.payload(payload);
        }
        if let Some(key) = row.key {
            record = record.key(key);
        }
        self.hand_over(record, tracker)
    }

    fn hand_over<K: ToBytes + ?Sized>(
        &self,
        record: BaseRecord<'_, K, [u8], Arc<Tracker>>,
        tracker: &Tracker,
    ) -> Result<(), RDKafkaErrorCode> {
        tracker.open.fetch_add(1, Ordering::AcqRel);
        self.inner.send(record).map_err(|(error, _returned)| {
            tracker.open.fetch_sub(1, Ordering::AcqRel);
            let fatal = self.inner.client().fatal_error().map(|(code, _)| code);
            fatal
                .or_else(|| error.rdkafka_error_code())
                .unwrap_or(RDKafkaErrorCode::Fail)
        })
    }

    /// Wakes when a batch is answered or a record failed.
    pub async fn changed(&self) {
        self.answers.changed.notified().await;
    }

    /// Why the producer is of no use any more. A refusal of a record comes before what it drags along.
    pub fn failure(&self) -> Option<RDKafkaErrorCode> {
        let answers = &self.answers;
        answers
            .refusal
            .get()
            .or_else(|| answers.failure.get())
            .copied()
    }

    /// The last error of its connections.
    pub fn connection_error(&self) -> Option<RDKafkaErrorCode> {
        self.answers.connection.error()
    }

    /// Takes back everything that is not answered: nothing of it is sent any more by this producer.
    pub fn purge(&self) {
        self.inner.purge(PurgeConfig::default().queue().inflight());
    }

    /// Purges, waits for the last answers, and ends the producer's threads.
    pub async fn stop(self: Arc<Self>) {
        self.purge();
        let stopped = tokio::task::spawn_blocking(move || {
            if self.inner.flush(MESSAGE_TIMEOUT).is_err() {
                tracing::warn!("records stayed unanswered after a purge");
            }
            drop(self);
        });
        if stopped.await.is_err() {
            tracing::error!("the producer's last answers were lost in a panic");
        }
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

pub mod transaction;

#[cfg(test)]
mod tests;
