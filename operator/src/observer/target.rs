//! What the observer looks at: listed anew before every round, so that nothing has to be unregistered.

use super::write::Shown;
use crate::kafka::ClusterParams;
use crate::scaling::{Bounds, Seconds};
use std::net::SocketAddr;

/// Kind of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerKind {
    /// Publishes an outbox.
    Relay,
    /// Delivers to Subscriptions.
    Consumer,
}

/// One ready pod of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerTarget {
    /// Which document its `/status` is.
    pub kind: WorkerKind,
    /// Namespace of the FanoutTopic and its workers.
    pub namespace: String,
    /// Name of the FanoutTopic.
    pub topic: String,
    /// Name of the worker (Deployment).
    pub worker: String,
    /// Name of the pod.
    pub pod: String,
    /// Uid of the pod: a pod of the same name made anew is another.
    pub pod_uid: String,
    /// Its admin server.
    pub addr: SocketAddr,
}

/// One FanoutTopic.
#[derive(Clone)]
pub struct TopicTarget {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// Name of the relays' Deployment.
    pub relay: String,
    /// Where the log is; absent while there is none, or while its credentials can't be read.
    pub log: Option<Log>,
    /// The outbox columns as the status shows them.
    pub shown: Shown,
    /// Its Subscriptions.
    pub subscriptions: Vec<SubscriptionTarget>,
}

/// A Kafka topic.
#[derive(Clone)]
pub struct Log {
    /// The cluster, as the relays' principal.
    pub params: ClusterParams,
    /// The cluster, as the consumers' principal.
    pub consumer: ClusterParams,
    /// Name of the topic.
    pub topic: String,
    /// Settings of the topic that the spec names.
    pub settings: Vec<String>,
}

/// One Subscription.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionTarget {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.name`; its namespace is the topic's.
    pub name: String,
    /// Consumer group.
    pub group_id: String,
    /// The progress columns and saved positions as the status shows them.
    pub shown: Shown,
    /// UUID of the topic that the saved positions belong to.
    pub topic_id: Option<String>,
    /// How its worker is scaled; absent: it is not.
    pub scaling: Option<ScalingTarget>,
    /// Name of the worker that shall serve it.
    pub worker: Option<String>,
    /// True while a worker delivers, or would if there were something.
    pub is_served: bool,
}

/// How a worker is scaled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalingTarget {
    /// What is allowed and wanted.
    pub bounds: Bounds,
    /// Records that one replica works on at once.
    pub carries: u32,
    /// Replicas that the status shows.
    pub replicas: Option<u32>,
    /// The reason that the status shows.
    pub reason: Option<String>,
    /// When they changed, as the status shows it.
    pub changed_at: Option<Seconds>,
    /// Thousandths of a record that a busy replica completes per second, as the status shows it.
    pub capacity_milli: Option<u64>,
}

/// Lists what there is to observe, from watch caches: cheap, and never blocks.
pub trait Targets: Send + Sync + 'static {
    /// Ready pods of workers.
    fn workers(&self) -> Vec<WorkerTarget>;
    /// FanoutTopics with their Subscriptions.
    fn topics(&self) -> Vec<TopicTarget>;
}
