//! Stable error classes that workers report and the operator turns into condition reasons.

use serde::{Deserialize, Serialize};

/// Why an outbox can't be read. The names are condition reasons; an alias is what older relays call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceError {
    /// The server does not answer.
    #[serde(alias = "Unreachable")]
    SourceUnreachable,
    /// User or password refused.
    #[serde(alias = "AuthenticationFailed")]
    SourceAuthenticationFailed,
    /// The TLS handshake failed.
    #[serde(alias = "TlsFailed")]
    SourceTlsFailed,
    /// The database of the URL does not exist.
    DatabaseMissing,
    /// The URL can't be parsed.
    #[serde(alias = "UrlInvalid")]
    SourceUrlInvalid,
    /// The table does not exist.
    TableMissing,
    /// There is something of the table's name that is no table: a view, for example.
    NotATable,
    /// A column of the table or of the mapping is missing or has another type.
    ColumnInvalid,
    /// A right is missing.
    #[serde(alias = "PermissionDenied")]
    SourcePermissionDenied,
    /// Schema `fanout` is missing or older than this relay.
    SchemaOutdated,
    /// The `xid` constraint is missing or not as it must be.
    ConstraintMissing,
    /// An index that the claim mode reads by is missing or invalid.
    IndexMissing,
    /// The identity column's sequence caches values, which breaks order.
    SequenceCached,
    /// The stored position belongs to another database history.
    SourceChanged,
    /// The server is a standby.
    #[serde(alias = "ReadOnly")]
    SourceReadOnly,
    /// Anything else the server refused.
    #[serde(alias = "QueryFailed")]
    SourceQueryFailed,
}

/// Why nothing can be produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerError {
    /// No broker answers.
    Unreachable,
    /// User or password refused.
    AuthenticationFailed,
    /// The TLS handshake failed.
    TlsFailed,
    /// The topic does not exist.
    TopicMissing,
    /// A right is missing.
    PermissionDenied,
    /// The brokers have no transactions that could be used.
    TransactionsUnavailable,
    /// Anything else the broker refused.
    ProduceFailed,
}

impl SourceError {
    /// True where only a human can mend it.
    pub const fn needs_human(self) -> bool {
        !matches!(
            self,
            Self::SourceUnreachable | Self::SourceReadOnly | Self::SourceQueryFailed
        )
    }
}

impl BrokerError {
    /// True where only a human can mend it.
    pub const fn needs_human(self) -> bool {
        matches!(
            self,
            Self::AuthenticationFailed
                | Self::TlsFailed
                | Self::PermissionDenied
                | Self::TransactionsUnavailable
        )
    }
}
