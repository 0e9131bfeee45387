//! What can be wrong with Kafka: reaching it, getting in, being allowed to, and what a topic is like.

use super::gate::Gate;
use super::scene::{Said, Scene, subscription, topic, topic_with};
use fanout_crds::FanoutTopic;
use fanout_crds::condition::{LOG_READY, POSITION_INITIALIZED, READY};
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::services::kafka::{Acl, Operation, RESTRICTED_USERS, Resource, SASL_PASSWORD};
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use serde_json::json;

const KAFKA: &str = "spec.broker.kafka";
const AUTH: &str = "spec.broker.kafka.auth";
const CONSUMER_AUTH: &str = "spec.broker.kafka.consumerAuth";

/// Every case of Kafka.
pub(super) async fn all(scene: &Scene) {
    tokio::join!(
        unreachable(scene),
        credentials(scene),
        rights(scene),
        forbidden_to_create(scene),
        too_many_replicas(scene),
        drift(scene),
        found(scene),
    );
}

async fn unreachable(scene: &Scene) {
    let gate = Gate::closed(port(&scene.kafka.bootstrap()));
    let here = format!("127.0.0.1:{}", gate.port());
    let document = topic("away", "database", &here, "partitions: 1");
    scene
        .case(
            Said {
                object: scene.topic("away"),
                condition: LOG_READY,
                value: "False",
                reason: "BrokerUnreachable",
                words: &[KAFKA, "bootstrapServers", "check"],
                stalled: false,
            },
            async || scene.apply(&document).await,
            async || gate.open().await,
        )
        .await;
}

/// Certificates and passwords, in Secrets, of a topic that is in use: its workers go on with what they have.
async fn credentials(scene: &Scene) {
    let name = "credentials";
    let hook = secured(scene, name).await;
    let right = |user| values(user, SASL_PASSWORD, &scene.kafka.ca());
    let [relay, consumer] = RESTRICTED_USERS;
    let said = |reason, words| Said {
        object: scene.topic(name),
        condition: LOG_READY,
        value: "False",
        reason,
        words,
        stalled: true,
    };
    let foreign = foreign_ca();
    let secrets = [
        ("auth", relay, [AUTH, "caSecretRef"]),
        ("consumer-auth", consumer, [CONSUMER_AUTH, "caSecretRef"]),
    ];
    for (secret, user, _) in secrets {
        let secret = format!("{name}-{secret}");
        let set = async |password: &str, ca: &str| {
            let values = values(user, password, ca);
            scene.secret(&secret, &borrowed(&values)).await;
        };
        let words: &[&str] = if user == relay {
            &[AUTH, "caSecretRef", "correct"]
        } else {
            &[CONSUMER_AUTH, "caSecretRef", "correct"]
        };
        for ca in [foreign.as_str(), "no certificate"] {
            scene
                .case(
                    said("BrokerTlsFailed", words),
                    async || set(SASL_PASSWORD, ca).await,
                    async || scene.secret(&secret, &borrowed(&right(user))).await,
                )
                .await;
        }
        let words: &[&str] = if user == relay {
            &[
                "of spec.broker.kafka.auth",
                "refuse user, password",
                "correct the Secrets",
            ]
        } else {
            &[
                "of spec.broker.kafka.consumerAuth",
                "refuse user, password",
                "correct the Secrets",
            ]
        };
        scene
            .case(
                said("BrokerAuthenticationFailed", words),
                async || {
                    set("wr0ng-passw0rd", &scene.kafka.ca()).await;
                    // What is in use is not replaced by what is refused.
                    let id = scene.publish(name).await;
                    scene.arrives(hook.name(), &id).await;
                },
                async || scene.secret(&secret, &borrowed(&right(user))).await,
            )
            .await;
    }
    undecodable(scene, name, &hook).await;
}

/// A newer version's FanoutTopic: what was made from it goes on.
async fn undecodable(scene: &Scene, name: &str, hook: &Receiver) {
    let claim = |claim: &str| json!({"spec": {"source": {"postgres": {"claim": claim}}}});
    scene
        .case(
            Said {
                object: scene.topic(name),
                condition: READY,
                value: "False",
                reason: "SpecInvalid",
                words: &[
                    "spec.source.postgres.claim",
                    "can't decode",
                    "install the version",
                ],
                stalled: true,
            },
            async || {
                scene.patch::<FanoutTopic>(name, claim("Newer")).await;
                let id = scene.publish(name).await;
                scene.arrives(hook.name(), &id).await;
                scene.is_well(&scene.subscription(hook.name())).await;
            },
            async || scene.patch::<FanoutTopic>(name, claim("Snapshot")).await,
        )
        .await;
}

