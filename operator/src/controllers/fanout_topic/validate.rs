//! Turns a FanoutTopic's spec and the Secrets it refers to into what the builders need. Pure.

use super::log::AUTH;
use crate::controllers::error::Invalid;
use crate::controllers::secrets::{Files, Lookup, Reader};
use crate::kafka::ClusterParams;
use fanout_contract::kafka::{self, Kafka, KafkaCredentials};
use fanout_contract::names;
use fanout_contract::relay;
use fanout_crds::FanoutTopic;
use fanout_crds::fanout_topic::{
    Broker, Claim, ColumnSource, Columns, Delivery, Format, KafkaAuth, KafkaBroker, Mechanism,
    NullPayload, OnParked, PostgresSource, Source, SourcePosition, TableColumn,
};
use fanout_crds::pod::PodSettings;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;

/// A FanoutTopic that can be built. Has no `Debug`: it holds secret values.
pub(crate) struct ValidTopic {
    /// Namespace, which all its workers share.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
    /// Owner of everything built from it.
    pub(crate) owner: OwnerReference,
    /// Generation of the spec.
    pub(crate) generation: i64,
    /// Publish nothing.
    pub(crate) suspend: bool,
    /// Server that shall be published from although its positions are not its own.
    pub(crate) accept_source: Option<String>,
    /// The outbox as the relay's configuration describes it.
    pub(crate) source: relay::PostgresSource,
    /// Files the source refers to.
    pub(crate) source_files: Files,
    /// The Kafka topic.
    pub(crate) log: LogSpec,
    /// Principal of relays and operator.
    pub(crate) producer: Access,
    /// Principal of consumers.
    pub(crate) consumer: Access,
    /// Relays.
    pub(crate) relay_replicas: i32,
    /// What becomes of the later rows of a parked row's key.
    pub(crate) on_parked: relay::OnParked,
    /// How a row becomes a record.
    pub(crate) format: relay::Format,
    /// The record of a row whose payload is NULL.
    pub(crate) null_payload: relay::NullPayload,
    /// Whether a repeat may become visible.
    pub(crate) delivery: relay::Delivery,
    /// Settings of relay pods.
    pub(crate) relay_pod: PodSettings,
    /// Settings of consumer pods.
    pub(crate) consumer_pod: PodSettings,
}

/// The Kafka topic a FanoutTopic wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogSpec {
    /// Name of the topic.
    pub(crate) topic: String,
    /// Name of the dead letter topic.
    pub(crate) dead_letter_topic: String,
    /// Partitions; absent: the broker's default.
    pub(crate) partitions: Option<i32>,
    /// Copies; absent: the broker's default.
    pub(crate) replication_factor: Option<i32>,
    /// Settings by name.
    pub(crate) config: BTreeMap<String, String>,
    /// Partitions may grow under PerKey Subscriptions.
    pub(crate) allow_reorder: bool,
}

/// How one principal reaches Kafka: as a worker's configuration, its files, and as the operator's own client.
#[derive(Clone)]
pub(crate) struct Access {
    /// As in a worker's configuration.
    pub(crate) kafka: Kafka,
    /// Files that [`Self::kafka`] names.
    pub(crate) files: Files,
    /// For a client of the operator.
    pub(crate) params: ClusterParams,
    /// Field of the spec that it is from.
    pub(crate) path: &'static str,
}

