//! Concurrent writers that end their transactions in every way, and the journal of how each event ended.

use super::writer::{self, Writer};
use crate::{Deadline, Sandbox};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long a server may be away.
const RECOVERY: Duration = Duration::from_mins(1);

/// How much is written, by whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections that write at the same time.
    pub writers: u64,
    /// Keys; fewer keys, more waiting for each other.
    pub keys: u64,
    /// Transactions in all.
    pub transactions: u64,
    /// Longest time a transaction stays open while others commit.
    pub hold: Duration,
    /// Approximate size of a payload, bytes.
    pub payload_bytes: usize,
    /// Each writer rests so long after a transaction.
    pub rest: Duration,
    /// Also use prepared transactions.
    pub prepared: bool,
    /// What the writers do is drawn from this seed; when they do it is the scheduler's choice.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writers: 8,
            keys: 40,
            transactions: 2_000,
            hold: Duration::from_secs(2),
            payload_bytes: 100,
            rest: Duration::ZERO,
            prepared: true,
            seed: 1,
        }
    }
}

/// How a transaction ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server confirmed the commit.
    Committed,
    /// It did not commit.
    Failed,
    /// The connection broke at the commit: it may have committed.
    Unknown,
}

/// Every event that was ever written, and how its transaction ended.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    entries: Vec<(String, Outcome)>,
}

impl Journal {
    pub(super) fn note(&mut self, ids: impl Iterator<Item = String>, outcome: Outcome) {
        self.entries.extend(ids.map(|id| (id, outcome)));
    }

    /// Adds another writer's journal.
    pub fn merge(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// Number of events that ended with `outcome`.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.entries.iter().filter(|(_, o)| *o == outcome).count()
    }

    /// Ids that were committed and are not in `present`, or failed and are.
    pub(super) fn contradictions(&self, present: &HashSet<&str>) -> Vec<&(String, Outcome)> {
        self.entries
            .iter()
            .filter(|(id, outcome)| match outcome {
                Outcome::Committed => !present.contains(id.as_str()),
                Outcome::Failed => present.contains(id.as_str()),
                Outcome::Unknown => false,
            })
            .collect()
    }
}

/// Writers at work.
#[derive(Debug)]
pub struct Load {
    writers: JoinSet<sqlx::Result<Journal>>,
    done: Arc<AtomicU64>,
    events: Arc<AtomicU64>,
    stop: CancellationToken,
}

/// Creates the keys `key-0` to `key-<keys - 1>` that writers take numbers from.
pub async fn create_keys(sandbox: &Sandbox, keys: u64) {
    sqlx::query(
        "insert into harness.keys (key)
         select 'key-' || n from generate_series(0, $1 - 1) n on conflict do nothing",
    )
    .bind(i64::try_from(keys).expect("few keys"))
    .execute(sandbox.pool())
    .await
    .expect("the superuser writes");
}

impl Load {
    /// Lets writers loose on the sandbox's outbox.
    pub async fn start(sandbox: &Sandbox, options: &Options) -> Self {
        create_keys(sandbox, options.keys).await;
        let done = Arc::new(AtomicU64::new(0));
        let events = Arc::new(AtomicU64::new(0));
        let stop = CancellationToken::new();
        let mut writers = JoinSet::new();
        for number in 0..options.writers {
            let writer = Writer::connect(&sandbox.app_url, &sandbox.topic_name)
                .await
                .expect("the application connects");
            let task = Task {
                writer: writer
                    .payload_bytes(options.payload_bytes)
                    .counted(Arc::clone(&events)),
                rng: StdRng::seed_from_u64(options.seed.wrapping_add(number)),
                name: format!("{}-{number}", sandbox.database),
                options: options.clone(),
                done: Arc::clone(&done),
                stop: stop.clone(),
            };
            writers.spawn(task.run());
        }
        Self {
            writers,
            done,
            events,
            stop,
        }
    }

    /// Transactions that ended so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Events that were written so far, whatever became of them.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Makes the writers stop after their present transactions.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until all is written.
    pub async fn finish(self) -> Journal {
        let mut journal = Journal::default();
        for written in self.writers.join_all().await {
            journal.merge(written.expect("the application may write"));
        }
        journal
    }
}

/// How a writer uses a transaction.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// A few events of a few keys.
    Plain,
    /// The same, rolled back.
    RolledBack,
    /// Partly taken back.
    Savepoint,
    /// Stays open while others commit, with early rows.
    StaysOpen,
    /// Takes its transaction id early and writes late.
    EarlyXid,
    /// In two phases.
    Prepared,
}

