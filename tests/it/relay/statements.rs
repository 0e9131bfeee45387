//! The statements of claim mode `Snapshot`, against a real planner.

use super::{execute, history, sandbox, source, value};
use fanout_relay::claim::snapshot::{self, Limits, Snapshot};
use fanout_relay::claim::{Completion, Kind, Reader, Shards};
use fanout_relay::lease;
use fanout_relay::position::Position;
use fanout_tests::Sandbox;
use fanout_tests::checker::load;
use fanout_tests::checker::writer::Writer;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

const ALL: Shards = Shards { lo: 0, hi: 64 };
const LIMITS: Limits = Limits {
    rows: 5_000,
    bytes: 8 << 20,
};

async fn reader(sandbox: &Sandbox, limits: Limits) -> Reader {
    let source = source(sandbox).await;
    let topic = lease::register(
        &source,
        "cluster",
        "topic",
        fanout_contract::relay::RelayStart::Earliest,
    )
    .await
    .unwrap();
    assert!(topic > 0);
    Reader::new(
        source,
        ALL,
        limits,
        history(sandbox).await,
        Position::At(Snapshot::nothing()),
    )
}

async fn ids(reader: &mut Reader) -> Vec<i64> {
    let batch = reader.next().await.unwrap();
    batch.rows().map(|row| row.unwrap().id).collect()
}

#[tokio::test]
async fn a_row_that_commits_after_younger_ones_is_read_then() {
    let sandbox = sandbox("stmt_late").await;
    let mut reader = reader(&sandbox, LIMITS).await;
    let mut late = PgConnection::connect(&sandbox.app_url).await.unwrap();
    sqlx::raw_sql("begin; insert into outbox (topic, type) values ('posts', 'late')")
        .execute(&mut late)
        .await
        .unwrap();
    execute(
        &sandbox,
        "insert into outbox (topic, type) select 'posts', 'early' from generate_series(1, 3)",
    )
    .await;
    assert_eq!(ids(&mut reader).await, [2, 3, 4]);
    assert_eq!(ids(&mut reader).await, Vec::<i64>::new());
    sqlx::raw_sql("commit").execute(&mut late).await.unwrap();
    assert_eq!(
        ids(&mut reader).await,
        [1],
        "`id > last` would have lost it"
    );
    assert_eq!(ids(&mut reader).await, Vec::<i64>::new());
}

#[tokio::test]
async fn a_difference_is_read_in_order_of_ids_not_of_transactions() {
    let sandbox = sandbox("stmt_order").await;
    let mut reader = reader(&sandbox, LIMITS).await;
    load::create_keys(&sandbox, 1).await;
    let connect = async || {
        Writer::connect(&sandbox.app_url, &sandbox.topic_name)
            .await
            .unwrap()
    };
    let (mut early, mut other) = (connect().await, connect().await);
    early.begin().await.unwrap();
    early.take_xid().await.unwrap();
    other.begin().await.unwrap();
    other.write("key-0").await.unwrap();
    other.commit().await.unwrap();
    early.write("key-0").await.unwrap();
    early.commit().await.unwrap();
    let by_xid = "select string_agg(id::text, ',' order by xid, id) from outbox";
    assert_eq!(
        value(&sandbox, by_xid).await.as_deref(),
        Some("2,1"),
        "the scene is set"
    );
    assert_eq!(ids(&mut reader).await, [1, 2]);
}

