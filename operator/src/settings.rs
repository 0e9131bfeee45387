//! What the platform team chose when it installed the operator: parsed once, passed down, never read from elsewhere.

use ipnet::IpNet;
use std::time::Duration;

/// Settings of this installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Image of the workers; it holds `/fanout-relay` and `/fanout-consumers`.
    pub(crate) worker_image: String,
    /// Its pull policy; absent: the cluster's default.
    pub(crate) image_pull_policy: Option<String>,
    /// Precedes Kafka topics and groups that the operator names.
    pub(crate) kafka_prefix: String,
    /// Private ranges that sinks may connect to.
    pub(crate) egress_allowed: Vec<IpNet>,
    /// What `deletionPolicy: Delete` could not delete this long after the object's deletion stays.
    pub(crate) deletion_deadline: Duration,
}
