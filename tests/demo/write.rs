//! Writers: business row and outbox row in one transaction, ordered per author by a row lock; some transactions roll
//! back, some stay open for seconds while others commit.

use crate::database::DatabaseArgs;
use crate::event::{self, Event};
use fanout_runtime::backoff::Backoff;
use rand::RngExt;
use sqlx::postgres::PgPool;
use sqlx::{Connection, PgConnection};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Authors that the quick writers share. Long transactions have authors of their own, or they would hold up everybody.
const AUTHORS: u32 = 60;
const PATIENT_AUTHORS: u32 = 4;

/// Arguments of `write`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Value of the outbox column `topic`
    #[arg(long, default_value = "posts")]
    topic: String,
    /// Transactions a second, all writers together
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Quick writers; as many again keep transactions open
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// Stop after this time
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop after about this many committed events
    #[arg(long)]
    events: Option<u64>,
    /// Longest time a transaction stays open, milliseconds
    #[arg(long, default_value_t = 6000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    open_milliseconds: u64,
}

#[derive(Debug, Default)]
struct Totals {
    committed: AtomicU64,
    rolled_back: AtomicU64,
    failed: AtomicU64,
}

/// How one transaction goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Write and commit.
    Commit,
    /// Write and roll back.
    RollBack,
    /// Write, roll back to a savepoint, write something else, commit.
    Savepoint,
    /// Write, stay open, commit or roll back.
    Open { commit: bool },
    /// Take a transaction id, wait while later ones commit, then write and commit.
    LateInsert,
}

impl Shape {
    /// A quick writer's choice for a number in 0..100.
    const fn quick(percent: u32) -> Self {
        match percent {
            0..10 => Self::RollBack,
            10..15 => Self::Savepoint,
            _ => Self::Commit,
        }
    }

    /// A patient writer's choice for a number in 0..100.
    const fn patient(percent: u32) -> Self {
        match percent {
            0..25 => Self::Open { commit: false },
            25..65 => Self::Open { commit: true },
            _ => Self::LateInsert,
        }
    }
}

struct Writer {
    pool: PgPool,
    topic: String,
    totals: Arc<Totals>,
    /// Longest pause inside a transaction.
    open: Duration,
}

/// Writes until `shutdown`, or as long as the arguments say; then prints the totals.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let writer = Arc::new(Writer {
        pool: args.database.pool(args.writers * 2)?,
        topic: args.topic,
        totals: Arc::new(Totals::default()),
        open: Duration::from_millis(args.open_milliseconds),
    });
    let stop = shutdown.child_token();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..args.writers {
        let pause = Duration::from_secs(1) * args.writers / args.rate;
        tasks.spawn(quick(Arc::clone(&writer), pause, stop.clone()));
        tasks.spawn(patient(Arc::clone(&writer), stop.clone()));
    }
    let started = tokio::time::Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    let mut ticks = 0_u32;
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => {}
            _ = tick.tick() => ticks = ticks.wrapping_add(1),
        }
        let committed = writer.totals.committed.load(Ordering::Relaxed);
        let late = args
            .seconds
            .is_some_and(|s| started.elapsed() >= Duration::from_secs(s));
        if late || args.events.is_some_and(|events| committed >= events) {
            stop.cancel();
        }
        if ticks.is_multiple_of(50) {
            report(&writer.totals, "writing");
        }
    }
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    report(&writer.totals, "stopped");
    Ok(())
}

fn report(totals: &Totals, message: &str) {
    tracing::info!(
        committed_events = totals.committed.load(Ordering::Relaxed),
        rolled_back_transactions = totals.rolled_back.load(Ordering::Relaxed),
        failed_transactions = totals.failed.load(Ordering::Relaxed),
        "{message}"
    );
}

async fn quick(writer: Arc<Writer>, pause: Duration, stop: CancellationToken) {
    let mut tick = tokio::time::interval(pause);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let (author, percent) = {
            let mut rng = rand::rng();
            (rng.random_range(0..AUTHORS), rng.random_range(0..100))
        };
        writer
            .attempt(&format!("author-{author}"), Shape::quick(percent), &stop)
            .await;
    }
}

async fn patient(writer: Arc<Writer>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let (author, percent) = {
            let mut rng = rand::rng();
            (
                rng.random_range(0..PATIENT_AUTHORS),
                rng.random_range(0..100),
            )
        };
        writer
            .attempt(&format!("patient-{author}"), Shape::patient(percent), &stop)
            .await;
    }
}