/// Checks `topic`; `prefix` precedes the names of Kafka topics that the spec does not name.
pub(crate) fn validate(
    topic: &FanoutTopic,
    secrets: Lookup<'_>,
    prefix: &str,
) -> Result<ValidTopic, Invalid> {
    let namespace = topic.namespace().unwrap_or_default();
    let name = topic.name_any();
    let uid = topic.uid().unwrap_or_default();
    let Source::Postgres(postgres) = &topic.spec.source;
    let Broker::Kafka(broker) = &topic.spec.broker;
    let (source, source_files) = source(&name, &uid, postgres, secrets)?;
    let producer = producer(topic, secrets)?;
    let consumer = broker.consumer_auth.as_ref().map_or_else(
        || Ok(producer.clone()),
        |auth| {
            access(
                broker,
                auth,
                "spec.broker.kafka.consumerAuth",
                &uid,
                secrets,
            )
        },
    )?;
    Ok(ValidTopic {
        owner: owner(topic),
        generation: topic.metadata.generation.unwrap_or_default(),
        suspend: topic.spec.suspend,
        accept_source: topic
            .annotations()
            .get(names::ACCEPT_SOURCE_ANNOTATION)
            .map(|value| names::annotation_token(value)),
        source,
        source_files,
        log: log(kafka_topic(topic, prefix), broker),
        producer,
        consumer,
        relay_replicas: topic.spec.relay.replicas,
        on_parked: match topic.spec.relay.on_parked {
            OnParked::Block => relay::OnParked::Block,
            OnParked::Skip => relay::OnParked::Skip,
        },
        format: match topic.spec.relay.format {
            Format::CloudEvents => relay::Format::CloudEvents,
            Format::Debezium => relay::Format::Debezium,
        },
        null_payload: match topic.spec.relay.null_payload {
            NullPayload::Empty => relay::NullPayload::Empty,
            NullPayload::Tombstone => relay::NullPayload::Tombstone,
        },
        delivery: match topic.spec.relay.delivery {
            Delivery::Standard => relay::Delivery::Standard,
            Delivery::Transactional => relay::Delivery::Transactional,
        },
        relay_pod: topic.spec.relay.pod.clone().unwrap_or_default(),
        consumer_pod: topic
            .spec
            .consumers
            .as_ref()
            .and_then(|consumers| consumers.pod.clone())
            .unwrap_or_default(),
        namespace,
        name,
    })
}

/// How relays and operator reach Kafka, which needs fewer Secrets than the whole spec.
pub(crate) fn producer(topic: &FanoutTopic, secrets: Lookup<'_>) -> Result<Access, Invalid> {
    let Broker::Kafka(broker) = &topic.spec.broker;
    access(
        broker,
        &broker.auth,
        AUTH,
        &topic.uid().unwrap_or_default(),
        secrets,
    )
}

