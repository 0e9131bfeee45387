//! What can be wrong with a Subscription, each on the topic of the healthy one and in its worker.

use super::scene::{POSTS, Said, Scene, subscription, topic};
use fanout_crds::Subscription;
use fanout_crds::condition::{POSITION_INITIALIZED, READY, SINK_ACCEPTED};
use fanout_tests::receiver::{Receiver, behave};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::discovery::ApiResource;
use serde_json::{Value, json};

/// What the API server refuses by the definition's rules: nothing is stored, so nothing is to be mended.
pub(super) async fn refused_by_the_api_server(scene: &Scene) {
    let api: Api<DynamicObject> = Api::namespaced_with(
        scene.cluster.client.clone(),
        &scene.namespace,
        &ApiResource::erase::<Subscription>(&()),
    );
    let refusal = async |url: &str, filter: Option<String>| {
        let text = subscription("refused", POSTS, "https://search.example", "");
        let mut object: Value = serde_yaml::from_str(&text).unwrap();
        object["spec"]["sink"]["webhook"]["url"] = url.into();
        if let Some(filter) = filter {
            object["spec"]["filter"] = filter.into();
        }
        let parameters = PatchParams::apply("tests").force();
        let refused = api
            .patch("refused", &parameters, &Patch::Apply(&object))
            .await;
        refused.unwrap_err().to_string()
    };
    let url = "spec.sink.webhook.url";
    let rule = "url must be an http or https URL without user information";
    for wrong in [
        "ftp://search.example/",
        "search.example",
        "https://me:pw@search.example/",
    ] {
        let said = refusal(wrong, None).await;
        assert!(said.contains(url) && said.contains(rule), "{said}");
    }
    // By characters, and by bytes.
    let long = format!("event.type == '{}'", "a".repeat(4096));
    let said = refusal("https://search.example/", Some(long)).await;
    assert!(
        said.contains("spec.filter") && said.contains("4096"),
        "{said}"
    );
    let wide = format!("event.type == '{}'", "é".repeat(2100));
    let said = refusal("https://search.example/", Some(wide)).await;
    assert!(
        said.contains("spec.filter") && said.contains("filter must be at most 4096 bytes long"),
        "{said}"
    );
}

/// Every case of a Subscription.
pub(super) async fn all(scene: &Scene) {
    tokio::join!(
        specs(scene),
        secrets(scene),
        no_topic(scene),
        no_event(scene)
    );
}

/// A Subscription that receives.
async fn receiving(scene: &Scene, name: &str, extra: &str) -> Receiver {
    let hook = Receiver::start(&scene.sandbox, name, behave::ok()).await;
    scene
        .apply(&subscription(name, POSTS, hook.url(), extra))
        .await;
    scene.is_well(&scene.subscription(name)).await;
    hook
}

async fn specs(scene: &Scene) {
    let name = "changing";
    let hook = receiving(scene, name, "").await;
    let said = |condition, reason, words| Said {
        object: scene.subscription(name),
        condition,
        value: "False",
        reason,
        words,
        stalled: true,
    };
    let filter = |filter: Value| json!({"spec": {"filter": filter}});
    let url = |url: &str| json!({"spec": {"sink": {"webhook": {"url": url}}}});
    let refused: &[&str] = &["spec.sink.webhook.url", "refused", "by another address"];
    let cases = [
        (
            said(
                READY,
                "FilterInvalid",
                &["spec.filter", "must be a CEL expression", "correct it"],
            ),
            filter(json!("event.type ==")),
            filter(json!(null)),
        ),
        (
            said(
                READY,
                "FilterInvalid",
                &["spec.filter", "no variable but event: evnt", "correct it"],
            ),
            filter(json!("evnt.type == 'a'")),
            filter(json!(null)),
        ),
        (
            said(SINK_ACCEPTED, "AddressRefused", refused),
            url("https://10.96.0.1/api"),
            url(hook.url()),
        ),
        (
            said(SINK_ACCEPTED, "AddressRefused", refused),
            url("http://169.254.169.254/latest"),
            url(hook.url()),
        ),
        (
            said(
                SINK_ACCEPTED,
                "AddressRefused",
                &[
                    "spec.sink.webhook.url",
                    "address is private",
                    "ask the platform team",
                ],
            ),
            url("http://192.168.0.1/"),
            url(hook.url()),
        ),
    ];
    for (said, wreck, mend) in cases {
        scene
            .case(
                said,
                async || scene.patch::<Subscription>(name, wreck).await,
                async || scene.patch::<Subscription>(name, mend).await,
            )
            .await;
    }
    newer(scene, name, &hook).await;
}