#[tokio::test]
async fn a_large_difference_is_frozen_and_read_in_pages() {
    let sandbox = sandbox("stmt_large").await;
    let mut reader = reader(
        &sandbox,
        Limits {
            rows: 10,
            bytes: 8 << 20,
        },
    )
    .await;
    super::insert(&sandbox, 25, 5).await;
    let begin = reader.next().await.unwrap();
    assert_eq!((begin.kind, begin.len()), (Kind::Begin, 0));
    // What commits from here on is not part of it.
    super::insert(&sandbox, 1, 1).await;
    let mut read = Vec::new();
    let mut kinds = Vec::new();
    while kinds.last() != Some(&Kind::End) {
        let batch = reader.next().await.unwrap();
        kinds.push(batch.kind);
        let page: Vec<i64> = batch.rows().map(|row| row.unwrap().id).collect();
        if let (Completion::Position(Position::Inside { last_id, .. }), Some(last)) =
            (&batch.after, page.last())
        {
            assert_eq!(last_id, last);
        }
        read.extend(page);
    }
    assert_eq!(read, (1..=25).collect::<Vec<i64>>());
    assert_eq!(kinds, [Kind::Rows, Kind::Rows, Kind::Rows, Kind::End]);
    assert_eq!(ids(&mut reader).await, [26]);

    // A reader that begins inside goes on behind the last id.
    let Completion::Position(Position::Inside { old, new, .. }) = begin.after else {
        panic!("a large difference begins inside");
    };
    let inside = Position::Inside {
        old,
        new,
        last_id: 20,
    };
    let mut second = Reader::new(
        source(&sandbox).await,
        ALL,
        LIMITS,
        history(&sandbox).await,
        inside,
    );
    assert_eq!(ids(&mut second).await, [21, 22, 23, 24, 25]);
}

#[tokio::test]
async fn heavy_rows_make_a_difference_large() {
    let sandbox = sandbox("stmt_heavy").await;
    let mut reader = reader(
        &sandbox,
        Limits {
            rows: 100,
            bytes: 10_000,
        },
    )
    .await;
    execute(
        &sandbox,
        "insert into outbox (topic, type, payload) select 'posts', 't', decode(repeat('00', 6000), 'hex') from generate_series(1, 3)",
    )
    .await;
    assert_eq!(reader.next().await.unwrap().kind, Kind::Begin);
    for id in 1..=3 {
        assert_eq!(ids(&mut reader).await, [id], "one at a time");
    }
}

/// Rows that the scans of a plan returned or looked at.
fn scanned(plan: &Value) -> f64 {
    let own = plan["Node Type"]
        .as_str()
        .is_some_and(|node| node.contains("Scan") && plan["Relation Name"] == "outbox");
    let number = |field: &str| plan[field].as_f64().unwrap_or_default();
    let rows = if own {
        (number("Actual Rows") + number("Rows Removed by Filter")) * number("Actual Loops")
    } else {
        0.0
    };
    let below = plan["Plans"]
        .as_array()
        .map_or(0.0, |plans| plans.iter().map(scanned).sum());
    rows + below
}

/// Index names, and `seq` for sequential scans, of the scans of `outbox`.
fn scans(plan: &Value, found: &mut Vec<String>) {
    if plan["Relation Name"] == "outbox" {
        found.push(plan["Index Name"].as_str().unwrap_or("seq").to_owned());
    }
    if let Some(index) = plan["Index Name"]
        .as_str()
        .filter(|_| plan["Node Type"] == "Bitmap Index Scan")
    {
        found.retain(|name| name != "seq");
        found.push(index.to_owned());
    }
    for below in plan["Plans"].as_array().into_iter().flatten() {
        scans(below, found);
    }
}

async fn explain(connection: &mut PgConnection, options: &str, sql: &str) -> Value {
    let sql = format!("explain (format json{options}) {sql}");
    let plan: String = {
        use sqlx::Row as _;
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        row.try_get_raw(0).unwrap().as_str().unwrap().to_owned()
    };
    serde_json::from_str::<Value>(&plan).unwrap()[0]["Plan"].clone()
}

