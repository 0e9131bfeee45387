//! From commit to a consumer, at a fixed rate of transactions with one row each.

use crate::drain::{connector_settings, slot, start};
use crate::outbox::prepare;
use crate::processor;
use fanout_contract::relay::Claim;
use fanout_tests::process::Relay;
use fanout_tests::services::kafka::Kafka;
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{Sandbox, eventually};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Commits a second.
pub(crate) const RATE: u32 = 2_000;
/// Writers that share the rate.
const WRITERS: u32 = 8;
/// Not measured at first.
const WARM_UP: u32 = 10;
/// Measured, seconds.
const MEASURED: u32 = 30;
/// Far more than anything takes.
const LIMIT: Duration = Duration::from_mins(2);

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    /// Milliseconds.
    pub(crate) p50: f64,
    /// Milliseconds.
    pub(crate) p99: f64,
    /// Processor seconds a second of whoever moves the rows.
    pub(crate) processor: f64,
    /// Size of the outbox after it, MiB.
    pub(crate) outbox: f64,
    /// Size of schema `fanout` after it, MiB.
    pub(crate) schema: f64,
}

/// When each row was committed, nanoseconds since the start; 0: not yet.
struct Commits {
    began: Instant,
    at: Vec<AtomicU64>,
}

impl Commits {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }
}

/// One relay in claim mode Snapshot; with `held` a transaction that has written stays open all along.
pub(crate) async fn relay((server, kafka): (&Postgres, &Kafka), held: bool) -> Latency {
    let sandbox = Sandbox::with("bench_latency", server, kafka).await;
    let config = prepare(&sandbox, server, Claim::Snapshot).await;
    let relay = Relay::start(&sandbox, "r", &config).await;
    relay
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() > 1)
        .await;
    let mut open = PgConnection::connect(&sandbox.url).await.unwrap();
    if held {
        let sql = format!(
            "begin; insert into outbox (topic, key, type) values ('{}', 'held', 't')",
            sandbox.topic_name
        );
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut open)
            .await
            .unwrap();
    }
    let topic = sandbox.kafka_topic.clone();
    let measured = measure(&sandbox, &topic, relay.pid()).await;
    open.close().await.unwrap();
    measured
}

/// Debezium's connector with its outbox event router, tuned for latency.
pub(crate) async fn connector((server, kafka): (&Postgres, &Kafka)) -> Latency {
    let (sandbox, topic) = slot(server, kafka).await;
    let settings = connector_settings(
        &sandbox,
        &[
            ("producer.override.linger.ms", "0"),
            ("producer.override.compression.type", "lz4"),
            ("poll.interval.ms", "1"),
        ],
    );
    let connect = start(&sandbox, settings).await;
    let active = "select active from pg_replication_slots where slot_name = 'dbz_outbox'";
    eventually(LIMIT, "the connector reads", async || {
        connect.ensure_running()?;
        let active: bool = sqlx::query_scalar(active).fetch_one(sandbox.pool()).await?;
        anyhow::ensure!(active, "not yet");
        Ok(())
    })
    .await;
    measure(&sandbox, &topic, connect.pid()).await
}

async fn measure(sandbox: &Sandbox, topic: &str, mover: u32) -> Latency {
    let rows = RATE * (WARM_UP + MEASURED);
    let commits = Arc::new(Commits {
        began: Instant::now(),
        at: (0..rows).map(|_| AtomicU64::new(0)).collect(),
    });
    let reader = read(sandbox, topic, Arc::clone(&commits));
    let before = processor::used(mover).as_secs_f64();
    let began = Instant::now();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        writers.push(tokio::spawn(write(
            sandbox.app_url.clone(),
            sandbox.topic_name.clone(),
            writer,
            Arc::clone(&commits),
        )));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let seconds = began.elapsed().as_secs_f64();
    let processor = (processor::used(mover).as_secs_f64() - before) / seconds;
    let mut latencies = reader.await.unwrap();
    latencies.sort_unstable();
    let at = |share: usize| {
        let index = (latencies.len() * share / 100).min(latencies.len() - 1);
        Duration::from_nanos(latencies[index]).as_secs_f64() * 1e3
    };
    let size = async |sql: &str| {
        let bytes: i64 = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(sandbox.pool())
            .await
            .unwrap();
        bytes as f64 / f64::from(1 << 20)
    };
    Latency {
        p50: at(50),
        p99: at(99),
        processor,
        outbox: size("select pg_total_relation_size('outbox')").await,
        schema: size(
            "select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class \
             where relnamespace = 'fanout'::regnamespace and relkind = 'r'",
        )
        .await,
    }
}

/// Reads until every row arrived once; latencies in nanoseconds, without the warm-up.
fn read(
    sandbox: &Sandbox,
    topic: &str,
    commits: Arc<Commits>,
) -> tokio::task::JoinHandle<Vec<u64>> {
    let consumer: BaseConsumer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", &sandbox.bootstrap)
        .set("group.id", "bench")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "1")
        .create()
        .unwrap();
    let mut partitions = TopicPartitionList::new();
    for partition in 0..fanout_tests::PARTITIONS {
        partitions
            .add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&partitions).unwrap();
    tokio::task::spawn_blocking(move || {
        let skipped = (RATE * WARM_UP) as usize;
        let mut left = commits.at.len();
        let mut latencies = Vec::with_capacity(left - skipped);
        let mut seen = vec![false; left];
        let limit = Instant::now() + LIMIT;
        while left > 0 {
            assert!(Instant::now() < limit, "{left} rows did not arrive");
            let Some(record) = consumer.poll(Duration::from_millis(100)) else {
                continue;
            };
            let now = commits.now();
            let record = record.unwrap();
            let number: usize = std::str::from_utf8(record.payload().unwrap())
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            if std::mem::replace(&mut seen[number], true) {
                continue;
            }
            left -= 1;
            if number >= skipped {
                // The writer may not have noted yet what is here already.
                let committed = commits.at[number].load(Ordering::Acquire);
                let latency = if committed == 0 {
                    0
                } else {
                    now.saturating_sub(committed)
                };
                latencies.push(latency);
            }
        }
        latencies
    })
}

/// Commits its share of the rows, each at its time, however long the one before took.
async fn write(url: String, topic: String, writer: u32, commits: Arc<Commits>) {
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let began = Instant::now();
    let pause = Duration::from_secs(1) / RATE;
    for number in (writer..u32::try_from(commits.at.len()).unwrap()).step_by(WRITERS as usize) {
        tokio::time::sleep_until((began + pause * number).into()).await;
        // 200 bytes.
        sqlx::query(
            "insert into outbox (topic, key, type, payload) values ($1, $2, 'post.created', convert_to($3, 'UTF8'))",
        )
        .bind(&topic)
        .bind(format!("user-{}", number % 10_000))
        .bind(format!("{number:<200}"))
        .execute(&mut connection)
        .await
        .unwrap();
        commits.at[number as usize].store(commits.now(), Ordering::Release);
    }
}
