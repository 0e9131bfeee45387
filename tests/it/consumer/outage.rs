//! Endpoints that are down, and events that were tried enough: what is the endpoint's fault costs no event an attempt.

use super::*;
use fanout_contract::consumer::{BreakerState, OnExhausted};
use fanout_contract::envelope::dead_letter;
use fanout_tests::receiver::behave;
use fanout_tests::services::{ports, receiver_address};

fn is_down(status: &ConsumerStatus) -> bool {
    let hook = the(status, "hook");
    hook.breaker == BreakerState::Open && hook.reason == Some(StopReason::EndpointUnavailable)
}

/// Each event has a key of its own.
fn keys(count: usize) -> Vec<String> {
    (0..count).map(|key| format!("k{key}-0000")).collect()
}

/// `name` of each dead letter's headers, by arrival.
async fn letters(scene: &Scene, count: usize, name: &str) -> Vec<String> {
    let topic = Log::new(&scene.sandbox.bootstrap, &scene.sandbox.dead_letter_topic);
    let letters = topic.records(count).await;
    letters
        .iter()
        .map(|letter| log::header(letter, name).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_takes_no_connection_costs_no_attempt() {
    let mut scene = Scene::new("c_closed", behave::ok())
        .await
        .with(|subscription| subscription.delivery.retry.max_attempts = 1);
    let port = ports::free().unwrap();
    let Sink::Webhook(webhook) = &mut scene.subscription.sink;
    webhook.url = format!("http://{}:{port}/hook", receiver_address());
    let events = keys(300);
    scene.log.append(&events).await;
    let consumer = scene.consumer("pool-0").await;
    let status = consumer.wait_until(LIMIT, "it is down", is_down).await;
    let hook = the(&status, "hook");
    assert_eq!(hook.state, SubscriptionState::Running);
    assert!(
        hook.message.as_ref().unwrap().contains("ConnectFailed"),
        "{hook:?}"
    );
    let failed = hook.totals.failed_attempts;
    let status = consumer
        .wait_until(LIMIT, "it was asked three times more", |status| {
            the(status, "hook").totals.failed_attempts >= failed + 3
        })
        .await;
    let hook = the(&status, "hook");
    assert!(is_down(&status), "{hook:?}");
    assert!(hook.in_flight <= 1, "{hook:?}");
    // What was under way when it opened, three to open it, and the probes.
    assert!(hook.totals.failed_attempts <= 32 + 3 + 4, "{hook:?}");
    let _hook = Receiver::start_at(&scene.sandbox, "hook", behave::ok(), port).await;
    scene.arrive(&events).await;
    scene.drained().await;
    assert_no_repeats(&scene.accepted().await);
    let status = consumer
        .wait_until(LIMIT, "all is well", |status| {
            let hook = the(status, "hook");
            hook.breaker == BreakerState::Closed && hook.reason.is_none()
        })
        .await;
    assert_eq!(the(&status, "hook").totals.dead_lettered, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nothing_succeeds_attempts_stand_still_and_one_request_asks_at_a_time() {
    let scene = Scene::new("c_down", behave::always(Answer::Status(500)))
        .await
        .with(|subscription| subscription.delivery.retry.max_attempts = 2);
    let events: Vec<_> = (0..3)
        .flat_map(|n| (0..100).map(move |key| format!("k{key}-{n:04}")))
        .collect();
    scene.log.append(&events).await;
    let consumer = scene.consumer("pool-0").await;
    consumer.wait_until(LIMIT, "it is down", is_down).await;
    eventually(LIMIT, "what was under way is over", async || {
        let status = consumer.status().await.unwrap();
        let in_flight = the(&status, "hook").in_flight;
        if in_flight <= 1 {
            Ok(())
        } else {
            Err(in_flight)
        }
    })
    .await;
    let requests = scene.hook.requests();
    assert!(requests <= 20 + 32 + 2, "{requests} requests");
    eventually(LIMIT, "it is asked three times more", async || {
        let more = scene.hook.requests() - requests;
        if more >= 3 { Ok(()) } else { Err(more) }
    })
    .await;
    let status = consumer.status().await.unwrap();
    assert!(is_down(&status) && the(&status, "hook").in_flight <= 1);
    let metrics = consumer.metrics().await.unwrap();
    let gauge = metrics
        .lines()
        .find(|line| line.starts_with("fanout_endpoint_unavailable{"));
    assert!(gauge.unwrap().ends_with(" 1"), "{gauge:?}");
    scene.hook.set(behave::ok());
    scene.arrive(&events).await;
    scene.drained().await;
    let accepted = scene.accepted().await;
    assert_in_order(&accepted);
    assert_no_repeats(&accepted);
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").totals.dead_lettered, 0);
}

/// Several events that fail by themselves look like an endpoint that is down, until a good one is asked with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_events_that_fill_the_queue_do_not_keep_good_ones_from_arriving() {
    let scene = Scene::new("c_many_bad", failing("bad", Answer::Status(500)))
        .await
        .with(|subscription| subscription.delivery.retry.max_attempts = 3);
    let bad: Vec<_> = (0..10).map(|key| format!("bad{key}-0000")).collect();
    scene.log.append(&bad).await;
    let consumer = scene.consumer("pool-0").await;
    consumer.wait_until(LIMIT, "it seems down", is_down).await;
    scene.log.append(&keys(10)).await;
    scene.arrive(&keys(10)).await;
    // Which shows that it was not the endpoint: now each of the others fails by itself.
    assert_eq!(letters(&scene, 10, dead_letter::ATTEMPTS).await, ["3"; 10]);
    scene.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_endpoint_gets_fewer_requests_at_once() {
    let scene = Scene::new("c_overload", behave::sequence(vec![Answer::Status(503)])).await;
    scene.log.append(&ids("k", 0..1)).await;
    let consumer = scene.consumer("pool-0").await;
    scene.arrive(&ids("k", 0..1)).await;
    let status = consumer.status().await.unwrap();
    // Half of 32, and what a single success added since.
    assert_eq!(the(&status, "hook").concurrency, 16, "{status:?}");
    scene.log.append(&keys(200)).await;
    scene.arrive(&keys(200)).await;
    let status = consumer.status().await.unwrap();
    let concurrency = the(&status, "hook").concurrency;
    assert!((20..=32).contains(&concurrency), "{concurrency}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_chooses_which_answers_are_final() {
    let scene = Scene::new("c_final", failing("bad", Answer::Status(409)))
        .await
        .with(|subscription| subscription.delivery.non_retryable = vec![409]);
    scene.log.append(&ids("bad", 0..20)).await;
    let consumer = scene.consumer("pool-0").await;
    assert_eq!(letters(&scene, 20, dead_letter::ATTEMPTS).await, ["1"; 20]);
    scene.drained().await;
    assert_eq!(scene.hook.requests(), 20);
    let status = consumer.status().await.unwrap();
    // Twenty refusals are twenty answers: the endpoint works.
    assert_eq!(the(&status, "hook").breaker, BreakerState::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_was_tried_enough_can_stop_its_subscription_instead_of_being_set_aside() {
    let mut scene = Scene::new("c_exhausted", failing("bad", Answer::Status(500)))
        .await
        .with(|subscription| {
            subscription.delivery.on_exhausted = OnExhausted::Pause;
            subscription.delivery.retry.max_attempts = 2;
        });
    scene.log.append(&ids("bad", 0..2)).await;
    let mut consumer = scene.consumer("pool-0").await;
    let is_exhausted =
        |status: &ConsumerStatus| is_stopped(status, "hook", StopReason::DeliveryExhausted);
    let status = consumer.wait_until(LIMIT, "it stops", is_exhausted).await;
    let message = the(&status, "hook").message.clone().unwrap();
    assert!(message.contains("HttpStatus500"), "{message}");
    assert_eq!(scene.hook.requests(), 2);
    scene.log.append(&ids("good", 0..1)).await;

    // Resumed, it has all its attempts again.
    scene.subscription.resume = Some("1".to_owned());
    scene.reconfigure(&mut consumer).await;
    eventually(LIMIT, "it is tried again", async || {
        let requests = scene.hook.requests();
        if requests >= 4 { Ok(()) } else { Err(requests) }
    })
    .await;
    consumer
        .wait_until(LIMIT, "it stops again", is_exhausted)
        .await;

    // Past it, by another setting.
    scene.subscription.delivery.on_exhausted = OnExhausted::DeadLetter;
    scene.reconfigure(&mut consumer).await;
    assert_eq!(letters(&scene, 2, dead_letter::ATTEMPTS).await, ["2"; 2]);
    scene.arrive(&ids("good", 0..1)).await;
    scene.drained().await;
    let status = consumer.status().await.unwrap();
    assert!(is_running(&status, "hook"), "{status:?}");
}
