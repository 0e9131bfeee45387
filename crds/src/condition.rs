//! Conditions of both kinds: their names, what True means, and their [`reason`]s. The reference documentation is made
//! from the tables here.

pub mod reason;

/// Which value of a condition is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polarity {
    /// True is good.
    Normal,
    /// True is bad.
    Abnormal,
}

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionType {
    /// `type`.
    pub name: &'static str,
    /// What True means.
    pub meaning: &'static str,
    /// Which value is good.
    pub polarity: Polarity,
    /// Kinds that have it.
    pub kinds: &'static [&'static str],
}

/// Defines the constant and the table's entry of each condition.
macro_rules! conditions {
    ($($(#[doc = $meaning:literal])+ $constant:ident = $name:literal, $polarity:ident, [$($kind:literal),+];)+) => {
        $($(#[doc = $meaning])+ pub const $constant: &str = $name;)+
        /// Every condition, in the order in which a status has them.
        pub const CONDITIONS: &[ConditionType] = &[$(ConditionType {
            name: $name,
            meaning: concat!($($meaning),+),
            polarity: Polarity::$polarity,
            kinds: &[$($kind),+],
        }),+];
    };
}

conditions! {
    /// The workers run this generation of the spec. The summary of what is needed for that; `kubectl get` shows its reason.
    /// True with reason `Suspended` while suspended.
    READY = "Ready", Normal, ["FanoutTopic", "Subscription"];
    /// The operator works towards the spec and is not there yet.
    RECONCILING = "Reconciling", Abnormal, ["FanoutTopic", "Subscription"];
    /// Only a human can mend it.
    STALLED = "Stalled", Abnormal, ["FanoutTopic", "Subscription"];

    /// The relays read the outbox.
    SOURCE_REACHABLE = "SourceReachable", Normal, ["FanoutTopic"];
    /// The Kafka topic and its dead letter topic exist, are this FanoutTopic's, and take records.
    LOG_READY = "LogReady", Normal, ["FanoutTopic"];
    /// At least one relay is ready and runs the current configuration.
    RELAY_AVAILABLE = "RelayAvailable", Normal, ["FanoutTopic"];
    /// Rows are held back; those of other keys or transactions still flow.
    OUTBOX_BLOCKED = "OutboxBlocked", Abnormal, ["FanoutTopic"];

    /// The consumer group has an offset for every partition.
    POSITION_INITIALIZED = "PositionInitialized", Normal, ["Subscription"];
    /// Address and secrets of the sink can be used.
    SINK_ACCEPTED = "SinkAccepted", Normal, ["Subscription"];
    /// Its worker is ready and runs the current configuration.
    WORKERS_AVAILABLE = "WorkersAvailable", Normal, ["Subscription"];
    /// The last deliveries succeeded. Keeps its value while nothing arrives.
    DELIVERING = "Delivering", Normal, ["Subscription"];
    /// Retention removed records before they were delivered. Stays for a day; delivery goes on with the first record that
    /// is left.
    RECORDS_EXPIRED = "RecordsExpired", Abnormal, ["Subscription"];
}

/// Polarity of the condition `name`; `None` where there is no such condition.
pub fn polarity(name: &str) -> Option<Polarity> {
    CONDITIONS
        .iter()
        .find(|condition| condition.name == name)
        .map(|condition| condition.polarity)
}
