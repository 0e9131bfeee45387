//! An upgrade from the version before, back, and forth again, while events flow: nothing is lost and no object is made anew.

use crate::SOON;
use crate::system::System;
use crate::system::traffic::{SUBSCRIPTIONS, TOPIC};
use fanout_tests::{eventually, verdict};

/// The cluster's only node.
const NODE: &str = "fanout-node";

pub(crate) async fn loses_nothing(system: &System) {
    let previous = system.install_previous();
    system.start_traffic().await;
    system.wait_workers_run(&previous.image).await;
    let objects = identities(system);
    system.step("the version before delivers");

    let current = system.upgrade();
    system.wait_workers_run(&current.image).await;
    system.wait_traffic().await;
    system.test_release();
    assert_eq!(identities(system), objects, "an upgrade makes nothing anew");
    system.step("the upgraded version delivers");

    system.roll_back();
    system.wait_workers_run(&previous.image).await;
    system.wait_traffic().await;
    assert_eq!(identities(system), objects, "a rollback makes nothing anew");
    system.step("after the rollback the version before delivers");

    let current = system.upgrade();
    system.wait_workers_run(&current.image).await;
    system.wait_traffic().await;

    survives_a_drained_node(system).await;

    let verdicts = system.judge_traffic().await;
    eprintln!("{}", verdict::table(&verdicts));
    for (name, verdict) in &verdicts {
        assert!(verdict.is_sound(), "{name}: {verdict:?}");
        assert!(verdict.delivered > 100, "{name}: {verdict:?}");
    }
    system.step("nothing was lost");
    users_of_a_namespace_may_use_the_kinds(system).await;

    for name in SUBSCRIPTIONS {
        system.delete("subscriptions.fanout.dev", name);
    }
    system.delete("fanouttopics.fanout.dev", TOPIC);
    eventually(SOON, "nothing of the FanoutTopic is left", async || {
        system.nothing_labelled(&format!("fanout.dev/topic={TOPIC}"))
    })
    .await;
}

/// Nothing that the product runs holds up a drain, with a budget for the operator and without one for the workers.
async fn survives_a_drained_node(system: &System) {
    for pods in [
        format!("fanout.dev/topic={TOPIC}"),
        "app.kubernetes.io/name=fanout-operator".to_owned(),
    ] {
        let pods = format!("--pod-selector={pods}");
        system.kubectl(&[
            "drain",
            NODE,
            &pods,
            "--ignore-daemonsets",
            "--timeout=180s",
        ]);
    }
    system.kubectl(&["uncordon", NODE]);
    system.wait_traffic().await;
    system.test_release();
    system.step("the node was drained");
}

/// What tells objects from others that took their names.
fn identities(system: &System) -> String {
    let uids = "--output=jsonpath={range .items[*]}{.metadata.name}={.metadata.uid} {end}";
    ["fanouttopics.fanout.dev", "subscriptions.fanout.dev"]
        .map(|kind| {
            let crd = [
                "get",
                "customresourcedefinition",
                kind,
                "--output=jsonpath={.metadata.uid} ",
            ];
            system.kubectl(&crd) + &system.kubectl(&["get", kind, uids])
        })
        .concat()
}

/// The roles that the chart adds to are put together by a controller of the cluster.
async fn users_of_a_namespace_may_use_the_kinds(system: &System) {
    for (user, role) in [("developer", "edit"), ("reader", "view")] {
        let role = format!("--clusterrole={role}");
        system.kubectl(&[
            "create",
            "rolebinding",
            user,
            &role,
            &format!("--user={user}"),
        ]);
    }
    for (user, verb, resource, expected) in [
        ("developer", "create", "subscriptions.fanout.dev", "yes"),
        ("developer", "delete", "fanouttopics.fanout.dev", "yes"),
        (
            "developer",
            "patch",
            "subscriptions.fanout.dev/status",
            "no",
        ),
        ("reader", "watch", "subscriptions.fanout.dev", "yes"),
        ("reader", "patch", "subscriptions.fanout.dev", "no"),
        ("nobody", "get", "subscriptions.fanout.dev", "no"),
    ] {
        let user = format!("--as={user}");
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let subresource = format!("--subresource={subresource}");
        // A "no" is also its exit status.
        let ask = ["auth", "can-i", verb, resource, &subresource, &user];
        eventually(SOON, &format!("{ask:?} is {expected}"), async || {
            let answer = system.try_kubectl(&ask);
            if answer.is_ok() == (expected == "yes") {
                Ok(())
            } else {
                Err(format!("{answer:?}"))
            }
        })
        .await;
    }
}
