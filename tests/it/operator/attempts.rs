//! What somebody who may write Subscriptions in one namespace, and nothing else, could try to get more: each attempt is
//! refused or without effect on anything that is not theirs.

mod means;

use super::cluster::{Cluster, LIMIT};
use super::played::{consumer_config, files};
use super::{CANARIES, posts, subscription};
use fanout_contract::names;
use fanout_crds::condition::{READY, SINK_ACCEPTED, STALLED};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::eventually;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use means::{ADDRESSES, FILTERS, grant};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Whoever tries.
const USER: &str = "mallory";
/// A Subscription of somebody else.
const VICTIM: &str = "plain";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_rights_on_subscriptions_give_nothing_else() {
    let (cluster, operator) = Cluster::shared().await;
    let namespace = cluster.server.namespace("shared").await;
    let other = cluster.server.namespace("foreign").await;
    for namespace in [&namespace, &other] {
        posts(&cluster, namespace).await;
        cluster
            .apply(namespace, &subscription(VICTIM, "posts", ""))
            .await;
    }
    for namespace in [&namespace, &other] {
        in_pool(&cluster, namespace, VICTIM).await;
    }
    grant(&cluster, &namespace).await;
    let kubeconfig = cluster
        .server
        .kubeconfig_as(USER, &["system:authenticated"]);
    let scene = Scene {
        client: cluster.server.client_of(&kubeconfig, USER).await,
        cluster: &cluster,
        namespace: &namespace,
        other: &other,
    };
    let before = scene.of_others().await;

    scene.no_other_object_can_be_touched().await;
    scene.what_a_subscription_may_not_say_is_refused().await;
    scene.what_only_the_operator_sees_is_stalled().await;
    scene.names_and_statuses_of_others_can_not_be_taken().await;
    scene.labels_annotations_and_owners_mean_nothing().await;
    scene.large_objects_do_not_keep_others_out().await;
    scene.finalizers_keep_no_delivery_alive().await;

    assert_eq!(
        scene.of_others().await,
        before,
        "something of others changed"
    );
    scene.no_worker_holds_what_it_should_not().await;
    operator.leave();
}

/// Waits until the pool's configuration lists a Subscription.
async fn in_pool(cluster: &Cluster, namespace: &str, name: &str) {
    eventually(LIMIT, &format!("{name} is in the pool"), async || {
        let config = consumer_config(cluster, namespace, "posts-pool-0").await?;
        let listed = config.subscriptions.iter().any(|entry| entry.name == name);
        anyhow::ensure!(listed, "not listed");
        anyhow::Ok(())
    })
    .await;
}

struct Scene<'c> {
    cluster: &'c Cluster,
    /// With the rights of [`USER`].
    client: Client,
    namespace: &'c str,
    other: &'c str,
}

