//! The operator on a real API server and a real broker, with the rights that the chart gives it. Kubelets, controllers and
//! workers are played.

mod attempts;
mod bad_input;
mod cluster;
mod deletion;
mod faults;
mod flows;
mod kubelet;
mod live;
mod manners;
mod objects;
mod played;
mod positions;
mod repairs;
mod rotation;
mod scale;
mod scaling;

use cluster::{Cluster, LIMIT};
use fanout_contract::names;
use fanout_crds::Subscription;
use fanout_crds::condition::{
    LOG_READY, POSITION_INITIALIZED, READY, RECONCILING, RELAY_AVAILABLE, SINK_ACCEPTED,
    SOURCE_REACHABLE, STALLED,
};
use fanout_tests::eventually;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use objects::{CANARIES, a_second_passes, posts, secrets, subscription, topic};
use played::{consumer_config, files};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_become_topics_groups_and_workers_and_converged_ones_cost_no_write() {
    let cluster = Cluster::start().await;
    let first = cluster.operator("first").await;
    let namespace = cluster.server.namespace("social").await;
    posts(&cluster, &namespace).await;
    cluster
        .apply(&namespace, &subscription("plain", "posts", ""))
        .await;
    cluster
        .apply(
            &namespace,
            &subscription("alone", "posts", "  isolation: Dedicated"),
        )
        .await;
    broken_objects(&cluster, &namespace).await;

    the_kafka_topics_are_created_and_recorded(&cluster, &namespace).await;
    positions_come_before_configurations(&cluster, &namespace).await;
    workers_are_complete(&cluster, &namespace).await;
    broken_objects_say_why(&cluster, &namespace).await;
    no_secret_is_anywhere_else(&cluster, &namespace).await;

    a_second_operator_takes_over_and_writes_nothing(&cluster, &namespace, first).await;
}

/// Objects that can't be used, beside those that can.
async fn broken_objects(cluster: &Cluster, namespace: &str) {
    let refused = "  sink: {webhook: {url: 'https://10.96.0.1/api'}}";
    let documents = [
        subscription("bad-filter", "posts", "  filter: 'event.type =='"),
        subscription("no-topic", "nowhere", ""),
        subscription("refused", "posts", "").replace(
            "  sink: {webhook: {url: 'http://198.18.0.1:8000/refused', signing: {secretRefs: [{name: signing, key: key}]}}}",
            refused,
        ),
        subscription("unlabelled", "posts", "").replace("{name: signing,", "{name: private,"),
        subscription("no-key", "posts", "").replace("key: key}", "key: other}"),
    ];
    for document in documents {
        cluster.apply(namespace, &document).await;
    }
    // A newer version's object: the API server takes it, this operator can't decode it.
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let newer = json!([{
        "op": "add",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/isolation/enum/-",
        "value": "Newer",
    }]);
    crds.patch(
        "subscriptions.fanout.dev",
        &PatchParams::default(),
        &Patch::<()>::Json(serde_json::from_value(newer).unwrap()),
    )
    .await
    .unwrap();
    let strange = subscription("strange", "posts", "  isolation: Newer");
    eventually(LIMIT, "the API server knows the newer value", async || {
        let object: serde_json::Value = serde_yaml::from_str(&strange).unwrap();
        let resource = kube::discovery::ApiResource::erase::<Subscription>(&());
        let api: Api<kube::api::DynamicObject> =
            Api::namespaced_with(cluster.client.clone(), namespace, &resource);
        api.patch(
            "strange",
            &PatchParams::apply("tests").force(),
            &Patch::Apply(&object),
        )
        .await
        .map(drop)
    })
    .await;
}

