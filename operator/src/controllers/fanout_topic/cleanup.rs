//! Deletes what a FanoutTopic with `deletionPolicy: Delete` has outside of Kubernetes: the relay's positions, then the Kafka
//! topic and its dead letter topic. In that order, because a relay that finds its position beside an empty topic would not
//! publish again what the old one held.
//!
//! The relay runs on meanwhile with a configuration that tells it to delete; it is never created for that. Once nobody could
//! create the Kafka topics again by asking for them, they go, each only while it has the recorded UUID.

use super::log::Asked;
use super::observe::Live;
use super::status::Identity;
use super::{kafka_access, log, prune, push, rivals};
use crate::apply;
use crate::context::Context;
use crate::controllers::conditions::Finding;
use crate::controllers::deletion::Step;
use crate::controllers::error::Error;
use crate::controllers::{conditions, reports};
use crate::kafka::TopicInfo;
use crate::stores::has_begun;
use fanout_contract::names;
use fanout_contract::relay::{RelayConfig, RelayStatus};
use fanout_crds::condition::reason;
use fanout_crds::{DeletionPolicy, FanoutTopic, FanoutTopicStatus};
use fanout_runtime::config;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use std::collections::BTreeMap;

/// Goes as far as it can, and shows what it waits for.
pub(crate) async fn pass(topic: &FanoutTopic, ctx: &Context) -> Result<Step, Error> {
    let mut status = topic.status.clone().unwrap_or_default();
    let step = advance(topic, ctx, &mut status).await?;
    if let Step::Waiting(why) = &step {
        show(topic, ctx, status, why.clone()).await?;
    }
    Ok(step)
}

/// `status` is what is shown afterwards.
async fn advance(
    topic: &FanoutTopic,
    ctx: &Context,
    status: &mut FanoutTopicStatus,
) -> Result<Step, Error> {
    if topic.spec.deletion_policy == DeletionPolicy::Retain {
        return Ok(Step::done());
    }
    let namespace = topic.namespace().unwrap_or_default();
    let name = topic.name_any();
    let identity = Identity::recorded(topic);
    if let Some(other) = shared_with(topic, ctx, &identity) {
        return Ok(Step::Done(vec![format!(
            "nothing was deleted outside of Kubernetes, because FanoutTopic {other} has the same Kafka topic"
        )]));
    }
    let relay = names::relay_deployment(&name);
    let live = Live::list(ctx, &namespace, &name).await?;
    let told = tell(ctx, &live, &relay).await?;
    let positions = match told {
        Some(hash) => {
            prune(ctx, &live.except(&relay), &[]).await?;
            push(ctx, &namespace, &relay, &hash).await?;
            Positions::Asked(answers(ctx, &namespace, &relay, &hash))
        }
        None if status.relay.is_some() => Positions::Lost,
        None => Positions::None,
    };
    match judge(&positions) {
        Judgement::Wait(finding) => return Ok(Step::Waiting(finding)),
        // First it is recorded that the relays are not needed any more, and read back: relays that are gone without this are
        // relays that did not delete their positions.
        Judgement::Deleted if status.relay.take().is_some() => {
            let message = "the Kafka topics: the relays have deleted their positions";
            return Ok(Step::Waiting(Finding::no(reason::DELETING, message)));
        }
        Judgement::Deleted | Judgement::Over => {
            let live = Live::list(ctx, &namespace, &name).await?;
            prune(ctx, &live, &[]).await?;
        }
    }
    if let Some(waiting) = others_first(ctx, &namespace, &name) {
        return Ok(Step::Waiting(waiting));
    }
    let mut stays = Vec::new();
    if positions == Positions::Lost {
        stays.push(
            "the relay was gone before it deleted its positions: they stay in schema fanout of the database".to_owned(),
        );
    }
    let topics = identity.topics();
    if topics.is_empty() {
        return Ok(Step::Done(stays));
    }
    Ok(match delete_topics(ctx, topic, &identity, &topics).await {
        Ok(foreign) => {
            stays.extend(foreign);
            Step::Done(stays)
        }
        Err(finding) => Step::Waiting(finding),
    })
}

async fn show(
    topic: &FanoutTopic,
    ctx: &Context,
    status: FanoutTopicStatus,
    why: Finding,
) -> Result<(), Error> {
    let generation = topic.metadata.generation.unwrap_or_default();
    let status = FanoutTopicStatus {
        observed_generation: Some(generation),
        conditions: conditions::deleting(&status.conditions, generation, Timestamp::now(), why),
        ..status
    };
    if topic.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let api: Api<FanoutTopic> =
        Api::namespaced(ctx.client.clone(), &topic.namespace().unwrap_or_default());
    apply::status(&api, topic, &status).await?;
    Ok(())
}

