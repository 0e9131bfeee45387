//! Two FanoutTopics on one Kafka topic: the oldest wins. Pure.

use super::full_name;
use super::status::Identity;
use super::validate::{self, ValidTopic};
use crate::controllers::deletion;
use fanout_contract::names;
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
        .filter(|other| other.uid() != topic.uid() && holds_its_topic(other))
        .filter(|other| age(other) < age(topic))
        .find(|other| shares(other, valid, identity, prefix))
        .map(|other| full_name(*other))
}

/// One that is being deleted lets go at once, unless it still has to clean up.
fn holds_its_topic(topic: &FanoutTopic) -> bool {
    topic.metadata.deletion_timestamp.is_none() || deletion::has_finalizer(&topic.metadata)
}

/// Any other FanoutTopic among `all` that has, or waits for, a Kafka topic of `topic`, which is being deleted. Those that are
/// being deleted too don't count, or neither would clean up.
pub(crate) fn sharing(
    topic: &FanoutTopic,
    identity: &Identity,
    all: &[&FanoutTopic],
    prefix: &str,
) -> Option<String> {
    let names = |topic: &FanoutTopic| {
        let name = validate::kafka_topic(topic, prefix);
        [
            names::dead_letter_topic(&name),
            names::positions_topic(&name),
            name,
        ]
    };
    let ids = |identity: &Identity| {
        let all = [
            &identity.topic_id,
            &identity.dead_letter_topic_id,
            &identity.positions_topic_id,
        ];
        all.map(Clone::clone)
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    };
    let (own_names, own_ids) = (names(topic), ids(identity));
    all.iter()
        .filter(|other| other.uid() != topic.uid() && other.metadata.deletion_timestamp.is_none())
        .find(|other| {
            let theirs = Identity::recorded(other);
            if ids(&theirs).iter().any(|id| own_ids.contains(id)) {
                return true;
            }
            names(other).iter().any(|name| own_names.contains(name))
                && match (&theirs.cluster_id, &identity.cluster_id) {
                    (Some(theirs), Some(ours)) => theirs == ours,
                    // It may be the same cluster by another address.
                    _ => true,
                }
        })
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
