//! Several workers in one group: who reads what, and what happens when they come and go.

use super::*;
use fanout_tests::receiver::behave;

/// Partitions that `consumer` reads.
async fn owned(consumer: &Consumer) -> usize {
    let status = consumer.status().await.unwrap();
    the(&status, "hook").partitions.len()
}

/// Waits until both workers have their share.
async fn shared(first: &Consumer, second: &Consumer) {
    eventually(LIMIT, "both workers read three partitions", async || {
        let owned = (owned(first).await, owned(second).await);
        if owned == (3, 3) {
            Ok(())
        } else {
            Err(format!("{owned:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_come_and_go_repeat_nothing_and_keep_the_order() {
    let scene = Scene::new("c_share", behave::ok()).await;
    let (sandbox, log) = (&scene.sandbox, &scene.log);
    let round =
        |number: usize| -> Vec<_> { (0..30).map(|key| format!("k{key}-{number:04}")).collect() };
    let mut all = Vec::new();
    let append = async |rounds: std::ops::Range<usize>, all: &mut Vec<String>| {
        for number in rounds {
            log.append(&round(number)).await;
            all.extend(round(number));
        }
    };
    let first = scene.consumer("pool-0").await;
    append(0..20, &mut all).await;
    let second = scene.consumer("pool-1").await;
    append(20..40, &mut all).await;
    shared(&first, &second).await;
    append(40..60, &mut all).await;
    assert!(first.terminate().await.success());
    append(60..80, &mut all).await;
    arrive(sandbox, "hook", &all).await;
    let accepted = scene.accepted().await;
    assert_in_order(&accepted);
    assert_no_repeats(&accepted);
    scene.drained().await;
    assert!(second.terminate().await.success());
    assert_eq!(log.members(&scene.subscription.group_id).await, 0);
}

/// The partitions that stay go on while those that move are waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebalance_waits_for_what_is_under_way_and_leaves_other_partitions_alone() {
    let scene = Scene::new("c_drain", failing("held", Answer::Hang))
        .await
        .with(|subscription| {
            let Sink::Webhook(webhook) = &mut subscription.sink;
            webhook.timeout_seconds = 60;
        });
    let held: Vec<_> = (0..30).map(|key| format!("held{key}-0000")).collect();
    scene.log.append(&held).await;
    let first = scene.consumer("pool-0").await;
    first
        .wait_until(LIMIT, "all are under way", |status| {
            the(status, "hook").in_flight == 30
        })
        .await;
    let second = scene.consumer("pool-1").await;
    eventually(LIMIT, "the second worker joins", async || {
        let members = scene.log.members(&scene.subscription.group_id).await;
        if members == 2 { Ok(()) } else { Err(members) }
    })
    .await;
    let free: Vec<_> = (0..60).map(|key| format!("free{key}-0000")).collect();
    scene.log.append(&free).await;
    scene.hook.release();
    arrive(&scene.sandbox, "hook", &free).await;
    shared(&first, &second).await;
    scene.drained().await;
    assert_eq!(scene.hook.requests(), 90, "nothing was sent twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_workers_partitions_move_and_repeats_are_what_it_had_not_committed() {
    let scene = Scene::new("c_killed", behave::ok()).await;
    let round =
        |number: usize| -> Vec<_> { (0..30).map(|key| format!("k{key}-{number:04}")).collect() };
    let first = scene.consumer("pool-0").await;
    let second = scene.consumer("pool-1").await;
    shared(&first, &second).await;
    let mut all = Vec::new();
    for number in 0..40 {
        scene.log.append(&round(number)).await;
        all.extend(round(number));
        if number == 20 {
            first.kill();
        }
    }
    let killed: f64 = sqlx::query_scalar("select extract(epoch from clock_timestamp())::float8")
        .fetch_one(scene.sandbox.pool())
        .await
        .unwrap();
    scene.arrive(&all).await;
    scene.drained().await;
    assert_in_order(&scene.accepted().await);
    assert_eq!(owned(&second).await, 6);
    // Commits are a second apart: what was accepted well before the kill is not sent again.
    let old: Vec<String> = sqlx::query_scalar(
        "select event_id from harness.received group by event_id
         having count(*) > 1 and extract(epoch from min(arrived_at)) < $1 - 10",
    )
    .bind(killed)
    .fetch_all(scene.sandbox.pool())
    .await
    .unwrap();
    assert!(old.is_empty(), "{old:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adding_and_removing_a_subscription_rebalances_no_other() {
    let scene = Scene::new("c_neighbours", behave::ok()).await;
    let other = Receiver::start(&scene.sandbox, "other", behave::ok()).await;
    let second = scene.sandbox.webhook("other", other.url());
    let mut consumer = scene.consumer("pool-0").await;
    scene.log.append(&ids("k", 0..5)).await;
    scene.arrive(&ids("k", 0..5)).await;
    let rebalances = async |consumer: &Consumer| -> String {
        let metrics = consumer.metrics().await.unwrap();
        let found = metrics.lines().find(|line| {
            line.starts_with("fanout_subscription_rebalances_total{") && line.contains("\"hook\"")
        });
        found.unwrap().to_owned()
    };
    let before = rebalances(&consumer).await;
    let both = vec![scene.subscription.clone(), second.clone()];
    consumer.reconfigure(&scene.sandbox.consumer_config(both));
    in_force(&consumer).await;
    arrive(&scene.sandbox, "other", &ids("k", 0..5)).await;
    assert_eq!(scene.log.members(&second.group_id).await, 1);
    scene.reconfigure(&mut consumer).await;
    assert_eq!(
        scene.log.members(&second.group_id).await,
        0,
        "it left its group"
    );
    assert_eq!(consumer.status().await.unwrap().subscriptions.len(), 1);
    let metrics = consumer.metrics().await.unwrap();
    assert!(!metrics.contains("\"other\""), "its series are gone");
    scene.log.append(&ids("k", 5..10)).await;
    scene.arrive(&ids("k", 5..10)).await;
    assert_eq!(rebalances(&consumer).await, before);
}
