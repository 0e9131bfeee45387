//! The Kafka cluster and topic records go to: reached, identified, and asked for its limits.

use crate::kafka_error::{self, explain};
use crate::produce::Producer;
use crate::produce::transaction::Trouble;
use fanout_contract::kafka::{KEEP_CONNECTIONS, Kafka, KafkaCredentials, client_properties};
use fanout_contract::names::{self, POSITIONS_PARTITIONS};
use fanout_contract::reason::BrokerError;
use fanout_contract::relay::{Delivery, KafkaTarget, Problem};
use fanout_runtime::config::Files;
use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};
use secrecy::ExposeSecret as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Why nothing can be produced.
pub type Failure = Problem<BrokerError>;

/// One request to the cluster takes at most this long.
const REQUEST: Duration = Duration::from_secs(5);
/// Topic setting: largest record batch, bytes, as sent.
const LIMIT: &str = "max.message.bytes";

/// Largest batch of a producer that sends nothing, bytes.
const SMALL: usize = 1_000_000;

/// Why a transactional producer is not to be had.
#[derive(Clone, Debug)]
pub enum Unready {
    /// Another took its place at the same time.
    Fenced,
    /// Something does not work.
    Failed(Failure),
}

impl From<Failure> for Unready {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A reachable cluster with the topic on it.
pub struct Broker {
    /// Id of the cluster.
    pub cluster: String,
    /// The topic.
    pub topic: String,
    config: ClientConfig,
    admin: AdminClient<DefaultClientContext>,
}

impl Broker {
    /// Connects, and checks that the topic exists, and that of the positions where they are kept in one.
    pub async fn connect(
        target: &KafkaTarget,
        delivery: Delivery,
        files: &Files,
    ) -> Result<Arc<Self>, Failure> {
        let config = client_config(&target.cluster, files)?;
        let (name, value) = KEEP_CONNECTIONS;
        let admin = config.clone().set(name, value).create();
        let admin: AdminClient<_> = admin.map_err(|_| invalid())?;
        let cluster = ask(&config, &target.topic, Question::Topic).await?;
        if delivery == Delivery::Transactional {
            let positions = names::positions_topic(&target.topic);
            ask(&config, &positions, Question::Positions).await?;
        }
        Ok(Arc::new(Self {
            cluster,
            topic: target.topic.clone(),
            config,
            admin,
        }))
    }

    /// Largest record batch the topic takes, bytes, as the broker has it now.
    pub async fn max_message_bytes(&self) -> Result<usize, Failure> {
        let options = AdminOptions::new().request_timeout(Some(REQUEST));
        let topic = [ResourceSpecifier::Topic(&self.topic)];
        let answer =
            tokio::time::timeout(REQUEST * 2, self.admin.describe_configs(&topic, &options));
        let mut resources = match answer.await {
            Ok(Ok(resources)) => resources,
            Ok(Err(error)) => return Err(explain(error.rdkafka_error_code(), &self.topic)),
            Err(_) => return Err(explain(None, &self.topic)),
        };
        let resource = match resources.pop() {
            Some(Ok(resource)) => resource,
            Some(Err(code)) => return Err(explain(Some(code), &self.topic)),
            None => return Err(explain(None, &self.topic)),
        };
        resource
            .entries
            .iter()
            .find(|entry| entry.name == LIMIT)
            .and_then(|entry| entry.value.as_deref()?.parse().ok())
            .ok_or_else(|| {
                failure(
                    BrokerError::PermissionDenied,
                    format!("the broker does not show {LIMIT} of Kafka topic {}: grant the principal of spec.broker.kafka.auth DescribeConfigs on it", self.topic),
                )
            })
    }

    /// A connected producer for a topic that takes `max_message_bytes`; `linger` is how long it waits for a batch to fill.
    pub async fn producer(
        &self,
        max_message_bytes: usize,
        linger: Duration,
    ) -> Result<Arc<Producer>, Failure> {
        self.connected(max_message_bytes, linger, None).await
    }

    /// The same with transactions, as the one and only producer of `range` from now on.
    pub async fn transactional(
        &self,
        max_message_bytes: usize,
        linger: Duration,
        range: i64,
    ) -> Result<Arc<Producer>, Unready> {
        let id = names::transactional_id(&self.topic, range);
        let producer = self.connected(max_message_bytes, linger, Some(&id)).await?;
        let Err(trouble) = producer.init().await else {
            return Ok(producer);
        };
        let connection = producer.connection_error();
        producer.stop().await;
        Err(match trouble {
            Trouble::Fenced => Unready::Fenced,
            Trouble::Failed(code) => {
                Unready::Failed(kafka_error::no_transaction(code, connection, &self.topic))
            }
        })
    }

    /// Ends what others may still do as producers of `range`, which is no more.
    pub async fn fence(&self, range: i64) -> Result<(), Unready> {
        let limit = SMALL;
        let producer = self.transactional(limit, Duration::ZERO, range).await?;
        producer.stop().await;
        Ok(())
    }

