//! Kafka as a subscription sees it: one client and one group of its own.
//!
//! Calls that wait for the client's thread or for a broker run on blocking threads; polling never waits. Each
//! partition has its own queue, so that a subscription which takes no more records still hears of rebalances.

mod context;
mod start;
mod trouble;

pub(crate) use context::{Context, Signal};
pub(crate) use start::{Position, Start, start};
pub(crate) use trouble::{Trouble, refusal};

use crate::event::Event;
use crate::offsets::Commit;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Longest wait for an answer of a broker.
const QUERY: Duration = Duration::from_secs(10);
/// Callbacks served in one go.
const CALLBACKS: usize = 64;

/// Queue of one partition.
pub(crate) type Queue = PartitionQueue<Context>;

/// The next thing in a partition's queue.
#[derive(Debug)]
pub(crate) enum Next {
    /// A record.
    Event(Box<Event>),
    /// All there was, transaction markers aside.
    End,
    /// Nothing yet.
    Empty,
    /// The position is not in the log (any more).
    OutOfRange,
    /// The broker refuses.
    Refused(Trouble),
}

/// A consumer in its group.
#[derive(Clone)]
pub(crate) struct Source {
    consumer: Arc<BaseConsumer<Context>>,
    topic: Arc<str>,
    wake: Arc<Notify>,
}

