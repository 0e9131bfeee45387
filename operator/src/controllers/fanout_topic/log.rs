//! Decides what to do with a Kafka topic. Pure: the brokers were asked before.
//!
//! A topic is known by the UUID that Kafka gave it. What was recorded once is never replaced: a topic of the same name
//! with another UUID is somebody else's, and one that is gone took unread events with it, so a human decides.

use crate::kafka::{ErrorClass, KafkaError, NewTopic, TopicInfo};
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
                "Kafka topic {name} with id {recorded} no longer exists; delete and create this FanoutTopic to start with a new one"
            ),
            needs_human: true,
            usable: false,
        }),
        (Some(recorded), Some(live)) if live.id != recorded => Decision::Refuse(Problem {
            reason: reason::FOREIGN_TOPIC,
            message: format!(
                "Kafka topic {name} has id {}, not {recorded}: it was replaced; delete and create this FanoutTopic to use it",
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
                    "{} has {} partitions; {partitions} would move keys of PerKey Subscriptions; set spec.broker.kafka.topic.allowReorder to accept that",
                    wanted.name, live.partitions
                ),
                needs_human: true,
                usable: true,
            });
        }
        return Decision::Grow(partitions);
    }
    let mut drift = Vec::new();
    let mut compare = |what: &str, wanted: &str, found: &str| {
        if wanted != found {
            drift.push(format!("{what} is {found}, spec says {wanted}"));
        }
    };
    if let Some(partitions) = wanted.partitions {
        compare(
            "partitions",
            &partitions.to_string(),
            &live.partitions.to_string(),
        );
    }
    if let Some(factor) = wanted.replication_factor {
        compare(
            "replicationFactor",
            &factor.to_string(),
            &live.replication_factor.to_string(),
        );
    }
    for (name, value) in wanted.config {
        compare(
            name,
            value,
            config.get(name).map_or("unknown", String::as_str),
        );
    }
    Decision::Ready {
        id: live.id.clone(),
        drift,
    }
}

/// What an unsuccessful call to Kafka means for the log.
pub(crate) fn problem(error: KafkaError) -> Problem {
    let (reason, advice) = match error.class {
        ErrorClass::Unreachable | ErrorClass::Timeout | ErrorClass::NotReady => (
            reason::BROKER_UNREACHABLE,
            "check spec.broker.kafka.bootstrapServers and the network",
        ),
        ErrorClass::AuthenticationFailed => (
            reason::BROKER_AUTHENTICATION_FAILED,
            "check spec.broker.kafka.auth and the Secrets it refers to",
        ),
        ErrorClass::TlsFailed => (
            reason::BROKER_AUTHENTICATION_FAILED,
            "check the certificates in spec.broker.kafka.auth",
        ),
        ErrorClass::PermissionDenied => (
            reason::BROKER_REFUSED,
            "grant the principal of spec.broker.kafka.auth this right",
        ),
        ErrorClass::InvalidPartitions
        | ErrorClass::InvalidReplicationFactor
        | ErrorClass::InvalidConfig => (reason::BROKER_REFUSED, "correct spec.broker.kafka.topic"),
        ErrorClass::TopicExists | ErrorClass::TopicMissing | ErrorClass::Other => {
            (reason::BROKER_REFUSED, "it is tried again")
        }
    };
    Problem {
        reason,
        message: format!("Kafka: {error}; {advice}"),
        needs_human: error.class.needs_human()
            && !matches!(
                error.class,
                ErrorClass::TopicExists | ErrorClass::TopicMissing
            ),
        usable: false,
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
                "partitions is 12, spec says 6",
                "replicationFactor is 1, spec says 3"
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
                drift: vec!["retention.ms is 5, spec says 1000".to_owned()]
            }
        );
    }

    #[test]
    fn only_what_a_human_must_mend_stalls() {
        let judged = |class| {
            let problem = problem(KafkaError {
                class,
                operation: "describe topic",
                code: 0,
            });
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
            judged(ErrorClass::InvalidReplicationFactor),
            (reason::BROKER_REFUSED, true)
        );
    }
}