fn shared_with(topic: &FanoutTopic, ctx: &Context, identity: &Identity) -> Option<String> {
    let all = ctx.stores.topics();
    let all: Vec<&FanoutTopic> = all
        .iter()
        .filter_map(|object| object.0.as_ref().ok())
        .collect();
    rivals::sharing(topic, identity, &all, &ctx.settings.kafka_prefix)
}

/// Tells the relays to delete their positions, and returns the hash of the configuration that says so. `None` without relays
/// that could.
async fn tell(ctx: &Context, live: &Live, relay: &str) -> Result<Option<String>, Error> {
    let Some((config_map, mut files)) = live.files(relay) else {
        return Ok(None);
    };
    let Some((text, changed)) = files
        .get(names::CONFIG_FILE)
        .and_then(|file| with_deletion(file))
    else {
        return Ok(None);
    };
    files.insert(names::CONFIG_FILE.to_owned(), text.clone().into_bytes());
    let hash = config::hash(&files);
    if changed {
        let file = (names::CONFIG_FILE, text.as_str());
        let annotation = (names::CONFIG_ANNOTATION, hash.as_str());
        if !apply::configure(&ctx.client, config_map, file, annotation).await? {
            return Ok(None);
        }
        tracing::info!(worker = relay, "told to delete its positions");
    }
    Ok(Some(hash))
}

/// The configuration `file` that says to delete the positions, and whether it is another one. `None` where it can't be read.
fn with_deletion(file: &[u8]) -> Option<(String, bool)> {
    let text = std::str::from_utf8(file).ok()?;
    let mut config: RelayConfig = serde_yaml::from_str(text).ok()?;
    if config.delete_positions {
        return Some((text.to_owned(), false));
    }
    config.delete_positions = true;
    Some((serde_yaml::to_string(&config).ok()?, true))
}

/// What the pods of the relay that may have published say under the configuration with `hash`.
fn answers(ctx: &Context, namespace: &str, relay: &str, hash: &str) -> Vec<Answer> {
    let reports = reports::relays(ctx, namespace, relay);
    let answer = |pod: &str| {
        let status = reports
            .iter()
            .find(|report| report.pod == pod)
            .and_then(|report| report.status.as_ref())
            .filter(|status| status.config_hash == hash);
        status.map_or(Answer::None, Answer::of)
    };
    ctx.stores
        .pods_of(namespace, relay)
        .iter()
        .filter(|pod| has_begun(pod))
        .map(|pod| answer(&pod.name_any()))
        .collect()
}

/// What one relay says of the positions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// Nothing yet.
    None,
    /// It can't delete them.
    Problem(Finding),
    /// They are deleted.
    Deleted,
}

impl Answer {
    fn of(status: &RelayStatus) -> Self {
        if status.positions_deleted {
            return Self::Deleted;
        }
        let source = status
            .source_error
            .as_ref()
            .map(|problem| (format!("{:?}", problem.class), &problem.message));
        let broker = status.broker_error.as_ref().map(|problem| {
            let reason = super::status::broker_reason(problem.class);
            (reason.to_owned(), &problem.message)
        });
        source.or(broker).map_or(Self::None, |(reason, message)| {
            Self::Problem(Finding::no(reason, message))
        })
    }
}

/// What is known of the relay's positions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Positions {
    /// There is no relay, and they are deleted or there never were any.
    None,
    /// There is no relay (any more) to delete them.
    Lost,
    /// The relays were told to delete them.
    Asked(Vec<Answer>),
}

/// What follows for the relays.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judgement {
    /// They need more time.
    Wait(Finding),
    /// They have done it.
    Deleted,
    /// There are none.
    Over,
}

/// Every relay that may have published must have answered: one with an older configuration would register the topic anew.
fn judge(positions: &Positions) -> Judgement {
    let Positions::Asked(answers) = positions else {
        return Judgement::Over;
    };
    let done = answers
        .iter()
        .filter(|answer| **answer == Answer::Deleted)
        .count();
    if !answers.is_empty() && done == answers.len() {
        return Judgement::Deleted;
    }
    let problem = answers.iter().find_map(|answer| match answer {
        Answer::Problem(problem) => Some(problem),
        Answer::None | Answer::Deleted => None,
    });
    let what = "the relay's positions and the Kafka topics";
    Judgement::Wait(problem.map_or_else(
        || {
            let count = answers.len();
            Finding::no(
                reason::DELETING,
                format!("{what}: {done} of {count} running relay pods have deleted the positions"),
            )
        },
        |problem| Finding::no(&problem.reason, format!("{what}: {}", problem.message)),
    ))
}

