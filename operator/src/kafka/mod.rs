//! Kafka administration for the operator: one asynchronous facade over librdkafka's admin API, one client per cluster.
//!
//! Every call has a deadline and ends in a value or a [`KafkaError`], whose text holds nothing that a peer said.
//! What rdkafka's own admin client lacks (topic ids, committed offsets, offsets by time) is in `sys`, the only
//! module of the project with unsafe code.

mod cluster;
mod clusters;
mod connection;
mod error;
mod sys;
#[cfg(test)]
mod tests;

pub use cluster::{Cluster, CommitOutcome, GroupDeletion, NewTopic, TopicInfo, Watermarks};
pub use clusters::{ClusterParams, Clusters, Permit};
pub use error::{ErrorClass, KafkaError};
