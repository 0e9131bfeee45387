//! Workers that stop, are killed or hang, and brokers that go away.

use super::*;
use fanout_tests::receiver::behave;
use fanout_tests::services::child::Signal;
use fanout_tests::services::kafka::Kafka;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_finishes_what_is_under_way_and_repeats_nothing() {
    let scene = Scene::new("c_stop", failing("held", Answer::Hang)).await;
    scene.log.append(&ids("held", 0..2)).await;
    let mut consumer = scene.consumer("pool-0").await;
    consumer
        .wait_until(LIMIT, "one is under way", |status| {
            the(status, "hook").in_flight == 1
        })
        .await;
    consumer.signal(Signal::TERM);
    eventually(LIMIT, "it is stopping", async || {
        consumer
            .log()
            .contains("stopping")
            .then_some(())
            .ok_or("not yet")
    })
    .await;
    scene.hook.release();
    assert!(consumer.terminate().await.success());
    assert_eq!(
        scene.log.members(&scene.subscription.group_id).await,
        0,
        "it left its group"
    );
    assert_eq!(scene.hook.requests(), 1, "nothing new was started");
    consumer.start_again().await;
    in_force(&consumer).await;
    scene.drained().await;
    assert_eq!(scene.hook.requests(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_lose_and_repeat_nothing_and_cost_no_attempt() {
    let scene = Scene::new("c_restarts", behave::every_nth_fails(4))
        .await
        .with(|subscription| {
            subscription.delivery.retry.max_attempts = 20;
        });
    let events: Vec<_> = (0..25)
        .flat_map(|n| (0..20).map(move |key| format!("k{key}-{n:04}")))
        .collect();
    scene.log.append(&events).await;
    let mut consumer = scene.consumer("pool-0").await;
    for share in [100, 200, 300] {
        eventually(LIMIT, &format!("{share} are accepted"), async || {
            let count = scene.accepted().await.len();
            if count >= share { Ok(()) } else { Err(count) }
        })
        .await;
        assert!(consumer.terminate().await.success());
        consumer.start_again().await;
        in_force(&consumer).await;
    }
    scene.arrive(&events).await;
    scene.drained().await;
    let accepted = scene.accepted().await;
    assert_in_order(&accepted);
    assert_no_repeats(&accepted);
    let dead = Log::new(&scene.sandbox.bootstrap, &scene.sandbox.dead_letter_topic);
    assert_eq!(dead.len().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_lose_nothing_and_repeat_at_most_what_was_not_committed() {
    let scene = Scene::new("c_kills", behave::ok()).await;
    let mut consumer = scene.consumer("pool-0").await;
    let mut all = Vec::new();
    for round in 0..3 {
        let events: Vec<_> = (0..20)
            .flat_map(|n| (0..20).map(move |key| format!("k{key}-{:04}", round * 100 + n)))
            .collect();
        scene.log.append(&events).await;
        all.extend(events);
        let floor = all.len() - 300;
        eventually(LIMIT, &format!("{floor} are accepted"), async || {
            let count = scene.accepted().await.len();
            if count >= floor { Ok(()) } else { Err(count) }
        })
        .await;
        consumer.kill();
        consumer.start_again().await;
        in_force(&consumer).await;
    }
    scene.arrive(&all).await;
    scene.drained().await;
    let accepted = scene.accepted().await;
    assert_in_order(&accepted);
    // Each kill repeats no more than one round, of which nothing need have been committed.
    assert!(
        accepted.len() <= all.len() + 3 * 400,
        "{} for {}",
        accepted.len(),
        all.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_froze_longer_than_its_session_disturbs_nobody() {
    let scene = Scene::new("c_frozen", behave::ok()).await;
    let frozen = scene.consumer("pool-0").await;
    scene.log.append(&ids("k", 0..10)).await;
    scene.arrive(&ids("k", 0..10)).await;
    scene.drained().await;
    frozen.signal(Signal::STOP);
    let other = scene.consumer("pool-1").await;
    other
        .wait_until(LIMIT, "it takes all partitions", |status| {
            the(status, "hook").partitions.len() == 6
        })
        .await;
    scene.log.append(&ids("k", 10..40)).await;
    scene.arrive(&ids("k", 10..40)).await;
    scene.drained().await;
    frozen.signal(Signal::CONT);
    frozen
        .wait_until(LIMIT, "the frozen one is back with a share", |status| {
            (1..6).contains(&the(status, "hook").partitions.len())
        })
        .await;
    scene.log.append(&ids("k", 40..60)).await;
    scene.arrive(&ids("k", 40..60)).await;
    scene.drained().await;
    let accepted = scene.accepted().await;
    assert_in_order(&accepted);
    assert_no_repeats(&accepted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_goes_away_and_comes_back_costs_nothing() {
    let kafka = tokio::task::spawn_blocking(|| Kafka::start().unwrap())
        .await
        .unwrap();
    let postgres = tokio::task::spawn_blocking(fanout_tests::services::postgres)
        .await
        .unwrap();
    let sandbox = Sandbox::with("c_broker", postgres, &kafka).await;
    let hook = Receiver::start(&sandbox, "hook", behave::ok()).await;
    let log = Log::new(&sandbox.bootstrap, &sandbox.kafka_topic);
    let subscription = sandbox.webhook("hook", hook.url());
    let config = sandbox.consumer_config(vec![subscription.clone()]);
    let consumer = start(&sandbox, "pool-0", &config).await;
    log.append(&ids("k", 0..50)).await;
    arrive(&sandbox, "hook", &ids("k", 0..50)).await;
    log.drained(&subscription.group_id).await;
    kafka.kill();
    consumer
        .wait_until(LIMIT, "the outage is reported", |status| {
            the(status, "hook").reason == Some(StopReason::BrokerUnreachable)
        })
        .await;
    assert_eq!(
        consumer.get("/livez").await.unwrap().0,
        200,
        "an outage is no reason to restart"
    );
    let kafka = tokio::task::spawn_blocking(move || kafka.start_again().map(|()| kafka).unwrap())
        .await
        .unwrap();
    log.append(&ids("k", 50..100)).await;
    arrive(&sandbox, "hook", &ids("k", 50..100)).await;
    log.drained(&subscription.group_id).await;
    let accepted = accepted(&sandbox, "hook").await;
    assert_in_order(&accepted);
    assert_no_repeats(&accepted);
    let status = consumer
        .wait_until(LIMIT, "all is well", |status| {
            the(status, "hook").reason.is_none()
        })
        .await;
    assert!(is_running(&status, "hook"));
    drop(kafka);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_starts_without_a_broker_waits_for_it() {
    let kafka = tokio::task::spawn_blocking(|| Kafka::start().unwrap())
        .await
        .unwrap();
    let postgres = tokio::task::spawn_blocking(fanout_tests::services::postgres)
        .await
        .unwrap();
    let sandbox = Sandbox::with("c_no_broker", postgres, &kafka).await;
    let hook = Receiver::start(&sandbox, "hook", behave::ok()).await;
    let log = Log::new(&sandbox.bootstrap, &sandbox.kafka_topic);
    log.append(&ids("k", 0..5)).await;
    kafka.kill();
    let config = sandbox.consumer_config(vec![sandbox.webhook("hook", hook.url())]);
    let consumer = start(&sandbox, "pool-0", &config).await;
    let status = consumer
        .wait_until(LIMIT, "the outage is reported", |status| {
            !status.subscriptions.is_empty()
                && the(status, "hook").reason == Some(StopReason::BrokerUnreachable)
        })
        .await;
    assert_eq!(the(&status, "hook").state, SubscriptionState::Starting);
    let kafka = tokio::task::spawn_blocking(move || kafka.start_again().map(|()| kafka).unwrap())
        .await
        .unwrap();
    arrive(&sandbox, "hook", &ids("k", 0..5)).await;
    drop(kafka);
}
