//! Retention of a partitioned outbox by dropping partitions.

use super::super::{LIMIT, execute, insert, sandbox, value};
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, eventually};
use sqlx::{Connection as _, PgConnection};
use std::time::{Duration, Instant};

/// Replaces the outbox by one of three partitions with 100 ids each.
async fn partition(sandbox: &Sandbox) {
    let columns = "event_id uuid not null default gen_random_uuid(), topic text not null, key text, type text not null,
         subject text, content_type text not null default 'application/json', headers jsonb, traceparent text, payload bytea,
         created_at timestamptz not null default clock_timestamp(), xid xid8 not null default pg_current_xact_id(),
         shard smallint not null generated always as ((hashtext(coalesce(key::text, '')) & 63)::smallint) stored";
    let parts: Vec<String> = (0..3)
        .map(|n| {
            let (first, end) = (n * 100 + 1, n * 100 + 101);
            format!(
                "create table outbox_{n} (id bigint not null, {columns});
                 alter table outbox_{n} add constraint outbox_xid check (xid = pg_current_xact_id()) not valid;
                 alter table outbox attach partition outbox_{n} for values from ({first}) to ({end});"
            )
        })
        .collect();
    let parts = parts.concat();
    execute(
        sandbox,
        &format!(
            "drop table outbox; create table outbox (id bigint generated always as identity, {columns}) partition by range (id);
             {parts} create index on outbox (topic, xid, shard); create index on outbox (id);
             grant select, delete on outbox to fanout_relay;
             grant insert (topic, key, type, subject, payload) on outbox to fanout_app"
        ),
    )
    .await;
}

async fn drop_one(sandbox: &Sandbox) -> Option<String> {
    value(
        sandbox,
        "fanout.drop_published_partition('public.outbox', interval '0')",
    )
    .await
}

#[tokio::test]
async fn a_partition_is_dropped_once_it_is_published_and_nobody_writes_to_it() {
    let sandbox = sandbox("wild_partitions").await;
    partition(&sandbox).await;
    insert(&sandbox, 100, 5).await;
    // No topic has ever been here.
    assert_eq!(drop_one(&sandbox).await, None);
    let mut config = sandbox.relay_config();
    config.suspend = true;
    let mut relay = Relay::start(&sandbox, "a", &config).await;
    relay
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() == 2)
        .await;
    assert_eq!(drop_one(&sandbox).await, None, "nothing is published");
    config.suspend = false;
    relay.reconfigure(&config);
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 100)
        .await;

    // A writer that has a row in the old partition, not committed: its row would go, too.
    let mut writer = PgConnection::connect(&sandbox.url).await.unwrap();
    let late =
        "begin; insert into outbox_0 (id, topic, key, type) values (50, 'posts', 'late', 't')";
    sqlx::raw_sql(late).execute(&mut writer).await.unwrap();
    let began = Instant::now();
    assert_eq!(drop_one(&sandbox).await, None, "somebody writes to it");
    // Far below what a drop that waits makes others wait, far above its 100 ms.
    assert!(began.elapsed() < Duration::from_secs(20));
    sqlx::raw_sql("commit").execute(&mut writer).await.unwrap();
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 101)
        .await;

    // Rows that no topic wants are nobody's to drop.
    execute(
        &sandbox,
        "insert into outbox (topic, type) values ('other', 't')",
    )
    .await;
    insert(&sandbox, 10, 5).await;
    eventually(
        LIMIT,
        "the published partition goes",
        async || match drop_one(&sandbox).await.as_deref() {
            Some("outbox_0") => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 111)
        .await;
    assert_eq!(drop_one(&sandbox).await, None);
    let left = "select string_agg(c.relname, ',' order by c.relname) from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'outbox'::regclass";
    assert_eq!(
        value(&sandbox, left).await.as_deref(),
        Some("outbox_1,outbox_2")
    );
}
