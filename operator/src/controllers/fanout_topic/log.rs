//! Decides what to do with a Kafka topic. Pure: the brokers were asked before.
//!
//! A topic is known by the UUID that Kafka gave it. What was recorded once is never replaced: a topic of the same name
//! with another UUID is somebody else's, and one that is gone took unread events with it, so a human decides.

use crate::kafka::{Cluster, ErrorClass, KafkaError, NewTopic, TopicInfo};
use fanout_crds::condition::reason;
use std::collections::BTreeMap;

/// What one topic should be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Name.
    pub(crate) name: &'a str,
    /// Partitions; absent: any number.
    pub(crate) partitions: Option<i32>,
    /// Copies; absent: any number.
    pub(crate) replication_factor: Option<i32>,
    /// Settings.
    pub(crate) config: &'a BTreeMap<String, String>,
    /// True when more partitions may not be added now.
    pub(crate) keep_order: bool,
}

/// What is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// UUID in the status.
    pub(crate) recorded: Option<&'a str>,
    /// What the brokers answered; `None`: no such topic.
    pub(crate) live: Option<&'a TopicInfo>,
    /// Its settings.
    pub(crate) config: &'a BTreeMap<String, String>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is there and ours.
    Ready {
        /// UUID.
        id: String,
        /// What differs from the spec and is left alone, one phrase each.
        drift: Vec<String>,
    },
    /// Create it.
    Create(NewTopic),
    /// Raise its partitions to this number.
    Grow(i32),
    /// Nothing may be done.
    Refuse(Problem),
}

/// Why the log is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Condition reason.
    pub(crate) reason: &'static str,
    /// What to do next.
    pub(crate) message: String,
    /// True when only a human can mend it.
    pub(crate) needs_human: bool,
    /// True when the topic may be used all the same.
    pub(crate) usable: bool,
}

/// Decides for one topic.
pub(crate) fn decide(wanted: Wanted<'_>, known: Known<'_>) -> Decision {
    let name = wanted.name;
    match (known.recorded, known.live) {
        (None, None) => Decision::Create(NewTopic {
            name: name.to_owned(),
            partitions: wanted.partitions,
            replication_factor: wanted.replication_factor,
            config: wanted.config.clone(),
        }),
        (Some(recorded), None) => Decision::Refuse(Problem {
            reason: reason::TOPIC_DELETED,
            message: format!(
                "spec.broker.kafka.topic: Kafka topic {name} with id {recorded} (status.topicId) no longer exists; delete and create this FanoutTopic to start with a new one"
            ),
            needs_human: true,
            usable: false,
        }),
        (Some(recorded), Some(live)) if live.id != recorded => Decision::Refuse(Problem {
            reason: reason::FOREIGN_TOPIC,
            message: format!(
                "spec.broker.kafka.topic: Kafka topic {name} has id {}, not {recorded} (status.topicId): it was replaced; delete and create this FanoutTopic to use it",
                live.id
            ),
            needs_human: true,
            usable: false,
        }),
        (_, Some(live)) => existing(wanted, live, known.config),
    }
}

fn existing(wanted: Wanted<'_>, live: &TopicInfo, config: &BTreeMap<String, String>) -> Decision {
    if let Some(partitions) = wanted
        .partitions
        .filter(|partitions| *partitions > live.partitions)
    {
        if wanted.keep_order {
            return Decision::Refuse(Problem {
                reason: reason::REORDER_NOT_ALLOWED,
                message: format!(
                    "spec.broker.kafka.topic.partitions: {} has {} partitions; {partitions} would move keys of PerKey Subscriptions; set spec.broker.kafka.topic.allowReorder to accept that",
                    wanted.name, live.partitions
                ),
                needs_human: true,
                usable: true,
            });
        }
        return Decision::Grow(partitions);
    }
    Decision::Ready {
        id: live.id.clone(),
        drift: drift(wanted, live, config),
    }
}

/// What the operator leaves alone although it differs: to change it is up to a human.
fn drift(wanted: Wanted<'_>, live: &TopicInfo, config: &BTreeMap<String, String>) -> Vec<String> {
    const TOPIC: &str = "spec.broker.kafka.topic";
    let mut drift = Vec::new();
    if let Some(partitions) = wanted.partitions
        && partitions != live.partitions
    {
        drift.push(format!(
            "{TOPIC}.partitions is {partitions}, {} has {}: partitions never shrink, set it to {}",
            wanted.name, live.partitions, live.partitions
        ));
    }
    if let Some(factor) = wanted.replication_factor
        && factor != live.replication_factor
    {
        drift.push(format!(
            "{TOPIC}.replicationFactor is {factor}, {} has {}: change it, or reassign the replicas in Kafka",
            wanted.name, live.replication_factor
        ));
    }
    for (name, value) in wanted.config {
        let found = config.get(name).map_or("unknown", String::as_str);
        if found != value {
            drift.push(format!(
                "{TOPIC}.config {name} is {value}, {} has {found}: change it, or the setting in Kafka",
                wanted.name
            ));
        }
    }
    drift
}

