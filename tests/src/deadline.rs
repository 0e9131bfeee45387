//! Waiting for something to become true, with a deadline instead of a sleep.

use std::time::{Duration, Instant};

/// Shortest and longest wait between two looks. What takes long is looked at less often: looking costs the servers work.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Polls `look` until it returns `Ok`, and returns its value.
///
/// `look` answers `Err` with what it saw instead; the last such answer is part of the panic after `limit`.
pub async fn eventually<T, E: std::fmt::Display>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Deadline::after(limit);
    let mut last = String::from("no answer yet");
    loop {
        match tokio::time::timeout(deadline.left(), look()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(seen)) => last = seen.to_string(),
            Err(_) => {}
        }
        assert!(
            !deadline.passed(),
            "not within {limit:?}: {what}; last seen: {last}"
        );
        tokio::time::sleep(deadline.pause()).await;
    }
}

/// A point in time after which waiting is given up.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    since: Instant,
    at: Instant,
}

impl Deadline {
    /// `limit` from now.
    pub fn after(limit: Duration) -> Self {
        let since = Instant::now();
        Self {
            since,
            at: since + limit,
        }
    }

    /// Wait before the next look: a tenth of what passed, within [`PAUSE`].
    fn pause(self) -> Duration {
        (self.since.elapsed() / 10).clamp(PAUSE.0, PAUSE.1)
    }

    /// What is left, zero once it passed.
    pub fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// True once it passed.
    pub fn passed(self) -> bool {
        self.left().is_zero()
    }

    /// Blocking form of [`eventually`] for the threads that start services: polls until `look` returns a value.
    pub(crate) fn poll<T>(
        self,
        what: &str,
        mut look: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        loop {
            if let Some(value) = look()? {
                return Ok(value);
            }
            anyhow::ensure!(!self.passed(), "not in time: {what}");
            std::thread::park_timeout(self.pause());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn eventually_returns_the_first_success() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(5), "three looks", async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err("fewer") }
        })
        .await;
        assert_eq!(value, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "the impossible; last seen: only 7")]
    async fn eventually_says_what_it_saw_last() {
        eventually(
            Duration::from_millis(50),
            "the impossible",
            async || -> Result<(), _> { Err("only 7") },
        )
        .await;
    }
}