async fn the_kafka_topics_are_created_and_recorded(cluster: &Cluster, namespace: &str) {
    let found = cluster
        .topic(namespace, "posts", LOG_READY, "True/Succeeded")
        .await;
    let status = found.status.unwrap();
    let kafka = cluster.kafka().await;
    let name = format!("{namespace}.posts");
    assert_eq!(status.topic_name.as_deref(), Some(name.as_str()));
    let live = kafka.describe_topic(&name).await.unwrap().unwrap();
    assert_eq!((status.topic_id, live.partitions), (Some(live.id), 3));
    let dead = kafka
        .describe_topic(&names::dead_letter_topic(&name))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(status.dead_letter_topic_id, Some(dead.id));
    assert_eq!(status.positions_topic_id, None);
    // Relays with transactions need one more, whose old positions go soon.
    let transactional = topic("posts", &cluster.bootstrap)
        .replace("replicas: 1", "replicas: 1, delivery: Transactional");
    cluster.apply(namespace, &transactional).await;
    let positions = names::positions_topic(&name);
    let live = eventually(LIMIT, "the topic of the positions", async || {
        let live = kafka.describe_topic(&positions).await.unwrap();
        let found = cluster
            .topic(namespace, "posts", LOG_READY, "True/Succeeded")
            .await;
        let recorded = found.status.unwrap().positions_topic_id;
        match live {
            Some(live) if recorded.as_ref() == Some(&live.id) => Ok(live),
            live => Err(format!("{live:?}, recorded {recorded:?}")),
        }
    })
    .await;
    assert_eq!(live.partitions, names::POSITIONS_PARTITIONS);
    let config = kafka.topic_config(&positions).await.unwrap();
    assert_eq!(config["cleanup.policy"], "compact");
    let largest = async |topic: &str| -> i64 {
        let config = kafka.topic_config(topic).await.unwrap();
        config["max.message.bytes"].parse().unwrap()
    };
    assert!(
        largest(&names::dead_letter_topic(&name)).await > largest(&name).await,
        "the largest event must fit with the dead letter's headers"
    );
    assert_eq!(status.cluster_id, Some(kafka.cluster_id().await.unwrap()));
    assert_eq!(
        kafka.topic_config(&name).await.unwrap()["retention.ms"],
        "3600000"
    );
}

/// Each Subscription that is in a configuration has its group in the status and its offsets in Kafka.
async fn positions_come_before_configurations(cluster: &Cluster, namespace: &str) {
    let kafka = cluster.kafka().await;
    for (name, worker) in [("plain", "posts-pool-0"), ("alone", "posts-s-alone")] {
        let config = eventually(LIMIT, &format!("{name} is configured"), async || {
            let config = consumer_config(cluster, namespace, worker).await?;
            anyhow::ensure!(
                config.subscriptions.iter().any(|entry| entry.name == name),
                "{config:?}"
            );
            anyhow::Ok(config)
        })
        .await;
        let group = format!("{namespace}.{name}");
        let committed = kafka
            .committed(&group, &format!("{namespace}.posts"))
            .await
            .unwrap();
        assert_eq!(
            committed.into_iter().collect::<Vec<_>>(),
            [(0, 0), (1, 0), (2, 0)],
            "{name}"
        );
        let entry = config
            .subscriptions
            .iter()
            .find(|entry| entry.name == name)
            .unwrap();
        assert_eq!(entry.group_id, group);
        assert!(entry.start_offsets.is_empty(), "the offsets are committed");
        let found = cluster
            .subscription(namespace, name, POSITION_INITIALIZED, "True/Succeeded")
            .await;
        let status = found.status.unwrap();
        assert_eq!(status.group_id, Some(group));
        assert_eq!(status.placement.as_deref(), Some(worker));
        assert_eq!(status.positions.len(), 3);
        let writes = cluster.server.writes_since(0);
        let at = |wanted: &dyn Fn(&fanout_tests::services::api_server::Write) -> bool| {
            writes
                .iter()
                .position(wanted)
                .expect("a write in the audit log")
        };
        let status = at(&|write| {
            write.resource == "subscriptions/status.fanout.dev"
                && write.name == name
                && write.namespace == namespace
        });
        let config = at(&|write| {
            write.resource == "configmaps" && write.name == worker && write.namespace == namespace
        });
        assert!(
            status < config,
            "{name}: the group is in the status before a worker has it"
        );
    }
}

