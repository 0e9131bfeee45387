//! One application connection that writes events in transactions and knows how each ended.

use super::load::{Journal, Outcome};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A connection of the application's role. Every event gets the next number of its key, under the lock on the key's
/// row that the transaction keeps until it ends: so the numbers rise in commit order.
#[derive(Debug)]
pub struct Writer {
    url: String,
    connection: PgConnection,
    topic: String,
    payload_bytes: usize,
    /// Ids written in the open transaction and not taken back to a savepoint.
    open: Vec<String>,
    /// Ids taken back to a savepoint.
    taken_back: Vec<String>,
    journal: Journal,
    events: Arc<AtomicU64>,
}

impl Writer {
    /// Connects to `url` as the application, writing rows of `topic`.
    pub async fn connect(url: &str, topic: &str) -> sqlx::Result<Self> {
        Ok(Self {
            url: url.to_owned(),
            connection: connect(url).await?,
            topic: topic.to_owned(),
            payload_bytes: 100,
            open: Vec::new(),
            taken_back: Vec::new(),
            journal: Journal::default(),
            events: Arc::default(),
        })
    }

    /// Approximate size of each payload, bytes.
    #[must_use]
    pub fn payload_bytes(mut self, bytes: usize) -> Self {
        self.payload_bytes = bytes;
        self
    }

    /// Counts its events in `events`, too.
    #[must_use]
    pub(super) fn counted(mut self, events: Arc<AtomicU64>) -> Self {
        self.events = events;
        self
    }

    /// Opens a transaction.
    pub async fn begin(&mut self) -> sqlx::Result<()> {
        self.execute("begin").await
    }

    /// Makes the open transaction take its transaction id now.
    pub async fn take_xid(&mut self) -> sqlx::Result<()> {
        self.execute("select pg_current_xact_id()").await
    }

    /// Writes the next event of `key`, waiting for the key's lock; returns the event id.
    pub async fn write(&mut self, key: &str) -> sqlx::Result<String> {
        let sequence: i64 = sqlx::query_scalar(
            "update harness.keys set seq = seq + 1 where key = $1 returning seq",
        )
        .bind(key)
        .fetch_one(&mut self.connection)
        .await?;
        self.insert(Some(key), &format!("{key}/{sequence}"), sequence)
            .await
    }

    /// Writes an event without a key.
    pub async fn write_unordered(&mut self) -> sqlx::Result<String> {
        self.insert(None, "unordered/0", 0).await
    }

    async fn insert(&mut self, key: Option<&str>, subject: &str, n: i64) -> sqlx::Result<String> {
        let (content_type, payload) = payload(n, self.payload_bytes);
        let r#type = if n % 5 == 4 {
            "post.deleted"
        } else {
            "post.created"
        };
        let id: String = sqlx::query_scalar(
            "insert into public.outbox (topic, key, type, subject, content_type, payload)
             values ($1, $2, $3, $4, $5, $6) returning event_id::text",
        )
        .bind(&self.topic)
        .bind(key)
        .bind(r#type)
        .bind(subject)
        .bind(content_type)
        .bind(payload)
        .fetch_one(&mut self.connection)
        .await?;
        self.open.push(id.clone());
        self.events.fetch_add(1, Ordering::Relaxed);
        Ok(id)
    }

    /// Sets a savepoint and returns how many events were written before it.
    pub async fn savepoint(&mut self) -> sqlx::Result<usize> {
        self.execute("savepoint before").await?;
        Ok(self.open.len())
    }

    /// Goes back to the savepoint.
    pub async fn roll_back_to(&mut self, written_before: usize) -> sqlx::Result<()> {
        self.execute("rollback to savepoint before").await?;
        self.taken_back.extend(self.open.split_off(written_before));
        Ok(())
    }

    /// Commits.
    pub async fn commit(&mut self) -> sqlx::Result<()> {
        let result = self.execute("commit").await;
        self.note_commit(&result);
        result
    }

    /// Rolls back.
    pub async fn roll_back(&mut self) -> sqlx::Result<()> {
        self.note(Outcome::Failed);
        self.execute("rollback").await
    }

    /// Ends the transaction in two phases; `pause` runs between them, while its rows are held by no connection.
    pub async fn commit_prepared(
        &mut self,
        name: &str,
        pause: impl Future<Output = ()>,
    ) -> sqlx::Result<()> {
        self.execute_text(format!("prepare transaction '{name}'"))
            .await?;
        pause.await;
        let result = self.execute_text(format!("commit prepared '{name}'")).await;
        self.note_commit(&result);
        result
    }

    /// Prepares the transaction, then rolls it back.
    pub async fn roll_back_prepared(
        &mut self,
        name: &str,
        pause: impl Future<Output = ()>,
    ) -> sqlx::Result<()> {
        self.execute_text(format!("prepare transaction '{name}'"))
            .await?;
        pause.await;
        self.note(Outcome::Failed);
        self.execute_text(format!("rollback prepared '{name}'"))
            .await
    }

    /// After an error: gives the open transaction up, and connects anew where the connection is broken. Fails before a
    /// standby that is not promoted yet.
    pub async fn recover(&mut self) -> sqlx::Result<()> {
        self.note(Outcome::Failed);
        if self.execute("rollback").await.is_err() {
            self.connection = connect(&self.url).await?;
        }
        self.execute("begin read write").await?;
        self.execute("rollback").await
    }

    /// How every event ended.
    pub fn into_journal(mut self) -> Journal {
        self.note(Outcome::Failed);
        self.journal
    }

    /// A server that refuses has not committed; a connection that breaks says nothing.
    fn note_commit(&mut self, result: &sqlx::Result<()>) {
        self.note(match result {
            Ok(()) => Outcome::Committed,
            Err(error) if is_broken(error) => Outcome::Unknown,
            Err(_) => Outcome::Failed,
        });
    }

    fn note(&mut self, outcome: Outcome) {
        self.journal.note(self.open.drain(..), outcome);
        self.journal
            .note(self.taken_back.drain(..), Outcome::Failed);
    }

    async fn execute(&mut self, sql: &'static str) -> sqlx::Result<()> {
        sqlx::query(sql).execute(&mut self.connection).await?;
        Ok(())
    }

    async fn execute_text(&mut self, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }
}

async fn connect(url: &str) -> sqlx::Result<PgConnection> {
    let mut connection = PgConnection::connect(url).await?;
    // A key that is never given back shall end the test, not hang it.
    sqlx::query("set lock_timeout = '60s'")
        .execute(&mut connection)
        .await?;
    Ok(connection)
}

/// True when the connection or the server went away, rather than refused what was asked.
pub(super) fn is_broken(error: &sqlx::Error) -> bool {
    match error {
        // operator_intervention: the server shuts down, crashed, or starts. read_only_sql_transaction: it is a standby.
        sqlx::Error::Database(error) => error
            .code()
            .is_some_and(|code| code.starts_with("57P") || code == "25006"),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => true,
        _ => false,
    }
}

/// Data that does not survive being parsed and written again, in several kinds.
fn payload(n: i64, bytes: usize) -> (&'static str, Option<Vec<u8>>) {
    match n % 20 {
        7 => (
            "application/octet-stream",
            Some((0..=u8::MAX).cycle().take(bytes).collect()),
        ),
        13 => ("application/json", None),
        _ => {
            let filler = "é".repeat(bytes / 2);
            let text = format!("{{ \"text\": \"{filler}\",  \"n\": {n}, \"ratio\": 1.50 }}");
            ("application/json", Some(text.into_bytes()))
        }
    }
}
