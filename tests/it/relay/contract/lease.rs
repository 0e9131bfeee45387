//! Claim mode `Lease`: its statements, and the rules they keep.

use super::{ALL, complete, execute, insert, next, queue, scene, take, value};
use fanout_contract::relay::Claim;
use fanout_relay::claim::snapshot::Limits;
use fanout_relay::claim::{SERVER_COLUMNS, lease};
use fanout_relay::position::Fence;
use fanout_tests::Sandbox;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

const LIMITS: Limits = Limits {
    rows: 5_000,
    bytes: 8 << 20,
};

async fn count(sandbox: &Sandbox, status: &str) -> String {
    let sql = format!("select count(*) from outbox where status = '{status}'");
    value(sandbox, &sql).await.unwrap()
}

#[tokio::test]
async fn whoever_takes_over_gives_claimed_rows_back_first() {
    let (sandbox, config) = scene("lease_reclaim", Claim::Lease).await;
    insert(&sandbox, 10, 1).await;
    let old = take(&sandbox, &config, "a").await;
    let (mut first, _) = queue(&sandbox, &config, &old, 4).await;
    assert_eq!(next(&mut first).await, [1, 2, 3, 4]);
    assert!(complete(&sandbox, &config, &old, &[1]).await);
    let new = take(&sandbox, &config, "b").await;
    // Without that the rows behind them come first: an order break of their key.
    let claim = async |fence: &Fence| {
        let source = super::source(&sandbox).await;
        let mut outbox = source.outbox.clone();
        outbox.claim = Claim::Lease;
        let rows = source
            .query(format!(
                "begin; {}; rollback",
                lease::claim(&outbox, ALL, fence, LIMITS)
            ))
            .await
            .unwrap();
        let text = |column| {
            fanout_relay::claim::row::text(&rows[0], column)
                .unwrap()
                .map(str::to_owned)
        };
        (text(SERVER_COLUMNS), text(SERVER_COLUMNS + 1))
    };
    let behind = (Some("5".to_owned()), Some("0,1,2,3,4,5".to_owned()));
    assert_eq!(claim(&new).await, behind);
    let (mut second, _) = queue(&sandbox, &config, &new, 4).await;
    assert_eq!(next(&mut second).await, [2, 3, 4, 5]);
    // The one before can neither claim, nor give back, nor complete any more.
    assert_eq!(claim(&old).await, (None, None));
    assert_eq!(next(&mut first).await, [] as [i64; 0]);
    assert!(!complete(&sandbox, &config, &old, &[2, 3]).await);
    let (mut late, _) = queue(&sandbox, &config, &old, 4).await;
    assert_eq!(next(&mut late).await, [] as [i64; 0]);
    assert_eq!(count(&sandbox, "processing").await, "4");
    assert_eq!(count(&sandbox, "done").await, "1");
    let attempts = "select string_agg(attempts::text, '' order by id) from outbox";
    assert_eq!(
        value(&sandbox, attempts).await.as_deref(),
        Some("1222100000")
    );
}