impl Scene<'_> {
    fn own(&self) -> Api<Subscription> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Creates a Subscription with a finalizer, and deletes it once it is served.
    async fn delete_served(&self, name: &str, finalizer: &str) {
        let mut object: Value = serde_yaml::from_str(&subscription(name, "posts", "")).unwrap();
        object["metadata"]["finalizers"] = json!([finalizer]);
        self.create(&object.to_string()).await.unwrap();
        in_pool(self.cluster, self.namespace, name).await;
        let parameters = DeleteParams::default();
        self.own().delete(name, &parameters).await.unwrap();
    }

    /// Tries to create an object with rights on Subscriptions only; the HTTP status of what was refused.
    async fn create(&self, yaml: &str) -> Result<Subscription, u16> {
        let object: Value = serde_yaml::from_str(yaml).unwrap();
        let resource = kube::discovery::ApiResource::erase::<Subscription>(&());
        let api: Api<kube::api::DynamicObject> =
            Api::namespaced_with(self.client.clone(), self.namespace, &resource);
        let object = serde_json::from_value(object).unwrap();
        let created = api.create(&PostParams::default(), &object).await;
        let created = created.map_err(|error| code(&error))?;
        Ok(serde_json::from_value(serde_json::to_value(created).unwrap()).unwrap())
    }

    /// What is not a Subscription of this user: specs and data, and who owns them.
    async fn of_others(&self) -> BTreeMap<String, Value> {
        let mut all = BTreeMap::new();
        macro_rules! note {
            ($namespace:expr, $($kind:ty: $name:expr),*) => {$(
                let object: $kind = self.cluster.get($namespace, $name).await.unwrap();
                let mut value = serde_json::to_value(&object).unwrap();
                value["status"] = Value::Null;
                value["metadata"] = json!({
                    "uid": object.uid(), "generation": object.metadata.generation, "labels": object.labels(),
                    "annotations": object.annotations(), "owners": object.owner_references(),
                });
                all.insert(format!("{}/{}/{}", $namespace, stringify!($kind), $name), value);
            )*};
        }
        for namespace in [self.namespace, self.other] {
            note!(namespace, FanoutTopic: "posts", Subscription: VICTIM, Secret: "private", Secret: "database");
            note!(namespace, Deployment: "posts-relay", ConfigMap: "posts-relay", Secret: "posts-relay", ServiceAccount: "posts-relay");
        }
        note!(self.other, Deployment: "posts-pool-0", ConfigMap: "posts-pool-0", Secret: "posts-pool-0");
        all
    }

    async fn no_other_object_can_be_touched(&self) {
        let (list, patch) = (ListParams::default(), PatchParams::default());
        let change = json!({"metadata": {
            "labels": {names::CREDENTIALS_LABEL: "true"}, "annotations": {"fanout.dev/accept-source": "1"},
        }});
        macro_rules! refused {
            ($namespace:expr, $($kind:ty: $name:expr),*) => {$(
                let api: Api<$kind> = Api::namespaced(self.client.clone(), $namespace);
                let what = format!("{} {}", stringify!($kind), $name);
                assert_eq!(code(&api.list(&list).await.unwrap_err()), 403, "list {what}");
                assert_eq!(code(&api.get($name).await.unwrap_err()), 403, "get {what}");
                let patched = api.patch($name, &patch, &Patch::Merge(&change)).await;
                assert_eq!(code(&patched.unwrap_err()), 403, "patch {what}");
                let deleted = api.delete($name, &DeleteParams::default()).await;
                assert_eq!(code(&deleted.unwrap_err()), 403, "delete {what}");
            )*};
        }
        refused!(self.namespace, Secret: "private", Secret: "posts-relay", FanoutTopic: "posts");
        refused!(self.namespace, Deployment: "posts-relay", ConfigMap: "posts-pool-0", ServiceAccount: "posts-relay");
        refused!(self.other, Subscription: VICTIM, Secret: "database");

        let status = json!({"status": {"groupId": format!("{}.{VICTIM}", self.other), "placement": "posts-relay"}});
        let forged = self
            .own()
            .patch_status(VICTIM, &patch, &Patch::Merge(&status))
            .await;
        assert_eq!(code(&forged.unwrap_err()), 403);
    }

    async fn what_a_subscription_may_not_say_is_refused(&self) {
        let plain = subscription("refused", "posts", "");
        for (what, yaml) in [
            (
                "a user in the URL",
                plain.replace("http://", "http://user:word@"),
            ),
            ("a URL of another kind", plain.replace("http://", "file://")),
            (
                "a filter that is too long",
                subscription(
                    "refused",
                    "posts",
                    &format!("  filter: 'event.id == \"{}\"'", "a".repeat(5_000)),
                ),
            ),
            (
                "an inline secret",
                plain.replace("{name: signing, key: key}", "whsec_abc"),
            ),
            (
                "a secret elsewhere",
                plain.replace(
                    "{name: signing, key: key}",
                    "{name: ../posts-relay, key: key}",
                ),
            ),
            (
                "a name that is too long",
                plain.replace("name: refused", &format!("name: {}", "r".repeat(41))),
            ),
            (
                "a topic by path",
                plain.replace("{name: posts}", &format!("{{name: {}/posts}}", self.other)),
            ),
            (
                "more secrets than four",
                plain.replace(
                    "{name: signing, key: key}",
                    &["{name: signing, key: key}"; 5].join(", "),
                ),
            ),
        ] {
            assert_eq!(
                self.create(&yaml).await.map(|it| it.name_any()),
                Err(422),
                "{what}"
            );
        }
        // What the schema does not know is not stored.
        let mut extra: Value = serde_yaml::from_str(&subscription("pruned", "posts", "")).unwrap();
        extra["spec"]["topicRef"]["namespace"] = self.other.into();
        extra["spec"]["pod"] = json!({"serviceAccountName": "posts-relay", "hostNetwork": true});
        extra["spec"]["sink"]["webhook"]["headers"] = json!({"authorization": "x"});
        extra["status"] =
            json!({"groupId": format!("{}.{VICTIM}", self.other), "placement": "posts-relay"});
        let created = self.create(&extra.to_string()).await.unwrap();
        assert_eq!(created.status.and_then(|status| status.group_id), None);
        let text = serde_json::to_string(&created.spec).unwrap();
        let unknown = [self.other, "hostNetwork", "authorization"];
        assert!(unknown.iter().all(|it| !text.contains(it)), "{text}");
        let accepted = self.accepted("pruned").await;
        let status = accepted.status.unwrap();
        assert_eq!(status.group_id, Some(format!("{}.pruned", self.namespace)));
        assert_eq!(status.placement.as_deref(), Some("posts-pool-0"));
        // What was given once can't be moved to somebody else's.
        let moved = json!({"spec": {"topicRef": {"name": "elsewhere"}}});
        let moved = self
            .own()
            .patch("pruned", &PatchParams::default(), &Patch::Merge(&moved))
            .await;
        assert_eq!(code(&moved.unwrap_err()), 422);
    }

    async fn what_only_the_operator_sees_is_stalled(&self) {
        let signed = |name: &str, secret: &str, key: &str| {
            subscription(name, "posts", "").replace(
                "{name: signing, key: key}",
                &format!("{{name: {secret}, key: {key}}}"),
            )
        };
        let mut attempts = vec![
            (signed("unlabelled", "private", "key"), "SecretNotPermitted"),
            (signed("missing", "nowhere", "key"), "SecretNotPermitted"),
            (
                signed("of-a-worker", "posts-relay", "config.yaml"),
                "SecretNotPermitted",
            ),
            (signed("of-the-relay", "database", "url"), "SinkInvalid"),
            (
                signed("hash-key", "posts-pool-0", "hash.key"),
                "SecretNotPermitted",
            ),
        ];
        for (number, address) in ADDRESSES.iter().enumerate() {
            let name = format!("address-{number}");
            let url = format!("http://198.18.0.1:8000/{name}");
            let yaml = subscription(&name, "posts", "").replace(&url, address);
            attempts.push((yaml, "AddressRefused"));
        }
        for (number, filter) in FILTERS.iter().enumerate() {
            let filter = format!("  filter: \"{filter}\"");
            let yaml = subscription(&format!("filter-{number}"), "posts", &filter);
            attempts.push((yaml, "FilterInvalid"));
        }
        let bells = format!("  filter: \"event.id == '{}'\"", "\\x01".repeat(4_000));
        attempts.push((subscription("bells", "posts", &bells), "SpecInvalid"));
        let mut stalled = Vec::new();
        for (yaml, reason) in attempts {
            let created = self
                .create(&yaml)
                .await
                .unwrap_or_else(|code| panic!("{code}: {yaml}"));
            stalled.push((created.name_any(), reason));
        }
        let mut messages = BTreeMap::new();
        for (name, reason) in &stalled {
            let found = self
                .cluster
                .subscription(self.namespace, name, STALLED, &format!("True/{reason}"))
                .await;
            let conditions = found.status.unwrap_or_default().conditions;
            let message = conditions
                .iter()
                .find(|it| it.type_ == STALLED)
                .unwrap()
                .message
                .clone();
            assert!(!message.contains(CANARIES[0]), "{message}");
            messages.insert(name.as_str(), message);
        }
        // Nobody learns which Secrets there are.
        let same = |name: &str, secret: &str| messages[name].replace(secret, "");
        assert_eq!(same("unlabelled", "private"), same("missing", "nowhere"));
        assert_eq!(
            same("of-a-worker", "posts-relay"),
            same("missing", "nowhere")
        );
        let pool = consumer_config(self.cluster, self.namespace, "posts-pool-0")
            .await
            .unwrap();
        for (name, _) in &stalled {
            assert!(
                pool.subscriptions.iter().all(|entry| entry.name != *name),
                "{name}"
            );
        }
    }

    /// Their Deployment or group could be another's.
    async fn names_and_statuses_of_others_can_not_be_taken(&self) {
        let dedicated = "  isolation: Dedicated";
        for name in ["relay", "pool-0", "s-relay", "a.b"] {
            self.create(&subscription(name, "posts", dedicated))
                .await
                .unwrap();
        }
        let mut placements = BTreeMap::new();
        for name in ["relay", "pool-0", "s-relay", "a.b"] {
            let status = self.accepted(name).await.status.unwrap();
            assert_eq!(status.group_id, Some(format!("{}.{name}", self.namespace)));
            let placement = status.placement.unwrap();
            assert!(
                !["posts-relay", "posts-pool-0"].contains(&placement.as_str()),
                "{name}"
            );
            assert_eq!(placements.insert(placement, name), None);
        }
        for (placement, name) in placements {
            eventually(
                LIMIT,
                &format!("{placement} serves {name} alone"),
                async || {
                    let config = consumer_config(self.cluster, self.namespace, &placement).await?;
                    let served: Vec<&str> = config
                        .subscriptions
                        .iter()
                        .map(|it| it.name.as_str())
                        .collect();
                    anyhow::ensure!(served == [name], "{served:?}");
                    anyhow::Ok(())
                },
            )
            .await;
        }
        // A group is `<namespace>.<name>`: a namespace has no dot, so no other pair reads the same.
        let dotted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}});
        let dotted: k8s_openapi::api::core::v1::Namespace = serde_json::from_value(dotted).unwrap();
        let namespaces = Api::all(self.cluster.client.clone());
        let refused = namespaces.create(&PostParams::default(), &dotted).await;
        assert_eq!(code(&refused.unwrap_err()), 422);
    }

    async fn labels_annotations_and_owners_mean_nothing(&self) {
        let relay: Deployment = self
            .cluster
            .get(self.namespace, "posts-relay")
            .await
            .unwrap();
        let topic: FanoutTopic = self.cluster.get(self.namespace, "posts").await.unwrap();
        let mut object: Value =
            serde_yaml::from_str(&subscription("dressed-up", "posts", "")).unwrap();
        object["metadata"] = json!({
            "name": "dressed-up",
            "labels": {names::TOPIC_LABEL: "posts", names::WORKER_LABEL: "posts-relay", names::CREDENTIALS_LABEL: "true"},
            "annotations": {
                "fanout.dev/accept-source": "1", names::CONFIG_ANNOTATION: "x", names::RESUME_ANNOTATION: "again\n\u{7}: [",
            },
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "posts-relay", "uid": relay.uid(), "controller": true, "blockOwnerDeletion": true},
                {"apiVersion": "fanout.dev/v1alpha1", "kind": "FanoutTopic", "name": "posts", "uid": topic.uid(), "blockOwnerDeletion": true},
            ],
        });
        self.create(&object.to_string()).await.unwrap();
        self.accepted("dressed-up").await;
        in_pool(self.cluster, self.namespace, "dressed-up").await;
    }

    /// A ConfigMap takes 1 MiB: what one user writes must leave room for the others.
    async fn large_objects_do_not_keep_others_out(&self) {
        for number in 0..6 {
            let name = format!("large-{number}");
            let mut object: Value =
                serde_yaml::from_str(&subscription(&name, "posts", "")).unwrap();
            object["metadata"]["annotations"] =
                json!({names::RESUME_ANNOTATION: "x".repeat(250_000)});
            object["spec"]["filter"] = format!("event.id != '{}'", "ä".repeat(2_000)).into();
            self.create(&object.to_string()).await.unwrap();
        }
        for number in 0..6 {
            in_pool(self.cluster, self.namespace, &format!("large-{number}")).await;
        }
        let late = subscription("late", "posts", "");
        self.cluster.apply(self.namespace, &late).await;
        in_pool(self.cluster, self.namespace, "late").await;
    }

    /// Deleted is deleted, also for an object that a finalizer of somebody's keeps.
    async fn finalizers_keep_no_delivery_alive(&self) {
        self.delete_served("undead", "example.com/never").await;
        eventually(
            LIMIT,
            "a deleted Subscription is served no more",
            async || {
                let config = consumer_config(self.cluster, self.namespace, "posts-pool-0").await?;
                let listed = config
                    .subscriptions
                    .iter()
                    .any(|entry| entry.name == "undead");
                anyhow::ensure!(!listed, "it is served");
                anyhow::Ok(())
            },
        )
        .await;
        let kept: Subscription = self.cluster.get(self.namespace, "undead").await.unwrap();
        assert_eq!(kept.finalizers(), ["example.com/never"]);
        // The operator's own finalizer means nothing without the policy that goes with it.
        self.delete_served("borrowed", names::CLEANUP_FINALIZER)
            .await;
        eventually(LIMIT, "it goes", async || {
            match self.own().get_opt("borrowed").await {
                Ok(None) => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await;
        let freed = json!({"metadata": {"finalizers": null}});
        self.own()
            .patch("undead", &PatchParams::default(), &Patch::Merge(&freed))
            .await
            .unwrap();
    }

    async fn accepted(&self, name: &str) -> Subscription {
        self.cluster
            .subscription(self.namespace, name, SINK_ACCEPTED, "True/Succeeded")
            .await;
        self.cluster
            .until(
                self.namespace,
                name,
                "it has a place",
                |it: &Subscription| {
                    let status = it.status.as_ref();
                    let placed =
                        status.is_some_and(|it| it.placement.is_some() && it.group_id.is_some());
                    if placed {
                        Ok(())
                    } else {
                        Err(format!("{status:?}"))
                    }
                },
            )
            .await
    }

    /// Consumers have signing secrets, and neither the relay's nor anybody's else.
    async fn no_worker_holds_what_it_should_not(&self) {
        let secrets = self.cluster.api::<Secret>(self.namespace);
        let workers = ListParams::default().labels(names::WORKER_LABEL);
        let workers = secrets.list(&workers).await.unwrap();
        assert!(workers.items.len() > 4, "relay, pool and dedicated workers");
        for worker in workers {
            let name = worker.name_any();
            let files = files(self.cluster, self.namespace, &name).await.unwrap();
            let text: Vec<u8> = files.into_values().flatten().collect();
            let has_url = String::from_utf8_lossy(&text).contains(CANARIES[0]);
            assert_eq!(has_url, name == "posts-relay", "{name}");
        }
        let victim = self
            .cluster
            .get::<Subscription>(self.namespace, VICTIM)
            .await;
        let status = victim.unwrap().status.unwrap();
        let ready = status.conditions.iter().find(|it| it.type_ == READY);
        assert!(
            ready.is_some_and(|it| it.reason == "PodsNotReady"),
            "{ready:?}"
        );
    }
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}
