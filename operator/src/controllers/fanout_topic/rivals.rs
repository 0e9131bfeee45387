//! Two FanoutTopics on one Kafka topic: the oldest wins. Pure.

use super::full_name;
use super::status::Identity;
use super::validate::{self, ValidTopic};
use fanout_crds::FanoutTopic;
use fanout_crds::fanout_topic::Broker;
use kube::ResourceExt;

/// The older FanoutTopic among `all` that has the Kafka topic of `topic`, as `<namespace>/<name>`.
pub(crate) fn older(
    topic: &FanoutTopic,
    valid: &ValidTopic,
    identity: &Identity,
    all: &[&FanoutTopic],
    prefix: &str,
) -> Option<String> {
    all.iter()
        .filter(|other| other.uid() != topic.uid() && other.metadata.deletion_timestamp.is_none())
        .filter(|other| age(other) < age(topic))
        .find(|other| shares(other, valid, identity, prefix))
        .map(|other| full_name(*other))
}

/// Creation time first; the uid only decides within one second.
fn age(topic: &FanoutTopic) -> (Option<i64>, Option<String>) {
    let created = topic
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0.as_second());
    (created, topic.uid())
}

/// Kafka's ids tell, where both are known; before that the addresses of the specs do.
fn shares(other: &FanoutTopic, valid: &ValidTopic, identity: &Identity, prefix: &str) -> bool {
    let theirs = Identity::recorded(other);
    if theirs.topic_id.is_some() && theirs.topic_id == identity.topic_id {
        return true;
    }
    let Broker::Kafka(kafka) = &other.spec.broker;
    if validate::kafka_topic(other, prefix) != valid.log.topic {
        return false;
    }
    match (&theirs.cluster_id, &identity.cluster_id) {
        (Some(theirs), Some(ours)) => theirs == ours,
        _ => kafka.bootstrap_servers == valid.producer.params.bootstrap_servers,
    }
}
