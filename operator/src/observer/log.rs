//! Reads one topic and the groups on it from Kafka.

use super::target::{SubscriptionTarget, TopicTarget};
use crate::kafka::{Cluster, Clusters, ErrorClass, KafkaError, Watermarks};
use futures::{StreamExt as _, stream};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Groups of one topic asked for at once; they share one client, on which requests are pipelined.
const GROUPS_AT_ONCE: usize = 32;
/// Longest time for one topic with all its groups.
const DEADLINE: Duration = Duration::from_secs(25);

/// What one round read.
#[derive(Debug)]
pub(super) struct Reading {
    /// Both ends of every partition.
    pub(super) marks: BTreeMap<i32, Watermarks>,
    /// Committed offsets by Subscription; without an entry where they could not be read.
    pub(super) committed: HashMap<String, BTreeMap<i32, i64>>,
}

/// Reads the log of `target`.
pub(super) async fn read(clusters: &Clusters, target: &TopicTarget) -> Result<Reading, KafkaError> {
    let Some(log) = &target.log else {
        return Err(timeout(ErrorClass::Other));
    };
    let reading = async {
        let cluster = clusters.get(&log.params).await?;
        // Fails fast on a cluster that does not answer, before a hundred groups wait for their deadline each.
        cluster.describe_topic(&log.topic).await?;
        // Offsets first, ends afterwards: what is committed lies within the log then, and what arrives in between counts.
        let questions: Vec<_> = target
            .subscriptions
            .iter()
            .map(|subscription| committed(&cluster, subscription, &log.topic))
            .collect();
        let answers: Vec<_> = stream::iter(questions)
            .buffer_unordered(GROUPS_AT_ONCE)
            .collect()
            .await;
        let committed = answers.into_iter().flatten().collect();
        let marks = cluster.watermarks(&log.topic).await?;
        Ok(Reading { marks, committed })
    };
    tokio::time::timeout(DEADLINE, reading)
        .await
        .unwrap_or(Err(timeout(ErrorClass::Timeout)))
}

/// Committed offsets of one group; none where they can't be read: the others are known nevertheless.
async fn committed(
    cluster: &Cluster,
    subscription: &SubscriptionTarget,
    topic: &str,
) -> Option<(String, BTreeMap<i32, i64>)> {
    match cluster.committed(&subscription.group_id, topic).await {
        Ok(offsets) => Some((subscription.uid.clone(), offsets)),
        Err(error) => {
            tracing::debug!(%error, group = subscription.group_id, "committed offsets");
            None
        }
    }
}

const fn timeout(class: ErrorClass) -> KafkaError {
    KafkaError {
        class,
        operation: "observe topic",
        code: 0,
    }
}