/// The owner reference for what `topic` owns. Without `blockOwnerDeletion`, which needs a right on finalizers where the
/// cluster enforces it.
fn owner(topic: &FanoutTopic) -> OwnerReference {
    OwnerReference {
        api_version: FanoutTopic::api_version(&()).into_owned(),
        kind: FanoutTopic::kind(&()).into_owned(),
        name: topic.name_any(),
        uid: topic.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Name of the Kafka topic. What the status recorded is never computed again, so that a changed prefix moves nothing.
pub(crate) fn kafka_topic(topic: &FanoutTopic, prefix: &str) -> String {
    let Broker::Kafka(broker) = &topic.spec.broker;
    let recorded = topic
        .status
        .as_ref()
        .and_then(|status| status.topic_name.clone());
    broker.topic.name.clone().or(recorded).unwrap_or_else(|| {
        let name = topic.name_any();
        match topic.spec.relay.format {
            Format::CloudEvents => {
                names::kafka_topic(prefix, &topic.namespace().unwrap_or_default(), &name)
            }
            Format::Debezium => names::routed_topic(prefix, &name),
        }
    })
}

fn log(kafka_topic: String, broker: &KafkaBroker) -> LogSpec {
    LogSpec {
        dead_letter_topic: names::dead_letter_topic(&kafka_topic),
        topic: kafka_topic,
        partitions: broker.topic.partitions,
        replication_factor: broker.topic.replication_factor,
        config: broker
            .topic
            .config
            .iter()
            .map(|entry| (entry.name.clone(), entry.value.clone()))
            .collect(),
        allow_reorder: broker.topic.allow_reorder,
    }
}

fn source(
    name: &str,
    uid: &str,
    spec: &PostgresSource,
    secrets: Lookup<'_>,
) -> Result<(relay::PostgresSource, Files), Invalid> {
    let mut reader = Reader::new(secrets, uid);
    let (url_file, _) = reader.text(
        "spec.source.postgres.urlSecretRef",
        "source-url",
        &spec.url_secret_ref,
    )?;
    let ca_file = reader
        .optional(
            "spec.source.postgres.caSecretRef",
            "source-ca",
            spec.ca_secret_ref.as_ref(),
        )?
        .map(|(file, _)| file);
    let matching = spec.r#match.as_ref().map_or_else(
        || {
            let mapped = spec
                .columns
                .as_ref()
                .and_then(|columns| columns.topic.as_ref());
            vec![relay::ColumnMatch {
                column: mapped.map_or("topic", |topic| &topic.column).to_owned(),
                value: name.to_owned(),
            }]
        },
        |columns| {
            columns
                .iter()
                .map(|entry| relay::ColumnMatch {
                    column: entry.column.clone(),
                    value: entry.value.clone(),
                })
                .collect()
        },
    );
    let source = relay::PostgresSource {
        url_file,
        ca_file,
        table: spec.table.clone(),
        r#match: matching,
        claim: match spec.claim {
            Claim::Snapshot => relay::Claim::Snapshot,
            Claim::Lease => relay::Claim::Lease,
            Claim::Delete => relay::Claim::Delete,
        },
        columns: spec.columns.as_ref().map(columns),
        start_from: match spec.start_from.position {
            SourcePosition::Earliest => relay::RelayStart::Earliest,
            SourcePosition::Latest => relay::RelayStart::Latest,
        },
        retention_seconds: spec.retention_seconds,
    };
    Ok((source, reader.into_files()))
}

fn columns(columns: &Columns) -> relay::Columns {
    let column = |of: &Option<TableColumn>| {
        of.as_ref()
            .map(|of| relay::ColumnSource::Column(of.column.clone()))
    };
    let source = |of: &Option<ColumnSource>| of.as_ref().and_then(column_source);
    relay::Columns {
        id: column(&columns.id),
        event_id: source(&columns.event_id),
        key: source(&columns.key),
        r#type: source(&columns.r#type),
        subject: source(&columns.subject),
        content_type: source(&columns.content_type),
        headers: source(&columns.headers),
        traceparent: source(&columns.traceparent),
        payload: column(&columns.payload),
        created_at: column(&columns.created_at),
    }
}

/// The API server admits exactly one member.
fn column_source(source: &ColumnSource) -> Option<relay::ColumnSource> {
    let ColumnSource {
        column,
        value,
        json_path,
    } = source.clone();
    column
        .map(relay::ColumnSource::Column)
        .or_else(|| value.map(relay::ColumnSource::Value))
        .or_else(|| json_path.map(relay::ColumnSource::JsonPath))
}

fn access(
    broker: &KafkaBroker,
    auth: &KafkaAuth,
    path: &'static str,
    uid: &str,
    secrets: Lookup<'_>,
) -> Result<Access, Invalid> {
    let mut reader = Reader::new(secrets, uid);
    let mut read = |member: &str, field: &str, reference: Option<&_>| {
        reader
            .optional(&format!("{path}.{member}"), field, reference)
            .map(Option::unzip)
    };
    let (user_file, user) = read("userSecretRef", "kafka-user", auth.user_secret_ref.as_ref())?;
    let (password_file, password) = read(
        "passwordSecretRef",
        "kafka-password",
        auth.password_secret_ref.as_ref(),
    )?;
    let (ca_file, ca) = read("caSecretRef", "kafka-ca", auth.ca_secret_ref.as_ref())?;
    let (client_cert_file, client_cert) = read(
        "clientCertSecretRef",
        "kafka-cert",
        auth.client_cert_secret_ref.as_ref(),
    )?;
    let (client_key_file, client_key) = read(
        "clientKeySecretRef",
        "kafka-key",
        auth.client_key_secret_ref.as_ref(),
    )?;
    let mechanism = match auth.mechanism {
        Mechanism::None => kafka::Mechanism::None,
        Mechanism::Plain => kafka::Mechanism::Plain,
        Mechanism::ScramSha256 => kafka::Mechanism::ScramSha256,
        Mechanism::ScramSha512 => kafka::Mechanism::ScramSha512,
    };
    Ok(Access {
        kafka: Kafka {
            bootstrap_servers: broker.bootstrap_servers.clone(),
            auth: kafka::KafkaAuth {
                mechanism,
                user_file,
                password_file,
                ca_file,
                client_cert_file,
                client_key_file,
            },
        },
        files: reader.into_files(),
        params: ClusterParams {
            bootstrap_servers: broker.bootstrap_servers.clone(),
            mechanism,
            credentials: KafkaCredentials {
                user,
                password,
                ca,
                client_cert,
                client_key,
            },
        },
        path,
    })
}