    /// What reaches the cluster.
    pub fn client_config(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn connected(
        &self,
        max_message_bytes: usize,
        linger: Duration,
        transactional_id: Option<&str>,
    ) -> Result<Arc<Producer>, Failure> {
        let config = self.config.clone();
        let topic = &self.topic;
        let producer = Producer::new(config, topic, max_message_bytes, linger, transactional_id);
        let producer = Arc::new(producer.map_err(|_| invalid())?);
        match producer.warm_up().await {
            Ok(()) => Ok(producer),
            Err(code) => {
                producer.stop().await;
                Err(explain(code, &self.topic))
            }
        }
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration holds credentials.
        f.debug_struct("Broker")
            .field("cluster", &self.cluster)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// Id of the cluster, whether the topic exists or not; nothing is asked about the topic, which some brokers would create.
pub async fn cluster_id(target: &KafkaTarget, files: &Files) -> Result<String, Failure> {
    let config = client_config(&target.cluster, files)?;
    ask(&config, &target.topic, Question::Cluster).await
}

fn client_config(cluster: &Kafka, files: &Files) -> Result<ClientConfig, Failure> {
    let credentials = credentials(cluster, files)?;
    let mut config = ClientConfig::new();
    let Kafka {
        bootstrap_servers,
        auth,
    } = cluster;
    for (name, value) in client_properties(bootstrap_servers, auth.mechanism, &credentials) {
        config.set(name, value);
    }
    config.set("client.id", "fanout-relay");
    config.set("socket.timeout.ms", "10000");
    Ok(config)
}

/// What [`look`] is to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// The cluster's id, and that the topic exists.
    Topic,
    /// The same, of a topic of positions.
    Positions,
    /// The cluster's id alone.
    Cluster,
}

/// Answers `question` with a client of its own.
async fn ask(config: &ClientConfig, topic: &str, question: Question) -> Result<String, Failure> {
    let probe = Probe::default();
    let client: BaseProducer<Probe> = config
        .create_with_context(probe.clone())
        .map_err(|_| invalid())?;
    let topic = topic.to_owned();
    tokio::task::spawn_blocking(move || look(&client, &probe, &topic, question))
        .await
        .map_err(|_| failure(BrokerError::ProduceFailed, "looking at the broker failed"))?
}

fn credentials(cluster: &Kafka, files: &Files) -> Result<KafkaCredentials, Failure> {
    let read = |file: &Option<String>, field: &str| {
        let Some(file) = file else {
            return Ok(None);
        };
        files
            .text(file)
            .map(|text| Some(text.expose_secret().to_owned()))
            .map_err(|_| {
                failure(
                    BrokerError::AuthenticationFailed,
                    format!("spec.broker.kafka.auth.{field}: the value is missing or not text"),
                )
            })
    };
    let auth = &cluster.auth;
    Ok(KafkaCredentials {
        user: read(&auth.user_file, "userSecretRef")?,
        password: read(&auth.password_file, "passwordSecretRef")?,
        ca: read(&auth.ca_file, "caSecretRef")?,
        client_cert: read(&auth.client_cert_file, "clientCertSecretRef")?,
        client_key: read(&auth.client_key_file, "clientKeySecretRef")?,
    })
}

/// Remembers the last error of the connection, because requests that fail only say that they timed out.
#[derive(Clone, Debug, Default)]
pub struct Probe(Arc<Mutex<Option<RDKafkaErrorCode>>>);

impl Probe {
    /// The error that says most: a refused password matters more than that no broker is left.
    pub fn error(&self) -> Option<RDKafkaErrorCode> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers `error`.
    pub fn note(&self, error: &KafkaError) {
        let Some(code) = error.rdkafka_error_code() else {
            return;
        };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if code != RDKafkaErrorCode::AllBrokersDown || last.is_none() {
            *last = Some(code);
        }
    }
}

impl ClientContext for Probe {
    fn error(&self, error: KafkaError, _reason: &str) {
        self.note(&error);
    }

    fn log(&self, _level: rdkafka::config::RDKafkaLogLevel, fac: &str, _message: &str) {
        tracing::debug!(fac, "librdkafka");
    }
}

impl ProducerContext for Probe {
    type DeliveryOpaque = ();

    fn delivery(&self, _result: &DeliveryResult<'_>, (): ()) {}
}

/// Blocks: finds the id of the cluster, and the topic where that is asked for.
fn look(
    client: &BaseProducer<Probe>,
    probe: &Probe,
    topic: &str,
    question: Question,
) -> Result<String, Failure> {
    let failed = |code: Option<RDKafkaErrorCode>| {
        // Serves the connection's errors, which wait in the queue.
        client.poll(Duration::from_millis(100));
        explain(probe.error().or(code), topic)
    };
    // Asking for every topic creates none; the id comes with the answer.
    let asked = (question != Question::Cluster).then_some(topic);
    let metadata = client
        .client()
        .fetch_metadata(asked, REQUEST)
        .map_err(|error| failed(error.rdkafka_error_code()))?;
    let error = asked.and_then(|_| {
        let mut topics = metadata.topics().iter();
        topics.find_map(rdkafka::metadata::MetadataTopic::error)
    });
    if let Some(code) = error {
        return Err(explain(Some(code.into()), topic));
    }
    let partitions = metadata
        .topics()
        .first()
        .map(|topic| topic.partitions().len());
    let wanted = usize::try_from(POSITIONS_PARTITIONS).ok();
    if question == Question::Positions && partitions != wanted {
        return Err(failure(
            BrokerError::TransactionsUnavailable,
            format!(
                "Kafka topic {topic}, which spec.relay.delivery Transactional needs, must have {POSITIONS_PARTITIONS} partitions: delete it"
            ),
        ));
    }
    client
        .client()
        .fetch_cluster_id(REQUEST)
        .ok_or_else(|| failed(None))
}

/// A failure with a text for humans.
pub fn failure(class: BrokerError, message: impl Into<String>) -> Failure {
    Problem {
        class,
        message: message.into(),
    }
}

fn invalid() -> Failure {
    failure(
        BrokerError::TlsFailed,
        "spec.broker.kafka.auth: a certificate or key can't be used: correct the Secrets it refers to",
    )
}
