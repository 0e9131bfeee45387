//! Reasons of conditions: what each means, on which conditions it stands, and what to do about it.

use super::{
    DELIVERING, LOG_READY, OUTBOX_BLOCKED, POSITION_INITIALIZED, READY, RECONCILING,
    RECORDS_EXPIRED, RELAY_AVAILABLE, SINK_ACCEPTED, SOURCE_REACHABLE, STALLED, WORKERS_AVAILABLE,
};

/// How long a reason stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// As long as all is well.
    Good,
    /// Seconds: nobody needs to act.
    Passing,
    /// Until its cause is gone: it has a page in docs/runbooks.
    Lasting,
}

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `reason`.
    pub name: &'static str,
    /// What it says.
    pub meaning: &'static str,
    /// How long it stays.
    pub course: Course,
    /// Conditions it is given on. With [`STALLED`] among them only a human can mend it, at least sometimes.
    pub conditions: &'static [&'static str],
    /// What to do.
    pub next_step: &'static str,
}

/// Defines the constant and the table's entry of each reason.
macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $constant:ident = $name:literal, $course:ident, $conditions:expr, $next:literal;)+) => {
        $($(#[doc = $meaning])+ pub const $constant: &str = $name;)+
        /// Every reason. Those of the outbox have the names of the relay's error classes (contract, `SourceError`).
        pub const REASONS: &[Reason] = &[$(Reason {
            name: $name,
            meaning: concat!($($meaning),+),
            course: Course::$course,
            conditions: $conditions,
            next_step: $next,
        }),+];
    };
}

/// What the outbox suffers from is mended by a human.
const OUTBOX: &[&str] = &[READY, STALLED, SOURCE_REACHABLE];
/// What an outbox that can't be read now suffers from.
const OUTBOX_NOW: &[&str] = &[READY, SOURCE_REACHABLE];
/// A referenced value can't be used: the FanoutTopic stalls; the Subscription stalls, and no worker serves it.
const REFERENCE: &[&str] = &[READY, STALLED, SINK_ACCEPTED, WORKERS_AVAILABLE];
/// The operator, the relays or the consumers are told so by Kafka.
const KAFKA: &[&str] = &[READY, STALLED, LOG_READY, POSITION_INITIALIZED, DELIVERING];
/// The FanoutTopic's Kafka topic is not the one it was.
const TOPIC: &[&str] = &[READY, STALLED, LOG_READY];
/// The endpoint can't be used.
const SINK: &[&str] = &[READY, STALLED, SINK_ACCEPTED, WORKERS_AVAILABLE, DELIVERING];
/// State of the pods.
const PODS: &[&str] = &[READY, RELAY_AVAILABLE, WORKERS_AVAILABLE];

reasons! {
    /// All is as the spec says, or what an abnormal condition warns of is not the case.
    SUCCEEDED = "Succeeded", Good, &[
        READY, RECONCILING, STALLED, SOURCE_REACHABLE, LOG_READY, RELAY_AVAILABLE, OUTBOX_BLOCKED, POSITION_INITIALIZED,
        SINK_ACCEPTED, WORKERS_AVAILABLE, DELIVERING, RECORDS_EXPIRED,
    ], "Nothing.";
    /// `spec.suspend` is true: nothing is published or delivered, and the position is kept.
    SUSPENDED = "Suspended", Good, &[READY], "Nothing; set spec.suspend to false to go on.";
    /// Not observed yet.
    PENDING = "Pending", Passing, &[
        READY, LOG_READY, RELAY_AVAILABLE, POSITION_INITIALIZED, WORKERS_AVAILABLE, DELIVERING,
    ], "Wait; Ready says what it waits for.";
    /// Work is under way: pods start or take over a configuration.
    PROGRESSING = "Progressing", Passing, &[READY, RECONCILING, RELAY_AVAILABLE], "Wait.";
    /// The object is being deleted, and first what its `deletionPolicy` says is deleted.
    DELETING = "Deleting", Passing, &[READY, RECONCILING], "Wait; the message says for what. At the deletion deadline the object goes in any case.";
    /// The group has members, so the missing start offsets are in the worker's configuration instead of being committed.
    START_OFFSETS_CONFIGURED = "StartOffsetsConfigured", Passing, &[POSITION_INITIALIZED], "Nothing: the worker commits them.";

    /// Workers do not run the current configuration yet.
    CONFIGURATION_PENDING = "ConfigurationPending", Lasting, PODS,
        "Wait a minute; then see whether the kubelet refreshes the pod's volume and what the worker logs.";
    /// No worker pod is ready.
    PODS_NOT_READY = "PodsNotReady", Lasting, PODS, "See why the pods do not start: kubectl describe pod.";
    /// A worker's `/status` can't be read, so its state is not known.
    STATUS_UNKNOWN = "StatusUnknown", Lasting, &[READY, SOURCE_REACHABLE, RELAY_AVAILABLE, OUTBOX_BLOCKED, WORKERS_AVAILABLE],
        "Let the operator's pods reach port 8080 of the workers.";
    /// The spec can't be used: a Secret's value is no text, or this version of the operator can't decode a value. What was
    /// configured before goes on where it can't be decoded.
    SPEC_INVALID = "SpecInvalid", Lasting, REFERENCE, "Correct the field that the message names.";
    /// The Kubernetes API refused or failed; it is tried again.
    API_ERROR = "ApiError", Lasting, &[READY], "Look for what refuses: quota, admission policy, rights of the operator.";

    /// A referenced Secret is missing or not labelled `fanout.dev/credentials=true`.
    SECRET_NOT_PERMITTED = "SecretNotPermitted", Lasting, REFERENCE, "Create the Secret, or label it.";
    /// A referenced Secret lacks the key, or its value is empty.
    SECRET_KEY_MISSING = "SecretKeyMissing", Lasting, REFERENCE, "Add the key to the Secret, or correct the reference.";
    /// The FanoutTopic of `spec.topicRef` does not exist.
    TOPIC_NOT_FOUND = "TopicNotFound", Lasting, &[READY, POSITION_INITIALIZED], "Create the FanoutTopic in the same namespace.";
    /// The FanoutTopic publishes in a format that Subscriptions can't read.
    FORMAT_UNSUPPORTED = "FormatUnsupported", Lasting, &[READY, POSITION_INITIALIZED], "Refer to a FanoutTopic with relay.format CloudEvents.";
    /// The FanoutTopic has no Kafka topic that could be read.
    TOPIC_NOT_READY = "TopicNotReady", Lasting, &[READY, POSITION_INITIALIZED, DELIVERING], "Mend the FanoutTopic: see its own conditions.";
    /// Retention removed records before they were delivered: the Subscription was behind, suspended or without a worker for
    /// longer than the Kafka topic keeps records. The records are gone; delivery goes on with the first that is left.
    EXPIRED = "Expired", Lasting, &[READY, RECORDS_EXPIRED],
        "Raise retention.ms of the Kafka topic above the longest time that a Subscription may be behind.";
    /// The log of a partition ends before the committed offset: the brokers lost records, or the topic was replaced. That
    /// partition is not read; the others are.
    POSITION_OUT_OF_RANGE = "PositionOutOfRange", Lasting, &[READY, STALLED, DELIVERING],
        "Change the annotation fanout.dev/resume to deliver everything that the partition holds now.";
    /// An older FanoutTopic uses the same Kafka topic, or an object of a worker's name belongs to somebody else.
    NAME_CONFLICT = "NameConflict", Lasting, &[READY, STALLED], "Give one of the two another name.";

    /// No broker answers.
    BROKER_UNREACHABLE = "BrokerUnreachable", Lasting, &[READY, LOG_READY, POSITION_INITIALIZED, DELIVERING],
        "Check bootstrapServers, the network and Kafka itself.";
    /// The brokers refused user, password or mechanism.
    BROKER_AUTHENTICATION_FAILED = "BrokerAuthenticationFailed", Lasting, KAFKA,
        "Correct the Secrets of spec.broker.kafka.auth or consumerAuth, whichever the message names.";
    /// The TLS handshake with the brokers failed, or a certificate or key can't be used.
    BROKER_TLS_FAILED = "BrokerTlsFailed", Lasting, KAFKA,
        "Correct the certificates in the Secrets of spec.broker.kafka.auth or consumerAuth, whichever the message names.";
    /// The brokers refused the request.
    BROKER_REFUSED = "BrokerRefused", Lasting, KAFKA, "Grant the right, or correct the setting that the message names.";
    /// A Kafka topic or cluster of that name exists and is not the one this FanoutTopic recorded.
    FOREIGN_TOPIC = "ForeignTopic", Lasting, TOPIC, "Decide which topic is meant; nothing touches either until then.";
    /// The topic was there and is gone, with the events in it.
    TOPIC_DELETED = "TopicDeleted", Lasting, TOPIC, "Decide how to go on without what was lost with it.";
    /// The topic differs from the spec in what the operator does not change.
    TOPIC_DRIFTED = "TopicDrifted", Lasting, &[READY, LOG_READY], "Change the topic or the spec so that they agree.";
    /// More partitions would reorder keys of a PerKey Subscription, and `allowReorder` is false.
    REORDER_NOT_ALLOWED = "ReorderNotAllowed", Lasting, TOPIC, "Set allowReorder: true and accept that.";

    /// Rows that can't be published were set aside, with the later rows of their keys.
    ROWS_PARKED = "RowsParked", Lasting, &[OUTBOX_BLOCKED], "Look at fanout.parked.";
    /// A transaction that writes has been open for more than 60 seconds.
    LONG_TRANSACTION = "LongTransaction", Lasting, &[OUTBOX_BLOCKED], "Find the transaction by its process id and end it.";

    /// The outbox has no column that orders its rows, so nothing can be delivered in an order; or `ordering` is Strict, and the
    /// Kafka topic has more than one partition.
    ORDERING_UNAVAILABLE = "OrderingUnavailable", Lasting, &[READY, STALLED, WORKERS_AVAILABLE], "Use ordering None, or give the table an order column; use PerKey instead of Strict.";
    /// The filter does not compile.
    FILTER_INVALID = "FilterInvalid", Lasting, &[READY, STALLED, WORKERS_AVAILABLE, DELIVERING], "Correct spec.filter.";
    /// The address guard refuses the endpoint.
    ADDRESS_REFUSED = "AddressRefused", Lasting, SINK, "Use another address, or have the platform team admit the range.";
    /// The sink can't be used as configured.
    SINK_INVALID = "SinkInvalid", Lasting, SINK, "Correct what the message names, usually a signing secret.";
    /// The endpoint answered 410: it does not want events any more.
    ENDPOINT_GONE = "EndpointGone", Lasting, SINK, "Ask its owner; then change the annotation fanout.dev/resume, or delete the Subscription.";
    /// The last attempts failed.
    DELIVERY_FAILING = "DeliveryFailing", Lasting, &[READY, DELIVERING], "Mend the endpoint; the message says how it fails.";
    /// The endpoint is down: no connection comes about, or nothing has succeeded for a while. Deliveries wait, no attempt
    /// counts, and one request at a time asks whether it is back.
    ENDPOINT_UNAVAILABLE = "EndpointUnavailable", Lasting, &[READY, DELIVERING], "Mend the endpoint; the message says how it fails.";
    /// An event was tried enough, and `spec.delivery.onExhausted` is Pause.
    DELIVERY_EXHAUSTED = "DeliveryExhausted", Lasting, &[READY, STALLED, DELIVERING],
        "Mend the endpoint, then change the annotation fanout.dev/resume; or set onExhausted to DeadLetter.";
    /// The dead letter topic does not take an event; it is sent again.
    DEAD_LETTERS_REFUSED = "DeadLettersRefused", Lasting, &[READY, DELIVERING],
        "Let the consumers' principal write to the dead letter topic, and see that the topic takes the event's size.";
    /// Too much finished beyond the committed position.
    PREFIX_FULL = "PrefixFull", Lasting, &[READY, DELIVERING], "Mend the endpoint for the event that blocks.";

    /// The database server does not answer.
    SOURCE_UNREACHABLE = "SourceUnreachable", Lasting, OUTBOX_NOW, "Check host and port of the URL, the network and PostgreSQL itself.";
    /// The database refused user or password.
    SOURCE_AUTHENTICATION_FAILED = "SourceAuthenticationFailed", Lasting, OUTBOX, "Correct the URL in the Secret, or the role's password.";
    /// The TLS handshake with the database failed.
    SOURCE_TLS_FAILED = "SourceTlsFailed", Lasting, OUTBOX, "Correct caSecretRef, sslmode or the server's certificate.";
    /// The database of the URL does not exist.
    DATABASE_MISSING = "DatabaseMissing", Lasting, OUTBOX, "Correct the database name in the URL.";
    /// The value of `urlSecretRef` is no PostgreSQL URL.
    SOURCE_URL_INVALID = "SourceUrlInvalid", Lasting, OUTBOX, "Correct the URL in the Secret.";
    /// The outbox table does not exist.
    TABLE_MISSING = "TableMissing", Lasting, OUTBOX, "Create it: for claim mode Snapshot by manifests/sql/10-outbox.sql, for Lease by outbox-lease.sql.";
    /// What has the outbox table's name is no table: a view, for example.
    NOT_A_TABLE = "NotATable", Lasting, OUTBOX, "Name a table.";
    /// A column of the outbox or of its mapping is missing, has another type, or lacks NOT NULL or its expression.
    COLUMN_INVALID = "ColumnInvalid", Lasting, OUTBOX, "Make the column as in manifests/sql, or correct spec.source.postgres.columns.";
    /// The relay's role lacks a right.
    SOURCE_PERMISSION_DENIED = "SourcePermissionDenied", Lasting, OUTBOX, "Run the grants of manifests/sql again.";
    /// Schema `fanout` is missing or older than this relay.
    SCHEMA_OUTDATED = "SchemaOutdated", Lasting, OUTBOX, "Run the steps of manifests/sql that are missing.";
    /// The constraint on column `xid` is missing or not as it must be.
    CONSTRAINT_MISSING = "ConstraintMissing", Lasting, OUTBOX, "Run the statement in the message.";
    /// An index that the claim mode reads by is missing or invalid.
    INDEX_MISSING = "IndexMissing", Lasting, OUTBOX, "Create the index in the message.";
    /// The identity column's sequence caches values, which breaks order.
    SEQUENCE_CACHED = "SequenceCached", Lasting, OUTBOX, "Run the statement in the message.";
    /// The stored position belongs to another database, table or history.
    SOURCE_CHANGED = "SourceChanged", Lasting, OUTBOX, "Decide where to go on: the rows' history is not the position's.";
    /// The server is a standby.
    SOURCE_READ_ONLY = "SourceReadOnly", Lasting, OUTBOX_NOW, "Let the URL lead to the primary.";
    /// The database refused a statement for another cause.
    SOURCE_QUERY_FAILED = "SourceQueryFailed", Lasting, OUTBOX_NOW, "Look up the SQLSTATE in the message.";
}

/// The reason `name`.
pub fn find(name: &str) -> Option<&'static Reason> {
    REASONS.iter().find(|reason| reason.name == name)
}

impl Reason {
    /// True where only a human can mend it, at least sometimes.
    pub fn needs_human(&self) -> bool {
        self.name != SUCCEEDED && self.conditions.contains(&STALLED)
    }
}
