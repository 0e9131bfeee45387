//! How fast a full outbox is drained, and what that costs each of the servers.

use crate::outbox::{commit_at_once, execute, fill, prepare};
use crate::processor;
use fanout_contract::relay::Claim;
use fanout_tests::process::Relay;
use fanout_tests::services::connect::{Connect, Jvm, debezium};
use fanout_tests::services::kafka::Kafka;
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{PARTITIONS, Sandbox, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::time::{Duration, Instant};

/// Far more than a million rows take.
const LIMIT: Duration = Duration::from_mins(10);

/// Between two looks at what is published.
const LOOK: Duration = Duration::from_millis(10);

/// What draining took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drained {
    /// Rows that went into the log a second.
    pub(crate) rows_per_second: f64,
    /// Processor seconds for a million rows: whoever moves them, PostgreSQL, Kafka.
    pub(crate) processor: [f64; 3],
}

/// Processor time of the programs that take part.
struct Meter<'a> {
    movers: Vec<u32>,
    server: &'a Postgres,
    kafka: &'a Kafka,
}

impl Meter<'_> {
    fn read(&self) -> [f64; 3] {
        let of = |pid: Option<u32>| processor::used(pid.unwrap()).as_secs_f64();
        let movers: f64 = self.movers.iter().map(|pid| of(Some(*pid))).sum();
        [movers, of(self.server.pid()), of(self.kafka.pid())]
    }
}

/// Two moments of a drain.
struct Span {
    rows: u64,
    at: Instant,
    processor: [f64; 3],
}

impl Span {
    fn until(&self, later: &Self) -> Drained {
        let rows = f64::from(u32::try_from(later.rows - self.rows).unwrap());
        let million = rows / 1e6;
        let cost = |index: usize| (later.processor[index] - self.processor[index]) / million;
        Drained {
            rows_per_second: rows / (later.at - self.at).as_secs_f64(),
            processor: [cost(0), cost(1), cost(2)],
        }
    }
}

/// The moment at which `wanted` rows are in the log, looked at often: what passes between two looks is measured with.
async fn reach(
    meter: &Meter<'_>,
    wanted: u64,
    published: &impl AsyncFn() -> anyhow::Result<u64>,
) -> Span {
    let began = Instant::now();
    loop {
        let rows = published().await.unwrap();
        let at = Instant::now();
        if rows >= wanted {
            let processor = meter.read();
            return Span {
                rows,
                at,
                processor,
            };
        }
        assert!(began.elapsed() < LIMIT, "{rows} of {wanted} rows");
        tokio::time::sleep(LOOK).await;
    }
}

/// `relays` relays that have shared the ranges and wait, from the commit of `rows` rows until all are acknowledged.
pub(crate) async fn relays(
    (server, kafka): (&Postgres, &Kafka),
    (claim, relays): (Claim, usize),
    rows: usize,
) -> Drained {
    let sandbox = Sandbox::with("bench_drain", server, kafka).await;
    let config = prepare(&sandbox, server, claim).await;
    let mut all = Vec::new();
    for number in 0..relays {
        all.push(Relay::start(&sandbox, &format!("r{number}"), &config).await);
    }
    eventually(LIMIT, "every relay has a range", async || {
        let mut owned = Vec::new();
        for relay in &all {
            owned.push(relay.status().await?.ranges.len());
        }
        anyhow::ensure!(owned.iter().all(|ranges| *ranges > 0), "{owned:?}");
        Ok(())
    })
    .await;
    let meter = Meter {
        movers: all.iter().map(Relay::pid).collect(),
        server,
        kafka,
    };
    commit_at_once(&sandbox, rows).await;
    let published = async || -> anyhow::Result<u64> {
        let mut sum = 0;
        for relay in &all {
            sum += relay.status().await?.published_total;
        }
        Ok(sum)
    };
    let first = reach(&meter, 0, &published).await;
    let last = reach(&meter, rows as u64, &published).await;
    first.until(&last)
}

/// Debezium's connector with its outbox event router, tuned for throughput; without the tenth of the rows that its virtual
/// machine warms up with.
pub(crate) async fn connector((server, kafka): (&Postgres, &Kafka), rows: usize) -> Drained {
    let (sandbox, topic) = slot(server, kafka).await;
    fill(&sandbox, rows).await;
    let settings = connector_settings(
        &sandbox,
        &[
            ("producer.override.linger.ms", "5"),
            ("producer.override.batch.size", "65536"),
            ("producer.override.compression.type", "lz4"),
            ("max.batch.size", "8192"),
            ("max.queue.size", "32768"),
            ("poll.interval.ms", "10"),
        ],
    );
    let connect = start(&sandbox, settings).await;
    let meter = Meter {
        movers: vec![connect.pid()],
        server,
        kafka,
    };
    let reader: BaseConsumer = kafka.client().create().unwrap();
    let published = async || {
        connect.ensure_running()?;
        tokio::task::block_in_place(|| end(&reader, &topic))
    };
    let first = reach(&meter, rows as u64 / 10, &published).await;
    let last = reach(&meter, rows as u64, &published).await;
    first.until(&last)
}

/// Records of a topic that was never trimmed.
fn end(reader: &BaseConsumer, topic: &str) -> anyhow::Result<u64> {
    let mut sum = 0;
    for partition in 0..PARTITIONS {
        let (_, end) = reader.fetch_watermarks(topic, partition, Duration::from_secs(10))?;
        sum += u64::try_from(end)?;
    }
    Ok(sum)
}

/// A sandbox with a slot and a publication of its outbox, and the topic that the router sends to.
pub(crate) async fn slot(server: &Postgres, kafka: &Kafka) -> (Sandbox, String) {
    let mut sandbox = Sandbox::with("bench_debezium", server, kafka).await;
    // The router names its topic by what the rows say.
    sandbox.topic_name.clone_from(&sandbox.namespace);
    let topic = fanout_contract::names::routed_topic("", &sandbox.topic_name);
    kafka.create_topic(&topic, PARTITIONS, &[]).await;
    for sql in [
        "create publication dbz_outbox for table outbox",
        "select pg_create_logical_replication_slot('dbz_outbox', 'pgoutput')",
    ] {
        execute(&sandbox, sql).await;
    }
    (sandbox, topic)
}

/// Settings for rows of the standard outbox, and `own`.
pub(crate) fn connector_settings(
    sandbox: &Sandbox,
    own: &[(&'static str, &str)],
) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("skipped.operations", "u,d,t"),
        (
            "value.converter",
            "io.debezium.converters.BinaryDataConverter",
        ),
        ("transforms.outbox.table.field.event.id", "event_id"),
        ("transforms.outbox.table.field.event.key", "key"),
        ("transforms.outbox.route.by.field", "topic"),
    ];
    all.extend(own);
    debezium(sandbox, "outbox", &all).unwrap()
}

/// Starts the connector.
pub(crate) async fn start(sandbox: &Sandbox, settings: Vec<(&'static str, String)>) -> Connect {
    let bootstrap = sandbox.bootstrap.clone();
    let connectors = [("bench", settings)];
    tokio::task::spawn_blocking(move || Connect::start(&bootstrap, &connectors, Jvm::Fast))
        .await
        .unwrap()
        .unwrap()
}
