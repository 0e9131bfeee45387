//! How many replicas a worker may have, and has.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reason of the event about a number of replicas that was changed.
pub const SCALED: &str = "Scaled";

/// Bounds and aims of a worker's replicas. They follow the work: fewer only after five minutes in which fewer were enough, and
/// never while something needed to decide is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minReplicas <= self.maxReplicas")
    .message("minReplicas must not be greater than maxReplicas"))]
pub struct Scaling {
    /// Fewest replicas.
    #[serde(default = "default_min_replicas")]
    #[schemars(range(min = 1, max = 64))]
    pub min_replicas: i32,
    /// Most replicas. More than the topic has partitions find nothing to do and are never asked for.
    #[schemars(range(min = 1, max = 64))]
    pub max_replicas: i32,
    /// Records that one replica is trusted with, until it is known how many it completes per second.
    #[serde(default = "default_target_depth_per_replica")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub target_depth_per_replica: i32,
    /// What waits shall be delivered within this time, seconds.
    #[serde(default = "default_target_age_seconds")]
    #[schemars(range(min = 5, max = 86_400))]
    pub target_age_seconds: i32,
}

const fn default_min_replicas() -> i32 {
    1
}

const fn default_target_depth_per_replica() -> i32 {
    1000
}

const fn default_target_age_seconds() -> i32 {
    60
}

/// What was decided about a worker's replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingStatus {
    /// Replicas that are wanted.
    #[schemars(range(min = 0, max = 64))]
    pub replicas: i32,
    /// Why: Sufficient, Backlog, FewerSuffice, Idle, OutOfBounds, Unknown, Stabilizing, AtMaximum, AtParallelism, NotReady, Stalled or
    /// SinkSaturated. Another reason shows once it has held for half a minute.
    #[schemars(length(max = 32))]
    pub reason: String,
    /// The same in words, with the numbers of that moment.
    #[schemars(length(max = 512))]
    pub message: String,
    /// When the number of replicas last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_time: Option<Time>,
    /// Records that a busy replica was seen to complete per second. Absent: not measured yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub rate_per_replica: Option<i64>,
}
