//! Names of conditions and of the operator's own reasons; workers' error classes add theirs (contract, `reason`).
//!
//! A type ends in nothing that tells its polarity, so its doc does: *normal* means True is good, *abnormal* means
//! True is bad.

/// Normal, both kinds: the summary. True with reason [`reason::SUSPENDED`] while suspended.
pub const READY: &str = "Ready";
/// Abnormal, both kinds: the operator works towards the spec and is not there yet.
pub const RECONCILING: &str = "Reconciling";
/// Abnormal, both kinds: only a human can mend it.
pub const STALLED: &str = "Stalled";

/// Normal, FanoutTopic: the relays read the outbox.
pub const SOURCE_REACHABLE: &str = "SourceReachable";
/// Normal, FanoutTopic: the Kafka topic and its dead letter topic exist, are ours, and are as the spec says.
pub const LOG_READY: &str = "LogReady";
/// Normal, FanoutTopic: at least one relay is ready and runs the current configuration.
pub const RELAY_AVAILABLE: &str = "RelayAvailable";
/// Abnormal, FanoutTopic: rows are held back, with reason [`reason::ROWS_PARKED`] or [`reason::LONG_TRANSACTION`].
pub const OUTBOX_BLOCKED: &str = "OutboxBlocked";

/// Normal, Subscription: the group has an offset for every partition.
pub const POSITION_INITIALIZED: &str = "PositionInitialized";
/// Normal, Subscription: filter, address and secrets of the sink can be used.
pub const SINK_ACCEPTED: &str = "SinkAccepted";
/// Normal, Subscription: its worker is ready and runs the current configuration.
pub const WORKERS_AVAILABLE: &str = "WorkersAvailable";
/// Normal, Subscription: the last deliveries succeeded; keeps its value while idle.
pub const DELIVERING: &str = "Delivering";

/// Reasons the operator gives by itself.
pub mod reason {
    /// All is as the spec says.
    pub const SUCCEEDED: &str = "Succeeded";
    /// `spec.suspend` is true.
    pub const SUSPENDED: &str = "Suspended";
    /// Not observed yet.
    pub const PENDING: &str = "Pending";
    /// Work is under way.
    pub const PROGRESSING: &str = "Progressing";
    /// Workers do not run the current configuration yet.
    pub const CONFIGURATION_PENDING: &str = "ConfigurationPending";
    /// No worker pod is ready.
    pub const PODS_NOT_READY: &str = "PodsNotReady";
    /// A worker's `/status` can't be read.
    pub const STATUS_UNKNOWN: &str = "StatusUnknown";
    /// An object the spec can't be used with, for example a name that is too long.
    pub const SPEC_INVALID: &str = "SpecInvalid";
    /// The Kubernetes API refused or failed; it is tried again.
    pub const API_ERROR: &str = "ApiError";

    /// A referenced Secret is missing or not labelled `fanout.dev/credentials=true`.
    pub const SECRET_NOT_PERMITTED: &str = "SecretNotPermitted";
    /// A referenced Secret lacks the key.
    pub const SECRET_KEY_MISSING: &str = "SecretKeyMissing";
    /// The FanoutTopic does not exist.
    pub const TOPIC_NOT_FOUND: &str = "TopicNotFound";
    /// The FanoutTopic's log is not ready.
    pub const TOPIC_NOT_READY: &str = "TopicNotReady";
    /// The group has members, so the missing start offsets are in the worker's configuration.
    pub const START_OFFSETS_CONFIGURED: &str = "StartOffsetsConfigured";
    /// An older FanoutTopic uses the same Kafka topic, or an older Subscription the same group.
    pub const NAME_CONFLICT: &str = "NameConflict";

    /// No broker answers.
    pub const BROKER_UNREACHABLE: &str = "BrokerUnreachable";
    /// The brokers refused the credentials.
    pub const BROKER_AUTHENTICATION_FAILED: &str = "BrokerAuthenticationFailed";
    /// The brokers refused the request.
    pub const BROKER_REFUSED: &str = "BrokerRefused";
    /// A Kafka topic of that name exists and is not ours, or was replaced.
    pub const FOREIGN_TOPIC: &str = "ForeignTopic";
    /// The topic was ours and is gone.
    pub const TOPIC_DELETED: &str = "TopicDeleted";
    /// The topic differs from the spec in what the operator does not change.
    pub const TOPIC_DRIFTED: &str = "TopicDrifted";
    /// More partitions would reorder keys of a PerKey Subscription, and `allowReorder` is false.
    pub const REORDER_NOT_ALLOWED: &str = "ReorderNotAllowed";

    /// Rows that can't be published were set aside, with the later rows of their keys.
    pub const ROWS_PARKED: &str = "RowsParked";
    /// A transaction has been open for more than 60 seconds.
    pub const LONG_TRANSACTION: &str = "LongTransaction";

    /// The filter does not compile.
    pub const FILTER_INVALID: &str = "FilterInvalid";
    /// The address guard refuses the endpoint.
    pub const ADDRESS_REFUSED: &str = "AddressRefused";
    /// The sink can't be used as configured.
    pub const SINK_INVALID: &str = "SinkInvalid";
    /// The endpoint answered 410; the annotation `fanout.dev/resume` lets it run again.
    pub const ENDPOINT_GONE: &str = "EndpointGone";
    /// The last attempts failed.
    pub const DELIVERY_FAILING: &str = "DeliveryFailing";
    /// Too much finished beyond the committed position.
    pub const PREFIX_FULL: &str = "PrefixFull";
}