impl Writer {
    /// One transaction; after a failure, a pause.
    async fn attempt(&self, author: &str, shape: Shape, stop: &CancellationToken) {
        match self.transaction(author, shape, stop).await {
            Ok(0) => _ = self.totals.rolled_back.fetch_add(1, Ordering::Relaxed),
            Ok(events) => _ = self.totals.committed.fetch_add(events, Ordering::Relaxed),
            Err(error) => {
                self.totals.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(error = error.to_string(), "transaction failed");
                let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(backoff.next_delay()) => {}
                }
            }
        }
    }

    /// Runs one transaction; returns how many events it committed, 0 when it rolled back.
    async fn transaction(
        &self,
        author: &str,
        shape: Shape,
        stop: &CancellationToken,
    ) -> sqlx::Result<u64> {
        let events: Vec<Event> = {
            let mut rng = rand::rng();
            let count = rng.random_range(1..=3);
            (0..count).map(|_| invent(author, &mut rng)).collect()
        };
        let mut connection = self.pool.acquire().await?;
        let mut tx = connection.begin().await?;
        if shape == Shape::LateInsert {
            sqlx::query("select pg_current_xact_id()")
                .execute(&mut *tx)
                .await?;
            self.wait(stop).await;
        }
        let mut sequence = lock_author(&mut tx, author).await?;
        if shape == Shape::Savepoint {
            let mut inner = tx.begin().await?;
            store(&mut inner, &self.topic, &events[0], sequence + 1).await?;
            inner.rollback().await?;
        }
        for event in &events {
            sequence += 1;
            store(&mut tx, &self.topic, event, sequence).await?;
        }
        match shape {
            Shape::RollBack | Shape::Open { commit: false } => {
                if shape != Shape::RollBack {
                    self.wait(stop).await;
                }
                tx.rollback().await?;
                Ok(0)
            }
            Shape::Commit | Shape::Savepoint | Shape::LateInsert | Shape::Open { commit: true } => {
                if shape == (Shape::Open { commit: true }) {
                    self.wait(stop).await;
                }
                tx.commit().await?;
                Ok(events.len() as u64)
            }
        }
    }

    /// Keeps the transaction open for a while; ends early when the writers stop.
    async fn wait(&self, stop: &CancellationToken) {
        let pause = self.open.mul_f64(rand::rng().random_range(0.3..=1.0));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Something that `author` does.
fn invent(author: &str, rng: &mut impl RngExt) -> Event {
    let other = format!("author-{}", rng.random_range(0..AUTHORS));
    let (r#type, visibility, detail) = match rng.random_range(0..10) {
        0..2 => (event::FOLLOW, "public", other),
        2..5 => (event::LIKE, "public", format!("a post of {other}")),
        5..7 => (
            event::POST,
            "followers",
            format!("only for friends: “{other}” is ☀"),
        ),
        _ => (
            event::POST,
            "public",
            format!("hello {other}, \"quoted\" \\ and ünïcode"),
        ),
    };
    Event {
        r#type,
        author: author.to_owned(),
        visibility,
        detail,
    }
}

/// Locks the author's row until the end of the transaction and returns the number of its last event.
pub(crate) async fn lock_author(tx: &mut PgConnection, author: &str) -> sqlx::Result<i64> {
    sqlx::query("insert into social.authors (name) values ($1) on conflict do nothing")
        .bind(author)
        .execute(&mut *tx)
        .await?;
    sqlx::query_scalar("select sequence from social.authors where name = $1 for update")
        .bind(author)
        .fetch_one(tx)
        .await
}

/// Writes one event: outbox row, business row, and the author's number, which is `sequence` from now on. Returns the
/// event id.
pub(crate) async fn store(
    tx: &mut PgConnection,
    topic: &str,
    event: &Event,
    sequence: i64,
) -> sqlx::Result<String> {
    let payload = event.payload(sequence);
    let id: String = sqlx::query_scalar(
        "insert into public.outbox (topic, key, type, subject, payload)
         values ($1, $2, $3, $4, $5) returning event_id::text",
    )
    .bind(topic)
    .bind(&event.author)
    .bind(event.r#type)
    .bind(&event.author)
    .bind(payload.to_string().into_bytes())
    .fetch_one(&mut *tx)
    .await?;
    let digest = event::digest(event.r#type, &payload);
    let insert = match event.r#type {
        event::FOLLOW => {
            "insert into social.follows (event_id, author, sequence, digest, followed) values ($1::uuid, $2, $3, $4, $5)"
        }
        event::LIKE => {
            "insert into social.likes (event_id, author, sequence, digest, liked) values ($1::uuid, $2, $3, $4, $5)"
        }
        _ => {
            "insert into social.posts (event_id, author, sequence, digest, body, visibility) values ($1::uuid, $2, $3, $4, $5, $6)"
        }
    };
    let mut query = sqlx::query(insert)
        .bind(&id)
        .bind(&event.author)
        .bind(sequence)
        .bind(digest)
        .bind(&event.detail);
    if event.r#type == event::POST {
        query = query.bind(event.visibility);
    }
    query.execute(&mut *tx).await?;
    sqlx::query("update social.authors set sequence = $2 where name = $1")
        .bind(&event.author)
        .bind(sequence)
        .execute(tx)
        .await?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_of_a_transaction_occurs() {
        let shapes: Vec<_> = (0..100)
            .flat_map(|n| [Shape::quick(n), Shape::patient(n)])
            .collect();
        for shape in [
            Shape::Commit,
            Shape::RollBack,
            Shape::Savepoint,
            Shape::Open { commit: true },
            Shape::Open { commit: false },
            Shape::LateInsert,
        ] {
            assert!(shapes.contains(&shape), "{shape:?}");
        }
    }

    #[test]
    fn an_author_does_everything_in_time() {
        let mut rng = rand::rng();
        let types: std::collections::HashSet<_> = (0..1000)
            .map(|_| invent("author-1", &mut rng).r#type)
            .collect();
        assert_eq!(types.len(), 3);
    }
}
