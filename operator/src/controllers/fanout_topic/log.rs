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