/// As whom Kafka was asked, and about what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// Field of the FanoutTopic with the principal.
    pub(crate) auth: &'static str,
    /// Kafka topic.
    pub(crate) topic: &'a str,
    /// Consumer group, where one matters.
    pub(crate) group: Option<&'a str>,
}

/// Field with the relays' and the operator's principal.
pub(crate) const AUTH: &str = "spec.broker.kafka.auth";

/// What an unsuccessful call to Kafka means. The message changes with the class of the error alone, so that one cause is
/// written once, whichever call meets it first.
pub(crate) fn problem(error: KafkaError, asked: Asked<'_>) -> Problem {
    let auth = asked.auth;
    let (reason, message) = match error.class {
        ErrorClass::Unreachable | ErrorClass::Timeout => (
            reason::BROKER_UNREACHABLE,
            "no broker answers; check spec.broker.kafka.bootstrapServers and the network"
                .to_owned(),
        ),
        ErrorClass::NotReady => (
            reason::BROKER_UNREACHABLE,
            "Kafka elects a leader or a coordinator; it is tried again".to_owned(),
        ),
        ErrorClass::AuthenticationFailed => (
            reason::BROKER_AUTHENTICATION_FAILED,
            format!(
                "the brokers refuse user, password or mechanism of {auth}; correct the Secrets it refers to"
            ),
        ),
        ErrorClass::TlsFailed => (
            reason::BROKER_TLS_FAILED,
            format!(
                "the TLS handshake with the brokers fails; correct caSecretRef, clientCertSecretRef or clientKeySecretRef of {auth}"
            ),
        ),
        ErrorClass::PermissionDenied => (
            reason::BROKER_REFUSED,
            format!(
                "the principal of {auth} lacks a right; grant it {}",
                right(error.operation, asked)
            ),
        ),
        ErrorClass::InvalidPartitions => (
            reason::BROKER_REFUSED,
            "the brokers refuse spec.broker.kafka.topic.partitions; correct it".to_owned(),
        ),
        ErrorClass::InvalidReplicationFactor => (
            reason::BROKER_REFUSED,
            "the brokers refuse spec.broker.kafka.topic.replicationFactor; lower it to at most the number of brokers, or add brokers".to_owned(),
        ),
        ErrorClass::InvalidConfig if error.operation == Cluster::CONNECT => (
            reason::BROKER_REFUSED,
            format!("spec.broker.kafka.bootstrapServers or {auth} can't be used; correct it"),
        ),
        ErrorClass::InvalidConfig => (
            reason::BROKER_REFUSED,
            "the brokers refuse spec.broker.kafka.topic; correct its name or config".to_owned(),
        ),
        ErrorClass::TopicExists | ErrorClass::TopicMissing | ErrorClass::Other => (
            reason::BROKER_REFUSED,
            format!(
                "Kafka does not {} for spec.broker.kafka.topic; it is tried again",
                error.operation
            ),
        ),
    };
    Problem {
        reason,
        message,
        needs_human: error.class.needs_human()
            && !matches!(
                error.class,
                ErrorClass::TopicExists | ErrorClass::TopicMissing
            ),
        usable: false,
    }
}