/// The Kafka topics go last: a worker that still runs may ask for them, and some brokers create what is asked for. And a
/// Subscription that is deleted at the same time needs to know how to reach Kafka.
fn others_first(ctx: &Context, namespace: &str, topic: &str) -> Option<Finding> {
    let waiting = |what: String| {
        Finding::no(
            reason::DELETING,
            format!("the Kafka topics: waiting for {what}"),
        )
    };
    let pods = ctx.stores.pods_of_topic(namespace, topic).len();
    if pods > 0 {
        return Some(waiting(format!("{pods} worker pods to end")));
    }
    let subscriptions = ctx.stores.cleaned_up_of(namespace, topic).len();
    (subscriptions > 0).then(|| waiting(format!("{subscriptions} Subscriptions to be deleted")))
}

impl Identity {
    /// The Kafka topics with a recorded UUID, by name.
    fn topics(&self) -> BTreeMap<String, String> {
        let Some(name) = &self.topic_name else {
            return BTreeMap::new();
        };
        let dead = names::dead_letter_topic(name);
        let topic = self.topic_id.clone().map(|id| (name.clone(), id));
        let dead = self.dead_letter_topic_id.clone().map(|id| (dead, id));
        let positions = names::positions_topic(name);
        let positions = self.positions_topic_id.clone().map(|id| (positions, id));
        topic.into_iter().chain(dead).chain(positions).collect()
    }
}

/// Deletes `topics` (recorded UUIDs by name). Returns what is not ours and stays, or why it has to be tried again.
async fn delete_topics(
    ctx: &Context,
    topic: &FanoutTopic,
    identity: &Identity,
    topics: &BTreeMap<String, String>,
) -> Result<Vec<String>, Finding> {
    let names = topics.keys().cloned().collect::<Vec<_>>().join(", ");
    let failed = |error| {
        let asked = Asked {
            auth: log::AUTH,
            topic: identity.topic_name.as_deref().unwrap_or_default(),
            group: None,
        };
        let problem = log::problem(error, asked);
        Finding::no(
            problem.reason,
            format!("Kafka topics {names}: {}", problem.message),
        )
    };
    let params = kafka_access(ctx, topic).ok_or_else(|| {
        Finding::no(
            reason::SECRET_NOT_PERMITTED,
            format!("Kafka topics {names}: a Secret that spec.broker.kafka.auth refers to is gone"),
        )
    })?;
    let cluster = ctx.clusters.get(&params).await.map_err(failed)?;
    let found = cluster.cluster_id().await.map_err(failed)?;
    if let Some(recorded) = identity.cluster_id.as_ref().filter(|it| **it != found) {
        return Ok(vec![format!(
            "Kafka topics {names} stay: spec.broker.kafka.bootstrapServers leads to Kafka cluster {found}, not {recorded}"
        )]);
    }
    let mut stays = Vec::new();
    for (name, recorded) in topics {
        let live = cluster.describe_topic(name).await.map_err(failed)?;
        match fate(name, recorded, live.as_ref()) {
            Fate::Gone => {}
            Fate::Foreign(why) => stays.push(why),
            Fate::Delete => {
                cluster.delete_topic(name).await.map_err(failed)?;
                tracing::info!(topic = name, id = recorded, "Kafka topic deleted");
            }
        }
    }
    Ok(stays)
}

/// What happens to a Kafka topic.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// It is gone already.
    Gone,
    /// It is ours.
    Delete,
    /// It is not.
    Foreign(String),
}

fn fate(name: &str, recorded: &str, live: Option<&TopicInfo>) -> Fate {
    match live {
        None => Fate::Gone,
        Some(live) if live.id == recorded => Fate::Delete,
        Some(live) => Fate::Foreign(format!(
            "Kafka topic {name} stays: it has id {}, not {recorded}, so it is not this FanoutTopic's",
            live.id
        )),
    }
}

/// The files of one worker's volume.
type VolumeFiles = BTreeMap<String, Vec<u8>>;

impl Live {
    /// ConfigMap and files of a worker that has all its objects, none of them being deleted.
    fn files(&self, worker: &str) -> Option<(&ConfigMap, VolumeFiles)> {
        self.deployments.iter().find(|it| is_kept(*it, worker))?;
        let config_map = self.config_maps.iter().find(|it| is_kept(*it, worker))?;
        let secret = self.secrets.iter().find(|it| is_kept(*it, worker))?;
        let configuration = config_map.data.iter().flatten();
        let mut files: VolumeFiles = configuration
            .map(|(name, text)| (name.clone(), text.clone().into_bytes()))
            .collect();
        let secrets = secret.data.iter().flatten();
        files.extend(secrets.map(|(name, value)| (name.clone(), value.0.clone())));
        Some((config_map, files))
    }
}

