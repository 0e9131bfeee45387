//! Workers report, and what they report becomes conditions and columns: configuration changes, moves, failures.

use super::cluster::{Cluster, LIMIT};
use super::played::{Played, consumer_config};
use super::{posts, subscription};
use fanout_contract::consumer::{StopReason, SubscriptionState};
use fanout_crds::condition::{DELIVERING, READY, SOURCE_REACHABLE, STALLED, WORKERS_AVAILABLE};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::eventually;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

async fn change(cluster: &Cluster, namespace: &str, name: &str, patch: Value) {
    cluster
        .api::<Subscription>(namespace)
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_comes_when_workers_run_the_generation_and_conditions_follow_their_reports() {
    let (cluster, operator) = Cluster::shared().await;
    let namespace = cluster.server.namespace("social").await;
    posts(&cluster, &namespace).await;
    cluster
        .apply(&namespace, &subscription("plain", "posts", ""))
        .await;

    let relay = Played::start(&cluster, &namespace, "posts-relay").await;
    relay.relay(&cluster).await;
    cluster
        .topic(&namespace, "posts", SOURCE_REACHABLE, "True/Succeeded")
        .await;
    cluster
        .topic(&namespace, "posts", READY, "True/Succeeded")
        .await;
    cluster
        .until(
            &namespace,
            "posts",
            "the outbox columns are shown",
            |topic: &FanoutTopic| {
                let outbox = topic
                    .status
                    .as_ref()
                    .and_then(|status| status.outbox.clone());
                if outbox
                    .as_ref()
                    .is_some_and(|it| it.pending == Some(1234) && it.oldest_event_time.is_some())
                {
                    Ok(())
                } else {
                    Err(format!("{outbox:?}"))
                }
            },
        )
        .await;

    let pool = Played::start(&cluster, &namespace, "posts-pool-0").await;
    pool.consume(&cluster).await;
    let ready = cluster
        .subscription(&namespace, "plain", READY, "True/Succeeded")
        .await;
    assert_eq!(ready.status.unwrap().workers.as_deref(), Some("1/1"));
    // Depth is shown.
    cluster.depth(&namespace, "plain", 0).await;

    a_changed_filter_is_ready_once_it_is_in_force(&cluster, &namespace, &pool).await;
    failures_and_recoveries_are_told(&cluster, &namespace, &pool).await;
    a_move_overlaps(&cluster, &namespace, &pool).await;
    suspending_reaches_the_workers(&cluster, &namespace, &relay).await;
    operator.leave();
}

async fn a_changed_filter_is_ready_once_it_is_in_force(
    cluster: &Cluster,
    namespace: &str,
    pool: &Played,
) {
    change(
        cluster,
        namespace,
        "plain",
        json!({"spec": {"filter": "event.type == 'post.created'"}}),
    )
    .await;
    eventually(LIMIT, "the new filter is configured", async || {
        let config = consumer_config(cluster, namespace, "posts-pool-0").await?;
        anyhow::ensure!(config.subscriptions[0].filter.is_some(), "{config:?}");
        anyhow::Ok(())
    })
    .await;
    // The worker still reports the old generation.
    cluster
        .subscription(
            namespace,
            "plain",
            WORKERS_AVAILABLE,
            "False/ConfigurationPending",
        )
        .await;
    cluster
        .subscription(namespace, "plain", READY, "False/ConfigurationPending")
        .await;
    pool.consume(cluster).await;
    cluster
        .subscription(namespace, "plain", READY, "True/Succeeded")
        .await;
}

async fn failures_and_recoveries_are_told(cluster: &Cluster, namespace: &str, pool: &Played) {
    pool.change("plain", |entry| {
        entry.delivering = Some(false);
        entry.reason = Some(StopReason::DeliveryFailing);
    });
    cluster
        .subscription(namespace, "plain", DELIVERING, "False/DeliveryFailing")
        .await;
    cluster
        .subscription(namespace, "plain", READY, "True/DeliveryFailing")
        .await;
    pool.change("plain", |entry| {
        entry.state = SubscriptionState::Stopped;
        entry.reason = Some(StopReason::EndpointGone);
        entry.message = Some("set the annotation".to_owned());
    });
    cluster
        .subscription(namespace, "plain", STALLED, "True/EndpointGone")
        .await;
    let resume = json!({"metadata": {"annotations": {"fanout.dev/resume": "now"}}});
    change(cluster, namespace, "plain", resume).await;
    eventually(LIMIT, "the worker is told to resume", async || {
        let config = consumer_config(cluster, namespace, "posts-pool-0").await?;
        anyhow::ensure!(
            config.subscriptions[0].resume.as_deref() == Some("now"),
            "{config:?}"
        );
        anyhow::Ok(())
    })
    .await;
    pool.consume(cluster).await;
    cluster
        .subscription(namespace, "plain", READY, "True/Succeeded")
        .await;
    pool.change("plain", |entry| entry.delivering = Some(true));
    cluster
        .subscription(namespace, "plain", DELIVERING, "True/Succeeded")
        .await;
}

/// The new worker has the Subscription and runs it before the old one lets it go.
async fn a_move_overlaps(cluster: &Cluster, namespace: &str, pool: &Played) {
    // Another one stays, so that the pool does.
    cluster
        .apply(namespace, &subscription("stays", "posts", ""))
        .await;
    eventually(LIMIT, "both are configured", async || {
        let config = consumer_config(cluster, namespace, "posts-pool-0").await?;
        anyhow::ensure!(config.subscriptions.len() == 2, "{config:?}");
        anyhow::Ok(())
    })
    .await;
    pool.consume(cluster).await;
    change(
        cluster,
        namespace,
        "plain",
        json!({"spec": {"isolation": "Dedicated"}}),
    )
    .await;
    let alone = Played::start(cluster, namespace, "posts-s-plain").await;
    let both = consumer_config(cluster, namespace, "posts-pool-0")
        .await
        .unwrap();
    assert_eq!(
        both.subscriptions.len(),
        2,
        "the old worker keeps it until the new one runs it"
    );
    alone.consume(cluster).await;
    eventually(LIMIT, "the old worker lets it go", async || {
        let config = consumer_config(cluster, namespace, "posts-pool-0").await?;
        let names: Vec<&str> = config
            .subscriptions
            .iter()
            .map(|entry| entry.name.as_str())
            .collect();
        anyhow::ensure!(names == ["stays"], "{names:?}");
        anyhow::Ok(())
    })
    .await;
    let moved = cluster
        .subscription(namespace, "plain", READY, "True/Succeeded")
        .await;
    assert_eq!(
        moved.status.unwrap().placement.as_deref(),
        Some("posts-s-plain")
    );
}

async fn suspending_reaches_the_workers(cluster: &Cluster, namespace: &str, relay: &Played) {
    let suspend = json!({"spec": {"suspend": true}});
    cluster
        .api::<FanoutTopic>(namespace)
        .patch("posts", &PatchParams::default(), &Patch::Merge(&suspend))
        .await
        .unwrap();
    cluster
        .topic(namespace, "posts", READY, "False/ConfigurationPending")
        .await;
    assert!(relay.relay(cluster).await.suspend);
    cluster
        .topic(namespace, "posts", READY, "True/Suspended")
        .await;
}
