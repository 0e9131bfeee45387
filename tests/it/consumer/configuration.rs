//! Configuration changes while a worker runs.

use super::*;
use fanout_tests::receiver::behave;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_filter_is_in_force_without_a_restart() {
    let mut scene = Scene::new("c_refilter", behave::ok())
        .await
        .with(|subscription| {
            subscription.filter = Some("event.type == 'a'".to_owned());
        });
    let mut consumer = scene.consumer("pool-0").await;
    let send = async |log: &Log, n: usize| {
        log.event(None, &format!("a-{n:04}"), "a", "{}").await;
        log.event(None, &format!("b-{n:04}"), "b", "{}").await;
    };
    send(&scene.log, 0).await;
    scene.drained().await;
    let pid = consumer.pid();
    scene.subscription.filter = Some("event.type == 'b'".to_owned());
    scene.subscription.generation = 2;
    scene.reconfigure(&mut consumer).await;
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").generation, 2);
    send(&scene.log, 1).await;
    scene.drained().await;
    assert_eq!(scene.accepted().await, ["a-0000", "b-0001"]);
    assert_eq!(consumer.pid(), pid);

    // One that does not compile stops this subscription only, and says so.
    scene.subscription.filter = Some("event.type ==".to_owned());
    scene.reconfigure(&mut consumer).await;
    consumer
        .wait_until(LIMIT, "it stops", |status| {
            is_stopped(status, "hook", StopReason::FilterInvalid)
        })
        .await;
    send(&scene.log, 2).await;
    scene.subscription.filter = None;
    scene.reconfigure(&mut consumer).await;
    scene
        .arrive(&["a-0002".to_owned(), "b-0002".to_owned()])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_filter_decides_on_events_that_wait() {
    let mut scene = Scene::new("c_waiting", failing("k", Answer::Hang))
        .await
        .with(|subscription| {
            subscription.delivery.max_in_flight = 1;
        });
    let events: Vec<_> = (0..10).map(|key| format!("k{key}-0000")).collect();
    scene.log.append(&events).await;
    let mut consumer = scene.consumer("pool-0").await;
    consumer
        .wait_until(LIMIT, "one is under way", |status| {
            the(status, "hook").in_flight == 1
        })
        .await;
    scene.subscription.filter = Some("false".to_owned());
    scene.reconfigure(&mut consumer).await;
    scene.hook.release();
    scene.drained().await;
    assert_eq!(scene.hook.requests(), 1);
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").totals.filtered, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_subscription_delivers_nothing_and_keeps_its_place() {
    let mut scene = Scene::new("c_suspend", behave::ok()).await;
    scene.subscription.suspend = true;
    scene.log.append(&ids("k", 0..5)).await;
    let mut consumer = scene.consumer("pool-0").await;
    let suspended =
        |status: &ConsumerStatus| the(status, "hook").state == SubscriptionState::Suspended;
    consumer
        .wait_until(LIMIT, "it is suspended in its group", |status| {
            suspended(status) && the(status, "hook").partitions.len() == 6
        })
        .await;
    scene.subscription.suspend = false;
    scene.reconfigure(&mut consumer).await;
    scene.arrive(&ids("k", 0..5)).await;
    scene.drained().await;
    scene.subscription.suspend = true;
    scene.reconfigure(&mut consumer).await;
    scene.log.append(&ids("k", 5..10)).await;
    consumer
        .wait_until(LIMIT, "it is suspended", suspended)
        .await;
    assert_eq!(
        scene.log.members(&scene.subscription.group_id).await,
        1,
        "it keeps its group alive"
    );
    assert_eq!(scene.hook.requests(), 5);
    scene.subscription.suspend = false;
    scene.reconfigure(&mut consumer).await;
    scene.arrive(&ids("k", 5..10)).await;
    assert_eq!(scene.accepted().await, ids("k", 0..10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_endpoint_gets_later_events_while_the_former_finishes_its_own() {
    let mut scene = Scene::new("c_moved", behave::always(Answer::Hang)).await;
    let other = Receiver::start(&scene.sandbox, "other", behave::ok()).await;
    scene.log.append(&ids("k", 0..1)).await;
    let mut consumer = scene.consumer("pool-0").await;
    consumer
        .wait_until(LIMIT, "one is under way", |status| {
            the(status, "hook").in_flight == 1
        })
        .await;
    let Sink::Webhook(webhook) = &mut scene.subscription.sink;
    other.url().clone_into(&mut webhook.url);
    scene.reconfigure(&mut consumer).await;
    scene.log.append(&ids("k", 1..3)).await;
    scene.hook.release();
    arrive(&scene.sandbox, "other", &ids("k", 1..3)).await;
    scene.drained().await;
    assert_eq!((scene.hook.requests(), other.requests()), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_that_cannot_be_used_changes_nothing() {
    let scene = Scene::new("c_refused_config", behave::ok()).await;
    let mut consumer = scene.consumer("pool-0").await;
    in_force(&consumer).await;
    let before = consumer.status().await.unwrap().config_hash;
    let mut config = scene
        .sandbox
        .consumer_config(vec![scene.subscription.clone()]);
    config.egress.allowed_cidrs = vec!["no range".to_owned()];
    consumer.reconfigure(&config);
    eventually(LIMIT, "the refusal is logged", async || {
        consumer
            .log()
            .contains("configuration refused")
            .then_some(())
            .ok_or("not yet")
    })
    .await;
    scene.log.append(&ids("k", 0..3)).await;
    scene.arrive(&ids("k", 0..3)).await;
    assert_eq!(consumer.status().await.unwrap().config_hash, before);
    assert!(consumer.ready().await.unwrap());
}
