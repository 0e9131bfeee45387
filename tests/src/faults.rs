//! Faults from outside: proxies that stand before a real service and lose, refuse, hold back or delay what goes through
//! them, or tell the test at a chosen request.
//!
//! The programs under test know nothing of them: what is killed at a chosen point is the real binary.

pub mod api_proxy;
pub mod clock;
pub mod kafka_proxy;
pub mod postgres_proxy;

mod gate;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// A request that changes something, as a proxy saw it.
pub trait Write: Clone {
    /// Number among those that count, from 1.
    fn number(&self) -> usize;
}

type Rule<W> = Box<dyn Fn(&W) -> Option<Fault> + Send + Sync>;

/// The writes that went through a proxy, and what becomes of the next one.
pub struct Script<W> {
    writes: Mutex<Vec<W>>,
    rule: Mutex<Option<Rule<W>>>,
}

impl<W> Default for Script<W> {
    fn default() -> Self {
        Self {
            writes: Mutex::default(),
            rule: Mutex::default(),
        }
    }
}

impl<W: Write> Script<W> {
    /// Asks `rule` about each write from now on.
    pub fn rule(&self, rule: impl Fn(&W) -> Option<Fault> + Send + Sync + 'static) {
        *lock(&self.rule) = Some(Box::new(rule));
    }

    /// Calls `hook` at write `number`, before it is forwarded or after.
    pub fn at(&self, number: usize, after: bool, hook: Hook) {
        self.rule(move |write| {
            (write.number() == number).then(|| {
                let hook = Arc::clone(&hook);
                if after {
                    Fault::After(hook)
                } else {
                    Fault::Before(hook)
                }
            })
        });
    }

    /// Writes so far, in the order in which they came.
    pub fn writes(&self) -> Vec<W> {
        lock(&self.writes).clone()
    }

    /// Records the write that `make` makes of those before it; returns its index, and what becomes of it.
    fn record(&self, make: impl FnOnce(&[W]) -> W) -> (usize, Option<Fault>) {
        let mut writes = lock(&self.writes);
        let write = make(&writes);
        let index = writes.len();
        writes.push(write.clone());
        drop(writes);
        let fault = lock(&self.rule).as_ref().and_then(|rule| rule(&write));
        (index, fault)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
