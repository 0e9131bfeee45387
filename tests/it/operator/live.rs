//! The whole system but a cluster's nodes: the operator on a real API server, its relays and consumers as processes, real
//! PostgreSQL and Kafka, events from commit to endpoint.

use super::cluster::Cluster;
use super::kubelet::Kubelet;
use fanout_crds::Subscription;
use fanout_crds::condition::{READY, WORKERS_AVAILABLE};
use fanout_tests::checker::Checker;
use fanout_tests::checker::load::{Load, Options};
use fanout_tests::receiver::{Behaviour, Receiver, behave};
use fanout_tests::services::postgres::PASSWORD;
use fanout_tests::verdict::Verdict;
use fanout_tests::{Sandbox, eventually};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::Duration;

/// Without any news for so long, nothing more will arrive.
pub(crate) const QUIET: Duration = Duration::from_mins(1);

/// A namespace with FanoutTopic `posts` over a database of its own, and processes for its workers.
pub(crate) struct Live {
    pub(crate) namespace: String,
    pub(crate) sandbox: Sandbox,
    pub(crate) kubelet: Kubelet,
}

impl Live {
    /// Makes the namespace, the credentials and the topic on `cluster`, whose operator somebody else runs.
    pub(crate) async fn start(cluster: &Cluster, test: &str) -> Self {
        let sandbox = Sandbox::new(test).await;
        let namespace = cluster.server.namespace("live").await;
        let kubelet = Kubelet::start(cluster, &namespace);
        let live = Self {
            namespace,
            sandbox,
            kubelet,
        };
        cluster.apply(&live.namespace, &live.credentials()).await;
        cluster
            .apply(&live.namespace, &Self::topic(&cluster.bootstrap))
            .await;
        live
    }

    /// Secret `database` with the relay's URL.
    pub(crate) fn credentials(&self) -> String {
        format!(
            "
apiVersion: v1
kind: Secret
metadata: {{name: database, labels: {{fanout.dev/credentials: 'true'}}}}
stringData: {{url: '{}'}}
",
            self.sandbox.relay_url
        )
    }

    /// FanoutTopic `posts`.
    pub(crate) fn topic(bootstrap: &str) -> String {
        format!(
            "
apiVersion: fanout.dev/v1alpha1
kind: FanoutTopic
metadata: {{name: posts}}
spec:
  source: {{postgres: {{urlSecretRef: {{name: database, key: url}}, table: public.outbox}}}}
  broker: {{kafka: {{bootstrapServers: '{bootstrap}', topic: {{partitions: 3}}}}}}
  relay: {{replicas: 1}}
"
        )
    }

    /// An endpoint, and the Subscription `name` that sends everything to it.
    pub(crate) async fn subscribe(
        &self,
        cluster: &Cluster,
        name: &str,
        behaviour: Behaviour,
    ) -> Receiver {
        let receiver = Receiver::start(&self.sandbox, name, behaviour).await;
        let yaml = format!(
            "
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: {name}}}
spec:
  topicRef: {{name: posts}}
  startFrom: {{position: Earliest}}
  sink: {{webhook: {{url: '{}'}}}}
  delivery: {{retry: {{initialBackoffMilliseconds: 100, maxBackoffSeconds: 1}}}}
",
            receiver.url()
        );
        cluster.apply(&self.namespace, &yaml).await;
        receiver
    }

    /// Commits `transactions` transactions of the load's mix, and waits until all writers ended.
    pub(crate) async fn commit(&self, transactions: u64) {
        let options = Options {
            transactions,
            hold: Duration::from_millis(200),
            ..Options::default()
        };
        let journal = Load::start(&self.sandbox, &options).await.finish().await;
        Checker::new(&self.sandbox, &journal).await;
    }

    /// Judges what `receiver` accepted once nothing is missing or nothing more arrives. Writers must have ended.
    pub(crate) async fn settled(&self, receiver: &Receiver) -> Verdict {
        let checker = Checker::of_outbox(&self.sandbox).await;
        Checker::settle(QUIET, async || checker.judge_deliveries(receiver).await).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_reach_endpoints_through_workers_that_the_operator_made() {
    let (cluster, operator) = Cluster::shared().await;
    let live = Live::start(&cluster, "live_flow").await;
    let all = live.subscribe(&cluster, "all", behave::ok()).await;
    cluster
        .subscription(&live.namespace, "all", READY, "True/Succeeded")
        .await;
    cluster
        .topic(&live.namespace, "posts", READY, "True/Succeeded")
        .await;
    live.commit(50).await;
    let verdict = live.settled(&all).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    let first = live.kubelet.containers("posts-pool-0");
    assert_eq!(first.len(), 1, "{first:?}");

    // A changed filter is in force without a restart, and Ready at its generation comes only then.
    let filter = json!({"spec": {"filter": "event.type == 'nothing.like.it'"}});
    cluster
        .api::<Subscription>(&live.namespace)
        .patch("all", &PatchParams::default(), &Patch::Merge(&filter))
        .await
        .unwrap();
    cluster
        .subscription(&live.namespace, "all", READY, "True/Succeeded")
        .await;
    let filtered = all.requests();
    live.commit(10).await;
    // What does not match is passed over.
    cluster.depth(&live.namespace, "all", 0).await;
    let after = all.requests();
    assert_eq!(after, filtered);
    assert_eq!(live.kubelet.containers("posts-pool-0"), first);

    // A killed worker is started again and goes on.
    live.kubelet.kill("posts-pool-0");
    eventually(super::LIMIT, "the container is started again", async || {
        let now = live.kubelet.containers("posts-pool-0");
        if now.values().all(|(_, restarts)| *restarts == 1) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    cluster
        .subscription(&live.namespace, "all", WORKERS_AVAILABLE, "True/Succeeded")
        .await;

    // Without its Deployment a worker ends.
    cluster
        .api::<Subscription>(&live.namespace)
        .delete("all", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    eventually(super::LIMIT, "the pool ends", async || {
        match live.kubelet.processes() {
            1 => Ok(()),
            more => Err(more),
        }
    })
    .await;
    for worker in ["posts-relay", "posts-pool-0"] {
        let log = live.kubelet.log(worker);
        assert!(
            !log.is_empty() && !log.contains(PASSWORD),
            "{worker}: {log}"
        );
    }
    operator.leave();
}
