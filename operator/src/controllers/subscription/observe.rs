//! Asks Kafka for a Subscription's position, and commits what is missing. The decisions are in `position`.

use super::position::{self, Offsets, Recorded};
use crate::controllers::conditions::Finding;
use crate::controllers::fanout_topic::log::{self, Asked, Problem};
use crate::controllers::fanout_topic::validate::ValidTopic;
use crate::kafka::{Cluster, CommitOutcome, KafkaError};
use fanout_crds::condition::reason;
use fanout_crds::subscription::{LogPosition, StartFrom};

/// The group and topic of a Subscription.
pub(crate) struct Group<'a> {
    /// The cluster.
    pub(crate) cluster: &'a Cluster,
    /// Consumer group.
    pub(crate) id: &'a str,
    /// Kafka topic.
    pub(crate) topic: &'a str,
    /// UUID it must have.
    pub(crate) topic_id: &'a str,
}

/// What Kafka knows of it.
pub(crate) struct Observed {
    /// Partitions of the topic.
    pub(crate) partitions: i32,
    /// Committed offsets.
    pub(crate) committed: Offsets,
}

/// Why there is no position (yet).
pub(crate) enum Missing {
    /// Kafka failed.
    Kafka(KafkaError),
    /// The topic is not the one the FanoutTopic recorded.
    Topic,
}

impl From<KafkaError> for Missing {
    fn from(error: KafkaError) -> Self {
        Self::Kafka(error)
    }
}

impl Missing {
    /// For the conditions of a Subscription of `topic` with `group`.
    pub(crate) fn problem(&self, topic: &ValidTopic, group: &str) -> Problem {
        match self {
            Self::Kafka(error) => {
                let asked = Asked {
                    auth: topic.consumer.path,
                    topic: &topic.log.topic,
                    group: Some(group),
                };
                let problem = log::problem(*error, asked);
                let message = format!("FanoutTopic {}: {}", topic.name, problem.message);
                Problem { message, ..problem }
            }
            Self::Topic => Problem {
                reason: reason::TOPIC_NOT_READY,
                message: format!(
                    "spec.topicRef.name: the Kafka topic of FanoutTopic {} is missing or was replaced; its status says more",
                    topic.name
                ),
                needs_human: false,
                usable: false,
            },
        }
    }
}

impl Group<'_> {
    /// Partitions and committed offsets.
    pub(crate) async fn observe(&self) -> Result<Observed, Missing> {
        let (info, committed) = tokio::try_join!(
            self.cluster.describe_topic(self.topic),
            self.cluster.committed(self.id, self.topic),
        )?;
        let info = info
            .filter(|info| info.id == self.topic_id)
            .ok_or(Missing::Topic)?;
        Ok(Observed {
            partitions: info.partitions,
            committed,
        })
    }

    /// The offset that `start` means in each partition now.
    pub(crate) async fn start(&self, start: &StartFrom) -> Result<Offsets, Missing> {
        Ok(match start {
            StartFrom::Time(time) => {
                self.cluster
                    .offsets_for_time(self.topic, time.0.as_millisecond())
                    .await?
            }
            StartFrom::Position(end) => self
                .cluster
                .watermarks(self.topic)
                .await?
                .into_iter()
                .map(|(partition, marks)| match end {
                    LogPosition::Latest => (partition, marks.end),
                    LogPosition::Earliest => (partition, marks.start),
                })
                .collect(),
        })
    }

    /// Commits `offsets` where the group has none.
    pub(crate) async fn commit(&self, offsets: &Offsets) -> Result<Finding, Missing> {
        let outcome = self
            .cluster
            .commit_missing(self.id, self.topic, offsets)
            .await?;
        Ok(match outcome {
            CommitOutcome::Committed => Finding::yes(reason::SUCCEEDED, ""),
            CommitOutcome::GroupActive => Finding::yes(
                reason::START_OFFSETS_CONFIGURED,
                "the group has members; partitions without a committed offset start at status.positions",
            ),
        })
    }

    /// What to record for the observed partitions, with the first position where one is needed.
    pub(crate) async fn complete(
        &self,
        observed: &Observed,
        recorded: &Recorded,
        start: &StartFrom,
    ) -> Result<Offsets, Missing> {
        let start = if position::needs_start(recorded, &observed.committed) {
            Some(self.start(start).await?)
        } else {
            None
        };
        position::complete(
            observed.partitions,
            recorded,
            &observed.committed,
            start.as_ref(),
        )
        .ok_or(Missing::Topic)
    }
}
