//! Without an API server, and without an operator, workers deliver; afterwards little is written.

use super::LIMIT;
use crate::operator::cluster::Cluster;
use crate::operator::live::Live;
use fanout_crds::Subscription;
use fanout_crds::condition::READY;
use fanout_tests::process::OperatorProcess;
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::{Deadline, eventually};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Most writes to one object after an outage.
const WRITES_MAX: usize = 5;
/// After this time at most everything is as it should be again.
const CONVERGED: Duration = Duration::from_secs(30);
/// The workers of the namespace.
const WORKERS: [&str; 2] = ["posts-relay", "posts-pool-0"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_deliver_without_an_api_server_and_without_an_operator() {
    outage_of(Duration::from_secs(30)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long form: make soak"]
async fn soak_workers_deliver_while_the_api_server_is_away_for_minutes() {
    outage_of(Duration::from_mins(5)).await;
}

async fn outage_of(length: Duration) {
    let cluster = Cluster::start().await;
    let live = Live::start(&cluster, "outage").await;
    let kubeconfig = cluster
        .server
        .kubeconfig_of_service_account("fanout-system", "fanout-operator");
    let mut operator = OperatorProcess::start_on(&kubeconfig, "fanout-system", "first").await;
    let all = live.subscribe(&cluster, "all", behave::ok()).await;
    ready(&cluster, &live).await;
    deliver(&live, &all).await;
    let before = containers(&live);

    // The operator has not seen the last change when the API server goes.
    change(&cluster, &live, 50).await;
    let mark = cluster.server.mark();
    cluster.server.kill();
    let end = Deadline::after(length);
    deliver(&live, &all).await;
    eventually(length + LIMIT, "the outage has lasted", async || {
        // What a kubelet does, also without an API server.
        if operator.ended().is_some() {
            operator.start_again();
        }
        end.passed().then_some(()).ok_or("it goes on")
    })
    .await;
    deliver(&live, &all).await;
    tokio::task::block_in_place(|| cluster.server.start_again()).unwrap();
    let back = Instant::now();
    ready(&cluster, &live).await;
    let took = back.elapsed();
    eprintln!("converged {took:?} after the API server was back");
    assert!(took < CONVERGED, "{took:?}");
    sparse_writes(&cluster, &live, mark, WRITES_MAX).await;
    assert_eq!(containers(&live), before, "a worker was restarted");

    // Gone, as after `helm uninstall`, and another one later: it adopts what it finds, and changes nothing.
    assert!(operator.terminate().await.success());
    deliver(&live, &all).await;
    let mark = cluster.server.mark();
    let another = OperatorProcess::start_on(&kubeconfig, "fanout-system", "another").await;
    change(&cluster, &live, 40).await;
    ready(&cluster, &live).await;
    sparse_writes(&cluster, &live, mark, WRITES_MAX).await;
    let rolled = cluster
        .operator_writes(mark, &live.namespace)
        .into_iter()
        .filter(|write| write.resource == "deployments.apps" || write.name == "posts-relay")
        .collect::<Vec<_>>();
    assert_eq!(rolled, []);
    assert_eq!(containers(&live), before, "a worker was restarted");
    deliver(&live, &all).await;
    assert!(another.terminate().await.success());
}

/// A change that workers take over without a restart.
async fn change(cluster: &Cluster, live: &Live, in_flight: u32) {
    let patch = json!({"spec": {"delivery": {"maxInFlight": in_flight}}});
    cluster
        .api::<Subscription>(&live.namespace)
        .patch("all", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

async fn ready(cluster: &Cluster, live: &Live) {
    cluster
        .topic(&live.namespace, "posts", READY, "True/Succeeded")
        .await;
    cluster
        .subscription(&live.namespace, "all", READY, "True/Succeeded")
        .await;
}

/// Commits events, and waits until the endpoint has them.
async fn deliver(live: &Live, receiver: &Receiver) {
    live.commit(20).await;
    let verdict = live.settled(receiver).await;
    assert!(verdict.is_sound(), "{verdict:?}");
}

fn containers(live: &Live) -> Vec<BTreeMap<String, (u32, i32)>> {
    WORKERS.map(|worker| live.kubelet.containers(worker)).into()
}

/// Waits until the operator has nothing more to write, and counts what it wrote since `mark`, by object.
async fn sparse_writes(cluster: &Cluster, live: &Live, mark: usize, most: usize) {
    let mut last = (usize::MAX, Instant::now());
    let writes = eventually(LIMIT, "the operator is quiet", async || {
        let writes = cluster.operator_writes(mark, &live.namespace);
        let writes: Vec<_> = writes
            .into_iter()
            .filter(|write| write.status < 300)
            .collect();
        if writes.len() != last.0 {
            last = (writes.len(), Instant::now());
        }
        let quiet = last.1.elapsed() > Duration::from_secs(5);
        quiet.then_some(writes).ok_or("it writes")
    })
    .await;
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for write in writes {
        let resource = write.resource.replace("/status", "");
        *counts.entry((resource, write.name)).or_default() += 1;
    }
    eprintln!("writes since: {counts:?}");
    assert!(!counts.is_empty(), "it did not even take the change over");
    assert!(counts.values().all(|count| *count <= most), "{counts:?}");
}
