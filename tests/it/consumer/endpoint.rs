//! How a subscription treats endpoints that go, slow down, redirect, flood or are refused.

use super::*;
use fanout_tests::receiver::behave;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_gone_stops_its_subscription_until_it_is_resumed() {
    let mut scene = Scene::new(
        "c_gone",
        behave::sequence(vec![Answer::OK, Answer::Status(410)]),
    )
    .await
    .with(|subscription| subscription.delivery.max_in_flight = 1);
    let other = Receiver::start(&scene.sandbox, "other", behave::ok()).await;
    let second = scene.sandbox.webhook("other", other.url());
    let events = ids("k", 0..20);
    scene.log.append(&events).await;
    let both = |first: &SubscriptionConfig| {
        scene
            .sandbox
            .consumer_config(vec![first.clone(), second.clone()])
    };
    let mut consumer = start(&scene.sandbox, "pool-0", &both(&scene.subscription)).await;
    consumer
        .wait_until(LIMIT, "it stops", |status| {
            is_stopped(status, "hook", StopReason::EndpointGone)
        })
        .await;
    arrive(&scene.sandbox, "other", &events).await;
    assert_eq!(
        scene.hook.requests(),
        2,
        "nothing is sent to an endpoint that is gone"
    );
    assert_eq!(scene.accepted().await, ids("k", 0..1));

    // The same value, and a change that does not concern the endpoint, resume nothing.
    scene.subscription.delivery.max_in_flight = 2;
    consumer.reconfigure(&both(&scene.subscription));
    in_force(&consumer).await;
    let status = consumer.status().await.unwrap();
    assert!(
        is_stopped(&status, "hook", StopReason::EndpointGone),
        "{status:?}"
    );

    scene.subscription.resume = Some("2026-11-30".to_owned());
    consumer.reconfigure(&both(&scene.subscription));
    scene.arrive(&events).await;
    let accepted = scene.accepted().await;
    assert_in_order(&accepted);
    assert_no_repeats(&accepted);
    let status = consumer.status().await.unwrap();
    assert!(is_running(&status, "hook"), "{status:?}");
    assert_eq!(the(&status, "hook").totals.dead_lettered, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_obeyed_for_the_whole_endpoint_and_costs_no_attempt() {
    let pause = Answer::RetryAfter(429, "2".to_owned());
    let scene = Scene::new("c_pause", behave::sequence(vec![pause.clone(), pause]))
        .await
        .with(|subscription| {
            subscription.delivery.max_in_flight = 1;
            subscription.delivery.retry.max_attempts = 1;
        });
    let events: Vec<_> = (0..10).map(|key| format!("k{key}-0000")).collect();
    scene.log.append(&events).await;
    let _consumer = scene.consumer("pool-0").await;
    scene.arrive(&events).await;
    let gaps: Vec<f64> = sqlx::query_scalar(
        "select extract(epoch from lead(arrived_at) over (order by seq) - arrived_at)::float8
         from harness.received order by seq limit 2",
    )
    .fetch_all(scene.sandbox.pool())
    .await
    .unwrap();
    assert!(
        gaps.iter().all(|gap| *gap >= 1.99),
        "requests came {gaps:?} s after a pause of 2 s"
    );
    assert_eq!(scene.hook.requests(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_not_followed() {
    let scene = Scene::new("c_redirect", behave::ok()).await;
    let other = Receiver::start(&scene.sandbox, "other", behave::ok()).await;
    let redirect = Answer::Redirect(other.url().to_owned());
    scene
        .hook
        .set(behave::attempts(vec![redirect.clone(), redirect]));
    scene.log.append(&ids("k", 0..3)).await;
    let _consumer = scene.consumer("pool-0").await;
    scene.arrive(&ids("k", 0..3)).await;
    assert_eq!((scene.hook.requests(), other.requests()), (9, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_end_is_cut_off_and_counts_by_its_status() {
    let scene = Scene::new("c_endless", behave::always(Answer::EndlessBody)).await;
    scene.log.append(&ids("k", 0..5)).await;
    let consumer = scene.consumer("pool-0").await;
    scene.drained().await;
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").totals.delivered, 5);
    assert_eq!(scene.hook.requests(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_never_answers_leaves_the_others_alone() {
    let scene = Scene::new("c_isolation", behave::ok()).await;
    let dead = Receiver::start(&scene.sandbox, "dead", behave::always(Answer::Hang)).await;
    let mut slow = scene.sandbox.webhook("dead", dead.url());
    slow.delivery.max_in_flight = 4;
    let events: Vec<_> = (0..40)
        .flat_map(|key| ids(&format!("k{key}"), 0..10))
        .collect();
    scene.log.append(&events).await;
    let config = scene
        .sandbox
        .consumer_config(vec![slow, scene.subscription.clone()]);
    let consumer = start(&scene.sandbox, "pool-0", &config).await;
    scene.arrive(&events).await;
    scene.drained().await;
    let status = consumer
        .wait_until(LIMIT, "the endpoint that hangs is reported", |status| {
            the(status, "dead").reason == Some(StopReason::DeliveryFailing)
        })
        .await;
    let dead = the(&status, "dead");
    assert_eq!(dead.delivering, Some(false));
    assert!(dead.in_flight <= 4, "{dead:?}");
    assert!(
        dead.message.as_ref().unwrap().contains("Timeout"),
        "{dead:?}"
    );
    assert_eq!(the(&status, "hook").reason, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_address_stops_the_subscription_and_costs_no_event() {
    let mut scene = Scene::new("c_refused", behave::ok()).await;
    let good = scene.hook.url().to_owned();
    let aim = |subscription: &mut SubscriptionConfig, url: &str| {
        let Sink::Webhook(webhook) = &mut subscription.sink;
        url.clone_into(&mut webhook.url);
    };
    scene.log.append(&ids("k", 0..3)).await;
    aim(
        &mut scene.subscription,
        &good.replace("198.18.0.1", "127.0.0.1"),
    );
    let mut consumer = scene.consumer("pool-0").await;
    consumer
        .wait_until(LIMIT, "it stops", |status| {
            is_stopped(status, "hook", StopReason::AddressRefused)
        })
        .await;
    aim(&mut scene.subscription, "http://192.168.77.1:81/");
    scene.reconfigure(&mut consumer).await;
    let status = consumer.status().await.unwrap();
    assert!(
        is_stopped(&status, "hook", StopReason::AddressRefused),
        "{status:?}"
    );
    aim(&mut scene.subscription, &good);
    scene.reconfigure(&mut consumer).await;
    scene.arrive(&ids("k", 0..3)).await;
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").totals.dead_lettered, 0);
}
