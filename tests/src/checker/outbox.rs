//! The truth: what the outbox table holds after the writers stopped. Its retention must be longer than the test.

use super::content::{self, Form};
use crate::verdict::Event;
use fanout_contract::envelope::{self, Attributes};
use sqlx::PgPool;

/// One committed row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Outbox id.
    pub id: i64,
    /// Event id.
    pub event_id: String,
    /// Ordering key.
    pub key: Option<String>,
    /// Type.
    pub r#type: String,
    /// Subject; the writers of this harness put the sequence number of the key behind its last slash.
    pub subject: Option<String>,
    /// Content type.
    pub content_type: String,
    /// Data.
    pub payload: Option<Vec<u8>>,
}

type Columns = (
    i64,
    String,
    Option<String>,
    String,
    Option<String>,
    String,
    Option<Vec<u8>>,
);

/// Every row of `topic` in `public.outbox`.
pub async fn read(pool: &PgPool, topic: &str) -> Vec<Row> {
    let rows: Vec<Columns> = sqlx::query_as(
        "select id, event_id::text, key, type, subject, content_type, payload
           from public.outbox where topic = $1 order by id",
    )
    .bind(topic)
    .fetch_all(pool)
    .await
    .expect("the superuser reads the outbox");
    rows.into_iter()
        .map(
            |(id, event_id, key, r#type, subject, content_type, payload)| Row {
                id,
                event_id,
                key,
                r#type,
                subject,
                content_type,
                payload,
            },
        )
        .collect()
}

impl Row {
    /// Number of the event among those of its key.
    pub fn sequence(&self) -> i64 {
        self.subject
            .as_deref()
            .and_then(|subject| subject.rsplit('/').next()?.parse().ok())
            .unwrap_or_default()
    }

    /// The attributes a relay of `/source` gives the event, without its time.
    pub fn attributes(&self, source: &str) -> Attributes {
        Attributes {
            id: self.event_id.clone(),
            source: source.to_owned(),
            r#type: self.r#type.clone(),
            time: None,
            subject: self.subject.clone(),
            content_type: Some(self.content_type.clone()),
            extensions: vec![(envelope::SEQUENCE.to_owned(), envelope::sequence(self.id))],
        }
    }

    pub(super) fn event(&self, form: Form) -> Event {
        let data = self.payload.as_deref().unwrap_or_default();
        Event {
            id: self.event_id.clone(),
            key: self.key.clone(),
            sequence: self.sequence(),
            content: content::digest(&self.attributes(""), data, form),
        }
    }
}