/// The right that `operation` takes.
fn right(operation: &str, asked: Asked<'_>) -> String {
    let Asked { topic, group, .. } = asked;
    let group = group.unwrap_or_default();
    match operation {
        Cluster::CREATE_TOPIC => {
            format!("Create on Kafka topic {topic} and on {topic}.dead, or create both by hand")
        }
        Cluster::ADD_PARTITIONS => format!("Alter on Kafka topic {topic}"),
        Cluster::DESCRIBE_SETTINGS => format!("DescribeConfigs on Kafka topic {topic}"),
        Cluster::LIST_COMMITTED | Cluster::COMMIT => {
            format!("Read on consumer group {group} and on Kafka topic {topic}")
        }
        Cluster::DELETE_TOPIC => format!("Delete on Kafka topic {topic} and on {topic}.dead"),
        Cluster::DELETE_GROUP => format!("Delete on consumer group {group}"),
        Cluster::DESCRIBE_CLUSTER => "Describe on the cluster".to_owned(),
        _ => format!("Describe on Kafka topic {topic} and on {topic}.dead"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(id: &str, partitions: i32) -> TopicInfo {
        TopicInfo {
            id: id.to_owned(),
            partitions,
            replication_factor: 3,
        }
    }

    fn run(
        recorded: Option<&str>,
        live: Option<&TopicInfo>,
        partitions: i32,
        keep_order: bool,
    ) -> Decision {
        let wanted_config = BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]);
        let config = BTreeMap::from([
            ("retention.ms".to_owned(), "1000".to_owned()),
            ("cleanup.policy".to_owned(), "delete".to_owned()),
        ]);
        decide(
            Wanted {
                name: "social.posts",
                partitions: Some(partitions),
                replication_factor: Some(3),
                config: &wanted_config,
                keep_order,
            },
            Known {
                recorded,
                live,
                config: &config,
            },
        )
    }

    const fn asked() -> Asked<'static> {
        Asked {
            auth: "spec.broker.kafka.consumerAuth",
            topic: "social.posts",
            group: Some("social.search"),
        }
    }

    fn refusal(decision: Decision) -> (&'static str, bool, bool) {
        match decision {
            Decision::Refuse(problem) => (problem.reason, problem.needs_human, problem.usable),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_topic_that_never_was_is_created_as_the_spec_says() {
        let Decision::Create(new) = run(None, None, 6, true) else {
            panic!("not created");
        };
        assert_eq!((new.partitions, new.replication_factor), (Some(6), Some(3)));
        assert_eq!(new.config["retention.ms"], "1000");
    }

    #[test]
    fn a_topic_that_exists_is_taken_once_and_known_by_its_id() {
        let ready = Decision::Ready {
            id: "one".to_owned(),
            drift: Vec::new(),
        };
        assert_eq!(run(None, Some(&live("one", 6)), 6, true), ready);
        assert_eq!(run(Some("one"), Some(&live("one", 6)), 6, true), ready);
    }

    #[test]
    fn another_id_is_never_touched() {
        let decision = run(Some("one"), Some(&live("two", 3)), 6, false);
        assert_eq!(refusal(decision), (reason::FOREIGN_TOPIC, true, false));
    }

    #[test]
    fn a_topic_that_is_gone_is_not_made_again() {
        let decision = run(Some("one"), None, 6, false);
        assert_eq!(refusal(decision), (reason::TOPIC_DELETED, true, false));
    }

    #[test]
    fn partitions_grow_unless_that_would_reorder_keys() {
        let live = live("one", 3);
        assert_eq!(run(Some("one"), Some(&live), 6, false), Decision::Grow(6));
        let decision = run(Some("one"), Some(&live), 6, true);
        assert_eq!(refusal(decision), (reason::REORDER_NOT_ALLOWED, true, true));
    }

    #[test]
    fn what_differs_otherwise_is_said_and_left() {
        let mut found = live("one", 12);
        found.replication_factor = 1;
        let Decision::Ready { drift, .. } = run(Some("one"), Some(&found), 6, true) else {
            panic!("not ready");
        };
        assert_eq!(
            drift,
            [
                "spec.broker.kafka.topic.partitions is 6, social.posts has 12: partitions never shrink, set it to 12",
                "spec.broker.kafka.topic.replicationFactor is 3, social.posts has 1: change it, or reassign the replicas in Kafka"
            ]
        );
        let config = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
        let wanted = BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]);
        let decision = decide(
            Wanted {
                name: "t",
                partitions: None,
                replication_factor: None,
                config: &wanted,
                keep_order: false,
            },
            Known {
                recorded: None,
                live: Some(&found),
                config: &config,
            },
        );
        assert_eq!(
            decision,
            Decision::Ready {
                id: "one".to_owned(),
                drift: vec![
                    "spec.broker.kafka.topic.config retention.ms is 1000, t has 5: change it, or the setting in Kafka"
                        .to_owned()
                ]
            }
        );
    }

    #[test]
    fn only_what_a_human_must_mend_stalls() {
        let judged = |class| {
            let error = KafkaError {
                class,
                operation: "describe topic",
                code: 0,
            };
            let problem = problem(error, asked());
            (problem.reason, problem.needs_human)
        };
        assert_eq!(
            judged(ErrorClass::Unreachable),
            (reason::BROKER_UNREACHABLE, false)
        );
        assert_eq!(
            judged(ErrorClass::Timeout),
            (reason::BROKER_UNREACHABLE, false)
        );
        assert_eq!(
            judged(ErrorClass::AuthenticationFailed),
            (reason::BROKER_AUTHENTICATION_FAILED, true)
        );
        assert_eq!(
            judged(ErrorClass::PermissionDenied),
            (reason::BROKER_REFUSED, true)
        );
        assert_eq!(
            judged(ErrorClass::TlsFailed),
            (reason::BROKER_TLS_FAILED, true)
        );
        assert_eq!(
            judged(ErrorClass::InvalidReplicationFactor),
            (reason::BROKER_REFUSED, true)
        );
    }
    #[test]
    fn a_missing_right_is_named_with_its_object_and_its_principal() {
        let said = |operation| {
            let error = KafkaError {
                class: ErrorClass::PermissionDenied,
                operation,
                code: 0,
            };
            problem(error, asked()).message
        };
        assert_eq!(
            said(Cluster::COMMIT),
            "the principal of spec.broker.kafka.consumerAuth lacks a right; grant it Read on consumer group social.search and on Kafka topic social.posts"
        );
        assert!(said(Cluster::CREATE_TOPIC).contains("Create on Kafka topic social.posts"));
        assert!(said(Cluster::DESCRIBE_SETTINGS).contains("DescribeConfigs on"));
    }
}
