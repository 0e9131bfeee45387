//! From YAML through validation to objects, without a client.

mod rivals;
mod status;

use super::build::{self, WorkerObjects};
use super::members::{self, Held, Member};
use super::validate::{ValidTopic, validate};
use crate::controllers::subscription;
use crate::settings::Settings;
use fanout_contract::consumer::Egress;
use fanout_contract::names;
use fanout_contract::relay::RelayConfig;
use fanout_crds::condition::reason;
use fanout_crds::fanout_topic::{Broker, Delivery, Format, NullPayload, OnParked};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_runtime::guard::Guard;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const TOPIC: &str = r"
apiVersion: fanout.dev/v1alpha1
kind: FanoutTopic
metadata: {name: posts, namespace: social, uid: aaaa, generation: 3}
spec:
  source:
    postgres:
      urlSecretRef: {name: db, key: url}
      table: public.outbox
  broker:
    kafka:
      bootstrapServers: kafka:9093
      auth:
        mechanism: ScramSha512
        userSecretRef: {name: kafka, key: user}
        passwordSecretRef: {name: kafka, key: password}
        caSecretRef: {name: kafka, key: ca}
      consumerAuth:
        mechanism: ScramSha512
        userSecretRef: {name: kafka, key: reader}
        passwordSecretRef: {name: kafka, key: readerPassword}
        caSecretRef: {name: kafka, key: ca}
      topic: {partitions: 6, replicationFactor: 3, config: [{name: retention.ms, value: '604800000'}]}
  relay:
    replicas: 2
    pod:
      labels: {team: social}
      annotations: {example.com/scrape: 'true'}
      nodeSelector: {disk: ssd}
      tolerations: [{key: dedicated, operator: Equal, value: fanout, effect: NoSchedule}]
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}]
      priorityClassName: high
      imagePullSecrets: [{name: registry}]
      serviceAccountAnnotations: {eks.amazonaws.com/role-arn: 'arn:relay'}
      resources: {requests: {cpu: 100m}, limits: {memory: 1Gi}}
";

const SUBSCRIPTION: &str = r#"
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {name: search, namespace: social, uid: bbbb, generation: 5, annotations: {fanout.dev/resume: 'again'}}
spec:
  topicRef: {name: posts}
  filter: event.type == "post.created"
  sink:
    webhook:
      url: https://search.example.com/hook
      signing: {secretRefs: [{name: signing, key: new}, {name: signing, key: old}]}
status: {groupId: social.search, placement: posts-pool-0}
"#;

fn topic() -> FanoutTopic {
    serde_yaml::from_str(TOPIC).unwrap()
}

fn subscription(name: &str) -> Subscription {
    let mut subscription: Subscription = serde_yaml::from_str(SUBSCRIPTION).unwrap();
    subscription.metadata.name = Some(name.to_owned());
    subscription.metadata.uid = Some(format!("uid-{name}"));
    subscription
}

fn secret(name: &str) -> Option<Arc<Secret>> {
    let data: &[(&str, &str)] = match name {
        "db" => &[("url", "postgres://relay:canary@db/social\n")],
        "kafka" => &[
            ("user", "relay"),
            ("password", "canary-password"),
            ("ca", "PEM"),
            ("reader", "reader"),
            ("readerPassword", "canary-reader"),
        ],
        "signing" => &[("new", "whsec_bmV3"), ("old", "whsec_b2xk")],
        _ => return None,
    };
    let data = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
        .collect();
    Some(Arc::new(Secret {
        data: Some(data),
        ..Secret::default()
    }))
}

fn valid() -> ValidTopic {
    validate(&topic(), &secret, "").ok().unwrap()
}

fn guard() -> Guard {
    Guard::new(
        &["10.0.0.0/8".parse().unwrap()],
        &["10.96.0.1/32".parse().unwrap()],
    )
}

fn member(name: &str, placement: &str) -> Member {
    let valid = subscription::validate::validate(&subscription(name), &secret, &guard())
        .ok()
        .unwrap();
    Member {
        placement: placement.to_owned(),
        config: valid.config,
        files: valid.files,
        replicas: 1,
    }
}

fn settings() -> Settings {
    Settings {
        deletion_deadline: std::time::Duration::from_mins(5),
        worker_image: "registry/fanout:1".to_owned(),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        kafka_prefix: String::new(),
        egress_allowed: Vec::new(),
    }
}

fn egress() -> Egress {
    Egress {
        allowed_cidrs: vec!["10.0.0.0/8".to_owned()],
        refused_cidrs: vec!["10.96.0.1/32".to_owned()],
    }
}

fn built(topic: &ValidTopic, members: &[Member]) -> Vec<WorkerObjects> {
    let assigned = members::assign(members, &Held::new(), |_, _| true);
    build::workers(topic, &assigned, &egress(), &settings(), &|_| vec![7; 32]).unwrap()
}

fn worker(name: &str) -> WorkerObjects {
    built(&valid(), &[member("search", "posts-pool-0")])
        .into_iter()
        .find(|worker| worker.name == name)
        .unwrap()
}

