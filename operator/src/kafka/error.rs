//! Error classes of Kafka administration, and the one table that maps librdkafka's codes to them.

use ErrorClass as Class;
use rdkafka::error::RDKafkaErrorCode as Code;
use std::fmt;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// No broker can be reached.
    Unreachable,
    /// User or password refused, or the mechanism is not offered.
    AuthenticationFailed,
    /// The TLS handshake failed, or a certificate can't be used.
    TlsFailed,
    /// The principal lacks a right.
    PermissionDenied,
    /// The topic exists already.
    TopicExists,
    /// The topic does not exist.
    TopicMissing,
    /// The number of partitions is refused.
    InvalidPartitions,
    /// The replication factor is refused: usually larger than the number of brokers.
    InvalidReplicationFactor,
    /// A topic setting, a name or a policy is refused.
    InvalidConfig,
    /// Brokers answer, but are not ready for this request: a leader or coordinator is being elected.
    NotReady,
    /// No answer within the deadline.
    Timeout,
    /// Anything else.
    Other,
}

impl ErrorClass {
    /// True where only a human can mend it.
    pub const fn needs_human(self) -> bool {
        !matches!(
            self,
            Self::Unreachable | Self::NotReady | Self::Timeout | Self::Other
        )
    }
}

/// A failed call: its class and what was attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KafkaError {
    /// Why.
    pub class: ErrorClass,
    /// What, as a verb and its object ("create topic").
    pub operation: &'static str,
    /// librdkafka's or the broker's error number, 0 where there is none.
    pub code: i32,
}

impl fmt::Display for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {:?} (code {})",
            self.operation, self.class, self.code
        )
    }
}

impl std::error::Error for KafkaError {}

/// Result of an operation before it is named: an error number of librdkafka (negative) or of a broker (positive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure(pub(super) i32);

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self(code as i32)
    }
}

impl Failure {
    pub(super) const TIMED_OUT: Self = Self(Code::OperationTimedOut as i32);
    pub(super) const INVALID: Self = Self(Code::InvalidArgument as i32);

    pub(super) fn is(self, code: Code) -> bool {
        self.0 == code as i32
    }

    pub(super) fn is_any(self, codes: &[Code]) -> bool {
        codes.iter().any(|code| self.is(*code))
    }

    /// A broker said this, so the connection works.
    pub(super) const fn is_answer(self) -> bool {
        self.0 > 0
    }

    pub(super) fn class(self) -> ErrorClass {
        CLASSES
            .iter()
            .find(|(code, _)| self.is(*code))
            .map_or(ErrorClass::Other, |(_, class)| *class)
    }

    pub(super) fn during(self, operation: &'static str) -> KafkaError {
        KafkaError {
            class: self.class(),
            operation,
            code: self.0,
        }
    }
}

const CLASSES: &[(Code, ErrorClass)] = &[
    (Code::BrokerTransportFailure, Class::Unreachable),
    (Code::AllBrokersDown, Class::Unreachable),
    (Code::Resolve, Class::Unreachable),
    (Code::NetworkException, Class::Unreachable),
    (Code::BrokerNotAvailable, Class::Unreachable),
    (Code::Authentication, Class::AuthenticationFailed),
    (Code::SaslAuthenticationFailed, Class::AuthenticationFailed),
    (Code::UnsupportedSASLMechanism, Class::AuthenticationFailed),
    (Code::IllegalSASLState, Class::AuthenticationFailed),
    (Code::SSL, Class::TlsFailed),
    (Code::TopicAuthorizationFailed, Class::PermissionDenied),
    (Code::GroupAuthorizationFailed, Class::PermissionDenied),
    (Code::ClusterAuthorizationFailed, Class::PermissionDenied),
    (Code::TopicAlreadyExists, Class::TopicExists),
    (Code::UnknownTopicOrPartition, Class::TopicMissing),
    (Code::UnknownTopic, Class::TopicMissing),
    (Code::UnknownPartition, Class::TopicMissing),
    (Code::InvalidPartitions, Class::InvalidPartitions),
    (
        Code::InvalidReplicationFactor,
        Class::InvalidReplicationFactor,
    ),
    (
        Code::InvalidReplicaAssignment,
        Class::InvalidReplicationFactor,
    ),
    (Code::InvalidConfig, Class::InvalidConfig),
    (Code::PolicyViolation, Class::InvalidConfig),
    (Code::InvalidTopic, Class::InvalidConfig),
    (Code::InvalidArgument, Class::InvalidConfig),
    (Code::InvalidGroupId, Class::InvalidConfig),
    (Code::LeaderNotAvailable, Class::NotReady),
    (Code::NotLeaderForPartition, Class::NotReady),
    (Code::ReplicaNotAvailable, Class::NotReady),
    (Code::OffsetNotAvailable, Class::NotReady),
    (Code::CoordinatorLoadInProgress, Class::NotReady),
    (Code::CoordinatorNotAvailable, Class::NotReady),
    (Code::WaitingForCoordinator, Class::NotReady),
    (Code::NotCoordinator, Class::NotReady),
    (Code::NotController, Class::NotReady),
    (Code::UnstableOffsetCommit, Class::NotReady),
    (Code::ThrottlingQuotaExceeded, Class::NotReady),
    (Code::OperationTimedOut, Class::Timeout),
    (Code::TimedOutQueue, Class::Timeout),
    (Code::MessageTimedOut, Class::Timeout),
    (Code::RequestTimedOut, Class::Timeout),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_class() {
        for (at, (code, _)) in CLASSES.iter().enumerate() {
            assert!(
                CLASSES[at + 1..].iter().all(|(other, _)| other != code),
                "{code:?} twice"
            );
        }
    }

    #[test]
    fn unknown_codes_are_other_and_the_text_names_operation_and_class_only() {
        let error = Failure(4711).during("create topic");
        assert_eq!(error.class, ErrorClass::Other);
        assert_eq!(error.to_string(), "create topic: Other (code 4711)");
    }
}
