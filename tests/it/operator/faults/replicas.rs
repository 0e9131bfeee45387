//! Two replicas: the second takes over when the first is killed, stopped or held up, and never do both write.

use super::{LEASES, operator, proxy};
use crate::operator::cluster::{Cluster, LIMIT};
use crate::operator::{secrets, subscription, topic};
use fanout_crds::condition::POSITION_INITIALIZED;
use fanout_tests::eventually;
use fanout_tests::faults::Fault;
use fanout_tests::faults::api_proxy::{ApiProxy, ApiWrite};
use fanout_tests::process::OperatorProcess;
use fanout_tests::services::child::Signal;
use k8s_openapi::api::coordination::v1::Lease;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Subscriptions that are reconciled when the leader is held up.
const HELD_UP: usize = 8;

/// Two operators on one namespace, each behind a proxy of its own.
struct Pair<'a> {
    cluster: &'a Cluster,
    namespace: String,
    first: (ApiProxy, OperatorProcess),
    second: (ApiProxy, OperatorProcess),
}

impl<'a> Pair<'a> {
    /// The first leads and has made a Subscription's position; the second stands by.
    async fn new(cluster: &'a Cluster) -> Self {
        let namespace = cluster.server.namespace("pair").await;
        cluster.apply(&namespace, LEASES).await;
        let api = proxy(cluster, &namespace).await;
        let first = operator(&api, &namespace, "first").await;
        let first = (api, first);
        holder(cluster, &namespace, Some("first")).await;
        let api = proxy(cluster, &namespace).await;
        let second = operator(&api, &namespace, "second").await;
        let pair = Self {
            cluster,
            namespace,
            first,
            second: (api, second),
        };
        cluster.apply(&pair.namespace, &secrets()).await;
        cluster
            .apply(&pair.namespace, &topic("posts", &cluster.bootstrap))
            .await;
        pair.subscribe("before").await;
        pair.initialised("before").await;
        pair
    }

    async fn subscribe(&self, name: &str) {
        let yaml = subscription(name, "posts", "");
        self.cluster.apply(&self.namespace, &yaml).await;
    }

    async fn initialised(&self, name: &str) {
        self.cluster
            .subscription(
                &self.namespace,
                name,
                POSITION_INITIALIZED,
                "True/Succeeded",
            )
            .await;
    }

    /// The second leads, and works. No write of the first comes after its first one.
    async fn taken_over(&self) {
        holder(self.cluster, &self.namespace, Some("second")).await;
        self.subscribe("after").await;
        self.initialised("after").await;
        let first = writes(&self.first.0);
        let second = writes(&self.second.0);
        let (last, begin) = (first.last().unwrap(), second.first().unwrap());
        assert!(last.at < begin.at, "{last:?} after {begin:?}");
    }
}

/// Writes but the election's.
fn writes(api: &ApiProxy) -> Vec<ApiWrite> {
    let mut writes = api.script().writes();
    writes.retain(|write| !write.is_lease());
    writes
}

/// Waits until `expected` holds the Lease.
async fn holder(cluster: &Cluster, namespace: &str, expected: Option<&str>) {
    eventually(LIMIT, "the Lease has its holder", async || {
        let lease: Lease = cluster.get(namespace, "fanout-operator").await?;
        let found = lease.spec.and_then(|spec| spec.holder_identity);
        anyhow::ensure!(found.as_deref() == expected, "{found:?}");
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replica_takes_over_and_two_never_write() {
    let cluster = Cluster::start().await;
    tokio::join!(killed(&cluster), stopped(&cluster), held_up(&cluster));
}

async fn killed(cluster: &Cluster) {
    let pair = Pair::new(cluster).await;
    pair.first.1.kill();
    let killed = Instant::now();
    pair.taken_over().await;
    let took = writes(&pair.second.0)[0].at - killed;
    eprintln!("taken over {took:?} after SIGKILL");
}

async fn stopped(cluster: &Cluster) {
    let pair = Pair::new(cluster).await;
    let stopped = Instant::now();
    let status = pair.first.1.terminate().await;
    assert!(status.success(), "{status}");
    assert!(
        pair.first.1.log().contains("released leadership lease"),
        "{}",
        pair.first.1.log()
    );
    pair.taken_over().await;
    let took = writes(&pair.second.0)[0].at - stopped;
    // The Lease would have expired later.
    assert!(took < std::time::Duration::from_secs(15), "{took:?}");
    eprintln!("taken over {took:?} after SIGTERM");
    // Without somebody who stands by it is free.
    let status = pair.second.1.terminate().await;
    assert!(status.success(), "{status}");
    holder(cluster, &pair.namespace, None).await;
}

/// The first is stopped in the middle of passes, wakes up when the second leads, and has its answers then.
async fn held_up(cluster: &Cluster) {
    let pair = Pair::new(cluster).await;
    let (api, first) = &pair.first;
    let answers = CancellationToken::new();
    let until = answers.clone();
    api.script().rule(move |write| {
        (write.resource == "subscriptions/status.fanout.dev")
            .then(|| Fault::HoldAnswer(until.clone()))
    });
    let before = writes(api).len();
    for number in 0..HELD_UP {
        pair.subscribe(&format!("held-{number}")).await;
    }
    eventually(LIMIT, "passes wait for their answers", async || {
        let all = writes(api);
        let held = all[before..].iter().filter(|it| it.answered.is_some());
        let held = held.count();
        if held >= HELD_UP { Ok(()) } else { Err(held) }
    })
    .await;
    first.signal(Signal::STOP);
    let before = writes(api).len();
    pair.taken_over().await;
    for number in 0..HELD_UP {
        pair.initialised(&format!("held-{number}")).await;
    }
    answers.cancel();
    first.signal(Signal::CONT);
    let status = first.wait().await;
    assert_eq!(status.code(), Some(1), "{status}");
    let late = &writes(api)[before..];
    assert!(late.is_empty(), "{late:?}");
}
