//! What every claim mode promises, tried on each of them: under load, restarts and takeovers nothing is lost, aborted rows
//! are not read, and the order per key holds.

mod changing;
mod columns;
mod delete;
mod guides;
mod lease;

use super::ranges::{expect_ranges, of_width};
use super::{
    LIMIT, assert_not_repeated, execute, history, insert, sandbox, settled, source, value,
};
use fanout_contract::relay::{Claim, ColumnSource, RelayConfig, Source as SourceConfig};
use fanout_relay::claim::{Ids, Queue, Shards, Taken};
use fanout_relay::lease::{self as leases, Member};
use fanout_relay::position::Fence;
use fanout_tests::checker::load::{Journal, Load, Options};
use fanout_tests::process::Relay;
use fanout_tests::services::child::Signal;
use fanout_tests::{Sandbox, eventually, modes, services};

const ALL: Shards = Shards { lo: 0, hi: 64 };

/// Makes of each scenario a test on each claim mode.
macro_rules! on_every_mode {
    ($($scenario:ident),+ $(,)?) => {$(
        mod $scenario {
            use super::Claim;

            #[tokio::test]
            async fn snapshot() {
                super::$scenario(Claim::Snapshot).await;
            }

            #[tokio::test]
            async fn lease() {
                super::$scenario(Claim::Lease).await;
            }

            #[tokio::test]
            async fn delete() {
                super::$scenario(Claim::Delete).await;
            }
        }
    )+};
}

on_every_mode!(
    claims_under_load_and_restarts,
    claims_are_taken_over,
    claims_shared_in_peace_repeat_nothing_and_park_what_can_not_be_published,
    claims_go_on_while_ranges_split_and_merge,
);

/// A sandbox whose relay claims by `claim`, and its configuration.
pub(super) async fn scene(test: &str, claim: Claim) -> (Sandbox, RelayConfig) {
    let sandbox = sandbox(&format!("{test}_{claim:?}").to_lowercase()).await;
    let config = modes::prepare(&sandbox, services::postgres(), claim).await;
    (sandbox, config)
}

#[allow(clippy::unnecessary_wraps)] // as the fields of a mapping are
fn column(name: &str) -> Option<ColumnSource> {
    Some(ColumnSource::Column(name.to_owned()))
}

/// Everything that was written is published, and the table says so.
async fn expect_finished(sandbox: &Sandbox, claim: Claim) {
    let left = match claim {
        Claim::Snapshot => return,
        Claim::Lease => "select count(*) from outbox where status <> 'done'",
        Claim::Delete => "select count(*) from queue",
    };
    eventually(LIMIT, "every row is completed", async || {
        let left = value(sandbox, left).await;
        if left.as_deref() == Some("0") {
            Ok(())
        } else {
            Err(format!("{left:?} are not"))
        }
    })
    .await;
}

async fn claims_under_load_and_restarts(claim: Claim) {
    let (sandbox, config) = scene("contract_load", claim).await;
    insert(&sandbox, 6_000, 60).await;
    let mut relay = Relay::start(&sandbox, "a", &config).await;
    let load = Load::start(
        &sandbox,
        &Options {
            transactions: 1_200,
            ..Options::default()
        },
    )
    .await;
    // In peace, then by force, each time with rows on their way.
    for _ in 0..2 {
        let sent = relay.status().await.unwrap().published_total;
        relay
            .wait_until(LIMIT, "it publishes", |status| {
                status.published_total > sent
            })
            .await;
        assert!(relay.terminate().await.success());
        relay.start_again().await;
        insert(&sandbox, 3_000, 60).await;
        relay
            .wait_until(LIMIT, "it publishes again", |status| {
                status.published_total > 0
            })
            .await;
        relay.kill();
        relay.start_again().await;
    }
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    // Each kill repeats at most what was in flight of two ranges.
    assert!(verdict.duplicates <= 2 * 70_000, "{verdict:?}");
    expect_finished(&sandbox, claim).await;
    relay
        .wait_until(LIMIT, "nothing waits", |status| {
            status
                .pending
                .as_ref()
                .is_some_and(|pending| pending.rows == 0)
        })
        .await;
}

async fn claims_are_taken_over(claim: Claim) {
    let (sandbox, config) = scene("contract_takeover", claim).await;
    let first = Relay::start(&sandbox, "a", &config).await;
    first
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    let load = Load::start(
        &sandbox,
        &Options {
            transactions: 800,
            ..Options::default()
        },
    )
    .await;
    insert(&sandbox, 30_000, 200).await;
    // Frozen with rows claimed and in flight; it comes back when its ranges belong to another.
    first.signal(Signal::STOP);
    let second = Relay::start(&sandbox, "b", &config).await;
    second
        .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
        .await;
    insert(&sandbox, 2_000, 200).await;
    first.signal(Signal::CONT);
    first
        .wait_until(LIMIT, "one range", |status| status.ranges.len() == 1)
        .await;
    // Killed, and taken over by the one that is left.
    second.kill();
    insert(&sandbox, 2_000, 200).await;
    first
        .wait_until(LIMIT, "both ranges again", |status| {
            status.ranges.len() == 2
        })
        .await;
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    expect_finished(&sandbox, claim).await;
}

