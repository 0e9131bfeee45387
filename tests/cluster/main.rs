//! The product on a real cluster: the chart is installed, events are delivered, a filter changes without a restart, and
//! everything can be removed again. Between that, the version before is upgraded, rolled back and upgraded again.
//!
//! Uses the local cluster if it runs, else starts it and stops it afterwards. Needs root on Linux, as that cluster does.
#![allow(
    clippy::panic,
    clippy::too_many_lines,
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    clippy::string_slice,
    reason = "a test fails by panicking: the message is what the developer reads"
)]

mod command;
mod node;
mod system;
mod upgrade;

use fanout_tests::eventually;
use serde_json::json;
use std::time::Duration;
use system::System;

/// For what a person would wait for at a terminal; the machine may be busy.
const SOON: Duration = Duration::from_mins(3);

#[tokio::test]
async fn the_product_is_installed_used_changed_and_removed() {
    let system = System::install().await;

    // From the sample to Ready.
    system.apply_topic();
    system.apply_subscription("everything", None);
    system.apply_subscription("posts", Some(r#"event.type == "post.created""#));
    system.wait_ready("everything", SOON).await;
    system.wait_ready("posts", SOON).await;
    system.step("the Subscriptions are ready");
    let before = system.worker_pods();
    assert!(!before.is_empty(), "no worker runs");

    workers_have_no_token();
    system.step("no worker has a token of the API server");

    // What is committed arrives, what is rolled back does not.
    let posts = system.write("post.created", 20);
    let likes = system.write("post.liked", 20);
    let never = system.write_and_roll_back("post.created", 5);
    system
        .wait_received("everything", &[posts.as_slice(), &likes].concat(), SOON)
        .await;
    system.wait_received("posts", &posts, SOON).await;
    system.step("what was committed is delivered");
    system.wait_depth_zero("everything", SOON).await;
    system.wait_depth_zero("posts", SOON).await;
    system.step("the Subscriptions say so");
    assert!(
        system
            .received("everything")
            .is_disjoint(&never.iter().cloned().collect()),
        "an event that was rolled back was delivered"
    );
    assert_eq!(
        system.received("posts"),
        posts.iter().cloned().collect(),
        "the filter lets other events through"
    );

    // Ready at a new generation must wait for the worker: one that stands still can't have taken the change over.
    let frozen = system.freeze_worker();
    let generation = system.patch_subscription(
        "posts",
        &json!({"spec": {"filter": r#"event.type == "post.liked""#}}),
    );
    system.wait_config_rendered("posts", generation, SOON).await;
    assert!(
        !system.is_ready_at("posts", generation),
        "Ready says that a change is in force which no worker has seen"
    );
    drop(frozen);
    system.wait_ready_at("posts", generation, SOON).await;
    assert_eq!(
        system.generation_in_worker("posts"),
        Some(generation),
        "Ready says that a change is in force which the worker does not report"
    );

    system.step("the new filter is in force");

    // The new filter works, in the same pods.
    let later_likes = system.write("post.liked", 10);
    let later_posts = system.write("post.created", 10);
    system
        .wait_received(
            "everything",
            &[later_likes.as_slice(), &later_posts].concat(),
            SOON,
        )
        .await;
    system.wait_received("posts", &later_likes, SOON).await;
    system.wait_depth_zero("posts", SOON).await;
    assert!(
        system
            .received("posts")
            .is_disjoint(&later_posts.iter().cloned().collect()),
        "the old filter is still in force"
    );
    assert_eq!(
        system.worker_pods(),
        before,
        "a pod was replaced or restarted by a changed filter"
    );

    system.step("the new filter works, in the same pods");

    system.keep();
    // Without an operator events are delivered all the same; a new one adopts what it finds.
    if system.uninstall() {
        let alone = system.write("post.liked", 10);
        system.wait_received("everything", &alone, SOON).await;
        system.step("events are delivered without an operator");
        system.install_current();
        let filter = json!({"spec": {"filter": r#"event.type != "post.deleted""#}});
        let generation = system.patch_subscription("everything", &filter);
        system.wait_ready_at("everything", generation, SOON).await;
        let adopted = system.write("post.liked", 10);
        system.wait_received("everything", &adopted, SOON).await;
        assert_eq!(
            system.worker_pods(),
            before,
            "a pod was replaced or restarted by an operator that came anew"
        );
        system.step("the chart was uninstalled and installed again, and the pods are the same");
    }

    // Deleted objects take their workers with them, the namespace goes, and so does the release.
    system.delete("subscriptions.fanout.dev", "posts");
    system
        .delete_thoroughly("subscriptions.fanout.dev", "everything")
        .await;
    eventually(
        SOON,
        "no consumer is left without a Subscription",
        async || system.nothing_labelled("fanout.dev/worker=posts-pool-0"),
    )
    .await;
    system.step("the Subscriptions are deleted, and their worker");
    system
        .delete_thoroughly("fanouttopics.fanout.dev", "posts")
        .await;
    assert_eq!(system.left_behind(), (String::new(), String::new()));
    eventually(SOON, "nothing of the FanoutTopic is left", async || {
        system.nothing_labelled("fanout.dev/topic=posts")
    })
    .await;
    system.step("the objects are deleted");
    upgrade::loses_nothing(&system).await;
    system.remove().await;
}

/// What the kubelet really mounted: the operator has a token, no worker has one.
fn workers_have_no_token() {
    let has_token = |mounts: &String| mounts.contains("/secrets/kubernetes.io/serviceaccount");
    for (program, expected) in [
        ("/fanout-operator", true),
        ("/fanout-relay", false),
        ("/fanout-consumers", false),
    ] {
        let processes = node::mounts_of(program);
        assert!(!processes.is_empty(), "no process runs {program}");
        for mounts in &processes {
            assert_eq!(has_token(mounts), expected, "{program}: {mounts}");
        }
        let names_config = |mounts: &String| mounts.contains(" /etc/fanout ");
        assert_eq!(processes.iter().all(names_config), !expected, "{program}");
    }
}
