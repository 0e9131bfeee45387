//! Replicas that follow `spec.scaling`: the operator on a real API server, real workers, PostgreSQL and Kafka.

use super::cluster::{Cluster, LIMIT};
use super::live::Live;
use fanout_crds::Subscription;
use fanout_crds::condition::READY;
use fanout_crds::scaling::SCALED;
use fanout_tests::eventually;
use fanout_tests::receiver::{Receiver, behave};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

const WORKER: &str = "posts-s-alone";

async fn subscribe(live: &Live, cluster: &Cluster) -> Receiver {
    let receiver = Receiver::start(&live.sandbox, "alone", behave::ok()).await;
    let yaml = format!(
        "
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: alone}}
spec:
  topicRef: {{name: posts}}
  startFrom: {{position: Earliest}}
  sink: {{webhook: {{url: '{}'}}}}
  delivery: {{retry: {{initialBackoffMilliseconds: 100, maxBackoffSeconds: 1}}}}
  isolation: Dedicated
  scaling: {{maxReplicas: 3}}
",
        receiver.url()
    );
    cluster.apply(&live.namespace, &yaml).await;
    receiver
}

async fn allow(live: &Live, cluster: &Cluster, min: i32, max: i32) {
    let bounds = json!({"spec": {"scaling": {"minReplicas": min, "maxReplicas": max}}});
    cluster
        .api::<Subscription>(&live.namespace)
        .patch("alone", &PatchParams::default(), &Patch::Merge(&bounds))
        .await
        .unwrap();
}

/// Waits until `replicas` are decided, wanted and ready.
async fn has(live: &Live, cluster: &Cluster, replicas: i32) {
    let what = format!("{replicas} replicas");
    let column = format!("{replicas}/{replicas}");
    cluster
        .until(&live.namespace, "alone", &what, |it: &Subscription| {
            let status = it.status.clone().unwrap_or_default();
            let decided = status.scaling.as_ref().map(|scaling| scaling.replicas);
            if decided == Some(replicas) && status.workers.as_deref() == Some(&column) {
                Ok(())
            } else {
                Err(format!("{:?}, {:?}", status.scaling, status.workers))
            }
        })
        .await;
    let deployment: Deployment = cluster.get(&live.namespace, WORKER).await.unwrap();
    assert_eq!(deployment.spec.unwrap().replicas, Some(replicas));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_stay_within_their_bounds_and_lose_nothing_when_these_change_under_load() {
    let (cluster, operator) = Cluster::shared().await;
    let live = Live::start(&cluster, "live_scaling").await;
    let alone = subscribe(&live, &cluster).await;
    cluster
        .subscription(&live.namespace, "alone", READY, "True/Succeeded")
        .await;
    has(&live, &cluster, 1).await;

    let load = live.commit(60);
    let changes = async {
        allow(&live, &cluster, 3, 3).await;
        has(&live, &cluster, 3).await;
        allow(&live, &cluster, 1, 2).await;
        has(&live, &cluster, 2).await;
    };
    tokio::join!(load, changes);
    live.commit(20).await;
    let verdict = live.settled(&alone).await;
    assert!(verdict.is_sound(), "{verdict:?}");

    let notes = eventually(LIMIT, "both changes have an event", async || {
        let events = cluster.api::<Event>(&live.namespace);
        let events = events.list(&ListParams::default()).await?;
        let notes: Vec<_> = events
            .into_iter()
            .filter(|event| event.reason.as_deref() == Some(SCALED))
            .filter_map(|event| event.note)
            .collect();
        anyhow::ensure!(notes.len() == 2, "{notes:?}");
        anyhow::Ok(notes)
    })
    .await;
    for expected in [
        "from 1 to 3: allowed are 3 to 3",
        "from 3 to 2: allowed are 1 to 2",
    ] {
        assert!(notes.iter().any(|note| note == expected), "{notes:?}");
    }
    operator.leave();
}
