//! Which FanoutTopics have one Kafka topic.

use super::topic;
use crate::controllers::fanout_topic::rivals::{older, sharing};
use crate::controllers::fanout_topic::status::Identity;
use fanout_contract::names::CLEANUP_FINALIZER;
use fanout_crds::fanout_topic::Broker;
use fanout_crds::{FanoutTopic, FanoutTopicStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// A FanoutTopic of another namespace, created at `second`, that names the Kafka topic `kafka_topic`.
fn other(kafka_topic: &str, second: i64) -> FanoutTopic {
    let mut other = topic();
    other.metadata.namespace = Some("elsewhere".to_owned());
    other.metadata.uid = Some("other".to_owned());
    other.metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).unwrap()));
    let Broker::Kafka(kafka) = &mut other.spec.broker;
    kafka.topic.name = Some(kafka_topic.to_owned());
    other
}

fn with_ids(mut topic: FanoutTopic, cluster: &str, id: &str) -> FanoutTopic {
    topic.status = Some(FanoutTopicStatus {
        cluster_id: Some(cluster.to_owned()),
        topic_id: Some(id.to_owned()),
        ..FanoutTopicStatus::default()
    });
    topic
}

fn shares(own: &FanoutTopic, other: &FanoutTopic) -> bool {
    sharing(own, &Identity::recorded(own), &[own, other], "").is_some()
}

#[test]
fn a_topic_that_another_one_has_or_waits_for_is_shared() {
    let own = with_ids(topic(), "cluster", "id");
    assert!(!shares(&own, &other("social.likes", 1)));
    // By name while its cluster is not known; by cluster afterwards.
    assert!(shares(&own, &other("social.posts", 1)));
    assert!(shares(
        &own,
        &with_ids(other("social.posts", 1), "cluster", "x")
    ));
    assert!(!shares(
        &own,
        &with_ids(other("social.posts", 1), "elsewhere", "x")
    ));
    // By UUID, whatever the names say, and also where it is the dead letter topic of one.
    assert!(shares(
        &own,
        &with_ids(other("social.likes", 1), "cluster", "id")
    ));
    assert!(shares(&own, &other("social.posts.dead", 1)));
    // Two that go together hold nothing for each other.
    let mut going = other("social.posts", 1);
    going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
    assert!(!shares(&own, &going));
}

#[test]
fn one_that_cleans_up_keeps_its_topic_until_it_is_gone() {
    let mut own = topic();
    own.metadata.creation_timestamp = Some(Time(Timestamp::from_second(2).unwrap()));
    let valid = super::valid();
    let mut holder = other("social.posts", 1);
    let rival = |holder: &FanoutTopic| {
        older(&own, &valid, &Identity::default(), &[&own, holder], "").is_some()
    };
    assert!(rival(&holder));
    holder.metadata.deletion_timestamp = holder.metadata.creation_timestamp.clone();
    assert!(!rival(&holder));
    holder.metadata.finalizers = Some(vec![CLEANUP_FINALIZER.to_owned()]);
    assert!(rival(&holder));
}
