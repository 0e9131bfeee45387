//! The dead letter topic: what no subscription attempt could deliver, unchanged, with the reason in headers.

use crate::event::Event;
use crate::settings::Connection;
use crate::verdict::Failure;
use fanout_contract::envelope::dead_letter;
use jiff::Timestamp;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::time::SystemTime;

/// What is known of the attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct History {
    /// Why it was given up.
    pub reason: Failure,
    /// Attempts made.
    pub attempts: u32,
    /// Time of the first attempt.
    pub first: Option<SystemTime>,
    /// Time of the last attempt.
    pub last: Option<SystemTime>,
}

/// Producer of one worker.
pub(crate) struct DeadLetters {
    producer: FutureProducer<Quiet>,
    topic: String,
    origin_topic: String,
    namespace: String,
}

/// Keeps the client's own log lines at debug level; a failed record is reported by who sent it.
#[derive(Clone)]
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", ?level, facility, message);
    }

    fn error(&self, error: KafkaError, _reason: &str) {
        tracing::debug!(%error, "dead letter producer");
    }
}

impl DeadLetters {
    /// Prepares a producer; it connects with the first record.
    pub(crate) fn new(connection: &Connection, namespace: &str) -> KafkaResult<Self> {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Warning);
        for (name, value) in &connection.properties {
            config.set(*name, value);
        }
        config
            .set("client.id", "fanout-dead-letters")
            .set("acks", "all")
            .set("compression.type", "lz4")
            .set("message.timeout.ms", "30000")
            .set("queue.buffering.max.kbytes", "16384")
            // The topic's own limit decides.
            .set("message.max.bytes", "33554432");
        Ok(Self {
            producer: config.create_with_context(Quiet)?,
            topic: connection.dead_letter_topic.clone(),
            origin_topic: connection.topic.clone(),
            namespace: namespace.to_owned(),
        })
    }

    /// Hands over `event` and waits until the broker has it.
    pub(crate) async fn send(
        &self,
        event: &Event,
        subscription: &str,
        history: History,
    ) -> KafkaResult<()> {
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&self.topic).headers(self.headers(event, subscription, history));
        record.key = event.key.as_deref();
        record.payload = event.value.as_deref();
        record.timestamp = event.timestamp;
        let delivery = self
            .producer
            .send_result(record)
            .map_err(|(error, _)| error)?;
        match delivery.await {
            Ok(answer) => answer.map(drop).map_err(|(error, _)| error),
            Err(_) => Err(KafkaError::Canceled),
        }
    }

    /// The event's own headers, then what happened to it.
    fn headers(&self, event: &Event, subscription: &str, history: History) -> OwnedHeaders {
        let origin = format!("{}/{}/{}", self.origin_topic, event.partition, event.offset);
        let added = [
            (
                dead_letter::SUBSCRIPTION,
                Some(format!("{}/{subscription}", self.namespace)),
            ),
            (dead_letter::REASON, Some(history.reason.to_string())),
            (dead_letter::ATTEMPTS, Some(history.attempts.to_string())),
            (
                dead_letter::FIRST_ATTEMPT_TIME,
                history.first.and_then(rfc3339),
            ),
            (
                dead_letter::LAST_ATTEMPT_TIME,
                history.last.and_then(rfc3339),
            ),
            (dead_letter::ORIGIN, Some(origin)),
        ];
        let headers = event.headers.clone().unwrap_or_default();
        added
            .into_iter()
            .fold(headers, |headers, (key, value)| match value {
                Some(value) => headers.insert(Header {
                    key,
                    value: Some(&value),
                }),
                None => headers,
            })
    }
}

fn rfc3339(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time)
        .ok()
        .map(|time| format!("{time:.3}"))
}
