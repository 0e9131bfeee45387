//! A consumer's configuration file and its `/status` document.

use crate::kafka::Kafka;
use serde::{Deserialize, Serialize};

/// Contents of `config.yaml` of a consumer: one FanoutTopic and the subscriptions this worker serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConsumerConfig {
    /// Namespace of the FanoutTopic and all its Subscriptions.
    pub namespace: String,
    /// Name of the FanoutTopic.
    pub topic_name: String,
    /// The log.
    pub broker: KafkaSource,
    /// Which addresses sinks may connect to.
    #[serde(default)]
    pub egress: Egress,
    /// Subscriptions sorted by name: at most 100, and those on their way to another worker.
    pub subscriptions: Vec<SubscriptionConfig>,
}

/// The Kafka topics of a FanoutTopic as a consumer sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KafkaSource {
    /// The cluster.
    pub cluster: Kafka,
    /// Topic to read.
    pub topic: String,
    /// Topic that exhausted events go to.
    pub dead_letter_topic: String,
}

/// Address guard settings, from the chart and the cluster, never from a Subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Egress {
    /// Private ranges that are admitted (CIDR).
    #[serde(default, rename = "allowedCIDRs")]
    pub allowed_cidrs: Vec<String>,
    /// Refused even inside an admitted range: the API server's addresses (CIDR).
    #[serde(default, rename = "refusedCIDRs")]
    pub refused_cidrs: Vec<String>,
}

/// One Subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubscriptionConfig {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation` this was rendered from; reported back once it is in force.
    pub generation: i64,
    /// Consumer group.
    pub group_id: String,
    /// Deliver nothing, keep the position.
    #[serde(default)]
    pub suspend: bool,
    /// CEL over `event`; absent: everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Where events go.
    pub sink: Sink,
    /// How they are delivered.
    pub delivery: Delivery,
    /// Offsets for partitions that have no committed offset when this worker is assigned them. A partition
    /// that has neither is not read.
    #[serde(default)]
    pub start_offsets: Vec<StartOffset>,
    /// Value of the annotation `fanout.dev/resume`; a change lets a stopped subscription run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
}

/// Start of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartOffset {
    /// Partition number.
    pub partition: i32,
    /// First offset to deliver.
    pub offset: i64,
}

/// Where events go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Sink {
    /// HTTP POST to an endpoint.
    Webhook(WebhookConfig),
}

impl Sink {
    /// The member's name, as `status.sink` shows it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
        }
    }
}

/// HTTP endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookConfig {
    /// http(s) URL.
    pub url: String,
    /// Files with Standard Webhooks secrets (`whsec_…`), newest first; empty: unsigned.
    #[serde(default)]
    pub signing_secret_files: Vec<String>,
    /// Whole request, connect to last body byte, seconds.
    pub timeout_seconds: u32,
}

/// How events are delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delivery {
    /// Order.
    pub ordering: Ordering,
    /// Requests under way at once.
    pub max_in_flight: u32,
    /// Retries.
    pub retry: Retry,
    /// HTTP statuses after which an event is not tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub non_retryable: Vec<u16>,
    /// What becomes of an event that was tried enough.
    #[serde(default, skip_serializing_if = "OnExhausted::is_default")]
    pub on_exhausted: OnExhausted,
}

/// What becomes of an event that was tried enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnExhausted {
    /// It goes to the dead letter topic, and its key goes on.
    #[default]
    DeadLetter,
    /// It stays, and the subscription stops until a human acts.
    Pause,
}

impl OnExhausted {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Order of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ordering {
    /// Any order.
    None,
    /// One event of a key at a time, in log order.
    PerKey,
    /// One event of a partition at a time, in log order.
    Strict,
}

/// Retry policy: an event is exhausted at `max_attempts` or `max_age_seconds`, whichever comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retry {
    /// Attempts in all.
    pub max_attempts: u32,
    /// Delay before the first retry, milliseconds; doubles after each.
    pub initial_backoff_milliseconds: u32,
    /// Longest delay, seconds.
    pub max_backoff_seconds: u32,
    /// Longest time since the first attempt, seconds.
    pub max_age_seconds: u32,
}

/// `/status` of one consumer process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerStatus {
    /// Hash of the configuration in force.
    pub config_hash: String,
    /// Subscriptions of the configuration in force, sorted by name.
    pub subscriptions: Vec<SubscriptionStatus>,
}

