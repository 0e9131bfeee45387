//! What an error of the Kafka client means: the one classifier of produce errors. Pure.

use crate::broker::{Failure, failure};
use crate::encode::Unencodable;
use fanout_contract::reason::BrokerError;
use rdkafka::error::RDKafkaErrorCode;

/// What becomes of records after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The record itself is at fault and would fail again, with the reason to park it for.
    Record(Unencodable),
    /// The brokers take nothing at the moment, or nothing of this principal, this topic.
    Brokers(BrokerError),
    /// Something took too long or was dragged along by another failure: if the connection has an error of its own, that one
    /// says more.
    Unclear,
}

/// The meaning of `code`.
pub const fn meaning(code: RDKafkaErrorCode) -> Meaning {
    use RDKafkaErrorCode as Code;
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Meaning::Record(Unencodable::RecordTooLarge)
        }
        // A topic that is compacted refuses records without a key; policies refuse others. A time stamp is the relay's own
        // clock's: with another clock the same record is taken.
        Code::InvalidRecord | Code::PolicyViolation => Meaning::Record(Unencodable::RecordRefused),
        Code::Authentication | Code::SaslAuthenticationFailed => {
            Meaning::Brokers(BrokerError::AuthenticationFailed)
        }
        Code::SSL => Meaning::Brokers(BrokerError::TlsFailed),
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
            Meaning::Brokers(BrokerError::TopicMissing)
        }
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed => {
            Meaning::Brokers(BrokerError::PermissionDenied)
        }
        Code::BrokerTransportFailure | Code::Resolve | Code::AllBrokersDown => {
            Meaning::Brokers(BrokerError::Unreachable)
        }
        Code::UnsupportedFeature
        | Code::InvalidTransactionTimeout
        | Code::CoordinatorNotAvailable
        | Code::CoordinatorLoadInProgress => Meaning::Brokers(BrokerError::TransactionsUnavailable),
        Code::OperationTimedOut
        | Code::MessageTimedOut
        | Code::RequestTimedOut
        | Code::TimedOutQueue
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::Fatal => Meaning::Unclear,
        _ => Meaning::Brokers(BrokerError::ProduceFailed),
    }
}

/// The reason to park the record that the brokers refused with `code`; `None` where the record is not at fault.
pub const fn refusal(code: RDKafkaErrorCode) -> Option<Unencodable> {
    match meaning(code) {
        Meaning::Record(reason) => Some(reason),
        Meaning::Brokers(_) | Meaning::Unclear => None,
    }
}

/// True where a broker refused a record with `code`, whatever is at fault: the failures of other records follow from that.
pub const fn is_cause(code: RDKafkaErrorCode) -> bool {
    refusal(code).is_some() || matches!(code, RDKafkaErrorCode::InvalidTimestamp)
}

/// Why nothing can be produced to `topic`; `None` is a timeout.
pub fn explain(code: Option<RDKafkaErrorCode>, topic: &str) -> Failure {
    let (class, code) = match code.map(|code| (meaning(code), code)) {
        None | Some((Meaning::Unclear, _)) => return unreachable(),
        Some((Meaning::Brokers(class), code)) => (class, code),
        Some((Meaning::Record(_), code)) => (BrokerError::ProduceFailed, code),
    };
    let message = match class {
        BrokerError::AuthenticationFailed => {
            "the brokers refused user, password or mechanism of spec.broker.kafka.auth: correct the Secrets it refers to".to_owned()
        }
        BrokerError::TlsFailed => {
            "the TLS handshake with the brokers failed: check caSecretRef, clientCertSecretRef and clientKeySecretRef of spec.broker.kafka.auth".to_owned()
        }
        BrokerError::TopicMissing => format!("Kafka topic {topic} does not exist"),
        BrokerError::PermissionDenied => format!(
            "the principal of spec.broker.kafka.auth lacks a right on Kafka topic {topic}: grant it Describe, DescribeConfigs and Write"
        ),
        BrokerError::Unreachable => return unreachable(),
        BrokerError::TransactionsUnavailable => return no_transactions(code),
        BrokerError::ProduceFailed if code == RDKafkaErrorCode::InvalidTimestamp => {
            "the brokers refuse the time of this relay's records: its node's clock and theirs differ by more than message.timestamp.after.max.ms or message.timestamp.before.max.ms of the topic; set the clocks".to_owned()
        }
        BrokerError::ProduceFailed => format!("the brokers refuse records (librdkafka {code:?})"),
    };
    failure(class, message)
}

/// Why a transactional producer can't begin: the coordinator answered `code`, or nothing, over a connection whose own last
/// error was `connection`.
pub fn no_transaction(
    code: Option<RDKafkaErrorCode>,
    connection: Option<RDKafkaErrorCode>,
    topic: &str,
) -> Failure {
    match code.map(|code| (meaning(code), code)) {
        Some((Meaning::Brokers(BrokerError::TransactionsUnavailable), code)) => {
            no_transactions(code)
        }
        Some((_, RDKafkaErrorCode::TransactionalIdAuthorizationFailed)) => failure(
            BrokerError::PermissionDenied,
            format!(
                "spec.relay.delivery Transactional: grant the principal of spec.broker.kafka.auth Describe and Write on transactional ids with the prefix {topic}."
            ),
        ),
        // The topic was reached just now, by the same connection.
        None | Some((Meaning::Unclear, _)) if connection.is_none() => {
            no_transactions(RDKafkaErrorCode::OperationTimedOut)
        }
        None | Some((Meaning::Unclear, _)) => explain(connection, topic),
        Some((_, code)) => explain(Some(code), topic),
    }
}