/// Properties beside those that reach the cluster.
fn properties(group: &str, client: &str) -> [(&'static str, String); 20] {
    let text = str::to_owned;
    [
        ("group.id", text(group)),
        ("client.id", text(client)),
        ("enable.auto.commit", text("false")),
        ("enable.auto.offset.store", text("false")),
        // A position that is missing must never be guessed.
        ("auto.offset.reset", text("error")),
        ("partition.assignment.strategy", text("cooperative-sticky")),
        ("isolation.level", text("read_committed")),
        ("enable.partition.eof", text("true")),
        // A killed worker's partitions move after this.
        ("session.timeout.ms", text("10000")),
        ("heartbeat.interval.ms", text("2000")),
        // Also how long a group waits for a member that was lost while it joined.
        ("max.poll.interval.ms", text("45000")),
        // Per partition, as each has its own queue; the default is 64 MiB.
        ("queued.max.messages.kbytes", text("256")),
        ("fetch.message.max.bytes", text("262144")),
        ("fetch.max.bytes", text("1048576")),
        ("fetch.wait.max.ms", text("500")),
        ("fetch.error.backoff.ms", text("500")),
        ("socket.timeout.ms", text("15000")),
        // New partitions are found within this.
        ("topic.metadata.refresh.interval.ms", text("30000")),
        ("statistics.interval.ms", text("2000")),
        ("log.connection.close", text("false")),
    ]
}

impl Source {
    /// Joins `group` on `topic`. `connection` says how to reach the cluster, `client` is the name that brokers log.
    pub(crate) async fn open(
        connection: Vec<(&'static str, String)>,
        topic: &str,
        group: &str,
        client: &str,
    ) -> KafkaResult<Self> {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Warning);
        for (name, value) in connection.into_iter().chain(properties(group, client)) {
            config.set(name, value);
        }
        let topic: Arc<str> = Arc::from(topic);
        let wake = Arc::new(Notify::new());
        let (subscribed, woken) = (Arc::clone(&topic), Arc::clone(&wake));
        let consumer = blocking(move || {
            let context = Context::new(&subscribed, Arc::clone(&woken));
            let mut consumer = BaseConsumer::from_config_and_context(&config, context)?;
            consumer.set_nonempty_callback(move || woken.notify_one());
            consumer.subscribe(&[&subscribed])?;
            Ok(Arc::new(consumer))
        })
        .await?;
        Ok(Self {
            consumer,
            topic,
            wake,
        })
    }

    /// Notified when there may be something to poll.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// Serves callbacks and returns what they said. Never waits. Has to be called regularly, or the group takes the
    /// consumer for dead.
    pub(crate) fn poll(&self) -> VecDeque<Signal> {
        let context = self.consumer.context();
        for _ in 0..CALLBACKS {
            let before = context.has_signals();
            match self.consumer.poll(Duration::ZERO) {
                Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                    context.push(Signal::Fatal(Trouble::of(code)));
                }
                Some(Err(KafkaError::MessageConsumption(code))) if trouble::is_refusal(code) => {
                    context.push(Signal::Refused(Trouble::of(code)));
                }
                None if context.has_signals() == before => break,
                // Records arrive in the partitions' queues; those of a partition without one are not read.
                Some(_) | None => {}
            }
        }
        context.take()
    }

    /// Begins a commit; its answer is a [`Signal::Committed`].
    pub(crate) fn commit(&self, commits: &[(i32, Commit)]) {
        let (consumer, topic) = (Arc::clone(&self.consumer), Arc::clone(&self.topic));
        let (described, plain): (Vec<_>, Vec<_>) = commits
            .iter()
            .cloned()
            .partition(|(_, commit)| !commit.metadata.is_empty());
        // The client answers an asynchronous commit to nobody, hence one that waits. It says of a commit of several
        // partitions only what befell all of them; metadata can be refused for one, so each of these goes alone.
        tokio::task::spawn_blocking(move || {
            let mut answers = Vec::with_capacity(plain.len() + described.len());
            let answer = commit(&consumer, &topic, &plain);
            answers.extend(
                plain
                    .iter()
                    .map(|(at, commit)| (*at, commit.offset, answer)),
            );
            for (at, described) in described {
                let offset = described.offset;
                let mut answer = commit(&consumer, &topic, &[(at, described)]);
                if answer == Err(RDKafkaErrorCode::OffsetMetadataTooLarge) {
                    // The broker takes less than usual: the position matters more than a few repeats.
                    answer = commit(&consumer, &topic, &[(at, Commit::plain(offset))]);
                }
                answers.push((at, offset, answer));
            }
            consumer.context().push(Signal::Committed(answers));
        });
    }

    /// Asks the broker where `partitions` stand.
    pub(crate) fn positions(
        &self,
        partitions: Vec<i32>,
    ) -> impl Future<Output = KafkaResult<Vec<Position>>> + Send + use<> {
        let (consumer, topic) = (Arc::clone(&self.consumer), Arc::clone(&self.topic));
        blocking(move || {
            let list = consumer.committed_offsets(unplaced(&topic, &partitions), QUERY)?;
            let mut positions = Vec::with_capacity(partitions.len());
            for element in list.elements() {
                element.error()?;
                let partition = element.partition();
                let (low, _) = consumer.fetch_watermarks(&topic, partition, QUERY)?;
                let committed = match element.offset() {
                    Offset::Offset(offset) => Some((offset, element.metadata().to_owned())),
                    _ => None,
                };
                positions.push(Position {
                    partition,
                    committed,
                    low,
                });
            }
            Ok(positions)
        })
    }

    /// Takes partitions, each from its offset on, and returns their queues. Those without an offset are taken and
    /// not read.
    pub(crate) fn assign(
        &self,
        starts: Vec<(i32, Option<i64>)>,
    ) -> impl Future<Output = KafkaResult<Vec<(i32, Queue)>>> + Send + use<> {
        let (consumer, topic) = (Arc::clone(&self.consumer), Arc::clone(&self.topic));
        let wake = self.wake();
        blocking(move || {
            let mut list = TopicPartitionList::with_capacity(starts.len());
            let mut unread = TopicPartitionList::new();
            let mut queues = Vec::with_capacity(starts.len());
            for (partition, offset) in starts {
                let offset = offset.map_or(Offset::End, Offset::Offset);
                list.add_partition_offset(&topic, partition, offset)?;
                if offset == Offset::End {
                    unread.add_partition(&topic, partition);
                } else if let Some(mut queue) = consumer.split_partition_queue(&topic, partition) {
                    // Before it is assigned: no record may slip into the common queue.
                    let wake = Arc::clone(&wake);
                    queue.set_nonempty_callback(move || wake.notify_one());
                    queues.push((partition, queue));
                }
            }
            match consumer.rebalance_protocol() {
                RebalanceProtocol::Cooperative => consumer.incremental_assign(&list)?,
                _ => consumer.assign(&list)?,
            }
            if unread.count() > 0 {
                consumer.pause(&unread)?;
            }
            Ok(queues)
        })
    }

    /// Gives partitions back.
    pub(crate) fn unassign(
        &self,
        partitions: Vec<i32>,
    ) -> impl Future<Output = KafkaResult<()>> + Send + use<> {
        let (consumer, topic) = (Arc::clone(&self.consumer), Arc::clone(&self.topic));
        blocking(move || unassign(&consumer, &topic, &partitions))
    }

    /// Leaves the group. The partitions' queues and other copies must be gone. `open` is a rebalance that was not answered yet.
    pub(crate) async fn close(self, open: Option<Signal>) -> KafkaResult<()> {
        blocking(move || {
            let context = Arc::clone(self.consumer.context());
            context.close();
            for signal in open.into_iter().chain(context.take()) {
                answer(&self.consumer, &self.topic, &signal);
            }
            // Dropping the last reference leaves the group and waits until that is done.
            drop(self);
            Ok(())
        })
        .await
    }
}

