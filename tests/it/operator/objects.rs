//! The objects that most tests of the operator begin with.

use super::cluster::{Cluster, LIMIT};
use fanout_crds::FanoutTopic;
use fanout_tests::eventually;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

/// Values that may appear in Secrets only.
pub(super) const CANARIES: [&str; 2] = [
    "PlantedSecret-database-password",
    "UGxhbnRlZFNlY3JldCBzaWducyBmb3Igb3BlcmF0b3IgdGVzdHM=",
];

/// Secrets: `database` and `signing`, and one that may not be referred to.
pub(super) fn secrets() -> String {
    format!(
        r"
apiVersion: v1
kind: Secret
metadata: {{name: database, labels: {{fanout.dev/credentials: 'true'}}}}
stringData: {{url: 'postgres://relay:{}@database/social'}}
---
apiVersion: v1
kind: Secret
metadata: {{name: signing, labels: {{fanout.dev/credentials: 'true'}}}}
stringData: {{key: 'whsec_{}'}}
---
apiVersion: v1
kind: Secret
metadata: {{name: private}}
stringData: {{key: 'whsec_{}'}}
",
        CANARIES[0], CANARIES[1], CANARIES[1]
    )
}

/// A FanoutTopic.
pub(super) fn topic(name: &str, bootstrap: &str) -> String {
    format!(
        r"
apiVersion: fanout.dev/v1alpha1
kind: FanoutTopic
metadata: {{name: {name}}}
spec:
  source: {{postgres: {{urlSecretRef: {{name: database, key: url}}, table: public.outbox}}}}
  broker: {{kafka: {{bootstrapServers: '{bootstrap}', topic: {{partitions: 3, config: [{{name: retention.ms, value: '3600000'}}]}}}}}}
  relay: {{replicas: 1}}
"
    )
}

/// A Subscription of everything; `extra` is more of its spec.
pub(super) fn subscription(name: &str, topic: &str, extra: &str) -> String {
    format!(
        r"
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: {name}}}
spec:
  topicRef: {{name: {topic}}}
  startFrom: {{position: Earliest}}
  sink: {{webhook: {{url: 'http://198.18.0.1:8000/{name}', signing: {{secretRefs: [{{name: signing, key: key}}]}}}}}}
{extra}
"
    )
}

/// Applies the Secrets and FanoutTopic `posts` into `namespace`.
pub(super) async fn posts(cluster: &Cluster, namespace: &str) {
    cluster.apply(namespace, &secrets()).await;
    cluster
        .apply(namespace, &topic("posts", &cluster.bootstrap))
        .await;
}

/// Waits until what is created now is younger than `older`: objects of one second are ordered by chance.
pub(super) async fn a_second_passes(older: &FanoutTopic) {
    let older = older.creation_timestamp().unwrap().0;
    eventually(LIMIT, "a second passes", async || {
        if Timestamp::now().as_second() > older.as_second() + 1 {
            Ok(())
        } else {
            Err("the same second")
        }
    })
    .await;
}