async fn claims_shared_in_peace_repeat_nothing_and_park_what_can_not_be_published(claim: Claim) {
    let (sandbox, config) = scene("contract_share", claim).await;
    // A type that is empty can't be an event; the later row of its key is held, others go on.
    execute(
        &sandbox,
        "insert into outbox (topic, key, type, subject) values
            ('posts', 'bad', '', 'bad/1'), ('posts', 'bad', 't', 'bad/2'), ('posts', 'good', 't', 'good/1')",
    )
    .await;
    let first = Relay::start(&sandbox, "a", &config).await;
    first
        .wait_until(LIMIT, "one parked, one held", |status| {
            (status.parked.rows, status.parked.held) == (1, 1)
        })
        .await;
    let copied = "select string_agg(subject || ':' || coalesce(reason, 'held'), ' ' order by id) from fanout.parked";
    assert_eq!(
        value(&sandbox, copied).await.as_deref(),
        Some("bad/1:TypeEmpty bad/2:held")
    );
    let same = "select bool_and(p.event_id = o.event_id::text) from fanout.parked p join outbox o on o.subject = p.subject";
    assert_eq!(value(&sandbox, same).await.as_deref(), Some("true"));
    expect_finished(&sandbox, claim).await;
    execute(&sandbox, "delete from outbox where key = 'bad'").await;

    insert(&sandbox, 3_000, 60).await;
    let second = Relay::start(&sandbox, "b", &config).await;
    second
        .wait_until(LIMIT, "one range", |status| status.ranges.len() == 1)
        .await;
    insert(&sandbox, 3_000, 60).await;
    let verdict = settled(&sandbox, &Journal::default()).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(&verdict, &first).await;
    expect_finished(&sandbox, claim).await;
}

async fn claims_go_on_while_ranges_split_and_merge(claim: Claim) {
    let (sandbox, config) = scene("contract_ranges", claim).await;
    insert(&sandbox, 5_000, 200).await;
    let first = Relay::start(&sandbox, "a", &config).await;
    let endless = Options {
        writers: 4,
        transactions: u64::MAX,
        ..Options::default()
    };
    let load = Load::start(&sandbox, &endless).await;
    let others = [
        Relay::start(&sandbox, "b", &config).await,
        Relay::start(&sandbox, "c", &config).await,
    ];
    expect_ranges(&sandbox, &of_width(8)).await;
    insert(&sandbox, 5_000, 200).await;
    for relay in &others {
        assert!(relay.terminate().await.success());
    }
    expect_ranges(&sandbox, &of_width(32)).await;
    load.stop();
    let journal = load.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_not_repeated(&verdict, &first).await;
    expect_finished(&sandbox, claim).await;
}

/// The topic's only range, which has every shard, taken by `owner`.
async fn take(sandbox: &Sandbox, config: &RelayConfig, owner: &str) -> Fence {
    let source = super::try_source(sandbox, config).await.unwrap();
    let SourceConfig::Postgres(postgres) = &config.source;
    let topic = leases::register(&source, "cluster", "topic", postgres.start_from)
        .await
        .unwrap();
    execute(
        sandbox,
        "delete from fanout.positions where range_id in (select id from fanout.ranges where lo > 0);
         delete from fanout.leases where range_id in (select id from fanout.ranges where lo > 0);
         delete from fanout.ranges where lo > 0; update fanout.ranges set hi = 64;
         update fanout.leases set expires_at = '-infinity'",
    )
    .await;
    let range = value(sandbox, "select id from fanout.ranges")
        .await
        .unwrap();
    let owner = owner.to_owned();
    let member = Member { topic, owner };
    let acquired = leases::acquire(&source, &member, range.parse().unwrap()).await;
    acquired.unwrap().unwrap().fence
}

/// Claims everything as the holder of `fence` does, at most `rows` at a time.
async fn queue(
    sandbox: &Sandbox,
    config: &RelayConfig,
    fence: &Fence,
    rows: usize,
) -> (Queue, Taken) {
    let taken = Taken::default();
    let limits = fanout_relay::claim::snapshot::Limits {
        rows,
        bytes: 8 << 20,
    };
    let source = super::try_source(sandbox, config).await.unwrap();
    let history = history(sandbox).await;
    let queue = Queue::new(source, ALL, limits, history, fence.clone(), taken.clone());
    (queue, taken)
}

async fn next(queue: &mut Queue) -> Vec<i64> {
    let batch = queue.next().await.unwrap();
    batch.rows().map(|row| row.unwrap().id).collect()
}

/// Completes `ids` under `fence`; says whether the lease holds.
async fn complete(sandbox: &Sandbox, config: &RelayConfig, fence: &Fence, ids: &[i64]) -> bool {
    let source = super::try_source(sandbox, config).await.unwrap();
    let sql = source.outbox.complete(fence, &Ids::Numbers(ids.to_vec()));
    fanout_relay::claim::holds(&source.query(sql).await.unwrap()).unwrap()
}
