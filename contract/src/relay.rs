//! The relay's configuration file and its `/status` document.

use crate::kafka::Kafka;
use crate::reason::SourceError;
use serde::{Deserialize, Serialize};

/// Contents of `config.yaml` of a relay: one FanoutTopic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RelayConfig {
    /// Namespace of the FanoutTopic.
    pub namespace: String,
    /// Name of the FanoutTopic.
    pub name: String,
    /// `metadata.generation` of the FanoutTopic this was rendered from.
    pub generation: i64,
    /// Publish nothing, but keep measuring.
    #[serde(default)]
    pub suspend: bool,
    /// Publish nothing any more, and delete the topic's positions once no relay publishes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete_positions: bool,
    /// System identifier of the server that shall be published from although its positions are not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_source: Option<String>,
    /// What becomes of the later rows of a key when one of its rows is parked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_parked: OnParked,
    /// How a row becomes a record.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: Format,
    /// The record of a row whose payload is NULL, in format `CloudEvents`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub null_payload: NullPayload,
    /// Whether a repeat may become visible.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delivery: Delivery,
    /// The outbox.
    pub source: Source,
    /// The log.
    pub broker: Broker,
}

/// Left out of a file, so that a worker of an older version can read it too.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How a row becomes a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// A CloudEvent 1.0 in Kafka binary mode.
    #[default]
    CloudEvents,
    /// What Debezium's outbox event router makes of the row by default.
    Debezium,
}

/// Whether a repeat may become visible in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// What was unconfirmed at a crash is repeated.
    #[default]
    Standard,
    /// Records and position are one Kafka transaction: who reads committed records sees none twice.
    Transactional,
}

/// The record of a row whose payload is NULL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NullPayload {
    /// It has a value of no bytes.
    #[default]
    Empty,
    /// It has no value: on a compacted topic it deletes its key.
    Tombstone,
}

/// What becomes of the later rows of a key when one of its rows can't be published and is parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnParked {
    /// They are held until the parked row is released or dropped.
    #[default]
    Block,
    /// They go on.
    Skip,
}

/// Where rows come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Source {
    /// An outbox table in PostgreSQL.
    Postgres(PostgresSource),
}

/// An outbox table in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PostgresSource {
    /// File with the connection URL (`postgres://…`).
    pub url_file: String,
    /// File with the PEM bundle that signs the server's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// `schema.table`.
    pub table: String,
    /// Rows of the table that belong to the topic: all of these must hold. Empty: the whole table.
    pub r#match: Vec<ColumnMatch>,
    /// How rows are claimed.
    #[serde(default)]
    pub claim: Claim,
    /// Where the fields of an event come from. Absent: the columns of the standard table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Columns>,
    /// What a topic without a stored position publishes.
    #[serde(default)]
    pub start_from: RelayStart,
    /// Published rows are kept this long after `created_at`.
    pub retention_seconds: i64,
}

/// `column = value`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ColumnMatch {
    /// Column of the outbox table.
    pub column: String,
    /// Text value it must equal.
    pub value: String,
}

/// Where the fields of an event come from. A field that is not named: the column of the standard table, which `eventId`,
/// `subject`, `contentType`, `headers` and `traceparent` can do without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Columns {
    /// What identifies a row and, a number, orders rows: a column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<ColumnSource>,
    /// Id of the event. Without one it is derived from the FanoutTopic's name and the row's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<ColumnSource>,
    /// Key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<ColumnSource>,
    /// Type of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<ColumnSource>,
    /// Subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<ColumnSource>,
    /// Media type of the payload. Without one: `application/json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<ColumnSource>,
    /// Further headers: a JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<ColumnSource>,
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<ColumnSource>,
    /// Data of the event: a column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<ColumnSource>,
    /// Time of the event: a column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<ColumnSource>,
}

/// Where one field comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ColumnSource {
    /// A column of the table.
    Column(String),
    /// The same text for every row.
    Value(String),
    /// The first item at this SQL/JSON path in the payload, which must be `jsonb`; its text.
    JsonPath(String),
}

/// How rows are claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claim {
    /// By the difference of two `pg_snapshot`s; the relay writes nothing per row.
    #[default]
    Snapshot,
    /// Rows go from `pending` to `processing` to `done`.
    Lease,
    /// Published rows are deleted.
    Delete,
}

/// First position of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayStart {
    /// Every row in the table.
    #[default]
    Earliest,
    /// Rows that commit after the relay first ran.
    Latest,
}

/// Where records go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Broker {
    /// A Kafka topic.
    Kafka(KafkaTarget),
}

/// A Kafka topic to produce to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KafkaTarget {
    /// The cluster.
    pub cluster: Kafka,
    /// Topic name.
    pub topic: String,
}

/// `/status` of one relay process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RelayStatus {
    /// Hash of the configuration in force (see `fanout_runtime::config`).
    pub config_hash: String,
    /// `generation` of the configuration in force.
    pub generation: i64,
    /// Suspended by configuration.
    pub suspended: bool,
    /// True once the database holds no position of the topic any more, because the configuration in force says so.
    pub positions_deleted: bool,
    /// Why the outbox can't be read; absent when it can.
    pub source_error: Option<Problem<SourceError>>,
    /// Why nothing can be produced; absent when it can.
    pub broker_error: Option<Problem<crate::reason::BrokerError>>,
    /// True once the outbox was read successfully under this configuration.
    pub source_checked: bool,
    /// False where the rows of the outbox have no order: nothing is published in the order of a key; absent: not known.
    pub ordered: Option<bool>,
    /// Committed rows not yet published in this process's ranges, counted up to a cap; absent: not known (yet).
    pub pending: Option<Pending>,
    /// Rows published per second, a moving average.
    pub rate_per_second: f64,
    /// Rows published by this process since it started.
    pub published_total: u64,
    /// Ranges this process holds the lease of.
    pub ranges: Vec<RangeStatus>,
    /// Rows that could not be produced, and rows held behind them, over the whole topic.
    pub parked: Parked,
    /// The oldest transaction that holds rows back, when it is older than a minute.
    pub long_transaction: Option<LongTransaction>,
}

/// Something that does not work, without any text of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem<C> {
    /// Stable class, used as condition reason.
    pub class: C,
    /// What a human should do next; names the field, table, column or step. Never contains a peer's text.
    pub message: String,
}

/// Rows waiting in the outbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// Rows, at most [`PENDING_CAP`], which then means "at least".
    pub rows: i64,
    /// `created_at` of the first due row, RFC 3339; absent when none is due.
    pub oldest_event_time: Option<String>,
}

/// Rows are counted up to this number.
pub const PENDING_CAP: i64 = 1_000_000;

/// One range of shards whose lease this process holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RangeStatus {
    /// Never-reused id.
    pub id: i64,
    /// First shard.
    pub lo: i32,
    /// One past the last shard.
    pub hi: i32,
    /// Fencing token.
    pub term: i64,
}

/// Rows set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parked {
    /// Rows that can never be produced as they are.
    pub rows: i64,
    /// Rows held behind a parked row of their key.
    pub held: i64,
}

impl Parked {
    /// Both.
    pub const fn total(self) -> i64 {
        self.rows.saturating_add(self.held)
    }
}

/// A writing transaction that has been open for long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LongTransaction {
    /// Server process id.
    pub pid: i32,
    /// Age, seconds; absent where the relay may not see it.
    pub age_seconds: Option<i64>,
}
