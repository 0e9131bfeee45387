//! Everything that may happen to relays, at once and by chance: kills at random moments and at chosen ones, freezes beyond
//! the lease, cut connections, a broker that is killed, held transactions. All faults come from outside; the binaries are
//! the real ones. At the end the checker judges the log.

mod points;
mod report;

pub use points::Point;
pub use report::Report;

use crate::checker::Checker;
use crate::checker::load::{Load, Options};
use crate::faults::kafka_proxy::KafkaProxy;
use crate::faults::postgres_proxy::PostgresProxy;
use crate::process::{Files, Relay};
use crate::services::child::Signal;
use crate::services::kafka::Kafka;
use crate::services::postgres::{Postgres, RELAY_ROLE, url_at};
use crate::{Deadline, Sandbox, configs, eventually};
use fanout_contract::relay::{Broker, RelayConfig};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::AssertSqlSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// Relays that share the topic.
const RELAYS: usize = 3;
/// A point is waited for so long; then the relay is killed where it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// One kill in so many leaves the dead relay's lease to expire by itself; else it is expired by hand, because nobody is left
/// who could write under it. That is what makes a thousand kills possible.
const BY_ITSELF: u32 = 8;
/// Long enough for anything, on a busy machine.
const LIMIT: Duration = Duration::from_mins(3);

/// How much happens.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Relays killed, at least.
    pub kills: u32,
    /// Events committed, at least.
    pub events: u64,
    /// Connections that write.
    pub writers: u64,
    /// Each of them rests so long after a transaction.
    pub rest: Duration,
    /// Between two faults of other kinds.
    pub pause: Duration,
    /// What happens is drawn from this seed; when it does is the scheduler's choice.
    pub seed: u64,
}

/// A relay and what stands before it.
struct Target {
    relay: Mutex<Relay>,
    postgres: PostgresProxy,
    kafka: KafkaProxy,
    name: String,
}

struct Scene {
    sandbox: Sandbox,
    kafka: Arc<Kafka>,
    targets: Vec<Target>,
    /// Rows that were perhaps published and not stored, over all faults so far.
    unconfirmed: AtomicU64,
    /// Every kind of fault beside the kills has struck.
    disturbed: AtomicBool,
    over: AtomicBool,
}

/// Runs `plan` on servers of its own.
pub async fn run(test: &str, plan: Plan) -> Report {
    let began = Instant::now();
    let servers = tokio::task::spawn_blocking(|| {
        let postgres = Postgres::start().expect("PostgreSQL starts");
        (postgres, Arc::new(Kafka::start().expect("Kafka starts")))
    });
    let (postgres, kafka) = servers.await.expect("the servers start");
    let scene = Scene::new(test, &postgres, kafka).await;
    let options = Options {
        writers: plan.writers,
        keys: 400,
        transactions: u64::MAX,
        hold: Duration::from_secs(2),
        rest: plan.rest,
        seed: plan.seed,
        ..Options::default()
    };
    let load = Load::start(&scene.sandbox, &options).await;
    let mut report = Report::default();
    let (kills, faults) = tokio::join!(scene.kill(plan, &load), scene.disturb(plan));
    report.kills = kills;
    report.faults = faults;
    load.stop();
    let journal = load.finish().await;
    let checker = Checker::new(&scene.sandbox, &journal).await;
    report.verdict = Checker::settle(LIMIT, async || checker.judge_log().await).await;
    report.unconfirmed = scene.unconfirmed.load(Ordering::Relaxed);
    report.seconds = began.elapsed().as_secs();
    report
}

