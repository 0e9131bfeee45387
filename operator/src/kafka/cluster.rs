//! What the operator does on one Kafka cluster.

use super::clusters::{ClusterParams, Permit};
use super::connection::Connection;
use super::error::{ErrorClass, Failure, KafkaError};
use super::sys::{Description, Native, PartitionOffset};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rdkafka::config::ClientConfig;
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka_sys::rd_kafka_OffsetSpec_t as Spec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// librdkafka ends a request after this time, connecting included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(9);
/// The same for what is asked first and cheap to answer: a cluster that does not answer is known soon.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests to the coordinator of a group may not end by themselves while it can't be reached, within librdkafka's bounds:
/// one that ended remains with librdkafka (2.12), which tries to send it when the coordinator is back, and aborts the
/// process. [`DEADLINE`] ends the call instead, and the client is replaced.
const GROUP_TIMEOUT: Duration = Duration::from_hours(1);
/// Longest time any call takes; more than [`REQUEST_TIMEOUT`], so that librdkafka's reason arrives before.
const DEADLINE: Duration = Duration::from_secs(10);
/// A new topic is described until the brokers know it everywhere.
const PROPAGATION_PAUSE: Duration = Duration::from_millis(50);

/// A client that can't find the coordinator is replaced when it is this old: a younger one asked just now.
const REPLACE_AFTER: Duration = Duration::from_secs(10);

const EARLIEST: i64 = Spec::RD_KAFKA_OFFSET_SPEC_EARLIEST as i64;
const LATEST: i64 = Spec::RD_KAFKA_OFFSET_SPEC_LATEST as i64;

/// A topic to create. What is absent is the broker's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// Name.
    pub name: String,
    /// Partitions.
    pub partitions: Option<i32>,
    /// Replicas of each partition.
    pub replication_factor: Option<i32>,
    /// Topic settings by name.
    pub config: BTreeMap<String, String>,
}

/// A topic that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Topic id as Kafka's tools print it (22 characters); a topic created anew has another.
    pub id: String,
    /// Number of partitions.
    pub partitions: i32,
    /// Replicas of the first partition.
    pub replication_factor: i32,
}

/// Both ends of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Offset of the first record that retention has left.
    pub start: i64,
    /// Offset of the next record to come.
    pub end: i64,
}

/// Result of [`Cluster::commit_missing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Every wanted partition has a committed offset now.
    Committed,
    /// The group has members: Kafka lets nobody else commit for it.
    GroupActive,
}

/// Result of [`Cluster::delete_group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupDeletion {
    /// There is no such group (any more).
    Gone,
    /// It has members.
    Active,
}

/// One cluster, seen with one principal. Cheap to share; calls run side by side on one client.
pub struct Cluster {
    native: Arc<Native>,
    connection: Arc<Connection>,
    made: Instant,
    misled: AtomicBool,
    permit: Permit,
}

impl Cluster {
    /// Operations, as errors name them.
    pub(crate) const CONNECT: &'static str = "set up the Kafka client";
    pub(crate) const DESCRIBE_CLUSTER: &'static str = "describe cluster";
    pub(crate) const CREATE_TOPIC: &'static str = "create topic";
    pub(crate) const ADD_PARTITIONS: &'static str = "add partitions";
    pub(crate) const DESCRIBE_SETTINGS: &'static str = "describe topic settings";
    pub(crate) const DELETE_TOPIC: &'static str = "delete topic";
    pub(crate) const DELETE_GROUP: &'static str = "delete group";
    pub(crate) const LIST_COMMITTED: &'static str = "list committed offsets";
    pub(crate) const COMMIT: &'static str = "commit start offsets";

