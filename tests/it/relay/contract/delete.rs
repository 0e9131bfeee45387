//! Claim mode `Delete`: rows are selected once, deleted when they are published, and need no order.

use super::{ALL, LIMIT, column, complete, execute, insert, next, queue, scene, take, value};
use fanout_contract::relay::{Claim, Columns, Source as SourceConfig};
use fanout_relay::claim::{Completion, Ids};
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, eventually};

#[tokio::test]
async fn rows_in_flight_are_not_selected_again_and_go_when_they_are_published() {
    let (sandbox, config) = scene("delete_flight", Claim::Delete).await;
    insert(&sandbox, 10, 2).await;
    let old = take(&sandbox, &config, "a").await;
    let (mut first, taken) = queue(&sandbox, &config, &old, 4).await;
    assert_eq!(next(&mut first).await, [1, 2, 3, 4]);
    assert_eq!(next(&mut first).await, [5, 6, 7, 8]);
    assert!(complete(&sandbox, &config, &old, &[1, 2, 3, 4]).await);
    taken.remove(&Ids::Numbers(vec![1, 2, 3, 4]));
    assert_eq!(next(&mut first).await, [9, 10]);
    assert_eq!(next(&mut first).await, [] as [i64; 0]);
    // A row below those that were selected, of a transaction that was open until now.
    execute(&sandbox, "insert into queue select -1, gen_random_uuid(), 'late', 't', 's', 'text/plain', null, now()").await;
    assert_eq!(next(&mut first).await, [-1]);

    // Another one begins with everything that is not deleted; the one before deletes nothing any more.
    let new = take(&sandbox, &config, "b").await;
    let (mut second, _) = queue(&sandbox, &config, &new, 4).await;
    assert_eq!(next(&mut second).await, [-1, 5, 6, 7]);
    assert!(!complete(&sandbox, &config, &old, &[5, 6]).await);
    assert_eq!(
        value(&sandbox, "select count(*) from queue")
            .await
            .as_deref(),
        Some("7")
    );
}

/// Debezium's standard table.
const DEBEZIUM: &str = "create table events (id uuid not null primary key default gen_random_uuid(), aggregatetype varchar(255) not null,
        aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb, at timestamp not null default now());
    grant select, delete on events to fanout_relay";

fn unordered(sandbox: &Sandbox) -> fanout_contract::relay::RelayConfig {
    let mut config = sandbox.relay_config();
    let SourceConfig::Postgres(postgres) = &mut config.source;
    postgres.claim = Claim::Delete;
    "public.events".clone_into(&mut postgres.table);
    postgres.r#match.clear();
    postgres.columns = Some(Columns {
        event_id: column("id"),
        key: column("aggregateid"),
        created_at: column("at"),
        ..Columns::default()
    });
    config
}

#[tokio::test]
async fn a_table_without_an_order_is_published_and_said_to_have_none() {
    let sandbox = super::sandbox("delete_unordered").await;
    execute(&sandbox, DEBEZIUM).await;
    execute(
        &sandbox,
        "create table written as select gen_random_uuid() as id, n from generate_series(1, 2000) n;
         insert into events (id, aggregatetype, aggregateid, type, payload)
         select id, 'post', n % 50, 'created', jsonb_build_object('n', n) from written;
         insert into events (aggregatetype, aggregateid, type) values ('post', 'p', '')",
    )
    .await;
    let relay = Relay::start(&sandbox, "a", &unordered(&sandbox)).await;
    let status = relay
        .wait_until(
            LIMIT,
            "the row that can't be an event is parked",
            |status| status.parked.rows == 1,
        )
        .await;
    assert_eq!(status.ordered, Some(false), "{status:?}");
    eventually(LIMIT, "every event arrives and is deleted", async || {
        let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
        let left = value(&sandbox, "select count(*) from events")
            .await
            .unwrap();
        let mut ids: Vec<String> = log
            .records
            .iter()
            .map(|record| record.attributes().id)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != 2_000 || left != "0" {
            return Err(format!("{} events, {left} rows", ids.len()));
        }
        let written = value(
            &sandbox,
            "select string_agg(id::text, ',' order by id::text) from written",
        )
        .await;
        assert_eq!(Some(ids.join(",")), written, "the ids of the rows");
        // A number that orders nothing is not passed on.
        assert!(
            log.records
                .iter()
                .all(|record| record.header("ce_sequence").is_none())
        );
        Ok(())
    })
    .await;
    // Nor when the row was parked and is released.
    execute(
        &sandbox,
        "update fanout.parked set type = 'mended', action = 'Release'",
    )
    .await;
    eventually(LIMIT, "the parked row is released", async || {
        let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
        let mut records = log.records.iter();
        let released = records.find(|record| record.attributes().r#type == "mended");
        let released = released.ok_or("not yet")?;
        assert_eq!(released.header("ce_sequence"), None);
        Ok::<_, &str>(())
    })
    .await;
}

#[tokio::test]
async fn rows_without_an_order_are_selected_once() {
    let sandbox = super::sandbox("delete_uuid").await;
    execute(&sandbox, DEBEZIUM).await;
    execute(
        &sandbox,
        "insert into events (aggregatetype, aggregateid, type) select 'post', n, 'created' from generate_series(1, 10) n",
    )
    .await;
    let config = unordered(&sandbox);
    let fence = take(&sandbox, &config, "a").await;
    let (mut claims, taken) = queue(&sandbox, &config, &fence, 7).await;
    let first = claims.next().await.unwrap();
    let Completion::Rows(ids) = &first.after else {
        panic!("rows complete it");
    };
    assert_eq!((first.len(), ids.len()), (7, 7));
    assert_eq!(claims.next().await.unwrap().len(), 3);
    let source = super::super::try_source(&sandbox, &config).await.unwrap();
    let sql = source.outbox.complete(&fence, ids);
    assert!(fanout_relay::claim::holds(&source.query(sql).await.unwrap()).unwrap());
    taken.remove(ids);
    assert_eq!(
        value(&sandbox, "select count(*) from events")
            .await
            .as_deref(),
        Some("3")
    );
    assert_eq!(claims.next().await.unwrap().len(), 0);
    let sql = source.outbox.pending(
        ALL,
        &fanout_relay::position::Position::At(fanout_relay::claim::snapshot::Snapshot::nothing()),
        100,
    );
    let rows = source.query(sql).await.unwrap();
    assert_eq!(
        fanout_relay::claim::row::text(&rows[0], 0).unwrap(),
        Some("3")
    );
}
