//! Relays that are stopped beyond their lease, killed while ranges split and merge, or between a commit and what follows it.

use super::{assert_once, execute, expire, insert, load, transactional};
use crate::relay::LIMIT;
use crate::relay::parking::{expect_published, parked, row, set_limit};
use crate::relay::ranges::{expect_ranges, of_width};
use fanout_tests::checker::load::Load;
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::services::child::Signal;
use fanout_tests::{eventually, services};
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use sqlx::{Connection as _, PgConnection};

#[tokio::test]
async fn a_relay_stopped_beyond_its_lease_repeats_nothing() {
    let (sandbox, config) = transactional("tx_stopped").await;
    let relays = [
        Relay::start(&sandbox, "a", &config).await,
        Relay::start(&sandbox, "b", &config).await,
    ];
    let load = Load::start(&sandbox, &load()).await;
    for round in 0..2 {
        let (zombie, other) = (&relays[round], &relays[1 - round]);
        for relay in &relays {
            relay
                .wait_until(LIMIT, "a range", |status| !status.ranges.is_empty())
                .await;
        }
        insert(&sandbox, 30_000, 300).await;
        zombie.signal(Signal::STOP);
        other
            .wait_until(LIMIT, "both ranges", |status| status.ranges.len() == 2)
            .await;
        insert(&sandbox, 10_000, 300).await;
        zombie.signal(Signal::CONT);
    }
    load.stop();
    let journal = load.finish().await;
    assert_once(&sandbox, &journal).await;
}

#[tokio::test]
async fn ranges_split_and_merge_without_a_repeat_also_when_relays_are_killed() {
    let (sandbox, config) = transactional("tx_ranges").await;
    let mut relays = vec![Relay::start(&sandbox, "a", &config).await];
    let load = Load::start(&sandbox, &load()).await;
    insert(&sandbox, 20_000, 300).await;
    for name in ["b", "c"] {
        relays.push(Relay::start(&sandbox, name, &config).await);
    }
    expect_ranges(&sandbox, &of_width(8)).await;
    insert(&sandbox, 20_000, 300).await;
    relays[1].kill();
    expire(&sandbox).await;
    relays[1].start_again().await;
    insert(&sandbox, 20_000, 300).await;
    relays[2].kill();
    assert!(relays[1].terminate().await.success());
    expect_ranges(&sandbox, super::super::ranges::HALVES).await;
    load.stop();
    let journal = load.finish().await;
    assert_once(&sandbox, &journal).await;
}

/// Between the commit of released rows and their removal from `fanout.parked` nobody publishes them again.
#[tokio::test]
async fn released_rows_come_once_although_the_relay_dies_before_it_removes_them() {
    let (sandbox, config) = transactional("tx_release").await;
    set_limit(&sandbox, "100000").await;
    let mut relay = Relay::start(&sandbox, "a", &config).await;
    let rows = [row(1, "'a'", 16), row(2, "'a'", 300_000), row(3, "'a'", 16)];
    execute(&sandbox, &rows.concat()).await;
    expect_published(&sandbox, &[1]).await;
    eventually(LIMIT, "what is parked", async || {
        let found = parked(&sandbox).await;
        let wanted = Some("2:RecordTooLarge 3:held");
        if found.as_deref() == wanted {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    set_limit(&sandbox, "400000").await;
    execute(
        &sandbox,
        "update fanout.parked set action = 'Release' where reason is not null",
    )
    .await;
    // Reading goes on, removing waits.
    let mut lock = PgConnection::connect(&sandbox.url).await.unwrap();
    sqlx::raw_sql("begin; lock table fanout.parked in share mode")
        .execute(&mut lock)
        .await
        .unwrap();
    expect_published(&sandbox, &[1, 2, 3]).await;
    relay.kill();
    // What it asked for last would still be done once the lock is gone.
    execute(
        &sandbox,
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where application_name = 'fanout-relay' and datname = current_database()",
    )
    .await;
    lock.close().await.unwrap();
    expire(&sandbox).await;
    relay.start_again().await;
    execute(&sandbox, &row(4, "'a'", 16)).await;
    expect_published(&sandbox, &[1, 2, 3, 4]).await;
    assert_eq!(parked(&sandbox).await, None);
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    let numbers: Vec<_> = log
        .records
        .iter()
        .map(|record| record.attributes().subject.unwrap())
        .collect();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
}

/// A record that the broker refuses ends its transaction; the others of its batch come once.
#[tokio::test]
async fn a_refused_record_is_parked_and_the_others_come_once() {
    let (sandbox, config) = transactional("tx_refused_record").await;
    let _relay = Relay::start(&sandbox, "a", &config).await;
    // Compacted topics refuse records without a key.
    let change = AlterConfig::new(ResourceSpecifier::Topic(&sandbox.kafka_topic))
        .set("cleanup.policy", "compact");
    let altered = services::kafka()
        .admin()
        .alter_configs([&change], &AdminOptions::new())
        .await
        .unwrap();
    assert!(altered.iter().all(Result::is_ok), "{altered:?}");
    let rows = [
        row(1, "'a'", 16),
        row(2, "'a'", 16),
        row(3, "null", 16),
        row(4, "'a'", 16),
    ];
    execute(&sandbox, &rows.concat()).await;
    expect_published(&sandbox, &[1, 2, 4]).await;
    assert_eq!(parked(&sandbox).await.as_deref(), Some("3:RecordRefused"));
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    assert_eq!(log.records.len(), 3);
}