#[tokio::test]
async fn a_takeover_waits_for_the_claim_that_is_under_way() {
    let (sandbox, config) = scene("lease_wait", Claim::Lease).await;
    insert(&sandbox, 10, 1).await;
    let old = take(&sandbox, &config, "a").await;
    let source = super::super::try_source(&sandbox, &config).await.unwrap();
    let mut claiming = PgConnection::connect(&sandbox.relay_url).await.unwrap();
    let claim = format!("begin; {}", lease::claim(&source.outbox, ALL, &old, LIMITS));
    sqlx::raw_sql(AssertSqlSafe(claim))
        .execute(&mut claiming)
        .await
        .unwrap();
    let blocked =
        sqlx::raw_sql("set lock_timeout = '200ms'; update fanout.leases set term = term + 1")
            .execute(&mut PgConnection::connect(&sandbox.relay_url).await.unwrap())
            .await;
    let code = blocked
        .unwrap_err()
        .as_database_error()
        .and_then(|error| error.code().map(|code| code.to_string()));
    assert_eq!(code.as_deref(), Some("55P03"), "the lease is locked");
    sqlx::raw_sql("commit")
        .execute(&mut claiming)
        .await
        .unwrap();
    let new = take(&sandbox, &config, "b").await;
    let (mut second, _) = queue(&sandbox, &config, &new, 3).await;
    assert_eq!(next(&mut second).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_row_that_somebody_locked_holds_its_key_back_and_no_other() {
    let (sandbox, config) = scene("lease_locked", Claim::Lease).await;
    execute(
        &sandbox,
        "insert into outbox (topic, key, type) values ('posts', 'a', 't'), ('posts', 'b', 't'), ('posts', 'a', 't'), ('posts', 'b', 't')",
    )
    .await;
    let fence = take(&sandbox, &config, "a").await;
    let mut somebody = PgConnection::connect(&sandbox.url).await.unwrap();
    sqlx::raw_sql("begin; select from outbox where id = 1 for update")
        .execute(&mut somebody)
        .await
        .unwrap();
    let (mut claims, _) = queue(&sandbox, &config, &fence, 100).await;
    assert_eq!(next(&mut claims).await, [2, 4]);
    sqlx::raw_sql("rollback")
        .execute(&mut somebody)
        .await
        .unwrap();
    assert_eq!(next(&mut claims).await, [1, 3]);
}

#[tokio::test]
async fn a_batch_is_bounded_by_rows_and_bytes_but_never_empty() {
    let (sandbox, config) = scene("lease_bytes", Claim::Lease).await;
    execute(
        &sandbox,
        "insert into outbox (topic, type, payload) select 'posts', 't', decode(repeat('00', n), 'hex')
           from unnest(array[10000000, 10, 10, 8000000, 1000000]) n",
    )
    .await;
    let fence = take(&sandbox, &config, "a").await;
    let (mut claims, _) = queue(&sandbox, &config, &fence, 2).await;
    assert_eq!(next(&mut claims).await, [1], "too heavy, and the only one");
    assert_eq!(next(&mut claims).await, [2, 3]);
    assert_eq!(next(&mut claims).await, [4, 5]);
    assert_eq!(next(&mut claims).await, [] as [i64; 0]);
}

#[tokio::test]
async fn a_claim_that_expired_is_claimed_again() {
    let (sandbox, config) = scene("lease_expired", Claim::Lease).await;
    insert(&sandbox, 3, 1).await;
    let fence = take(&sandbox, &config, "a").await;
    let (mut claims, _) = queue(&sandbox, &config, &fence, 2).await;
    assert_eq!(next(&mut claims).await, [1, 2]);
    execute(
        &sandbox,
        "update outbox set lease_expires = clock_timestamp() - interval '1 s' where id = 1",
    )
    .await;
    assert_eq!(next(&mut claims).await, [1, 3]);
}

/// Conditions of the scans of `outbox` that use `index`.
fn index_conditions(plan: &Value, index: &str, found: &mut Vec<String>) {
    if plan["Index Name"] == index {
        found.push(plan["Index Cond"].as_str().unwrap_or_default().to_owned());
    }
    for below in plan["Plans"].as_array().into_iter().flatten() {
        index_conditions(below, index, found);
    }
}

/// True where some scan of `outbox` reads all of it, or through an index that has the done rows.
fn reads_done_rows(plan: &Value) -> bool {
    let name = plan["Index Name"].as_str();
    let partial = name.is_some_and(|name| {
        name.contains("topic_id_shard") || name.contains("topic_lease_expires_shard")
    });
    // By primary key, of ids that the partial indexes gave.
    let by_id = name == Some("outbox_pkey")
        && plan["Index Cond"]
            .as_str()
            .is_some_and(|condition| condition.contains("ANY"));
    let bitmap = plan["Node Type"] == "Bitmap Heap Scan";
    let wrong = plan["Relation Name"] == "outbox"
        && plan["Node Type"]
            .as_str()
            .is_some_and(|node| node.contains("Scan"))
        && !(partial || by_id || bitmap);
    wrong
        || plan["Plans"]
            .as_array()
            .is_some_and(|plans| plans.iter().any(reads_done_rows))
}

#[tokio::test]
async fn claims_read_the_unfinished_alone_whatever_is_kept() {
    let (sandbox, config) = scene("lease_plan", Claim::Lease).await;
    // Statistics of an empty table, then many rows that are done.
    execute(
        &sandbox,
        "alter table outbox set (autovacuum_enabled = false); analyze outbox;
         insert into outbox (topic, key, type, status) select 'posts', n::text, 't', 'done' from generate_series(1, 50000) n;
         insert into outbox (topic, key, type, status, lease_expires)
         select 'posts', n::text, 't', 'processing', clock_timestamp() + interval '1 hour' from generate_series(1, 2000) n;
         insert into outbox (topic, key, type) select 'posts', n::text, 't' from generate_series(1, 50) n",
    )
    .await;
    let fence = take(&sandbox, &config, "a").await;
    let source = super::super::try_source(&sandbox, &config).await.unwrap();
    let claim = lease::claim(&source.outbox, ALL, &fence, LIMITS);
    let mut connection = PgConnection::connect(&sandbox.url).await.unwrap();
    let explain = async |connection: &mut PgConnection, sql: &str| -> Value {
        let sql = format!("explain (format json) {sql}");
        let plan: String = {
            use sqlx::Row as _;
            let row = sqlx::raw_sql(AssertSqlSafe(sql))
                .fetch_one(connection)
                .await
                .unwrap();
            row.try_get_raw(0).unwrap().as_str().unwrap().to_owned()
        };
        serde_json::from_str::<Value>(&plan).unwrap()[0]["Plan"].clone()
    };
    let index = "outbox_topic_lease_expires_shard_idx";
    for statistics in ["stale", "fresh"] {
        let plan = explain(&mut connection, &claim).await;
        assert!(!reads_done_rows(&plan), "{statistics} statistics: {plan:#}");
        let mut conditions = Vec::new();
        index_conditions(&plan, index, &mut conditions);
        assert!(!conditions.is_empty(), "{statistics} statistics: {plan:#}");
        assert!(
            conditions
                .iter()
                .all(|condition| condition.contains("lease_expires <")),
            "{statistics} statistics: {conditions:?}"
        );
        // The fault: without the sub-select the time is no condition of the index.
        let bare = claim.replace("(select clock_timestamp())", "clock_timestamp()");
        let plan = explain(&mut connection, &bare).await;
        let mut conditions = Vec::new();
        index_conditions(&plan, index, &mut conditions);
        assert!(
            !conditions
                .iter()
                .any(|condition| condition.contains("lease_expires <")),
            "{statistics} statistics: {conditions:?}"
        );
        execute(&sandbox, "analyze outbox").await;
    }
    // The fault: a whole index serves nobody, and the relay says so.
    execute(
        &sandbox,
        "drop index outbox_topic_id_shard_idx; create index on outbox (topic, id, shard)",
    )
    .await;
    let failure = fanout_relay::checks::run(&source).await.unwrap_err();
    assert_eq!(
        failure.class,
        fanout_contract::reason::SourceError::IndexMissing
    );
    assert!(
        failure.message.contains("where status = 'pending'"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn done_rows_go_when_they_are_old_and_others_stay() {
    let (sandbox, config) = scene("lease_retention", Claim::Lease).await;
    execute(
        &sandbox,
        "insert into outbox (topic, type, status, created_at) values
            ('posts', 'old', 'done', now() - interval '2 days'), ('posts', 'young', 'done', now()),
            ('posts', 'waits', 'pending', now() - interval '2 days'), ('other', 'other', 'done', now() - interval '2 days')",
    )
    .await;
    let fence = take(&sandbox, &config, "a").await;
    let source = super::super::try_source(&sandbox, &config).await.unwrap();
    let range = fanout_relay::stats::RangeState {
        shards: ALL,
        fence,
        position: fanout_relay::position::Position::At(
            fanout_relay::claim::snapshot::Snapshot::nothing(),
        ),
    };
    let removed = fanout_relay::retention::expire(&source, &range, 86_400, 100).await;
    assert_eq!(removed.unwrap(), 1);
    let left = "select string_agg(type, ' ' order by id) from outbox";
    assert_eq!(
        value(&sandbox, left).await.as_deref(),
        Some("young waits other")
    );
    let sql = source.outbox.pending(ALL, &range.position, 100);
    let rows = source.query(sql).await.unwrap();
    let text = |column| {
        fanout_relay::claim::row::text(&rows[0], column)
            .unwrap()
            .unwrap()
    };
    assert_eq!(text(0), "1");
    assert!(
        text(2).parse::<f64>().unwrap() > 86_400.0,
        "the age of the oldest"
    );
}
