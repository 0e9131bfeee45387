//! Makes the Kafka topics of a FanoutTopic exist: asks the brokers, lets `log` decide, does what it says.

use super::log::{self, Asked, Decision, Known, Problem, Wanted};
use super::status::{Identity, LogState};
use super::validate::{LogSpec, ValidTopic};
use crate::kafka::{Cluster, Clusters, ErrorClass, KafkaError};
use fanout_contract::names;
use fanout_contract::relay::Delivery;
use fanout_crds::condition::reason;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Decisions per topic and pass: create or grow, then look again; more means that somebody else works against us.
const ROUNDS: usize = 3;

/// Reaches the cluster and finds out which one it is. Nothing is changed there before it is known whose the topic is.
pub(crate) async fn reach(
    clusters: &Clusters,
    topic: &ValidTopic,
    identity: &mut Identity,
) -> Result<Arc<Cluster>, Problem> {
    let problem = |error| log::problem(error, asked(topic));
    let cluster = clusters
        .get(&topic.producer.params)
        .await
        .map_err(problem)?;
    let id = cluster.cluster_id().await.map_err(problem)?;
    check_cluster(&id, identity)?;
    identity.cluster_id = Some(id);
    Ok(cluster)
}

fn asked(topic: &ValidTopic) -> Asked<'_> {
    Asked {
        auth: topic.producer.path,
        topic: &topic.log.topic,
        group: None,
    }
}

/// Ensures the topic, its dead letter topic, and where relays need it the topic of their positions on `cluster`. `identity` is completed with what was found, also when
/// something fails later on.
pub(crate) async fn ensure(
    cluster: &Cluster,
    clusters: &Clusters,
    topic: &ValidTopic,
    keep_order: bool,
    identity: &mut Identity,
) -> Result<LogState, Problem> {
    let asked = asked(topic);
    let problem = |error| log::problem(error, asked);
    let LogSpec {
        topic: name,
        dead_letter_topic,
        partitions,
        replication_factor,
        config,
        ..
    } = &topic.log;
    identity.topic_name = Some(name.clone());
    let wanted = Wanted {
        name,
        partitions: *partitions,
        replication_factor: *replication_factor,
        config,
        keep_order,
    };
    let drift = ensure_one(cluster, wanted, &mut identity.topic_id, asked).await?;
    // How the dead letter topic is made follows from the topic; afterwards it is left alone.
    let (copies, config) = if identity.dead_letter_topic_id.is_none() {
        let of_topic = cluster.topic_config(name).await.map_err(problem)?;
        (*replication_factor, dead_letter_config(&of_topic))
    } else {
        (None, BTreeMap::new())
    };
    let wanted = Wanted {
        name: dead_letter_topic,
        partitions: None,
        replication_factor: copies,
        config: &config,
        keep_order: false,
    };
    let recorded = &mut identity.dead_letter_topic_id;
    ensure_one(cluster, wanted, recorded, asked).await?;
    if topic.delivery == Delivery::Transactional {
        let config = if identity.positions_topic_id.is_none() {
            positions_config()
        } else {
            BTreeMap::new()
        };
        let wanted = Wanted {
            name: &names::positions_topic(name),
            partitions: Some(names::POSITIONS_PARTITIONS),
            replication_factor: *replication_factor,
            config: &config,
            keep_order: false,
        };
        ensure_one(cluster, wanted, &mut identity.positions_topic_id, asked).await?;
    }
    check_consumers(clusters, topic).await?;
    Ok(LogState { drift })
}

/// Consumers must get in, too, as their own principal where they have one.
async fn check_consumers(clusters: &Clusters, topic: &ValidTopic) -> Result<(), Problem> {
    if topic.consumer.params == topic.producer.params {
        return Ok(());
    }
    let asked = Asked {
        auth: topic.consumer.path,
        topic: &topic.log.topic,
        group: None,
    };
    let problem = |error: KafkaError| Problem {
        // Who gets in may have the configuration; credentials that are refused must not replace those in use.
        usable: error.class == ErrorClass::PermissionDenied,
        ..log::problem(error, asked)
    };
    let cluster = clusters
        .get(&topic.consumer.params)
        .await
        .map_err(problem)?;
    let found = cluster.describe_topic(&topic.log.topic).await;
    found.map(drop).map_err(problem)
}

/// A dead letter is the event with further headers, so the largest event must leave room for them; one that does not fit
/// would be sent again for ever.
fn dead_letter_config(of_topic: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const LARGEST_RECORD: &str = "max.message.bytes";
    const HEADERS: i32 = 16 << 10;
    let room = |bytes: i32| {
        (
            LARGEST_RECORD.to_owned(),
            bytes.saturating_add(HEADERS).to_string(),
        )
    };
    let bytes = of_topic
        .get(LARGEST_RECORD)
        .and_then(|text| text.parse().ok());
    bytes.map(room).into_iter().collect()
}

/// The last position of each range is all that is ever read, so what is older goes soon.
fn positions_config() -> BTreeMap<String, String> {
    [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "16777216"),
        ("min.cleanable.dirty.ratio", "0.1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// The same address may lead to another cluster one day: its topics are not ours.
fn check_cluster(found: &str, identity: &Identity) -> Result<(), Problem> {
    match &identity.cluster_id {
        Some(recorded) if recorded != found => Err(Problem {
            reason: reason::FOREIGN_TOPIC,
            message: format!(
                "spec.broker.kafka.bootstrapServers leads to Kafka cluster {found}, not {recorded}; delete and create this FanoutTopic to use it"
            ),
            needs_human: true,
            usable: false,
        }),
        _ => Ok(()),
    }
}

async fn ensure_one(
    cluster: &Cluster,
    wanted: Wanted<'_>,
    recorded: &mut Option<String>,
    asked: Asked<'_>,
) -> Result<Vec<String>, Problem> {
    let problem = |error| log::problem(error, asked);
    for _ in 0..ROUNDS {
        let live = cluster.describe_topic(wanted.name).await.map_err(problem)?;
        let config = match &live {
            Some(_) if !wanted.config.is_empty() => {
                cluster.topic_config(wanted.name).await.map_err(problem)?
            }
            _ => BTreeMap::new(),
        };
        let known = Known {
            recorded: recorded.as_deref(),
            live: live.as_ref(),
            config: &config,
        };
        match log::decide(wanted, known) {
            Decision::Ready { id, drift } => {
                *recorded = Some(id);
                return Ok(drift);
            }
            Decision::Refuse(refused) => {
                if refused.usable
                    && let Some(live) = live
                {
                    *recorded = Some(live.id);
                }
                return Err(refused);
            }
            Decision::Create(new) => match cluster.create_topic(&new).await {
                Ok(info) => {
                    tracing::info!(
                        topic = new.name,
                        id = info.id,
                        partitions = info.partitions,
                        "Kafka topic created"
                    );
                    *recorded = Some(info.id);
                }
                // Somebody was faster, or an earlier attempt came through: look at it.
                Err(KafkaError {
                    class: ErrorClass::TopicExists,
                    ..
                }) => {}
                Err(error) => return Err(problem(error)),
            },
            Decision::Grow(total) => {
                cluster
                    .add_partitions(wanted.name, total)
                    .await
                    .map_err(problem)?;
                tracing::info!(
                    topic = wanted.name,
                    partitions = total,
                    "Kafka partitions added"
                );
            }
        }
    }
    Err(Problem {
        reason: reason::BROKER_REFUSED,
        message: format!(
            "spec.broker.kafka.topic: Kafka topic {} does not become what was asked for; it is tried again",
            wanted.name
        ),
        needs_human: false,
        usable: true,
    })
}
