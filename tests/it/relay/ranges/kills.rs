//! Relays that are killed inside a split and inside a merge, before the transaction commits and in the moment it does.

use super::{HALVES, IDS, expect_ranges, of_width, split_all};
use crate::relay::{LIMIT, insert, sandbox, settled, value};
use fanout_tests::checker::load::Journal;
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, eventually};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// Advisory lock that a commit waits for.
const LOCK: i64 = 4_711;

/// Where a transaction that replaces ranges is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// At its last statement.
    Statement,
    /// Inside the commit, which the server ends although nobody waits for it.
    Commit,
}

/// Holds up whoever replaces ranges until it is dropped.
struct Held(PgConnection);

impl Held {
    async fn at(sandbox: &Sandbox, point: Point) -> Self {
        let mut connection = PgConnection::connect(&sandbox.url).await.unwrap();
        let sql = match point {
            // Reading goes on.
            Point::Statement => "begin; lock table fanout.parked in exclusive mode".to_owned(),
            Point::Commit => format!(
                "create function wait() returns trigger language plpgsql as
                 $$ begin perform pg_advisory_xact_lock_shared({LOCK}); return null; end $$;
                 create constraint trigger wait after insert on fanout.ranges deferrable initially deferred
                 for each row execute function wait();
                 select pg_advisory_lock({LOCK})"
            ),
        };
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
        Self(connection)
    }

    /// Waits until one is held up.
    async fn wait(&self, sandbox: &Sandbox) {
        let waiting = "select count(*) from pg_stat_activity where datname = current_database()
            and application_name = 'fanout-relay' and wait_event_type = 'Lock'";
        eventually(LIMIT, "a transaction is held up", async || {
            let found = value(sandbox, waiting).await;
            if found.as_deref() == Some("0") {
                Err("none")
            } else {
                Ok(())
            }
        })
        .await;
    }

    async fn release(self) {
        self.0.close().await.unwrap();
    }
}

/// Waits until no transaction of a relay is under way.
async fn over(sandbox: &Sandbox) {
    let open = "select count(*) from pg_stat_activity where datname = current_database()
        and application_name = 'fanout-relay' and state <> 'idle'";
    eventually(LIMIT, "the transactions are over", async || {
        let found = value(sandbox, open).await;
        if found.as_deref() == Some("0") {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

/// Everything arrived in order, and no more twice than was written before the kill: what was in flight.
async fn judge(sandbox: &Sandbox) {
    let verdict = settled(sandbox, &Journal::default()).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert!(verdict.duplicates <= 4_000, "{verdict:?}");
}

async fn kill_inside_a_merge(name: &str, point: Point) {
    let sandbox = sandbox(name).await;
    let config = sandbox.relay_config();
    let relay = Relay::start(&sandbox, "a", &config).await;
    insert(&sandbox, 2_000, 100).await;
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 2_000)
        .await;
    assert!(relay.terminate().await.success());
    split_all(&sandbox, 8).await;
    let before = value(&sandbox, IDS).await;
    let held = Held::at(&sandbox, point).await;
    let mut relay = Relay::start(&sandbox, "b", &config).await;
    insert(&sandbox, 2_000, 100).await;
    held.wait(&sandbox).await;
    relay.kill();
    insert(&sandbox, 2_000, 100).await;
    held.release().await;
    over(&sandbox).await;
    let after = value(&sandbox, IDS).await;
    assert_eq!(after == before, point == Point::Statement, "{after:?}");
    relay.start_again().await;
    expect_ranges(&sandbox, HALVES).await;
    insert(&sandbox, 2_000, 100).await;
    judge(&sandbox).await;
}

async fn kill_inside_a_split(name: &str, point: Point) {
    let sandbox = sandbox(name).await;
    let config = sandbox.relay_config();
    insert(&sandbox, 2_000, 100).await;
    let relays = [
        Relay::start(&sandbox, "a", &config).await,
        Relay::start(&sandbox, "b", &config).await,
    ];
    for relay in &relays {
        relay
            .wait_until(LIMIT, "a range", |status| status.ranges.len() == 1)
            .await;
    }
    let before = value(&sandbox, IDS).await;
    let held = Held::at(&sandbox, point).await;
    let _third = Relay::start(&sandbox, "c", &config).await;
    insert(&sandbox, 2_000, 100).await;
    // Both have a range to split, at about the same time.
    held.wait(&sandbox).await;
    for relay in &relays {
        relay.kill();
    }
    insert(&sandbox, 2_000, 100).await;
    held.release().await;
    over(&sandbox).await;
    let after = value(&sandbox, IDS).await;
    assert_eq!(after == before, point == Point::Statement, "{after:?}");
    // The third one takes them over, and is the only one.
    expect_ranges(&sandbox, HALVES).await;
    let [mut first, mut second] = relays;
    first.start_again().await;
    second.start_again().await;
    expect_ranges(&sandbox, &of_width(8)).await;
    insert(&sandbox, 2_000, 100).await;
    judge(&sandbox).await;
}

#[tokio::test]
async fn a_relay_killed_before_its_split_commits_has_split_nothing() {
    kill_inside_a_split("ranges_split_statement", Point::Statement).await;
}

#[tokio::test]
async fn a_relay_killed_while_its_split_commits_has_split() {
    kill_inside_a_split("ranges_split_commit", Point::Commit).await;
}

#[tokio::test]
async fn a_relay_killed_before_its_merge_commits_has_merged_nothing() {
    kill_inside_a_merge("ranges_merge_statement", Point::Statement).await;
}

#[tokio::test]
async fn a_relay_killed_while_its_merge_commits_has_merged() {
    kill_inside_a_merge("ranges_merge_commit", Point::Commit).await;
}