async fn workers_are_complete(cluster: &Cluster, namespace: &str) {
    let topic: fanout_crds::FanoutTopic = cluster.get(namespace, "posts").await.unwrap();
    for worker in ["posts-relay", "posts-pool-0", "posts-s-alone"] {
        let deployment: Deployment = cluster.until(namespace, worker, "exists", |_| Ok(())).await;
        let account: ServiceAccount = cluster.get(namespace, worker).await.unwrap();
        let secret: Secret = cluster.get(namespace, worker).await.unwrap();
        let config_map: ConfigMap = cluster.get(namespace, worker).await.unwrap();
        for owners in [
            deployment.owner_references(),
            account.owner_references(),
            secret.owner_references(),
            config_map.owner_references(),
        ] {
            assert_eq!(
                owners
                    .iter()
                    .map(|owner| Some(&owner.uid))
                    .collect::<Vec<_>>(),
                [topic.metadata.uid.as_ref()]
            );
        }
        assert!(deployment.finalizers().is_empty());
        assert_eq!(account.automount_service_account_token, Some(false));
        only_the_configuration_is_mounted(deployment);
        assert_eq!(
            secret.data.as_ref().unwrap()[names::HASH_KEY_FILE].0.len(),
            32
        );
        let hash = fanout_runtime::config::hash(&files(cluster, namespace, worker).await.unwrap());
        assert_eq!(config_map.annotations()[names::CONFIG_ANNOTATION], hash);
    }
    assert!(topic.finalizers().is_empty());
    let pool = consumer_config(cluster, namespace, "posts-pool-0")
        .await
        .unwrap();
    let members: Vec<&str> = pool
        .subscriptions
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    assert_eq!(
        members,
        ["plain"],
        "nothing that can't be used is in a configuration"
    );
    assert!(
        pool.egress
            .refused_cidrs
            .contains(&"10.96.0.1/32".to_owned()),
        "{:?}",
        pool.egress
    );
    assert_eq!(pool.egress.allowed_cidrs, ["198.18.0.0/15"]);
    cluster
        .topic(namespace, "posts", RELAY_AVAILABLE, "False/PodsNotReady")
        .await;
    cluster
        .topic(
            namespace,
            "posts",
            SOURCE_REACHABLE,
            "Unknown/StatusUnknown",
        )
        .await;
    cluster
        .topic(namespace, "posts", RECONCILING, "True/Progressing")
        .await;
    cluster
        .topic(namespace, "posts", READY, "False/StatusUnknown")
        .await;
    cluster
        .subscription(namespace, "plain", READY, "False/PodsNotReady")
        .await;
    cluster
        .subscription(namespace, "plain", STALLED, "False/Succeeded")
        .await;
}

/// No token of the API server, nor anything else.
fn only_the_configuration_is_mounted(deployment: Deployment) {
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.automount_service_account_token, Some(false));
    let volumes = pod.volumes.unwrap_or_default();
    assert_eq!(volumes.len(), 1);
    let sources = volumes[0].projected.as_ref().unwrap().sources.as_ref();
    let sources = sources.unwrap();
    assert_eq!(sources.len(), 2);
    for source in sources {
        assert!(source.config_map.is_some() || source.secret.is_some());
    }
}

async fn broken_objects_say_why(cluster: &Cluster, namespace: &str) {
    for (name, reason, message) in [
        ("bad-filter", "FilterInvalid", "spec.filter: "),
        ("refused", "AddressRefused", "spec.sink.webhook.url: "),
        (
            "unlabelled",
            "SecretNotPermitted",
            "spec.sink.webhook.signing.secretRefs[0]: Secret private is missing or not labelled fanout.dev/credentials=true",
        ),
        (
            "no-key",
            "SecretKeyMissing",
            "spec.sink.webhook.signing.secretRefs[0]: Secret signing has no key other",
        ),
    ] {
        let found = cluster
            .subscription(namespace, name, STALLED, &format!("True/{reason}"))
            .await;
        cluster
            .subscription(namespace, name, READY, &format!("False/{reason}"))
            .await;
        cluster
            .subscription(namespace, name, RECONCILING, "False/Succeeded")
            .await;
        let conditions = found.status.unwrap().conditions;
        let stalled = conditions.iter().find(|it| it.type_ == STALLED).unwrap();
        assert!(stalled.message.starts_with(message), "{}", stalled.message);
        let events = cluster
            .api::<Event>(namespace)
            .list(&ListParams::default())
            .await
            .unwrap();
        let told = events
            .iter()
            .filter(|event| {
                event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(name)
            })
            .filter(|event| event.action.as_deref() == Some(STALLED))
            .count();
        assert_eq!(told, 1, "{name}: one event for one transition");
    }
    cluster
        .subscription(
            namespace,
            "no-topic",
            POSITION_INITIALIZED,
            "False/TopicNotFound",
        )
        .await;
    cluster
        .subscription(
            namespace,
            "unlabelled",
            SINK_ACCEPTED,
            "False/SecretNotPermitted",
        )
        .await;
    // What is mended by its Secret goes on without a touch of the Subscription.
    let labelled = json!({"metadata": {"labels": {names::CREDENTIALS_LABEL: "true"}}});
    cluster
        .api::<Secret>(namespace)
        .patch("private", &PatchParams::default(), &Patch::Merge(&labelled))
        .await
        .unwrap();
    cluster
        .subscription(namespace, "unlabelled", SINK_ACCEPTED, "True/Succeeded")
        .await;
}