#[test]
fn the_relay_deployment_is_restricted_and_takes_the_allowed_settings() {
    insta::assert_snapshot!(serde_yaml::to_string(&worker("posts-relay").deployment).unwrap());
}

#[test]
fn a_pool_deployment_is_one_pod_with_defaults() {
    insta::assert_snapshot!(serde_yaml::to_string(&worker("posts-pool-0").deployment).unwrap());
}

#[test]
fn the_relay_configuration_names_files_and_no_secret() {
    let relay = worker("posts-relay");
    insta::assert_snapshot!(relay.config_map.data.unwrap()["config.yaml"]);
}

#[test]
fn the_relay_alone_is_told_of_the_source_that_is_accepted() {
    let with = |value: &str| {
        let mut topic = topic();
        topic.metadata.annotations = Some(BTreeMap::from([(
            names::ACCEPT_SOURCE_ANNOTATION.to_owned(),
            value.to_owned(),
        )]));
        let topic = validate(&topic, &secret, "").ok().unwrap();
        built(&topic, &[member("search", "posts-pool-0")])
    };
    let accepted = |workers: &[WorkerObjects]| {
        let file = &workers[0].config_map.data.as_ref().unwrap()["config.yaml"];
        let config: RelayConfig = serde_yaml::from_str(file).unwrap();
        config.accept_source
    };
    let workers = with("7402116394712540001");
    assert_eq!(accepted(&workers).as_deref(), Some("7402116394712540001"));
    // Its pods must report the changed file; nobody else's changes.
    assert_ne!(workers[0].hash, worker("posts-relay").hash);
    assert_eq!(workers[1].hash, worker("posts-pool-0").hash);
    // Text of any size stays small.
    let hostile = accepted(&with(&"\n: [".repeat(50_000))).unwrap();
    assert!(hostile.len() <= 64, "{hostile}");
}

#[test]
fn how_rows_become_records_reaches_the_relay() {
    let mut topic = topic();
    topic.spec.relay.on_parked = OnParked::Skip;
    topic.spec.relay.null_payload = NullPayload::Tombstone;
    topic.spec.relay.delivery = Delivery::Transactional;
    let valid = validate(&topic, &secret, "").ok().unwrap();
    let relay = built(&valid, &[]).remove(0);
    let config = &relay.config_map.data.unwrap()["config.yaml"];
    assert!(config.contains("onParked: Skip"), "{config}");
    assert!(config.contains("nullPayload: Tombstone"), "{config}");
    assert!(config.contains("delivery: Transactional"), "{config}");
}

#[test]
fn in_format_debezium_the_topic_is_where_the_router_sends() {
    let mut topic = topic();
    topic.spec.relay.format = Format::Debezium;
    let valid = |topic: &FanoutTopic| validate(topic, &secret, "prod.").ok().unwrap();
    assert_eq!(valid(&topic).log.topic, "prod.outbox.event.posts");
    let relay = built(&valid(&topic), &[]).remove(0);
    let config = &relay.config_map.data.unwrap()["config.yaml"];
    assert!(config.contains("format: Debezium"), "{config}");
    let Broker::Kafka(kafka) = &mut topic.spec.broker;
    kafka.topic.name = Some("named".to_owned());
    assert_eq!(valid(&topic).log.topic, "named");
}

#[test]
fn the_consumer_configuration_names_files_and_no_secret() {
    let pool = worker("posts-pool-0");
    insta::assert_snapshot!(pool.config_map.data.unwrap()["config.yaml"]);
}

#[test]
fn each_worker_gets_the_secret_values_it_needs_and_no_others() {
    let files =
        |name: &str| -> Vec<String> { worker(name).secret.data.unwrap().into_keys().collect() };
    assert_eq!(
        files("posts-relay"),
        [
            "aaaa.kafka-ca",
            "aaaa.kafka-password",
            "aaaa.kafka-user",
            "aaaa.source-url",
            "hash.key"
        ]
    );
    assert_eq!(
        files("posts-pool-0"),
        [
            "aaaa.kafka-ca",
            "aaaa.kafka-password",
            "aaaa.kafka-user",
            "hash.key",
            "uid-search.signing-0",
            "uid-search.signing-1"
        ]
    );
    let pool = worker("posts-pool-0").secret.data.unwrap();
    assert_eq!(pool["aaaa.kafka-password"].0, b"canary-reader");
}

#[test]
fn the_same_input_builds_the_same_objects() {
    let (one, other) = (worker("posts-pool-0"), worker("posts-pool-0"));
    assert_eq!(one.hash, other.hash);
    assert_eq!(one.deployment, other.deployment);
    assert_eq!(one.config_map, other.config_map);
    assert_eq!(one.secret, other.secret);
}

