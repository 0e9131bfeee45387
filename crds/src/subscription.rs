//! Kind Subscription: who wants which events of a FanoutTopic, where they go, and how delivery behaves.

use crate::deletion::DeletionPolicy;
use crate::reference::{SecretKeyRef, TopicRef};
use crate::scaling::{Scaling, ScalingStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which events go where, and how.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fanout.dev",
    version = "v1alpha1",
    kind = "Subscription",
    namespaced,
    status = "SubscriptionStatus",
    derive = "PartialEq",
    shortname = "fsub",
    category = "fanout",
    selectable = ".spec.topicRef.name",
    doc = "One receiver of a FanoutTopic's events: which of them it wants, where they go, and how delivery behaves. Every event is delivered at least once.",
    validation = Rule::new("size(self.metadata.name) <= 40").message("metadata.name must be at most 40 characters long"),
    printcolumn(name = "Topic", type_ = "string", json_path = ".spec.topicRef.name", description = "FanoutTopic the events come from."),
    printcolumn(name = "Sink", type_ = "string", json_path = ".status.sink", description = "Kind of receiver."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "True when the worker runs this generation; Reason says what keeps events from getting through all the same."),
    printcolumn(name = "Depth", type_ = "integer", json_path = ".status.depth", description = "Log records not yet completed, counted before the filter."),
    printcolumn(name = "Oldest", type_ = "date", json_path = ".status.oldestEventTime", description = "Age of the oldest record not yet completed."),
    printcolumn(name = "Workers", type_ = "string", json_path = ".status.workers", description = "Ready workers of those wanted."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why it is ready or not."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation."),
    printcolumn(name = "Rate", type_ = "integer", json_path = ".status.ratePerSecond", description = "Events completed per second when the status was last written.", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", description = "What to do next.", priority = 1),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.scaling) || self.isolation == 'Dedicated'")
    .message("scaling needs isolation: Dedicated"))]
pub struct SubscriptionSpec {
    /// FanoutTopic in the same namespace whose events are wanted. Immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("topicRef must not change"))]
    pub topic_ref: TopicRef,
    /// True delivers nothing and keeps the position.
    #[serde(default)]
    pub suspend: bool,
    /// Where a new Subscription starts in the log; counts only until it has a position. Immutable.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("startFrom must not change"))]
    pub start_from: StartFrom,
    /// CEL expression over `event`; only events for which it is true are delivered. Attributes are `event.type`,
    /// `event.id`, `event.source`, `event.subject`, `event.time` and extensions; `event.data` is the payload when it is
    /// JSON. An event for which it fails is not delivered. At most 4096 bytes; what could cost without a bound is refused:
    /// loops in loops, values that a loop joins or makes, patterns that are not literals. Absent: every event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    #[x_kube(validation = Rule::new("size(bytes(self)) <= 4096").message("filter must be at most 4096 bytes long"))]
    pub filter: Option<String>,
    /// Where events go.
    pub sink: Sink,
    /// How events are delivered.
    #[serde(default)]
    pub delivery: Delivery,
    /// Auto: a worker process shared with other Subscriptions of the topic. Dedicated: a Deployment of its own.
    #[serde(default)]
    pub isolation: Isolation,
    /// Replicas of the worker, which follow the work; only with isolation Dedicated. Absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// Retain: when the Subscription is deleted, its consumer group stays, and a Subscription of the same name resumes where
    /// it was. Delete: the consumer group is deleted once it has no members. Meanwhile the finalizer `fanout.dev/cleanup` keeps
    /// the object, at most for the operator's deletion deadline (300 seconds unless installed otherwise): a group that could
    /// not be deleted by then stays.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// First position of a Subscription. Exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum StartFrom {
    /// Latest: events published after the Subscription was accepted. Earliest: everything the log still holds.
    Position(LogPosition),
    /// The first event published at or after this time.
    Time(Time),
}

impl Default for StartFrom {
    fn default() -> Self {
        Self::Position(LogPosition::Latest)
    }
}

/// End of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogPosition {
    /// Behind the newest event.
    #[default]
    Latest,
    /// Before the oldest event.
    Earliest,
}

/// Where events go. Exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Sink {
    /// An HTTP endpoint.
    Webhook(WebhookSink),
}

impl Sink {
    /// The member's name as `status.sink` shows it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
        }
    }
}

/// An HTTP endpoint that receives each event as a CloudEvents POST request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookSink {
    /// http or https URL, without user information. Loopback, link-local and the API server's addresses are refused, private
    /// ranges unless the platform team admits them.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = Rule::new(r"self.matches('^https?://[^/?#@\\\\\\s]+([/?#][^\\\\\\s]*)?$')")
        .message("url must be an http or https URL without user information, blanks and backslashes"))]
    pub url: String,
    /// Signs every request by Standard Webhooks; the event is then sent as one structured CloudEvents document. Absent: unsigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<Signing>,
    /// Limit of one request, from connecting to the last byte of the answer, seconds.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(range(min = 1, max = 120))]
    pub timeout_seconds: i32,
}

const fn default_timeout_seconds() -> i32 {
    10
}

/// Signatures of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Signing {
    /// Secret values (`whsec_` and base64), newest first. Requests carry one signature for each, so that a receiver accepts
    /// the old and the new one while they are exchanged.
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub secret_refs: Vec<SecretKeyRef>,
}