/// Takes the next record out of `queue`. Never waits.
pub(crate) fn next(queue: &Queue) -> Next {
    match queue.poll(Duration::ZERO) {
        None => Next::Empty,
        Some(Ok(message)) => Next::Event(Box::new(Event::copy(&message))),
        Some(Err(KafkaError::PartitionEOF(_))) => Next::End,
        Some(Err(error)) => match code(&error) {
            RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange => {
                Next::OutOfRange
            }
            code => Next::Refused(Trouble::of(code)),
        },
    }
}

/// Commits and waits for the answer.
fn commit(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    commits: &[(i32, Commit)],
) -> Result<(), RDKafkaErrorCode> {
    if commits.is_empty() {
        return Ok(());
    }
    let commit = || {
        let mut list = TopicPartitionList::with_capacity(commits.len());
        for (partition, commit) in commits {
            let mut element = list.add_partition(topic, *partition);
            element.set_offset(Offset::Offset(commit.offset))?;
            if !commit.metadata.is_empty() {
                element.set_metadata(&commit.metadata);
            }
        }
        consumer.commit(&list, CommitMode::Sync)
    };
    commit().map_err(|error| code(&error))
}

/// Answers a rebalance without taking anything.
fn answer(consumer: &BaseConsumer<Context>, topic: &str, signal: &Signal) {
    let answered = match signal {
        Signal::Assign(_) => match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => {
                consumer.incremental_assign(&TopicPartitionList::new())
            }
            _ => consumer.assign(&TopicPartitionList::new()),
        },
        Signal::Revoke { partitions, .. } => unassign(consumer, topic, partitions),
        _ => Ok(()),
    };
    if let Err(error) = answered {
        tracing::debug!(%error, "a rebalance could not be answered while leaving");
    }
}

fn unassign(consumer: &BaseConsumer<Context>, topic: &str, partitions: &[i32]) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => {
            consumer.incremental_unassign(&unplaced(topic, partitions))
        }
        _ => consumer.unassign(),
    }
}

fn unplaced(topic: &str, partitions: &[i32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(topic, *partition);
    }
    list
}

/// Runs a call of the client that may wait.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> KafkaResult<T> + Send + 'static,
) -> KafkaResult<T> {
    // A call that panicked or was cancelled at exit is a failed call.
    tokio::task::spawn_blocking(call)
        .await
        .unwrap_or(Err(KafkaError::Canceled))
}

fn code(error: &KafkaError) -> RDKafkaErrorCode {
    error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)
}
