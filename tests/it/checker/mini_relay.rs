//! A minimal relay over one difference of snapshots at a time, with a place for each fault.

use fanout_tests::Sandbox;
use fanout_tests::checker::outbox::Row;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _, PurgeConfig};
use sqlx::PgPool;

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// Reads `id > last` instead of the difference of two snapshots.
    IdCursor,
    /// Reads `xid > last` instead of the difference.
    XidCursor,
    /// Cuts the difference into pieces by transaction id.
    XidCut,
    /// Stores the position before the broker's ack, and crashes between.
    AdvanceBeforeAck,
    /// Crashes after the broker's ack, before it stores the position.
    CrashBeforeAdvance,
    /// Publishes the first two rows of a key the wrong way round.
    Swap,
    /// Leaves the second row out.
    Skip,
    /// Parses payloads and writes them anew.
    Reencode,
    /// Publishes under another key.
    WrongKey,
}

/// Position and connections.
pub(super) struct MiniRelay {
    fault: Fault,
    pool: PgPool,
    producer: FutureProducer,
    sandbox_topic: String,
    kafka_topic: String,
    source: String,
    /// The snapshot up to which everything is published.
    old: String,
    last_id: i64,
    last_xid: i64,
}

const DIFFERENCE: &str = "not pg_visible_in_snapshot(xid, $2::pg_snapshot)";

impl MiniRelay {
    pub(super) async fn new(sandbox: &Sandbox, fault: Fault) -> Self {
        Self {
            fault,
            pool: sqlx::postgres::PgPoolOptions::new()
                .max_connections(1)
                .connect(&sandbox.relay_url)
                .await
                .unwrap(),
            producer: producer(sandbox, fault),
            sandbox_topic: sandbox.topic_name.clone(),
            kafka_topic: sandbox.kafka_topic.clone(),
            source: format!("/{}/{}", sandbox.namespace, sandbox.topic_name),
            old: "1:1:".to_owned(),
            last_id: 0,
            last_xid: 0,
        }
    }

    /// One pass: reads what is due, publishes it, moves the position.
    pub(super) async fn pass(&mut self) {
        let (due, order) = match self.fault {
            Fault::IdCursor => (format!("id > {}", self.last_id), "d.id"),
            Fault::XidCursor => (format!("xid::text::bigint > {}", self.last_xid), "d.id"),
            Fault::XidCut => (DIFFERENCE.to_owned(), "d.xid, d.id"),
            _ => (DIFFERENCE.to_owned(), "d.id"),
        };
        let sql = format!(
            "with s as materialized (select pg_current_snapshot() as new)
             select s.new::text, d.* from s left join lateral (
               select id, xid::text::bigint as xid, event_id::text, key, type, subject, content_type, payload
                 from public.outbox
                where topic = $1 and $2 <> '' and pg_visible_in_snapshot(xid, s.new) and {due}) d on true
              order by {order}",
        );
        let rows: Vec<Due> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(&self.sandbox_topic)
            .bind(&self.old)
            .fetch_all(&self.pool)
            .await
            .unwrap();
        let new = rows[0].0.clone();
        let xids: Vec<i64> = rows.iter().filter_map(|row| row.2).collect();
        let mut rows: Vec<Row> = rows.into_iter().filter_map(row).collect();
        if !rows.is_empty() {
            self.spoil(&mut rows);
        }
        if self.fault == Fault::AdvanceBeforeAck {
            // Nothing is sent before the queue is a minute old; a crash loses the queue.
            let queued: Vec<_> = rows.iter().map(|row| self.publish(row)).collect();
            self.producer
                .purge(PurgeConfig::default().queue().inflight());
            futures::future::join_all(queued).await;
            self.fault = Fault::None;
        } else {
            for row in &rows {
                self.publish(row).await;
            }
        }
        if self.fault == Fault::CrashBeforeAdvance {
            self.fault = Fault::None;
            return;
        }
        self.last_id = rows.iter().map(|row| row.id).fold(self.last_id, i64::max);
        self.last_xid = xids.into_iter().fold(self.last_xid, i64::max);
        self.old = new;
    }

    fn spoil(&self, rows: &mut Vec<Row>) {
        match self.fault {
            Fault::Swap => {
                let second = rows.iter().skip(1).position(|row| row.key == rows[0].key);
                rows.swap(0, second.expect("the first key has a second row") + 1);
            }
            Fault::Skip => {
                rows.remove(1);
            }
            Fault::Reencode => {
                for row in rows {
                    let parsed = row.payload.as_deref().map(serde_json::from_slice);
                    if let Some(Ok::<serde_json::Value, _>(value)) = parsed {
                        row.payload = Some(value.to_string().into_bytes());
                    }
                }
            }
            Fault::WrongKey => rows[0].key = Some("another".to_owned()),
            _ => {}
        }
    }

    /// Publishes one row; public to the tests so that they can publish what is not committed.
    pub(super) fn publish(&self, row: &Row) -> impl Future<Output = ()> + use<> {
        let (producer, topic) = (self.producer.clone(), self.kafka_topic.clone());
        let attributes = row.attributes(&self.source);
        let headers = attributes.to_headers();
        let headers = headers
            .iter()
            .fold(OwnedHeaders::new(), |all, (key, value)| {
                all.insert(Header {
                    key,
                    value: Some(*value),
                })
            });
        let mut record: FutureRecord<'_, str, [u8]> = FutureRecord::to(&topic).headers(headers);
        record.key = row.key.as_deref();
        record.payload = row.payload.as_deref();
        let sent = producer
            .send_result(record)
            .unwrap_or_else(|(error, _)| panic!("{error}"));
        async move {
            // Failed only where the test purged the queue.
            sent.await.unwrap().ok();
            drop(producer);
        }
    }
}

fn producer(sandbox: &Sandbox, fault: Fault) -> FutureProducer {
    let linger = if fault == Fault::AdvanceBeforeAck {
        "60000"
    } else {
        "1"
    };
    rdkafka::ClientConfig::new()
        .set("bootstrap.servers", &sandbox.bootstrap)
        .set("enable.idempotence", "true")
        .set("linger.ms", linger)
        .set("partitioner", "murmur2_random")
        .create()
        .unwrap()
}

type Due = (
    String,
    Option<i64>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<Vec<u8>>,
);

/// None for the line without a row that brings the snapshot along.
fn row((_, id, _, event_id, key, r#type, subject, content_type, payload): Due) -> Option<Row> {
    Some(Row {
        id: id?,
        event_id: event_id?,
        key,
        r#type: r#type?,
        subject,
        content_type: content_type?,
        payload,
    })
}
