//! What the Kafka client calls back with, turned into signals that the subscription reads when it is ready.
//!
//! A rebalance is answered later: the client waits for `assign` and `unassign`, and goes on fetching the partitions
//! that are kept. Nothing ever drains or blocks inside a callback.

use super::trouble::{Trouble, is_refusal};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{TopicPartitionList, TopicPartitionListElem};
use rdkafka::types::RDKafkaRespErr;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Something the client reports.
#[derive(Debug)]
pub(crate) enum Signal {
    /// Partitions were added; the client waits for `assign`.
    Assign(Vec<i32>),
    /// Partitions were taken away; the client waits for `unassign`. Lost: another member may have them already.
    Revoke { partitions: Vec<i32>, lost: bool },
    /// A commit was answered: partition, offset, and the error's name.
    Committed(Vec<(i32, i64, Result<(), RDKafkaErrorCode>)>),
    /// Ends of partitions, transaction markers included, up to which the client has handed out all records.
    Ends(Vec<(i32, i64)>),
    /// A broker is connected.
    Connected,
    /// No broker can be used.
    Disconnected(Trouble),
    /// The broker refuses what was asked.
    Refused(Trouble),
    /// The client can't go on.
    Fatal(Trouble),
}

/// Callbacks of one consumer.
pub(crate) struct Context {
    topic: String,
    signals: Mutex<VecDeque<Signal>>,
    wake: Arc<Notify>,
    closing: AtomicBool,
}

impl Context {
    pub(super) fn new(topic: &str, wake: Arc<Notify>) -> Self {
        Self {
            topic: topic.to_owned(),
            signals: Mutex::default(),
            wake,
            closing: AtomicBool::new(false),
        }
    }

    /// From now on rebalances are answered at once: nobody reads signals any more.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> VecDeque<Signal> {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *signals)
    }

    pub(super) fn has_signals(&self) -> usize {
        self.signals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    pub(super) fn push(&self, signal: Signal) {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        signals.push_back(signal);
        drop(signals);
        self.wake.notify_one();
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // The client repeats itself with every reconnect; what matters arrives as an error or a signal.
        tracing::debug!(target: "librdkafka", ?level, facility, message);
    }

    fn error(&self, error: KafkaError, _reason: &str) {
        let KafkaError::Global(code) = error else {
            return;
        };
        match code {
            // Said of each connection; the client goes on to the next broker.
            RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::PartitionEOF => {}
            RDKafkaErrorCode::Fatal => self.push(Signal::Fatal(Trouble::of(code))),
            _ if is_refusal(code) => self.push(Signal::Refused(Trouble::of(code))),
            _ => self.push(Signal::Disconnected(Trouble::of(code))),
        }
    }

    fn stats_raw(&self, json: &[u8]) {
        let Ok(statistics) = serde_json::from_slice::<Statistics>(json) else {
            return;
        };
        if statistics
            .brokers
            .values()
            .any(|broker| broker.state == "UP")
        {
            self.push(Signal::Connected);
        }
        let ends: Vec<_> = statistics
            .topics
            .get(&self.topic)
            .into_iter()
            .flat_map(|topic| topic.partitions.values())
            .filter(|partition| partition.partition >= 0 && partition.eof_offset >= 0)
            .map(|partition| (partition.partition, partition.eof_offset))
            .collect();
        if !ends.is_empty() {
            self.push(Signal::Ends(ends));
        }
    }
}

/// The few statistics that are used. `eof_offset` is the end that was last signalled, after every record before it.
#[derive(Deserialize)]
struct Statistics {
    brokers: HashMap<String, BrokerStatistics>,
    topics: HashMap<String, TopicStatistics>,
}

#[derive(Deserialize)]
struct BrokerStatistics {
    state: String,
}

#[derive(Deserialize)]
struct TopicStatistics {
    partitions: HashMap<String, PartitionStatistics>,
}

#[derive(Deserialize)]
struct PartitionStatistics {
    partition: i32,
    eof_offset: i64,
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let partitions = list
            .elements()
            .iter()
            .map(TopicPartitionListElem::partition)
            .collect();
        let signal = if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            Signal::Assign(partitions)
        } else {
            let is_lost = consumer.assignment_lost();
            Signal::Revoke {
                partitions,
                lost: is_lost,
            }
        };
        if self.closing.load(Ordering::Acquire) {
            super::answer(consumer, &self.topic, &signal);
        } else {
            self.push(signal);
        }
    }
}