fn is_kept<K: kube::Resource>(object: &K, name: &str) -> bool {
    object.meta().name.as_deref() == Some(name) && object.meta().deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_contract::reason::{BrokerError, SourceError};
    use fanout_contract::relay::Problem;

    fn reason_of(judgement: Judgement) -> (String, String) {
        match judgement {
            Judgement::Wait(finding) => (finding.reason, finding.message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_relay_that_may_have_published_has_to_answer() {
        let asked = |answers: &[Answer]| judge(&Positions::Asked(answers.to_vec()));
        assert_eq!(
            asked(&[Answer::Deleted, Answer::Deleted]),
            Judgement::Deleted
        );
        let (reason, message) = reason_of(asked(&[Answer::Deleted, Answer::None]));
        assert_eq!(reason, reason::DELETING);
        assert!(message.contains("1 of 2"), "{message}");
        // None runs yet: one may start and publish.
        let (reason, _) = reason_of(asked(&[]));
        assert_eq!(reason, reason::DELETING);
        assert_eq!(judge(&Positions::None), Judgement::Over);
        assert_eq!(judge(&Positions::Lost), Judgement::Over);
    }

    #[test]
    fn a_relay_is_told_once_and_keeps_the_rest_of_its_configuration() {
        let file = "{namespace: social, name: posts, generation: 3, suspend: true,
            source: {postgres: {urlFile: a.url, table: public.outbox, match: [], retentionSeconds: 60}},
            broker: {kafka: {topic: social.posts, cluster: {bootstrapServers: 'kafka:9092', auth: {mechanism: None}}}}}";
        let before: RelayConfig = serde_yaml::from_str(file).unwrap();
        let (told, changed) = with_deletion(file.as_bytes()).unwrap();
        let after: RelayConfig = serde_yaml::from_str(&told).unwrap();
        let expected = RelayConfig {
            delete_positions: true,
            ..before
        };
        assert!(changed);
        assert_eq!(after, expected);
        assert_eq!(with_deletion(told.as_bytes()), Some((told.clone(), false)));
        assert_eq!(with_deletion(b"another: program"), None);
    }

    #[test]
    fn what_keeps_a_relay_from_deleting_is_shown() {
        let status = RelayStatus {
            source_error: Some(Problem {
                class: SourceError::SourcePermissionDenied,
                message: "delete on fanout.topics".to_owned(),
            }),
            broker_error: Some(Problem {
                class: BrokerError::Unreachable,
                message: "no broker".to_owned(),
            }),
            ..RelayStatus::default()
        };
        let answers = vec![Answer::Deleted, Answer::of(&status)];
        let (reason, message) = reason_of(judge(&Positions::Asked(answers)));
        assert_eq!(reason, "SourcePermissionDenied");
        assert!(message.ends_with("delete on fanout.topics"), "{message}");
        let deleted = RelayStatus {
            positions_deleted: true,
            ..status
        };
        assert_eq!(Answer::of(&deleted), Answer::Deleted);
        assert_eq!(Answer::of(&RelayStatus::default()), Answer::None);
    }

    #[test]
    fn a_topic_goes_only_while_it_has_the_recorded_uuid() {
        let live = |id: &str| TopicInfo {
            id: id.to_owned(),
            partitions: 1,
            replication_factor: 1,
        };
        assert_eq!(fate("t", "ours", None), Fate::Gone);
        assert_eq!(fate("t", "ours", Some(&live("ours"))), Fate::Delete);
        assert!(matches!(
            fate("t", "ours", Some(&live("theirs"))),
            Fate::Foreign(why) if why.contains("theirs")
        ));
    }

    #[test]
    fn only_topics_with_a_recorded_uuid_are_deleted() {
        let mut identity = Identity {
            topic_name: Some("social.posts".to_owned()),
            ..Identity::default()
        };
        assert!(identity.topics().is_empty());
        identity.topic_id = Some("one".to_owned());
        identity.dead_letter_topic_id = Some("two".to_owned());
        let expected = [("social.posts", "one"), ("social.posts.dead", "two")]
            .map(|(name, id)| (name.to_owned(), id.to_owned()));
        assert_eq!(identity.topics(), BTreeMap::from(expected));
    }
}