    /// Blocks for some milliseconds; connects to nothing yet.
    pub(super) fn new(params: &ClusterParams, permit: Permit) -> Result<Self, KafkaError> {
        let mut config = ClientConfig::new();
        for (name, value) in params.properties() {
            config.set(name, value);
        }
        let connection = Arc::new(Connection::new());
        let reported = Arc::clone(&connection);
        let native =
            Native::start(config, move |failure| reported.failed(failure)).map_err(|_| {
                // librdkafka's text may quote a property's value: only the class leaves.
                KafkaError {
                    class: if params.uses_tls() {
                        ErrorClass::TlsFailed
                    } else {
                        ErrorClass::InvalidConfig
                    },
                    operation: Self::CONNECT,
                    code: 0,
                }
            })?;
        Ok(Self {
            native,
            connection,
            made: Instant::now(),
            misled: AtomicBool::new(false),
            permit,
        })
    }

    /// librdkafka remembers which broker coordinates a group for as long as it is asked more often than every 15
    /// minutes, also when that broker answers that it does not any more: only a new client finds the new one. And a
    /// request that waits for a coordinator ends with its client only.
    pub(super) fn is_misled(&self) -> bool {
        self.misled.load(Ordering::Relaxed) && self.made.elapsed() > REPLACE_AFTER
    }

    /// The cluster's id: another id behind the same address is another cluster.
    pub async fn cluster_id(&self) -> Result<String, KafkaError> {
        let operation = Self::DESCRIBE_CLUSTER;
        self.call(operation, self.native.cluster_id(QUESTION_TIMEOUT))
            .await?
            .ok_or_else(|| Failure::INVALID.during(operation))
    }