/// Rights that are taken away while they are in use, and one that was never there.
async fn rights(scene: &Scene) {
    let name = "rights-kafka";
    let hook = secured(scene, name).await;
    let [relay, consumer] = RESTRICTED_USERS;
    let deny = |user: &str, resource, operation| Acl {
        user: user.to_owned(),
        resource,
        operation,
        allowed: false,
    };
    // Where there is any entry, what none allows is denied.
    for user in [relay, consumer] {
        let topic = Resource::Topic(scene.kafka_topic(name));
        acl(scene, &everything(user, topic), true).await;
    }
    let describe = deny(
        relay,
        Resource::Topic(scene.kafka_topic(name)),
        Operation::Describe,
    );
    scene
        .case(
            Said {
                object: scene.topic(name),
                condition: LOG_READY,
                value: "False",
                reason: "BrokerRefused",
                words: &[AUTH, "lacks a right", "Describe"],
                stalled: true,
            },
            async || acl(scene, &describe, true).await,
            async || acl(scene, &describe, false).await,
        )
        .await;
    let group = |subscription: &str| {
        let group = Resource::Group(format!("{}.{subscription}", scene.namespace));
        deny(consumer, group, Operation::All)
    };
    let said = |subscription: &str, condition| Said {
        object: scene.subscription(subscription),
        condition,
        value: "False",
        reason: "BrokerRefused",
        words: &[CONSUMER_AUTH, "lacks a right", "Read on consumer group"],
        stalled: true,
    };
    let taken = group(hook.name());
    scene
        .case(
            said(hook.name(), READY),
            async || acl(scene, &taken, true).await,
            async || acl(scene, &taken, false).await,
        )
        .await;
    let id = scene.publish(name).await;
    scene.arrives(hook.name(), &id).await;
    let never = group("never");
    let document = subscription("never", name, hook.url(), "");
    scene
        .case(
            said("never", POSITION_INITIALIZED),
            async || {
                acl(scene, &never, true).await;
                scene.apply(&document).await;
            },
            async || acl(scene, &never, false).await,
        )
        .await;
}

async fn forbidden_to_create(scene: &Scene) {
    let [relay, _] = RESTRICTED_USERS;
    let name = "uncreated";
    let denials =
        [Resource::Cluster, Resource::Topic(scene.kafka_topic(name))].map(|resource| Acl {
            user: relay.to_owned(),
            resource,
            operation: Operation::Create,
            allowed: false,
        });
    scene
        .case(
            Said {
                object: scene.topic(name),
                condition: LOG_READY,
                value: "False",
                reason: "BrokerRefused",
                words: &[AUTH, "lacks a right", "Create on Kafka topic"],
                stalled: true,
            },
            async || {
                for user in RESTRICTED_USERS {
                    let topic = Resource::Topic(scene.kafka_topic(name));
                    acl(scene, &everything(user, topic), true).await;
                }
                for denial in &denials {
                    acl(scene, denial, true).await;
                }
                credentials_of(scene, name).await;
                let bootstrap = scene.kafka.tls_bootstrap();
                let document = topic_with(name, "database", &secured_kafka(name, &bootstrap));
                scene.apply(&document).await;
            },
            async || {
                for denial in &denials {
                    acl(scene, denial, false).await;
                }
            },
        )
        .await;
}

async fn too_many_replicas(scene: &Scene) {
    let name = "replicated";
    let document = |factor: i32| {
        let kafka_topic = format!("partitions: 1, replicationFactor: {factor}");
        topic(name, "database", &scene.cluster.bootstrap, &kafka_topic)
    };
    scene
        .case(
            Said {
                object: scene.topic(name),
                condition: LOG_READY,
                value: "False",
                reason: "BrokerRefused",
                words: &["spec.broker.kafka.topic.replicationFactor", "lower it"],
                stalled: true,
            },
            async || scene.apply(&document(3)).await,
            async || scene.apply(&document(1)).await,
        )
        .await;
}

/// A topic that is not as the spec says.
async fn drift(scene: &Scene) {
    let name = "drifted";
    let kafka_topic = scene.kafka_topic(name);
    let document = |partitions: i32, extra: &str| {
        let settings = format!(
            "partitions: {partitions}, config: [{{name: retention.ms, value: '3600000'}}]{extra}"
        );
        topic(name, "database", &scene.cluster.bootstrap, &settings)
    };
    scene.apply(&document(2, "")).await;
    let hook = Receiver::start(&scene.sandbox, "drifted-hook", behave::ok()).await;
    scene
        .apply(&subscription(hook.name(), name, hook.url(), ""))
        .await;
    scene.is_well(&scene.topic(name)).await;
    scene.is_well(&scene.subscription(hook.name())).await;
    let drifted = |words| Said {
        object: scene.topic(name),
        condition: LOG_READY,
        value: "True",
        reason: "TopicDrifted",
        words,
        stalled: false,
    };
    scene
        .case(
            drifted(&[
                "spec.broker.kafka.topic.config retention.ms is 3600000",
                "has 7200000",
                "change it",
            ]),
            async || set_retention(scene, &kafka_topic, "7200000").await,
            async || set_retention(scene, &kafka_topic, "3600000").await,
        )
        .await;
    scene
        .case(
            drifted(&[
                "spec.broker.kafka.topic.partitions is 2",
                "has 3",
                "set it to 3",
            ]),
            async || scene.kafka.add_partitions(&kafka_topic, 3).await,
            async || scene.apply(&document(3, "")).await,
        )
        .await;
    // More partitions than there are would move keys of the Subscription.
    scene
        .case(
            Said {
                object: scene.topic(name),
                condition: LOG_READY,
                value: "False",
                reason: "ReorderNotAllowed",
                words: &[
                    "spec.broker.kafka.topic.partitions",
                    "has 3 partitions",
                    "allowReorder",
                ],
                stalled: true,
            },
            async || scene.apply(&document(4, "")).await,
            async || scene.apply(&document(4, ", allowReorder: true")).await,
        )
        .await;
}