fn no_transactions(code: RDKafkaErrorCode) -> Failure {
    failure(
        BrokerError::TransactionsUnavailable,
        format!(
            "spec.relay.delivery is Transactional, and the brokers give the relay no transaction (librdkafka {code:?}): see that \
             transaction.max.timeout.ms is at least 10000 and that transaction.state.log.replication.factor and min.isr fit the \
             number of brokers, or set it to Standard"
        ),
    )
}

fn unreachable() -> Failure {
    failure(
        BrokerError::Unreachable,
        "no broker answers: check spec.broker.kafka.bootstrapServers and the network",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use RDKafkaErrorCode as Code;
    use rstest::rstest;

    #[rstest]
    // One record is at fault: it is parked, whatever else happens.
    #[case(
        Code::MessageSizeTooLarge,
        Meaning::Record(Unencodable::RecordTooLarge)
    )]
    #[case(
        Code::MessageBatchTooLarge,
        Meaning::Record(Unencodable::RecordTooLarge)
    )]
    #[case(Code::InvalidMessageSize, Meaning::Record(Unencodable::RecordTooLarge))]
    #[case(Code::InvalidRecord, Meaning::Record(Unencodable::RecordRefused))]
    #[case(Code::PolicyViolation, Meaning::Record(Unencodable::RecordRefused))]
    // Nothing is parked for these: the same records are sent again once it is over.
    #[case(
        Code::Authentication,
        Meaning::Brokers(BrokerError::AuthenticationFailed)
    )]
    #[case(
        Code::SaslAuthenticationFailed,
        Meaning::Brokers(BrokerError::AuthenticationFailed)
    )]
    #[case(Code::SSL, Meaning::Brokers(BrokerError::TlsFailed))]
    #[case(
        Code::UnknownTopicOrPartition,
        Meaning::Brokers(BrokerError::TopicMissing)
    )]
    #[case(Code::UnknownTopic, Meaning::Brokers(BrokerError::TopicMissing))]
    #[case(Code::UnknownPartition, Meaning::Brokers(BrokerError::TopicMissing))]
    #[case(
        Code::TopicAuthorizationFailed,
        Meaning::Brokers(BrokerError::PermissionDenied)
    )]
    #[case(
        Code::ClusterAuthorizationFailed,
        Meaning::Brokers(BrokerError::PermissionDenied)
    )]
    #[case(
        Code::TransactionalIdAuthorizationFailed,
        Meaning::Brokers(BrokerError::PermissionDenied)
    )]
    #[case(
        Code::BrokerTransportFailure,
        Meaning::Brokers(BrokerError::Unreachable)
    )]
    #[case(Code::Resolve, Meaning::Brokers(BrokerError::Unreachable))]
    #[case(Code::AllBrokersDown, Meaning::Brokers(BrokerError::Unreachable))]
    #[case(Code::NotEnoughReplicas, Meaning::Brokers(BrokerError::ProduceFailed))]
    #[case(
        Code::NotEnoughReplicasAfterAppend,
        Meaning::Brokers(BrokerError::ProduceFailed)
    )]
    #[case(
        Code::NotLeaderForPartition,
        Meaning::Brokers(BrokerError::ProduceFailed)
    )]
    #[case(Code::LeaderNotAvailable, Meaning::Brokers(BrokerError::ProduceFailed))]
    // The relay's clock is at fault, and every record would be parked.
    #[case(Code::InvalidTimestamp, Meaning::Brokers(BrokerError::ProduceFailed))]
    // A storage error of one broker, or damage on the way, says nothing about the record.
    #[case(Code::KafkaStorageError, Meaning::Brokers(BrokerError::ProduceFailed))]
    #[case(Code::InvalidMessage, Meaning::Brokers(BrokerError::ProduceFailed))]
    #[case(
        Code::OutOfOrderSequenceNumber,
        Meaning::Brokers(BrokerError::ProduceFailed)
    )]
    #[case(Code::UnknownProducerId, Meaning::Brokers(BrokerError::ProduceFailed))]
    #[case(
        Code::InvalidProducerEpoch,
        Meaning::Brokers(BrokerError::ProduceFailed)
    )]
    #[case(Code::ProducerFenced, Meaning::Brokers(BrokerError::ProduceFailed))]
    #[case(
        Code::UnsupportedCompressionType,
        Meaning::Brokers(BrokerError::ProduceFailed)
    )]
    #[case(Code::QueueFull, Meaning::Brokers(BrokerError::ProduceFailed))]
    #[case(Code::Unknown, Meaning::Brokers(BrokerError::ProduceFailed))]
    // The connection's own error, where there is one, says more than these.
    #[case(Code::MessageTimedOut, Meaning::Unclear)]
    #[case(Code::TimedOutQueue, Meaning::Unclear)]
    #[case(Code::OperationTimedOut, Meaning::Unclear)]
    #[case(Code::RequestTimedOut, Meaning::Unclear)]
    #[case(Code::PurgeQueue, Meaning::Unclear)]
    #[case(Code::PurgeInflight, Meaning::Unclear)]
    #[case(Code::Fatal, Meaning::Unclear)]
    fn codes_have_meanings(#[case] code: Code, #[case] expected: Meaning) {
        assert_eq!(meaning(code), expected);
    }

    #[test]
    fn what_is_unclear_is_explained_as_silence() {
        for code in [None, Some(Code::MessageTimedOut), Some(Code::Resolve)] {
            assert_eq!(explain(code, "posts").class, BrokerError::Unreachable);
        }
        let refused = explain(Some(Code::NotEnoughReplicas), "posts");
        assert_eq!(refused.class, BrokerError::ProduceFailed);
        let early = explain(Some(Code::InvalidTimestamp), "posts");
        assert!(early.message.contains("clock"), "{early:?}");
        assert!(refused.message.contains("NotEnoughReplicas"), "{refused:?}");
    }
}
