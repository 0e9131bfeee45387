//! What an attempt to deliver an event says about the event and about its endpoint.

use std::fmt;
use std::time::Duration;

/// Outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The sink has it.
    Delivered,
    /// Try again.
    Retry {
        /// Why.
        reason: Failure,
        /// Give up after this many attempts already, where success is unlikely.
        at_most: Option<u32>,
    },
    /// The endpoint asks for a pause: nothing goes to it before, and the attempt does not count.
    Pause {
        /// Why.
        reason: Failure,
        /// How long.
        after: Duration,
    },
    /// The endpoint is gone for good: stop, keep the backlog.
    Gone,
    /// The address guard refused the endpoint: stop, ask again later.
    Refused,
    /// The event can't be put into a request: no attempt can succeed.
    Reject(Failure),
}

/// Class of a failure. Never a peer's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The endpoint answered with this status.
    Status(u16),
    /// No answer in time.
    Timeout,
    /// The name has no address.
    Dns,
    /// No connection.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// The connection broke before there was an answer.
    Broken,
    /// The event is no CloudEvent.
    Undecodable,
    /// The event does not fit into a request.
    Unencodable,
}

impl Failure {
    /// No connection came about: no event can be at fault.
    pub(crate) const fn is_unreachable(self) -> bool {
        matches!(self, Self::Dns | Self::Connect | Self::Tls)
    }

    /// The endpoint has too much to do: fewer requests at once may help.
    pub(crate) const fn is_overload(self) -> bool {
        matches!(self, Self::Timeout | Self::Status(429 | 502 | 503 | 504))
    }

    /// Reason class for the dead letter header, CamelCase.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Status(_) => "HttpStatus",
            Self::Timeout => "Timeout",
            Self::Dns => "DnsFailed",
            Self::Connect => "ConnectFailed",
            Self::Tls => "TlsFailed",
            Self::Broken => "ConnectionBroken",
            Self::Undecodable => "NotACloudEvent",
            Self::Unencodable => "Unencodable",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{}{status}", self.class()),
            _ => f.write_str(self.class()),
        }
    }
}