async fn no_secret_is_anywhere_else(cluster: &Cluster, namespace: &str) {
    let all = ListParams::default();
    let mut text = String::new();
    macro_rules! dump {
        ($($kind:ty),*) => {$(
            let list = cluster.api::<$kind>(namespace).list(&all).await.unwrap();
            text += &serde_json::to_string(&list.items).unwrap();
        )*};
    }
    dump!(
        fanout_crds::FanoutTopic,
        ConfigMap,
        Deployment,
        ServiceAccount,
        Event
    );
    for canary in CANARIES {
        assert!(!text.contains(canary), "{canary} is outside a Secret");
    }
}

/// A standby takes over at once, reconciles everything, and finds nothing to do.
async fn a_second_operator_takes_over_and_writes_nothing(
    cluster: &Cluster,
    namespace: &str,
    first: cluster::Operator,
) {
    depths_are_known(cluster, namespace).await;
    settled(cluster, namespace).await;
    let second = cluster.operator("second").await;
    first.stop().await;
    let mark = cluster.server.mark();
    eventually(LIMIT, "the second operator leads", async || {
        let lease: Lease = cluster.get("fanout-system", "fanout-operator").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        anyhow::ensure!(holder.as_deref() == Some("second"), "{holder:?}");
        anyhow::Ok(())
    })
    .await;
    // It has been through everything that was there before once it has made something new.
    let other = cluster.server.namespace("other").await;
    posts(cluster, &other).await;
    cluster
        .apply(&other, &subscription("plain", "posts", ""))
        .await;
    eventually(LIMIT, "something new is configured", async || {
        consumer_config(cluster, &other, "posts-pool-0")
            .await
            .map(drop)
    })
    .await;
    assert_eq!(
        cluster.operator_writes(mark, namespace),
        [],
        "a second reconcile writes nothing"
    );
    second.stop().await;
}

/// Observation comes after configuration: the first depth of each Subscription is a write that has to be over.
async fn depths_are_known(cluster: &Cluster, namespace: &str) {
    for name in [
        "plain",
        "alone",
        "refused",
        "unlabelled",
        "no-key",
        "bad-filter",
    ] {
        eventually(LIMIT, "the depth is known", async || {
            let found: Subscription = cluster.get(namespace, name).await?;
            let depth = found.status.and_then(|status| status.depth);
            anyhow::ensure!(depth.is_some(), "{name} has none");
            anyhow::Ok(())
        })
        .await;
    }
}

/// Waits until the operator has written nothing for a while.
async fn settled(cluster: &Cluster, namespace: &str) {
    let mut before = (usize::MAX, std::time::Instant::now());
    eventually(LIMIT, "the operator is quiet", async || {
        let writes = cluster.operator_writes(0, namespace).len();
        if writes != before.0 {
            before = (writes, std::time::Instant::now());
        }
        let quiet = before.1.elapsed();
        if quiet > std::time::Duration::from_secs(4) {
            Ok(())
        } else {
            Err(format!("{writes} writes"))
        }
    })
    .await;
}
