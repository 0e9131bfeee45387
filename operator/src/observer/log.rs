//! Reads one topic and the groups on it from Kafka.

use super::target::{SubscriptionTarget, TopicTarget};
use crate::kafka::{Cluster, Clusters, ErrorClass, KafkaError, Watermarks};
use futures::{StreamExt as _, stream};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Groups of one topic asked for at once; they share one client, on which requests are pipelined.
const GROUPS_AT_ONCE: usize = 32;
/// Longest time for one topic with all its groups.
const DEADLINE: Duration = Duration::from_secs(25);

/// What one round read.
#[derive(Debug)]
pub(super) struct Reading {
    /// What the topic is like: how a human left it.
    pub(super) topic: TopicState,
    /// Both ends of every partition.
    pub(super) marks: BTreeMap<i32, Watermarks>,
    /// Subscriptions whose group the consumers' principal may not read.
    pub(super) refused: BTreeSet<String>,
    /// Committed offsets by Subscription; without an entry where they could not be read.
    pub(super) committed: HashMap<String, BTreeMap<i32, i64>>,
}

/// What may change of a topic without a word to the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicState {
    /// Its UUID.
    pub id: Option<String>,
    /// Copies of its partitions.
    pub replication_factor: Option<i32>,
    /// The settings that the spec names.
    pub settings: BTreeMap<String, String>,
    /// Why consumers don't get in at all.
    pub consumer_error: Option<ErrorClass>,
}

/// Reads the log of `target`.
pub(super) async fn read(clusters: &Clusters, target: &TopicTarget) -> Result<Reading, KafkaError> {
    let Some(log) = &target.log else {
        return Err(timeout(ErrorClass::Other));
    };
    let reading = async {
        let cluster = clusters.get(&log.params).await?;
        // Fails fast on a cluster that does not answer, before a hundred groups wait for their deadline each.
        let info = cluster.describe_topic(&log.topic).await?;
        let mut topic = TopicState {
            id: info.as_ref().map(|info| info.id.clone()),
            replication_factor: info.map(|info| info.replication_factor),
            settings: settings(&cluster, log).await?,
            consumer_error: None,
        };
        // Groups are the consumers' own, and their client does not tell when they may not read them.
        let consumers = clusters.get(&log.consumer).await;
        topic.consumer_error = consumers.as_ref().err().map(|error| error.class);
        // Offsets first, ends afterwards: what is committed lies within the log then, and what arrives in between counts.
        let consumers = consumers.ok();
        let questions: Vec<_> = consumers
            .iter()
            .flat_map(|consumers| {
                let groups = target.subscriptions.iter();
                groups.map(|subscription| committed(consumers, subscription, &log.topic))
            })
            .collect();
        let answers: Vec<_> = stream::iter(questions)
            .buffer_unordered(GROUPS_AT_ONCE)
            .collect()
            .await;
        let mut committed = HashMap::new();
        let mut refused = BTreeSet::new();
        for (uid, answer) in answers {
            match answer {
                Ok(offsets) => drop(committed.insert(uid, offsets)),
                Err(ErrorClass::PermissionDenied) => drop(refused.insert(uid)),
                Err(class @ (ErrorClass::AuthenticationFailed | ErrorClass::TlsFailed)) => {
                    topic.consumer_error = Some(class);
                }
                Err(_) => {}
            }
        }
        let marks = cluster.watermarks(&log.topic).await?;
        Ok(Reading {
            topic,
            marks,
            refused,
            committed,
        })
    };
    tokio::time::timeout(DEADLINE, reading)
        .await
        .unwrap_or(Err(timeout(ErrorClass::Timeout)))
}

/// Those settings of the topic that the spec names.
async fn settings(
    cluster: &Cluster,
    log: &super::target::Log,
) -> Result<BTreeMap<String, String>, KafkaError> {
    if log.settings.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut all = cluster.topic_config(&log.topic).await?;
    all.retain(|name, _| log.settings.contains(name));
    Ok(all)
}

/// Committed offsets of one group, or why they can't be read: the others are known nevertheless.
async fn committed(
    cluster: &Cluster,
    subscription: &SubscriptionTarget,
    topic: &str,
) -> (String, Result<BTreeMap<i32, i64>, ErrorClass>) {
    let offsets = cluster.committed(&subscription.group_id, topic).await;
    let offsets = offsets.map_err(|error| {
        tracing::debug!(%error, group = subscription.group_id, "committed offsets");
        error.class
    });
    (subscription.uid.clone(), offsets)
}

const fn timeout(class: ErrorClass) -> KafkaError {
    KafkaError {
        class,
        operation: "observe topic",
        code: 0,
    }
}