struct Task {
    writer: Writer,
    rng: StdRng,
    name: String,
    options: Options,
    done: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Task {
    async fn run(mut self) -> sqlx::Result<Journal> {
        while !self.stop.is_cancelled() {
            let number = self.done.fetch_add(1, Ordering::Relaxed);
            if number >= self.options.transactions {
                break;
            }
            match self.transaction(number).await {
                Err(error) if writer::is_broken(&error) => self.recover().await,
                ended => ended?,
            }
            if !self.options.rest.is_zero() {
                tokio::time::sleep(self.options.rest).await;
            }
        }
        Ok(self.writer.into_journal())
    }

    /// Waits for a server that was stopped by the test.
    async fn recover(&mut self) {
        let deadline = Deadline::after(RECOVERY);
        while let Err(error) = self.writer.recover().await {
            assert!(!deadline.passed(), "the server stays away: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn pattern(&mut self) -> Pattern {
        match self.rng.random_range(0..100) {
            0..10 => Pattern::RolledBack,
            10..20 => Pattern::Savepoint,
            20..22 => Pattern::StaysOpen,
            22..30 => Pattern::EarlyXid,
            30..33 if self.options.prepared => Pattern::Prepared,
            _ => Pattern::Plain,
        }
    }

    async fn transaction(&mut self, number: u64) -> sqlx::Result<()> {
        let pattern = self.pattern();
        self.writer.begin().await?;
        match pattern {
            Pattern::Plain => {
                self.write_some().await?;
                self.writer.commit().await
            }
            Pattern::RolledBack => {
                self.write_some().await?;
                self.writer.roll_back().await
            }
            Pattern::Savepoint => {
                let key = self.key();
                self.writer.write(&key).await?;
                let before = self.writer.savepoint().await?;
                self.writer.write(&key).await?;
                self.writer.roll_back_to(before).await?;
                self.writer.write(&key).await?;
                self.writer.commit().await
            }
            Pattern::StaysOpen => {
                let key = self.key();
                self.writer.write(&key).await?;
                self.pause(1).await;
                self.writer.write(&key).await?;
                self.end().await
            }
            Pattern::EarlyXid => {
                self.writer.take_xid().await?;
                self.pause(20).await;
                self.write_some().await?;
                self.end().await
            }
            Pattern::Prepared => {
                self.write_some().await?;
                let name = format!("{}-{number}", self.name);
                let pause = tokio::time::sleep(self.hold(20));
                if self.rng.random_ratio(1, 4) {
                    self.writer.roll_back_prepared(&name, pause).await
                } else {
                    self.writer.commit_prepared(&name, pause).await
                }
            }
        }
    }

    async fn end(&mut self) -> sqlx::Result<()> {
        if self.rng.random_ratio(1, 5) {
            self.writer.roll_back().await
        } else {
            self.writer.commit().await
        }
    }

    /// One to three keys, always locked in the same order so that writers never deadlock, one or two events each;
    /// now and then one without a key.
    async fn write_some(&mut self) -> sqlx::Result<()> {
        let mut keys: Vec<u64> = (0..self.rng.random_range(1..=3))
            .map(|_| self.rng.random_range(0..self.options.keys))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            for _ in 0..self.rng.random_range(1..=2) {
                self.writer.write(&format!("key-{key}")).await?;
            }
        }
        if self.rng.random_ratio(1, 20) {
            self.writer.write_unordered().await?;
        }
        Ok(())
    }

    fn key(&mut self) -> String {
        format!("key-{}", self.rng.random_range(0..self.options.keys))
    }

    /// Up to the longest time a transaction stays open, divided by `share`.
    fn hold(&mut self, share: u32) -> Duration {
        let longest = self.options.hold / share;
        self.rng.random_range(longest / 4..=longest)
    }

    /// Leaves the transaction open for a while.
    async fn pause(&mut self, share: u32) {
        tokio::time::sleep(self.hold(share)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_finds_what_the_table_contradicts() {
        let mut journal = Journal::default();
        for (id, outcome) in [
            ("kept", Outcome::Committed),
            ("gone", Outcome::Committed),
            ("back", Outcome::Failed),
            ("never", Outcome::Failed),
            ("maybe", Outcome::Unknown),
        ] {
            journal.note([id.to_owned()].into_iter(), outcome);
        }
        let contradictions = journal.contradictions(&HashSet::from(["kept", "back"]));
        let ids: Vec<&str> = contradictions.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["gone", "back"]);
        assert_eq!(journal.count(Outcome::Committed), 2);
    }
}