#[tokio::test]
async fn running_transactions_are_not_read_again_at_each_poll() {
    let sandbox = sandbox("stmt_running").await;
    let mut open = PgConnection::connect(&sandbox.app_url).await.unwrap();
    sqlx::raw_sql(
        "begin; insert into outbox (topic, type) select 'posts', 't' from generate_series(1, 1000)",
    )
    .execute(&mut open)
    .await
    .unwrap();
    // Of all that run on the server this one alone: a plan counts the rows of a scan as an average of its loops, one for
    // each transaction that ended, and rounds it.
    let running = sqlx::query_scalar::<_, String>("select pg_current_xact_id()::text")
        .fetch_one(&mut open)
        .await
        .unwrap();
    let next = running.parse::<u64>().unwrap() + 1;
    let old = Snapshot::new(format!("{running}:{next}:{running}"));
    let outbox = source(&sandbox).await.outbox;
    let poll = snapshot::poll(&outbox, ALL, &old.sql(), LIMITS);
    let mut connection = PgConnection::connect(&sandbox.url).await.unwrap();
    let plan = explain(&mut connection, ", analyze", &poll).await;
    assert!(scanned(&plan) < 10.0, "{plan:#}");
    sqlx::raw_sql("commit").execute(&mut open).await.unwrap();
    let plan = explain(&mut connection, ", analyze", &poll).await;
    assert!(scanned(&plan) >= 1000.0, "{plan:#}");
}

#[tokio::test]
async fn both_branches_use_the_index_with_stale_statistics_and_as_a_generic_plan() {
    let sandbox = sandbox("stmt_plans").await;
    // Statistics of an empty table, then many rows of this topic and of others.
    execute(
        &sandbox,
        "alter table outbox set (autovacuum_enabled = false); analyze outbox;
         insert into outbox (topic, type) select 'posts', 't' from generate_series(1, 30000);
         insert into outbox (topic, type) select 'other', 't' from generate_series(1, 30000)",
    )
    .await;
    let outbox = source(&sandbox).await.outbox;
    let mut connection = PgConnection::connect(&sandbox.url).await.unwrap();
    // One transaction that was running and has ended, with a few rows. Other tests' transactions may be running: nothing
    // of the server's own snapshot will do.
    execute(
        &sandbox,
        "insert into outbox (topic, type) select 'posts', 't' from generate_series(1, 5)",
    )
    .await;
    let ended = value(&sandbox, "select xid from outbox order by id desc limit 1")
        .await
        .unwrap();
    let next = ended.parse::<u64>().unwrap() + 1;
    let old = Snapshot::new(format!("{ended}:{next}:{ended}"));
    let literal = snapshot::poll(&outbox, ALL, &old.sql(), LIMITS);
    let generic = snapshot::poll(&outbox, ALL, "$1", LIMITS);
    let prepare =
        format!("set plan_cache_mode = force_generic_plan; prepare p(pg_snapshot) as {generic}");
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut connection)
        .await
        .unwrap();
    let generic = format!("execute p({})", old.sql());
    for statistics in ["stale", "fresh"] {
        for statement in [&literal, &generic] {
            let plan = explain(&mut connection, ", analyze", statement).await;
            let mut found = Vec::new();
            scans(&plan, &mut found);
            let index = "outbox_topic_xid_shard_idx".to_owned();
            assert_eq!(
                found,
                [index.clone(), index],
                "{statistics} statistics: {plan:#}"
            );
            // What is read follows what is new, however many rows are kept.
            assert!(scanned(&plan) < 20.0, "{statistics} statistics: {plan:#}");
        }
        execute(&sandbox, "analyze outbox").await;
    }
}

#[tokio::test]
async fn pending_rows_are_counted_from_either_kind_of_position() {
    let sandbox = sandbox("stmt_pending").await;
    super::insert(&sandbox, 30, 3).await;
    let source = source(&sandbox).await;
    let count = async |position: &Position, cap| -> String {
        let sql = source.outbox.pending(ALL, position, cap);
        let rows = source.query(sql).await.unwrap();
        fanout_relay::claim::row::text(&rows[0], 0)
            .unwrap()
            .unwrap()
            .to_owned()
    };
    let start = Position::At(Snapshot::nothing());
    assert_eq!(count(&start, 1000).await, "30");
    assert_eq!(count(&start, 20).await, "20", "capped");
    let now = Snapshot::new(
        value(&sandbox, "select pg_current_snapshot()")
            .await
            .unwrap(),
    );
    super::insert(&sandbox, 5, 3).await;
    assert_eq!(count(&Position::At(now.clone()), 1000).await, "5");
    let inside = Position::Inside {
        old: Snapshot::nothing(),
        new: now,
        last_id: 10,
    };
    assert_eq!(count(&inside, 1000).await, "25");
}