impl Scene {
    async fn new(test: &str, postgres: &Postgres, kafka: Arc<Kafka>) -> Self {
        let sandbox = Sandbox::with(test, postgres, &kafka).await;
        let mut targets = Vec::new();
        for number in 0..RELAYS {
            let before = PostgresProxy::start(postgres).await.expect("a free port");
            let broker = KafkaProxy::start(&kafka).await.expect("a free port");
            let name = format!("relay-{number}");
            let (config, files) = configuration(&sandbox, &before, &broker);
            let relay = Relay::start_with(&sandbox, &name, &config, files).await;
            targets.push(Target {
                relay: Mutex::new(relay),
                postgres: before,
                kafka: broker,
                name,
            });
        }
        Self {
            sandbox,
            kafka,
            targets,
            unconfirmed: AtomicU64::new(0),
            disturbed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    /// Kills relays one after the other, until enough of them died, enough is written, and every other fault has struck.
    async fn kill(&self, plan: Plan, load: &Load) -> Vec<(Point, u32)> {
        let mut rng = StdRng::seed_from_u64(plan.seed);
        let mut counts: Vec<(Point, u32)> = Point::ALL.map(|point| (point, 0)).to_vec();
        let mut number = 0;
        let is_enough = |number: u32| {
            number >= plan.kills
                && load.events() >= plan.events
                && self.disturbed.load(Ordering::Relaxed)
        };
        while !is_enough(number) {
            number += 1;
            let point = Point::ALL[rng.random_range(0..Point::ALL.len())];
            let (target, mut relay) = self.pick(point, &mut rng).await;
            let reached = points::strike(point, self, target, &relay, &mut rng).await;
            let count = counts.iter_mut().find(|(counted, _)| *counted == reached);
            count.expect("all points are counted").1 += 1;
            self.account().await;
            if !number.is_multiple_of(BY_ITSELF) {
                self.expire(target).await;
            }
            relay.start_again().await;
        }
        self.over.store(true, Ordering::Relaxed);
        counts
    }

    /// A relay that may reach `point`: one that has a range, unless it is to take one.
    async fn pick(&self, point: Point, rng: &mut StdRng) -> (&Target, MutexGuard<'_, Relay>) {
        let owners = self.owners().await;
        let first = rng.random_range(0..RELAYS);
        for offset in 0..RELAYS {
            let target = &self.targets[(first + offset) % RELAYS];
            let owns = owners
                .iter()
                .any(|owner| owner.starts_with(&format!("{}/", target.name)));
            if owns != (point == Point::Takeover)
                && let Ok(relay) = target.relay.try_lock()
            {
                return (target, relay);
            }
        }
        let target = &self.targets[first];
        (target, target.relay.lock().await)
    }

    async fn owners(&self) -> Vec<String> {
        self.strings("select owner from fanout.leases where expires_at > clock_timestamp() and owner is not null")
            .await
    }

    /// The faults beside the kills, one after the other; returns how often each struck.
    async fn disturb(&self, plan: Plan) -> Vec<(&'static str, u32)> {
        let mut rng = StdRng::seed_from_u64(plan.seed ^ 0x5eed);
        let mut counts = [
            ("stopped beyond the lease", 0),
            ("cut from PostgreSQL", 0),
            ("cut from Kafka", 0),
            ("broker killed", 0),
        ];
        let mut turn = 0;
        while !self.over.load(Ordering::Relaxed) {
            let pause = Deadline::after(plan.pause);
            while !pause.passed() && !self.over.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            // Cuts are frequent, the others take their time.
            let kind = [1, 2, 3, 0, 1, 2][turn % 6];
            turn += 1;
            let target = &self.targets[rng.random_range(0..RELAYS)];
            match kind {
                0 => self.freeze(target).await,
                1 => {
                    target.postgres.down().await;
                    target.postgres.up().await.expect("the port is its own");
                }
                2 => {
                    target.kafka.down().await;
                    target.kafka.up().await.expect("the port is its own");
                }
                _ => self.restart_broker().await,
            }
            self.account().await;
            counts[kind].1 += 1;
            let all = counts.iter().all(|(_, count)| *count > 0);
            self.disturbed.store(all, Ordering::Relaxed);
        }
        counts.to_vec()
    }

    /// Stops a relay until somebody else has its ranges, then lets it go on beside its successor.
    async fn freeze(&self, target: &Target) {
        let relay = target.relay.lock().await;
        relay.signal(Signal::STOP);
        // What it has in its hands now, both it and its successor may send.
        self.account().await;
        eventually(LIMIT, "a frozen relay is relieved", async || {
            let prefix = format!("{}/", target.name);
            let owners = self.owners().await;
            if owners.iter().any(|owner| owner.starts_with(&prefix)) {
                Err(format!("{owners:?}"))
            } else {
                Ok(())
            }
        })
        .await;
        relay.signal(Signal::CONT);
    }

    async fn restart_broker(&self) {
        let kafka = Arc::clone(&self.kafka);
        let restarted = tokio::task::spawn_blocking(move || {
            kafka.kill();
            kafka.start_again()
        });
        self.account().await;
        let restarted = restarted.await.expect("the broker is started again");
        restarted.expect("the broker starts again");
    }

    /// Counts what is committed and not stored as published: no more of it can be in the log, and come again.
    async fn account(&self) {
        let rows = self
            .strings(
                "select count(*)::text from public.outbox o
                   join fanout.ranges r on o.shard >= r.lo and o.shard < r.hi
                   join lateral (select old, new, last_id from fanout.positions where range_id = r.id
                                  order by term desc, seq desc limit 1) p on true
                  where not pg_visible_in_snapshot(o.xid, p.old)
                    and not (p.new is not null and o.id <= p.last_id and pg_visible_in_snapshot(o.xid, p.new))",
            )
            .await;
        let rows: u64 = rows[0].parse().expect("a number");
        self.unconfirmed.fetch_add(rows, Ordering::Relaxed);
    }

    /// What a killed relay held is free: it writes nothing any more.
    async fn expire(&self, target: &Target) {
        let owner = format!("{}/%", target.name);
        for sql in [
            "update fanout.leases set expires_at = clock_timestamp() where owner like $1",
            "delete from fanout.members where owner like $1",
        ] {
            sqlx::query(sql)
                .bind(&owner)
                .execute(self.sandbox.pool())
                .await
                .expect("the superuser writes");
        }
    }

    async fn strings(&self, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_all(self.sandbox.pool())
            .await
            .expect("the superuser reads")
    }
}

/// The relay behind its proxies.
fn configuration(
    sandbox: &Sandbox,
    postgres: &PostgresProxy,
    kafka: &KafkaProxy,
) -> (RelayConfig, Files) {
    let mut config = sandbox.relay_config();
    let Broker::Kafka(target) = &mut config.broker;
    target.cluster.bootstrap_servers = kafka.bootstrap();
    let mut files = sandbox.secret_files();
    let url = url_at(postgres.port(), RELAY_ROLE, &sandbox.database);
    files.insert(configs::URL_FILE.to_owned(), url.into_bytes());
    (config, files)
}