/// A topic that exists with more partitions than the spec of a FanoutTopic that finds it.
async fn found(scene: &Scene) {
    let kafka_topic = scene.kafka_topic("found");
    scene.kafka.create_topic(&kafka_topic, 4, &[]).await;
    let document = |partitions: i32| {
        let settings = format!("partitions: {partitions}");
        topic("found", "database", &scene.cluster.bootstrap, &settings)
    };
    scene
        .case(
            Said {
                object: scene.topic("found"),
                condition: LOG_READY,
                value: "True",
                reason: "TopicDrifted",
                words: &[
                    "spec.broker.kafka.topic.partitions is 2",
                    "has 4",
                    "set it to 4",
                ],
                stalled: false,
            },
            async || scene.apply(&document(2)).await,
            async || scene.apply(&document(4)).await,
        )
        .await;
}

async fn set_retention(scene: &Scene, kafka_topic: &str, value: &str) {
    let change = AlterConfig::new(ResourceSpecifier::Topic(kafka_topic)).set("retention.ms", value);
    let admin = scene.kafka.admin();
    let results = admin.alter_configs([&change], &AdminOptions::new()).await;
    for result in results.unwrap() {
        result.unwrap();
    }
}

/// Secrets, FanoutTopic and Subscription `<name>-hook` that get in through TLS as restricted users, and are well.
async fn secured(scene: &Scene, name: &str) -> Receiver {
    credentials_of(scene, name).await;
    let bootstrap = scene.kafka.tls_bootstrap();
    scene
        .apply(&topic_with(
            name,
            "database",
            &secured_kafka(name, &bootstrap),
        ))
        .await;
    let hook = Receiver::start(&scene.sandbox, &format!("{name}-hook"), behave::ok()).await;
    scene
        .apply(&subscription(hook.name(), name, hook.url(), ""))
        .await;
    scene.is_well(&scene.topic(name)).await;
    scene.is_well(&scene.subscription(hook.name())).await;
    hook
}

async fn credentials_of(scene: &Scene, name: &str) {
    for (secret, user) in ["auth", "consumer-auth"].into_iter().zip(RESTRICTED_USERS) {
        let values = values(user, SASL_PASSWORD, &scene.kafka.ca());
        scene
            .secret(&format!("{name}-{secret}"), &borrowed(&values))
            .await;
    }
}

fn secured_kafka(name: &str, bootstrap: &str) -> String {
    let auth = |secret: &str| {
        let reference = |key: &str| format!("{{name: {name}-{secret}, key: {key}}}");
        format!(
            "{{mechanism: ScramSha512, userSecretRef: {}, passwordSecretRef: {}, caSecretRef: {}}}",
            reference("user"),
            reference("password"),
            reference("ca")
        )
    };
    format!(
        "bootstrapServers: '{bootstrap}', topic: {{partitions: 1}}, auth: {}, consumerAuth: {}",
        auth("auth"),
        auth("consumer-auth")
    )
}

fn values(user: &str, password: &str, ca: &str) -> [(&'static str, String); 3] {
    [
        ("user", user.to_owned()),
        ("password", password.to_owned()),
        ("ca", ca.to_owned()),
    ]
}

fn borrowed<'a>(values: &'a [(&'static str, String); 3]) -> [(&'a str, &'a str); 3] {
    values.each_ref().map(|(key, value)| (*key, value.as_str()))
}

/// The certificate of an authority that has signed nothing here.
fn foreign_ca() -> String {
    let dir = fanout_tests::services::dirs::private("foreign-ca", 0o700).unwrap();
    fanout_tests::services::run(
        std::process::Command::new("openssl")
            .args(["req", "-x509", "-days", "30", "-nodes", "-newkey", "ec"])
            .args([
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-subj",
                "/CN=foreign",
            ])
            .args(["-keyout", "ca.key", "-out", "ca.pem"])
            .current_dir(&dir),
    )
    .unwrap();
    std::fs::read_to_string(dir.join("ca.pem")).unwrap()
}

fn everything(user: &str, resource: Resource) -> Acl {
    Acl {
        user: user.to_owned(),
        resource,
        operation: Operation::All,
        allowed: true,
    }
}

async fn acl(scene: &Scene, acl: &Acl, add: bool) {
    let (kafka, acl) = (scene.kafka, acl.clone());
    tokio::task::spawn_blocking(move || {
        let done = if add {
            kafka.allow_or_deny(&acl)
        } else {
            kafka.forget(&acl)
        };
        done.unwrap();
    })
    .await
    .unwrap();
}

fn port(address: &str) -> u16 {
    address.rsplit(':').next().unwrap().parse().unwrap()
}