/// A Subscription that a newer version wrote: it is delivered to as before.
async fn newer(scene: &Scene, name: &str, hook: &Receiver) {
    let isolation = |isolation: &str| json!({"spec": {"isolation": isolation}});
    scene
        .case(
            Said {
                object: scene.subscription(name),
                condition: READY,
                value: "False",
                reason: "SpecInvalid",
                words: &["spec.isolation", "can't decode", "goes on unchanged"],
                stalled: true,
            },
            async || {
                scene.patch::<Subscription>(name, isolation("Newer")).await;
                // Its topic is looked at anew meanwhile.
                let other = subscription("passing", POSTS, hook.url(), "");
                scene.apply(&other).await;
                scene.is_well(&scene.subscription("passing")).await;
                let id = scene.publish(POSTS).await;
                scene.arrives(name, &id).await;
            },
            async || scene.patch::<Subscription>(name, isolation("Auto")).await,
        )
        .await;
    // It has everything, from before, between and after.
    let id = scene.publish(POSTS).await;
    scene.arrives(name, &id).await;
}

async fn secrets(scene: &Scene) {
    const FIELD: &str = "spec.sink.webhook.signing.secretRefs[0]";
    let (name, secret) = ("signed", "signed-key");
    let values = [("key", "whsec_c2lnbmluZyBzZWNyZXQgb2YgdGhlIHRlc3RzIQ==")];
    scene.secret(secret, &values).await;
    let hook = receiving(scene, name, "").await;
    let signing = json!({"spec": {"sink": {"webhook": {
        "url": hook.url(), "signing": {"secretRefs": [{"name": secret, "key": "key"}]},
    }}}});
    scene.patch::<Subscription>(name, signing).await;
    scene.is_well(&scene.subscription(name)).await;
    let said = |reason, words| Said {
        object: scene.subscription(name),
        condition: SINK_ACCEPTED,
        value: "False",
        reason,
        words,
        stalled: true,
    };
    let words: &[&str] = &[
        FIELD,
        "Secret signed-key is missing or not labelled",
        "create or label it",
    ];
    let api = scene.cluster.api::<Secret>(&scene.namespace);
    let label = |value: Value| json!({"metadata": {"labels": {"fanout.dev/credentials": value}}});
    scene
        .case(
            said("SecretNotPermitted", words),
            async || drop(api.delete(secret, &DeleteParams::default()).await.unwrap()),
            async || scene.secret(secret, &values).await,
        )
        .await;
    scene
        .case(
            said("SecretNotPermitted", words),
            async || scene.patch::<Secret>(secret, label(json!("false"))).await,
            async || scene.patch::<Secret>(secret, label(json!("true"))).await,
        )
        .await;
    scene
        .case(
            said(
                "SecretKeyMissing",
                &[FIELD, "Secret signed-key has no key key", "add it"],
            ),
            async || {
                let without = json!({"data": {"key": null, "other": "eA=="}});
                scene.patch::<Secret>(secret, without).await;
            },
            async || scene.secret(secret, &values).await,
        )
        .await;
    // No secret at all: only the worker knows what makes one.
    let id = scene.publish(POSTS).await;
    scene.arrives(name, &id).await;
}

/// Neither is asked for by name, nor does a human have to mend the Subscription: its topic is on its way.
async fn no_topic(scene: &Scene) {
    let hook = Receiver::start(&scene.sandbox, "early", behave::ok()).await;
    let document = subscription("early", "late", hook.url(), "");
    let late = topic(
        "late",
        "database",
        &scene.cluster.bootstrap,
        "partitions: 1",
    );
    scene
        .case(
            Said {
                object: scene.subscription("early"),
                condition: POSITION_INITIALIZED,
                value: "False",
                reason: "TopicNotFound",
                words: &[
                    "spec.topicRef.name",
                    "FanoutTopic late does not exist",
                    "create it",
                ],
                stalled: false,
            },
            async || scene.apply(&document).await,
            async || scene.apply(&late).await,
        )
        .await;
    let id = scene.publish("late").await;
    scene.arrives("early", &id).await;
}

/// A topic whose records are no CloudEvents has nothing that could be filtered and delivered.
async fn no_event(scene: &Scene) {
    let hook = Receiver::start(&scene.sandbox, "routed", behave::ok()).await;
    let routed = topic(
        "routed",
        "database",
        &scene.cluster.bootstrap,
        &format!("name: {}.routed, partitions: 1", scene.namespace),
    );
    let routed = routed.replace("replicas: 1", "replicas: 1, format: Debezium");
    scene
        .case(
            Said {
                object: scene.subscription("routed"),
                condition: POSITION_INITIALIZED,
                value: "False",
                reason: "FormatUnsupported",
                words: &[
                    "spec.topicRef.name",
                    "FanoutTopic routed",
                    "format Debezium",
                ],
                stalled: false,
            },
            async || {
                scene.apply(&routed).await;
                let document = subscription("routed", "routed", hook.url(), "");
                scene.apply(&document).await;
            },
            async || {
                let api: Api<Subscription> =
                    Api::namespaced(scene.cluster.client.clone(), &scene.namespace);
                let deleted = api.delete("routed", &DeleteParams::default()).await;
                deleted.unwrap();
                let document = subscription("routed", POSTS, hook.url(), "");
                scene.apply(&document).await;
            },
        )
        .await;
    let id = scene.publish(POSTS).await;
    scene.arrives("routed", &id).await;
}
