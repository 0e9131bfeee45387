//! Kind FanoutTopic: an outbox table, the log behind it, and how its relays run.

pub use crate::columns::{ColumnSource, Columns, TableColumn};
use crate::deletion::DeletionPolicy;
use crate::pod::PodSettings;
use crate::reference::SecretKeyRef;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is published, from where, to where.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fanout.dev",
    version = "v1alpha1",
    kind = "FanoutTopic",
    namespaced,
    status = "FanoutTopicStatus",
    derive = "PartialEq",
    shortname = "ftopic",
    category = "fanout",
    doc = "An outbox table in PostgreSQL, the Kafka topic behind it, and the relays that publish every committed row. Subscriptions refer to it by name.",
    validation = Rule::new("size(self.metadata.name) <= 40").message("metadata.name must be at most 40 characters long"),
    validation = Rule::new("!has(self.spec.relay) || !has(self.spec.relay.delivery) || self.spec.relay.delivery == 'Standard' || self.spec.source.postgres.claim == 'Snapshot'").message("relay.delivery Transactional needs source.postgres.claim Snapshot: with other claims the rows say what is published, and they are no part of a Kafka transaction"),
    printcolumn(name = "Broker", type_ = "string", json_path = ".status.broker", description = "Kind of log behind the topic."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "True when committed rows reach the log."),
    printcolumn(name = "Pending", type_ = "integer", json_path = ".status.outbox.pending", description = "Committed rows not yet published; 1000000 means at least so many."),
    printcolumn(name = "Oldest", type_ = "date", json_path = ".status.outbox.oldestEventTime", description = "Age of the oldest row not yet published."),
    printcolumn(name = "Relays", type_ = "string", json_path = ".status.relay.ready", description = "Ready relays of those wanted."),
    printcolumn(name = "Subs", type_ = "integer", json_path = ".status.subscriptions", description = "Subscriptions that refer to the topic."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why it is ready or not."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation."),
    printcolumn(name = "Parked", type_ = "integer", json_path = ".status.parked", description = "Rows set aside because they can't be published, and rows held behind them.", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", description = "What to do next.", priority = 1),
)]
#[serde(rename_all = "camelCase")]
pub struct FanoutTopicSpec {
    /// True publishes nothing and keeps the position; what waits is still measured.
    #[serde(default)]
    pub suspend: bool,
    /// Where rows come from.
    pub source: Source,
    /// The log that rows are published to.
    pub broker: Broker,
    /// How relays run.
    #[serde(default)]
    pub relay: Relay,
    /// How the consumers of the topic's Subscriptions run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumers: Option<Consumers>,
    /// Retain: when the FanoutTopic is deleted, its Kafka topics and the relay's positions stay. Delete: the relay deletes its
    /// positions, then the Kafka topic and those beside it (dead letters, positions) are deleted, as long as they have the recorded UUIDs, also
    /// when they existed before the FanoutTopic. Meanwhile the finalizer `fanout.dev/cleanup` keeps the object, at most for
    /// the operator's deletion deadline (300 seconds unless installed otherwise): what could not be deleted by then stays.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Where rows come from. Exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// An outbox table in PostgreSQL.
    Postgres(PostgresSource),
}

/// An outbox table in PostgreSQL, laid out as in manifests/sql, or another one whose columns are mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.claim == 'Snapshot' || self.startFrom.position == 'Earliest'")
        .message("startFrom.position must be Earliest unless claim is Snapshot"),
)]
pub struct PostgresSource {
    /// Secret value with the relay's connection URL, `postgres://user:password@host:5432/database`.
    pub url_secret_ref: SecretKeyRef,
    /// Secret value with the PEM certificates that sign the server's certificate. Absent: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeyRef>,
    /// Outbox table as `schema.table`. Names are case-sensitive. Immutable.
    #[schemars(
        length(min = 1, max = 127),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_$]{0,62}\.[A-Za-z_][A-Za-z0-9_$]{0,62}$")
    )]
    #[x_kube(validation = Rule::new("self == oldSelf").message("table must not change"))]
    pub table: String,
    /// Where the fields of an event come from. Absent: the columns of the table in manifests/sql.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Columns>,
    /// Which rows of the table belong to this topic: all of these must hold. Absent: rows whose column `topic` (or
    /// columns.topic) equals the FanoutTopic's name. An empty list: every row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["column".into()]))]
    pub r#match: Option<Vec<ColumnMatch>>,
    /// How rows are claimed. Snapshot: by the difference of two database snapshots; the relay writes nothing per row.
    /// Lease: the relay takes each row from pending to processing to done. Delete: the relay deletes each row that is
    /// published; any table will do. See docs/claim-modes.md before you change it.
    #[serde(default)]
    pub claim: Claim,
    /// What is published when the topic has no position yet. Immutable.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("startFrom must not change"))]
    pub start_from: SourceStart,
    /// Published rows are deleted from the table this long after they were created, seconds. Claim mode Delete deletes
    /// them at once.
    #[serde(default = "default_retention_seconds")]
    #[schemars(range(min = 60, max = 315_360_000))]
    pub retention_seconds: i64,
}