/// How events are delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// PerKey: one event of a key at a time, in the log's order. None: any order. Strict: one event at a time, in the log's
    /// order; needs a Kafka topic with one partition.
    #[serde(default)]
    pub ordering: Ordering,
    /// Requests under way at once.
    #[serde(default = "default_max_in_flight")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_in_flight: i32,
    /// What happens after a failed attempt.
    #[serde(default)]
    pub retry: Retry,
    /// HTTP statuses by which the endpoint refuses an event for good: it is not tried again. They come before what the
    /// status means otherwise (410 stops the Subscription; 400, 401, 403, 405, 413, 415 and 422 are tried three times).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 300, max = 599)), transform = describe_status)]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub non_retryable: Vec<i32>,
    /// What becomes of an event that was tried enough, or that can't be delivered at all. DeadLetter: it goes to the dead
    /// letter topic, and its key goes on. Pause: the Subscription stops, and tries it again once the annotation
    /// `fanout.dev/resume` is changed.
    #[serde(default)]
    pub on_exhausted: OnExhausted,
}

fn describe_status(list: &mut schemars::Schema) {
    if let Some(status) = list.pointer_mut("/items") {
        status["description"] = "HTTP status.".into();
    }
}

/// What becomes of an event that was tried enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnExhausted {
    /// It goes to the dead letter topic.
    #[default]
    DeadLetter,
    /// The Subscription stops.
    Pause,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            ordering: Ordering::default(),
            max_in_flight: default_max_in_flight(),
            retry: Retry::default(),
            non_retryable: Vec::new(),
            on_exhausted: OnExhausted::default(),
        }
    }
}

const fn default_max_in_flight() -> i32 {
    64
}

/// Order of deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Ordering {
    /// One event of a key at a time, in the log's order.
    #[default]
    PerKey,
    /// Any order.
    None,
    /// One event at a time, in the log's order.
    Strict,
}

/// What happens after a failed attempt. An event was tried enough after maxAttempts or maxAgeSeconds, whichever comes
/// first. Attempts do not count while the endpoint is down: when no connection comes about, or when nothing succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.maxBackoffSeconds * 1000 >= self.initialBackoffMilliseconds")
    .message("maxBackoffSeconds must not be shorter than initialBackoffMilliseconds"))]
pub struct Retry {
    /// Attempts in all, the first one included.
    #[serde(default = "default_max_attempts")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_attempts: i32,
    /// Delay before the second attempt, milliseconds; doubles after each, with jitter.
    #[serde(default = "default_initial_backoff_milliseconds")]
    #[schemars(range(min = 10, max = 60_000))]
    pub initial_backoff_milliseconds: i32,
    /// Longest delay between two attempts, seconds.
    #[serde(default = "default_max_backoff_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub max_backoff_seconds: i32,
    /// Longest time since the event's first attempt, seconds. Choose it longer than the outages to be survived.
    #[serde(default = "default_max_age_seconds")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub max_age_seconds: i32,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: default_max_attempts(),
            initial_backoff_milliseconds: default_initial_backoff_milliseconds(),
            max_backoff_seconds: default_max_backoff_seconds(),
            max_age_seconds: default_max_age_seconds(),
        }
    }
}

const fn default_max_attempts() -> i32 {
    100
}

const fn default_initial_backoff_milliseconds() -> i32 {
    1000
}

const fn default_max_backoff_seconds() -> i32 {
    300
}

const fn default_max_age_seconds() -> i32 {
    86_400
}

/// Which worker serves a Subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Isolation {
    /// A process shared with other Subscriptions of the topic.
    #[default]
    Auto,
    /// A Deployment of its own.
    Dedicated,
}

/// What the operator saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionStatus {
    /// Generation of the spec that this status describes; -1 before the operator saw the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: Option<i64>,
    /// Conditions. Normal when True: Ready, PositionInitialized, SinkAccepted, WorkersAvailable, Delivering (keeps its
    /// value while nothing arrives). Abnormal when True: Reconciling, Stalled (only a human can mend it), RecordsExpired
    /// (retention removed records unread).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Kind of receiver: the member of spec.sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub sink: Option<String>,
    /// Kafka consumer group that holds the position. Never changes once written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 249))]
    pub group_id: Option<String>,
    /// Start offsets, and the committed offsets as last saved: when no worker serves the Subscription, when the status is
    /// written for another reason, and at most every 15 minutes while they move. Kafka's committed offsets come first; a
    /// partition whose offset Kafka has forgotten goes on from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["partition".into()]))]
    pub positions: Vec<Position>,
    /// Id of the Kafka topic that the positions belong to. In another topic of the same name they mean nothing: all of it is
    /// delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub topic_id: Option<String>,
    /// Log records not yet completed, counted before the filter. Written when it moved by at least 10 % and at least
    /// 100, or to or from 0; metrics are live. Absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub depth: Option<i64>,
    /// Kafka timestamp of the oldest record not yet completed. Absent: none waits, or not known. Without a worker the
    /// last value stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_event_time: Option<Time>,
    /// Events completed per second when the status was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub rate_per_second: Option<i64>,
    /// Deployment whose worker serves the Subscription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub placement: Option<String>,
    /// Ready workers of those wanted, for example `1/1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub workers: Option<String>,
    /// What was decided about the replicas of its worker; with spec.scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingStatus>,
}

/// Position in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    /// Partition number.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub partition: i32,
    /// Offset of the first record to deliver.
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub offset: i64,
}
