//! A producer with the relay's settings and nothing else to do.

use fanout_contract::envelope::{self, CONTENT_TYPE, SPEC_VERSION, header};
use fanout_tests::{PARTITIONS, Sandbox, services};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use std::time::{Duration, Instant};

/// One row, as the relay would send it.
pub(crate) struct Record {
    key: String,
    headers: Vec<(&'static str, String)>,
    payload: Vec<u8>,
}

type Columns = (i64, String, String, String, String, Vec<u8>, String);

/// The rows of the table as records.
pub(crate) async fn records(sandbox: &Sandbox) -> Vec<Record> {
    let rows: Vec<Columns> = sqlx::query_as(
        "select id, event_id::text, key, type, subject, payload,
                trim('\"' from to_json(created_at at time zone 'UTC')::text) || 'Z'
           from outbox order by id",
    )
    .fetch_all(sandbox.pool())
    .await
    .unwrap();
    let source = format!("/{}/{}", sandbox.namespace, sandbox.topic_name);
    rows.into_iter()
        .map(
            |(id, event_id, key, r#type, subject, payload, time)| Record {
                key,
                headers: vec![
                    (header::SPEC_VERSION, SPEC_VERSION.to_owned()),
                    (header::ID, event_id),
                    (header::SOURCE, source.clone()),
                    (header::TYPE, r#type),
                    (header::TIME, time),
                    (header::SUBJECT, subject),
                    (header::SEQUENCE, envelope::sequence(id)),
                    (CONTENT_TYPE, "application/json".to_owned()),
                ],
                payload,
            },
        )
        .collect()
}

/// Sends them all; records a second until the last is acknowledged.
pub(crate) async fn run(sandbox: &Sandbox, records: Vec<Record>) -> f64 {
    let topic = format!("{}.bare", sandbox.kafka_topic);
    services::kafka()
        .create_topic(&topic, PARTITIONS, &[])
        .await;
    let bootstrap = sandbox.bootstrap.clone();
    tokio::task::spawn_blocking(move || {
        let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("compression.codec", "lz4")
            .set("max.in.flight.requests.per.connection", "5")
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "2")
            .set("batch.num.messages", "10000")
            .set("batch.size", "1000000")
            .set("queue.buffering.max.messages", "100000")
            .set("queue.buffering.max.kbytes", "2097151")
            .create()
            .unwrap();
        // Connected before the clock starts, like the relay.
        producer
            .client()
            .fetch_metadata(Some(&topic), Duration::from_secs(30))
            .unwrap();
        let (warm_up, records) = records.split_at(records.len() / 100);
        for record in warm_up {
            send(&producer, &topic, record);
        }
        producer.flush(Duration::from_mins(5)).unwrap();
        let began = Instant::now();
        for record in records {
            send(&producer, &topic, record);
        }
        producer.flush(Duration::from_mins(5)).unwrap();
        f64::from(u32::try_from(records.len()).unwrap()) / began.elapsed().as_secs_f64()
    })
    .await
    .unwrap()
}

fn send(producer: &ThreadedProducer<DefaultProducerContext>, topic: &str, record: &Record) {
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for (key, value) in &record.headers {
        headers = headers.insert(Header {
            key,
            value: Some(value),
        });
    }
    let mut next = BaseRecord::to(topic)
        .key(&record.key)
        .payload(&record.payload)
        .headers(headers);
    loop {
        match producer.send(next) {
            Ok(()) => return,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                next = back;
                std::thread::yield_now();
            }
            Err((error, _)) => panic!("{error}"),
        }
    }
}