const fn default_retention_seconds() -> i64 {
    86_400
}

/// `column = value`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ColumnMatch {
    /// Column of the outbox table. Case-sensitive.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_$]*$")
    )]
    pub column: String,
    /// Text the column must equal.
    #[schemars(length(max = 256))]
    pub value: String,
}

/// How rows are claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Claim {
    /// By the difference of two database snapshots.
    #[default]
    Snapshot,
    /// By a status in each row.
    Lease,
    /// By deleting what is published.
    Delete,
}

/// First position of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStart {
    /// Earliest publishes every row already in the table, Latest only rows that commit after the relay first ran.
    #[serde(default)]
    pub position: SourcePosition,
}

/// End of an outbox table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SourcePosition {
    /// Every row in the table.
    #[default]
    Earliest,
    /// Rows that commit after the relay first ran.
    Latest,
}

/// The log. Exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Broker {
    /// Apache Kafka.
    Kafka(KafkaBroker),
}

impl Broker {
    /// The member's name as `status.broker` shows it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "Kafka",
        }
    }
}

/// A topic on an Apache Kafka cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaBroker {
    /// Brokers to start from, `host:port`, separated by commas.
    #[schemars(
        length(min = 1, max = 1024),
        regex(
            pattern = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}(,(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5})*$"
        )
    )]
    pub bootstrap_servers: String,
    /// Principal of the relays and of the operator, which creates the topic. Absent: no authentication, no TLS.
    #[serde(default)]
    pub auth: KafkaAuth,
    /// Principal of the consumers, which need to read the topic, commit in their groups and write to the dead
    /// letter topic; the operator reads and commits offsets of these groups as it. Absent: the same as auth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_auth: Option<KafkaAuth>,
    /// The Kafka topic, which the operator creates.
    #[serde(default)]
    pub topic: KafkaTopic,
}

/// How to authenticate to Kafka. TLS is used when a CA or a client certificate is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.mechanism == 'None' || (has(self.userSecretRef) && has(self.passwordSecretRef))")
        .message("userSecretRef and passwordSecretRef must be set unless mechanism is None"),
    validation = Rule::new("self.mechanism != 'None' || (!has(self.userSecretRef) && !has(self.passwordSecretRef))")
        .message("userSecretRef and passwordSecretRef must be absent when mechanism is None"),
    validation = Rule::new("has(self.clientCertSecretRef) == has(self.clientKeySecretRef)")
        .message("clientCertSecretRef and clientKeySecretRef must be set together"),
)]
pub struct KafkaAuth {
    /// SASL mechanism. None: no SASL.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// Secret value with the SASL user name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_secret_ref: Option<SecretKeyRef>,
    /// Secret value with the SASL password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<SecretKeyRef>,
    /// Secret value with the PEM certificates that sign the brokers' certificates. Switches TLS on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeyRef>,
    /// Secret value with the PEM client certificate. Switches TLS on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cert_secret_ref: Option<SecretKeyRef>,
    /// Secret value with the PEM key (PKCS#8) of the client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key_secret_ref: Option<SecretKeyRef>,
}

/// SASL mechanism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mechanism {
    /// No SASL.
    #[default]
    None,
    /// SASL/PLAIN.
    Plain,
    /// SASL/SCRAM-SHA-256.
    ScramSha256,
    /// SASL/SCRAM-SHA-512.
    ScramSha512,
}

/// The Kafka topic. The operator creates it once and afterwards only adds partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)")
        .message("topic.name must not change"),
    validation = Rule::new("!has(oldSelf.partitions) || (has(self.partitions) && self.partitions >= oldSelf.partitions)")
        .message("topic.partitions must not shrink or be removed"),
)]
pub struct KafkaTopic {
    /// Name on the cluster. Absent: `<namespace>.<name>` behind the operator's prefix. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 244),
        regex(pattern = r"^[a-zA-Z0-9._-]*[a-zA-Z0-9_-][a-zA-Z0-9._-]*$")
    )]
    pub name: Option<String>,
    /// Number of partitions; can only grow. Absent: the broker's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub partitions: Option<i32>,
    /// Copies of each partition, used when the topic is created. Absent: the broker's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 15))]
    pub replication_factor: Option<i32>,
    /// Settings of the topic, for example `retention.ms`. Used when it is created; a later difference is reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub config: Vec<TopicConfig>,
    /// True lets partitions grow although a Subscription with ordering PerKey exists: a key may move to another
    /// partition, and its events around that moment may be reordered.
    #[serde(default)]
    pub allow_reorder: bool,
}