#[test]
fn the_hash_follows_configuration_secrets_and_key() {
    let hash = |key: u8, subscription: &str| {
        let members = [member(subscription, "posts-pool-0")];
        let assigned = members::assign(&members, &Held::new(), |_, _| true);
        build::workers(&valid(), &assigned, &egress(), &settings(), &|_| {
            vec![key; 32]
        })
        .unwrap()[1]
            .hash
            .clone()
    };
    assert_eq!(hash(1, "a"), hash(1, "a"));
    assert_ne!(hash(1, "a"), hash(1, "b"));
    assert_ne!(hash(1, "a"), hash(2, "a"));
}

#[test]
fn a_member_stays_in_its_old_worker_until_the_new_one_runs_it() {
    let members = [member("a", "posts-s-a"), member("b", "posts-pool-0")];
    let held = Held::from([(
        "posts-pool-0".to_owned(),
        BTreeSet::from(["uid-a".to_owned(), "uid-b".to_owned()]),
    )]);
    let names = |runs: bool| -> BTreeMap<String, Vec<String>> {
        members::assign(&members, &held, |_, _| runs)
            .into_iter()
            .map(|(worker, members)| {
                (
                    worker,
                    members
                        .iter()
                        .map(|member| member.config.name.clone())
                        .collect(),
                )
            })
            .collect()
    };
    assert_eq!(
        names(false),
        BTreeMap::from([
            (
                "posts-pool-0".to_owned(),
                vec!["a".to_owned(), "b".to_owned()]
            ),
            ("posts-s-a".to_owned(), vec!["a".to_owned()]),
        ])
    );
    assert_eq!(
        names(true),
        BTreeMap::from([
            ("posts-pool-0".to_owned(), vec!["b".to_owned()]),
            ("posts-s-a".to_owned(), vec!["a".to_owned()]),
        ])
    );
}

#[test]
fn what_a_rendered_configuration_holds_is_read_back() {
    let pool = worker("posts-pool-0");
    let text = &pool.config_map.data.unwrap()["config.yaml"];
    assert_eq!(
        members::held(text),
        BTreeSet::from(["uid-search".to_owned()])
    );
    assert!(members::held("no: configuration").is_empty());
}

#[test]
fn a_missing_secret_and_one_without_label_look_the_same() {
    let none = |_: &str| None;
    let invalid = validate(&topic(), &none, "").err().unwrap();
    assert_eq!(invalid.reason, reason::SECRET_NOT_PERMITTED);
    assert_eq!(
        invalid.message,
        "spec.source.postgres.urlSecretRef: Secret db is missing or not labelled fanout.dev/credentials=true; create or label it"
    );
}

#[test]
fn a_missing_key_is_named_with_its_field() {
    let mut topic = topic();
    let fanout_crds::fanout_topic::Source::Postgres(postgres) = &mut topic.spec.source;
    postgres.url_secret_ref.key = "uri".to_owned();
    let invalid = validate(&topic, &secret, "").err().unwrap();
    assert_eq!(invalid.reason, reason::SECRET_KEY_MISSING);
    assert_eq!(
        invalid.message,
        "spec.source.postgres.urlSecretRef: Secret db has no key uri, or it is empty; add it, or name another"
    );
}

#[test]
fn the_recorded_topic_name_outlives_a_changed_prefix() {
    assert_eq!(
        validate(&topic(), &secret, "prod.").ok().unwrap().log.topic,
        "prod.social.posts"
    );
    let mut recorded = topic();
    recorded.status = Some(fanout_crds::FanoutTopicStatus {
        topic_name: Some("social.posts".to_owned()),
        ..fanout_crds::FanoutTopicStatus::default()
    });
    assert_eq!(
        validate(&recorded, &secret, "prod.")
            .ok()
            .unwrap()
            .log
            .topic,
        "social.posts"
    );
}

#[test]
fn the_operators_own_client_gets_the_values_without_line_breaks() {
    let valid = valid();
    assert_eq!(
        valid.producer.params.credentials.password.as_deref(),
        Some("canary-password")
    );
    assert_eq!(
        valid.consumer.params.credentials.password.as_deref(),
        Some("canary-reader")
    );
    // The file is copied as it is: the worker trims.
    assert!(valid.source_files["aaaa.source-url"].ends_with(b"\n"));
}

#[test]
fn a_mapping_reaches_the_relay_and_its_topic_column_is_matched() {
    let mapped = TOPIC.replace(
        "table: public.outbox",
        "table: public.events\n      claim: Delete\n      columns:\n        id: {column: number}\n        topic: {column: stream}\n        key: {jsonPath: $.author}\n        type: {value: post}\n        createdAt: {column: at}",
    );
    let topic: FanoutTopic = serde_yaml::from_str(&mapped).unwrap();
    let valid = validate(&topic, &secret, "").ok().unwrap();
    let postgres = &valid.source;
    let yaml =
        serde_yaml::to_string(&(postgres.claim, &postgres.r#match, &postgres.columns)).unwrap();
    let document: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
    assert_eq!(
        document,
        serde_json::json!(["Delete", [{"column": "stream", "value": "posts"}], {
            "id": {"column": "number"}, "key": {"jsonPath": "$.author"}, "type": {"value": "post"}, "createdAt": {"column": "at"},
        }])
    );
}