/// One subscription as this worker sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionStatus {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Generation in force.
    pub generation: i64,
    /// What it does.
    pub state: SubscriptionState,
    /// Why it does not run, or why its last delivery failed; absent when all is well.
    pub reason: Option<StopReason>,
    /// Next step for a human; never a peer's text.
    pub message: Option<String>,
    /// True after a success, false after a failure, absent before the first attempt.
    pub delivering: Option<bool>,
    /// Assigned partitions.
    pub partitions: Vec<PartitionStatus>,
    /// Requests under way.
    pub in_flight: u32,
    /// Events waiting for a retry.
    pub retrying: u32,
    /// Whether the endpoint is taken for down.
    #[serde(default)]
    pub breaker: BreakerState,
    /// Requests that may be under way at once now: what the endpoint was found to take, within the configured number.
    #[serde(default)]
    pub concurrency: u32,
    /// Events completed per second (delivered, filtered out or dead-lettered), a moving average.
    pub rate_per_second: f64,
    /// Since the process started.
    pub totals: Totals,
}

/// What a subscription does in a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubscriptionState {
    /// Joining its group.
    #[default]
    Starting,
    /// Delivering.
    Running,
    /// Suspended by its spec.
    Suspended,
    /// Stopped until a human acts.
    Stopped,
}

/// What a subscription thinks of its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BreakerState {
    /// It works, or single events fail.
    #[default]
    Closed,
    /// It is down: nothing is sent but a probe from time to time, and no attempt counts.
    Open,
    /// It came back: more and more is sent.
    HalfOpen,
}

/// Why a subscription does not run or does not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The endpoint answered 410.
    EndpointGone,
    /// The address guard refused the endpoint.
    AddressRefused,
    /// The filter does not compile.
    FilterInvalid,
    /// The sink's configuration can't be used.
    SinkInvalid,
    /// A partition has neither a committed offset nor a start offset.
    PositionMissing,
    /// A partition's log ends before the committed offset.
    PositionOutOfRange,
    /// No broker answers.
    #[serde(alias = "BrokerUnavailable")]
    BrokerUnreachable,
    /// The brokers refused user or password.
    BrokerAuthenticationFailed,
    /// The TLS handshake with the brokers failed, or a certificate can't be used.
    BrokerTlsFailed,
    /// The brokers refuse what the worker needs, for want of a right for example.
    BrokerRefused,
    /// The topic does not exist.
    TopicMissing,
    /// The dead letter topic does not take an event.
    DeadLettersRefused,
    /// The last attempts failed.
    DeliveryFailing,
    /// The endpoint is down: deliveries wait, and no attempt counts.
    EndpointUnavailable,
    /// An event was tried enough, and the subscription is to stop then.
    DeliveryExhausted,
    /// Too much finished beyond the committed prefix.
    PrefixFull,
}

/// One assigned partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartitionStatus {
    /// Partition number.
    pub partition: i32,
    /// Committed offset, as this worker committed it.
    pub committed: Option<i64>,
    /// Kafka timestamp of the first uncommitted record this worker knows, RFC 3339.
    pub oldest_event_time: Option<String>,
    /// Offsets that retention removed before they were read, as long as the last loss is less than a day ago.
    #[serde(default)]
    pub expired: i64,
}

/// Counters since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Totals {
    /// Events accepted by the sink.
    pub delivered: u64,
    /// Failed attempts.
    pub failed_attempts: u64,
    /// Events the filter did not match.
    pub filtered: u64,
    /// Events whose filter evaluation failed (counted as not matching).
    pub filter_errors: u64,
    /// Events given to the dead letter topic.
    pub dead_lettered: u64,
    /// Offsets that retention removed before they were read.
    pub expired: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r"
namespace: social
topicName: posts
broker:
  cluster:
    bootstrapServers: kafka:9092
    auth: {mechanism: ScramSha512, userFile: u.user, passwordFile: u.password}
  topic: social.posts
  deadLetterTopic: social.posts.dead
egress: {allowedCIDRs: [10.0.0.0/8], refusedCIDRs: [10.96.0.1/32]}
subscriptions:
- name: search
  uid: 1f
  generation: 3
  groupId: social.search
  filter: event.type == 'post.created'
  sink: {webhook: {url: 'https://search.example/hook', signingSecretFiles: [1f.signing.0], timeoutSeconds: 10}}
  delivery: {ordering: PerKey, maxInFlight: 64, retry: {maxAttempts: 5, initialBackoffMilliseconds: 500, maxBackoffSeconds: 60, maxAgeSeconds: 3600}}
  startOffsets: [{partition: 0, offset: 7}]
";

    #[test]
    fn configuration_round_trips_through_yaml() {
        let config: ConsumerConfig = serde_yaml::from_str(FULL).unwrap();
        assert_eq!(config.subscriptions[0].start_offsets[0].offset, 7);
        let again: ConsumerConfig =
            serde_yaml::from_str(&serde_yaml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let text = FULL.replace("generation: 3", "generation: 3\n  priority: 9");
        let error = serde_yaml::from_str::<ConsumerConfig>(&text).unwrap_err();
        assert!(error.to_string().contains("priority"), "{error}");
    }
}