/// One setting of a Kafka topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopicConfig {
    /// Name as Kafka spells it.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[a-z][a-z0-9.]*$"))]
    pub name: String,
    /// Value as text.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// How relays run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.format == 'CloudEvents' || self.nullPayload == 'Empty'")
        .message("relay.nullPayload is for format CloudEvents; Debezium's router always writes no value"),
)]
pub struct Relay {
    /// Number of relay pods. They share the work evenly.
    #[serde(default = "default_relay_replicas")]
    #[schemars(range(min = 1, max = 16))]
    pub replicas: i32,
    /// What becomes of the later rows of a key when one of its rows can't be published and is parked in `fanout.parked`.
    /// Block: they are held there until it is released or dropped, which keeps the order. Skip: they go on, and what was
    /// held goes out first; the parked row waits on its own, and comes late if it is released.
    #[serde(default)]
    pub on_parked: OnParked,
    /// How a row becomes a record. CloudEvents: a CloudEvent 1.0 in Kafka binary mode, which Subscriptions need. Debezium: what
    /// Debezium's outbox event router makes of the row by default, for readers that expect it: the key is the row's key, the
    /// value its payload, the header `id` its event id; unless the spec names the Kafka topic, it is
    /// `outbox.event.<FanoutTopic>`. Immutable.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("format must not change"))]
    pub format: Format,
    /// The record of a row whose payload is NULL, in format CloudEvents. Empty: with a value of no bytes. Tombstone: without a
    /// value, which deletes the key where the topic is compacted.
    #[serde(default)]
    pub null_payload: NullPayload,
    /// Standard: after a crash, what was not confirmed is published once more. Transactional: records and the relay's position
    /// are one Kafka transaction, so who reads committed records only, as Subscriptions do, sees none twice, except after a
    /// failover of the database. It needs claim Snapshot, brokers with transactions, and a topic of positions that the
    /// operator creates; records become visible some milliseconds later. See docs/transactional.md before you change it.
    #[serde(default)]
    pub delivery: Delivery,
    /// Settings of the relay pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSettings>,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            replicas: default_relay_replicas(),
            on_parked: OnParked::default(),
            format: Format::default(),
            null_payload: NullPayload::default(),
            delivery: Delivery::default(),
            pod: None,
        }
    }
}

/// How a row becomes a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Format {
    /// A CloudEvent 1.0 in Kafka binary mode.
    #[default]
    CloudEvents,
    /// As Debezium's outbox event router makes it by default.
    Debezium,
}

/// The record of a row whose payload is NULL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NullPayload {
    /// With a value of no bytes.
    #[default]
    Empty,
    /// Without a value.
    Tombstone,
}

/// Whether a repeat may become visible in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Delivery {
    /// What was unconfirmed at a crash is repeated.
    #[default]
    Standard,
    /// Records and position are one Kafka transaction.
    Transactional,
}

/// What becomes of the later rows of a parked row's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnParked {
    /// They are held until the parked row is released or dropped.
    #[default]
    Block,
    /// They go on.
    Skip,
}

const fn default_relay_replicas() -> i32 {
    2
}

/// How consumers run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Consumers {
    /// Settings of the consumer pods, of pools and dedicated ones alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSettings>,
}

/// What the operator saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FanoutTopicStatus {
    /// Generation of the spec that this status describes; -1 before the operator saw the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1, max = 9_007_199_254_740_991_i64))]
    pub observed_generation: Option<i64>,
    /// Conditions. Normal when True: Ready, SourceReachable, LogReady, RelayAvailable. Abnormal when True:
    /// Reconciling, Stalled (only a human can mend it), OutboxBlocked (rows are held back).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Kind of log behind the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub broker: Option<String>,
    /// Id of the Kafka cluster the topic lies on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub cluster_id: Option<String>,
    /// Name of the Kafka topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 249))]
    pub topic_name: Option<String>,
    /// UUID that Kafka gave the topic. A topic of the same name with another UUID is never touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub topic_id: Option<String>,
    /// UUID that Kafka gave the dead letter topic `<topicName>.dead`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub dead_letter_topic_id: Option<String>,
    /// UUID that Kafka gave the topic of the positions, `<topicName>.positions`, which relays with delivery Transactional use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub positions_topic_id: Option<String>,
    /// What waits in the outbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbox: Option<OutboxStatus>,
    /// Rows in `fanout.parked`: those that can't be published, and those held behind them. Exact up to 15; above, written
    /// when it moved by about 10 %; metrics are live. Absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub parked: Option<i64>,
    /// False where the outbox has no column that orders its rows: nothing can be delivered in the order of a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<bool>,
    /// The relays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<RelayStatus>,
    /// Number of Subscriptions that refer to the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub subscriptions: Option<i32>,
}

/// What waits in the outbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutboxStatus {
    /// Committed rows not yet published; 1000000 means at least so many. Written when it moved by at least 10 %
    /// and at least 100, or to or from 0; metrics are live. Absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub pending: Option<i64>,
    /// When the oldest row not yet published was created. Absent: none waits, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_event_time: Option<Time>,
}

/// The relays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RelayStatus {
    /// Ready relays of those wanted, for example `2/2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub ready: Option<String>,
}
