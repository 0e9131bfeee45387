//! Faults from outside: proxies that stand before a real service and lose, refuse, hold back or delay what goes through
//! them, or tell the test at a chosen request.
//!
//! The programs under test know nothing of them: what is killed at a chosen point is the real binary.

pub mod api_proxy;
pub mod kafka_proxy;

mod gate;

use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Called when a request is reached; usually kills the client.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

/// What happens to a request that a rule chose.
#[derive(Clone)]
pub enum Fault {
    /// Calls the hook; the request is neither forwarded nor answered.
    Before(Hook),
    /// Forwarded; once the service has answered, calls the hook. The answer is lost.
    After(Hook),
    /// Neither forwarded nor answered.
    Swallow,
    /// Forwarded, but the answer comes only when the token is cancelled.
    HoldAnswer(CancellationToken),
    /// Not forwarded, answered with this HTTP status. For the API server only.
    Refuse {
        /// HTTP status.
        code: u16,
        /// `Retry-After`, seconds.
        retry_after_seconds: Option<u32>,
    },
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(_) => f.write_str("Before"),
            Self::After(_) => f.write_str("After"),
            Self::Swallow => f.write_str("Swallow"),
            Self::HoldAnswer(_) => f.write_str("HoldAnswer"),
            Self::Refuse { code, .. } => write!(f, "Refuse({code})"),
        }
    }
}