    /// A topic, or `None` when there is none of this name.
    pub async fn describe_topic(&self, name: &str) -> Result<Option<TopicInfo>, KafkaError> {
        match self.describe("describe topic", name).await {
            Ok(description) => Ok(Some(topic_info(&description))),
            Err(error) if error.class == ErrorClass::TopicMissing => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a topic and waits until the brokers tell its id. An existing topic is an error
    /// ([`ErrorClass::TopicExists`]).
    pub async fn create_topic(&self, topic: &NewTopic) -> Result<TopicInfo, KafkaError> {
        let operation = Self::CREATE_TOPIC;
        let counts = (
            topic.partitions.unwrap_or(-1),
            topic.replication_factor.unwrap_or(-1),
        );
        let request = self
            .native
            .create_topic(&topic.name, counts, &topic.config, REQUEST_TIMEOUT);
        self.change(operation, request).await?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.describe_topic(&topic.name).await? {
                Some(info) => return Ok(info),
                None if Instant::now() >= deadline => {
                    return Err(Failure::TIMED_OUT.during(operation));
                }
                None => tokio::time::sleep(PROPAGATION_PAUSE).await,
            }
        }
    }

    /// Deletes the topic of this name. The caller compared its id just before: brokers are asked by name, because
    /// librdkafka can't ask by id. One that is gone already is no error.
    pub async fn delete_topic(&self, name: &str) -> Result<(), KafkaError> {
        let operation = Self::DELETE_TOPIC;
        let request = self.native.delete_topic(name, REQUEST_TIMEOUT);
        match self.change(operation, request).await {
            Err(error) if error.class == ErrorClass::TopicMissing => Ok(()),
            other => other,
        }
    }

    /// Deletes a consumer group and its offsets, unless it has members.
    pub async fn delete_group(&self, group: &str) -> Result<GroupDeletion, KafkaError> {
        let operation = Self::DELETE_GROUP;
        self.change(operation, async {
            match self.native.delete_group(group, GROUP_TIMEOUT).await {
                Ok(()) => Ok(GroupDeletion::Gone),
                Err(failure) if failure.is(Code::GroupIdNotFound) => Ok(GroupDeletion::Gone),
                Err(failure) if failure.is(Code::NonEmptyGroup) => Ok(GroupDeletion::Active),
                Err(failure) => Err(failure),
            }
        })
        .await
    }

    /// Raises the number of partitions of a topic to `total`.
    pub async fn add_partitions(&self, name: &str, total: i32) -> Result<(), KafkaError> {
        let operation = Self::ADD_PARTITIONS;
        let total = usize::try_from(total)
            .map_err(|_| Failure::from(Code::InvalidPartitions).during(operation))?;
        let request = self.native.add_partitions(name, total, REQUEST_TIMEOUT);
        self.change(operation, request).await
    }

    /// Settings of a topic by name, defaults included, sensitive ones left out.
    pub async fn topic_config(&self, name: &str) -> Result<BTreeMap<String, String>, KafkaError> {
        let request = self.native.topic_config(name, REQUEST_TIMEOUT);
        self.call(Self::DESCRIBE_SETTINGS, request).await
    }

    /// Committed offsets of `group` for `topic`: only the partitions that have one, so a missing one is unknown,
    /// never 0.
    pub async fn committed(
        &self,
        group: &str,
        topic: &str,
    ) -> Result<BTreeMap<i32, i64>, KafkaError> {
        let operation = Self::LIST_COMMITTED;
        let listed = self
            .call(operation, async {
                match self.native.group_offsets(group, GROUP_TIMEOUT).await {
                    Err(failure) if failure.is(Code::GroupIdNotFound) => Ok(Vec::new()),
                    other => other,
                }
            })
            .await?;
        let of_topic = listed
            .into_iter()
            .filter(|partition| partition.topic == topic);
        Ok(checked(of_topic, operation)?
            .into_iter()
            .filter(|(_, offset)| *offset >= 0)
            .collect())
    }

    /// Commits those of `offsets` whose partition has no committed offset yet; an offset that exists is never
    /// overwritten, and a group with members is left alone: the brokers refuse.
    ///
    /// Kafka has no conditional commit, so a consumer that joins, commits and leaves between the reading and the
    /// writing would be overwritten. No worker gets the subscription before this has succeeded.
    pub async fn commit_missing(
        &self,
        group: &str,
        topic: &str,
        offsets: &BTreeMap<i32, i64>,
    ) -> Result<CommitOutcome, KafkaError> {
        let operation = Self::COMMIT;
        let committed = self.committed(group, topic).await?;
        let missing: Vec<(i32, i64)> = offsets
            .iter()
            .filter(|(partition, _)| !committed.contains_key(partition))
            .map(|(partition, offset)| (*partition, *offset))
            .collect();
        if missing.is_empty() {
            return Ok(CommitOutcome::Committed);
        }
        let altered = self
            .change(operation, async {
                let request = self.native.alter_group_offsets(
                    group,
                    topic,
                    missing.into_iter(),
                    GROUP_TIMEOUT,
                );
                match request.await {
                    Err(failure) if failure.is_any(GROUP_ACTIVE) => Ok(None),
                    other => other.map(Some),
                }
            })
            .await?;
        let Some(altered) = altered else {
            return Ok(CommitOutcome::GroupActive);
        };
        let active = |partition: &PartitionOffset| {
            partition
                .error
                .is_some_and(|failure| failure.is_any(GROUP_ACTIVE))
        };
        if altered.iter().any(active) {
            return Ok(CommitOutcome::GroupActive);
        }
        checked(altered.into_iter(), operation)?;
        Ok(CommitOutcome::Committed)
    }

    /// Both ends of every partition.
    pub async fn watermarks(&self, topic: &str) -> Result<BTreeMap<i32, Watermarks>, KafkaError> {
        let operation = "list offsets";
        let partitions = self.describe(operation, topic).await?.partitions;
        let (starts, ends) = tokio::try_join!(
            self.offsets(operation, topic, &partitions, EARLIEST),
            self.offsets(operation, topic, &partitions, LATEST),
        )?;
        Ok(ends
            .into_iter()
            .filter_map(|(partition, end)| {
                // Read side by side: retention may have moved the start past an end read before.
                let start = (*starts.get(&partition)?).min(end);
                Some((partition, Watermarks { start, end }))
            })
            .collect())
    }

    /// Per partition the offset of the first record at or after `unix_ms`, the end where there is none.
    pub async fn offsets_for_time(
        &self,
        topic: &str,
        unix_ms: i64,
    ) -> Result<BTreeMap<i32, i64>, KafkaError> {
        let operation = "list offsets";
        let partitions = self.describe(operation, topic).await?.partitions;
        // The end first: read after the search, it could skip a record that came in between.
        let ends = self.offsets(operation, topic, &partitions, LATEST).await?;
        let mut found = self
            .offsets(operation, topic, &partitions, unix_ms.max(0))
            .await?;
        for (partition, offset) in &mut found {
            if *offset < 0 {
                *offset = *ends
                    .get(partition)
                    .ok_or_else(|| Failure::INVALID.during(operation))?;
            }
        }
        Ok(found)
    }

    async fn describe(
        &self,
        operation: &'static str,
        topic: &str,
    ) -> Result<Description, KafkaError> {
        self.call(
            operation,
            self.native.describe_topic(topic, QUESTION_TIMEOUT),
        )
        .await
    }

    async fn offsets(
        &self,
        operation: &'static str,
        topic: &str,
        partitions: &[i32],
        spec: i64,
    ) -> Result<BTreeMap<i32, i64>, KafkaError> {
        let wanted = partitions.iter().map(|partition| (*partition, spec));
        let listed = self
            .call(
                operation,
                self.native.list_offsets(topic, wanted, REQUEST_TIMEOUT),
            )
            .await?;
        checked(listed.into_iter(), operation)
    }

    /// [`Self::call`] for what changes something: it is not sent without the permit.
    async fn change<T>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, KafkaError> {
        if !(self.permit)() {
            return Err(KafkaError {
                class: ErrorClass::NotReady,
                operation,
                code: 0,
            });
        }
        self.call(operation, request).await
    }

    /// Runs one request with a deadline, and explains a missing answer by what is known of the connection.
    async fn call<T>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, KafkaError> {
        let failed = |class, failure: Failure| KafkaError {
            class,
            ..failure.during(operation)
        };
        if let Some(class) = self.connection.refused() {
            return Err(failed(class, Failure(0)));
        }
        let result = tokio::select! {
            biased;
            result = tokio::time::timeout(DEADLINE, request) => result.unwrap_or_else(|_| {
                self.misled.store(true, Ordering::Relaxed);
                Err(Failure::TIMED_OUT)
            }),
            class = self.connection.next_refusal() => {
                self.misled.store(true, Ordering::Relaxed);
                return Err(failed(class, Failure(0)));
            }
        };
        match result {
            Ok(value) => {
                self.connection.works();
                Ok(value)
            }
            Err(failure) if failure.is_answer() => {
                self.connection.works();
                if failure.is(Code::NotCoordinator) {
                    self.misled.store(true, Ordering::Relaxed);
                }
                Err(failure.during(operation))
            }
            Err(failure) => {
                let unanswered = matches!(
                    failure.class(),
                    ErrorClass::Timeout | ErrorClass::Unreachable | ErrorClass::NotReady
                );
                let explained = self.connection.problem().filter(|_| unanswered);
                self.connection.still_waiting();
                Err(failed(
                    explained.unwrap_or_else(|| failure.class()),
                    failure,
                ))
            }
        }
    }
}

/// What brokers say to a commit for a group that has members, in the classic and the newer group protocol.
const GROUP_ACTIVE: &[Code] = &[
    Code::UnknownMemberId,
    Code::IllegalGeneration,
    Code::RebalanceInProgress,
    Code::NonEmptyGroup,
    Code::StaleMemberEpoch,
    Code::FencedMemberEpoch,
];

/// All partitions, or the first error among them.
fn checked(
    partitions: impl Iterator<Item = PartitionOffset>,
    operation: &'static str,
) -> Result<BTreeMap<i32, i64>, KafkaError> {
    partitions
        .map(|partition| match partition.error {
            None => Ok((partition.partition, partition.offset)),
            Some(failure) => Err(failure.during(operation)),
        })
        .collect()
}

fn topic_info(description: &Description) -> TopicInfo {
    let (high, low) = description.id;
    let mut id = [0; 16];
    id[..8].copy_from_slice(&high.to_be_bytes());
    id[8..].copy_from_slice(&low.to_be_bytes());
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    TopicInfo {
        id: URL_SAFE_NO_PAD.encode(id),
        partitions: count(description.partitions.len()),
        replication_factor: count(description.replication_factor),
    }
}
