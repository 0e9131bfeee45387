//! What is wrong with the log, in words for the Subscription's status.

use fanout_contract::consumer::StopReason;
use rdkafka::error::RDKafkaErrorCode as Code;

/// Why the log can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Reason class.
    pub reason: StopReason,
    /// What is wrong and what to do; the same for every peer.
    pub message: &'static str,
}

impl Trouble {
    /// The settings make no client.
    pub(crate) const UNUSABLE: Self = Self {
        reason: StopReason::BrokerTlsFailed,
        message: "no Kafka client can be made: a certificate or key of the FanoutTopic's spec.broker.kafka.consumerAuth (auth where that is absent) can't be used",
    };

    /// What `code` says.
    pub(crate) const fn of(code: Code) -> Self {
        let (reason, message) = match code {
            Code::AllBrokersDown => (
                StopReason::BrokerUnreachable,
                "no broker answers; check the FanoutTopic's spec.broker.kafka.bootstrapServers and the network",
            ),
            Code::Resolve => (
                StopReason::BrokerUnreachable,
                "a broker's name can't be resolved; check the FanoutTopic's spec.broker.kafka.bootstrapServers",
            ),
            Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::IllegalSASLState => (
                StopReason::BrokerAuthenticationFailed,
                "the brokers refuse user, password or mechanism; correct the Secrets of the FanoutTopic's spec.broker.kafka.consumerAuth (auth where that is absent)",
            ),
            Code::SSL => (
                StopReason::BrokerTlsFailed,
                "the TLS handshake with the brokers fails; check the certificates of the FanoutTopic's spec.broker.kafka.consumerAuth (auth where that is absent)",
            ),
            Code::UnknownTopic | Code::UnknownTopicOrPartition => (
                StopReason::TopicMissing,
                "the Kafka topic does not exist; the FanoutTopic's status says more",
            ),
            Code::TopicAuthorizationFailed => (
                StopReason::BrokerRefused,
                "no right to read the Kafka topic; grant Read on it to the principal of the FanoutTopic's spec.broker.kafka.consumerAuth (auth where that is absent)",
            ),
            Code::GroupAuthorizationFailed => (
                StopReason::BrokerRefused,
                "no right to use the consumer group of status.groupId; grant Read on it to the principal of the FanoutTopic's spec.broker.kafka.consumerAuth (auth where that is absent)",
            ),
            Code::ClusterAuthorizationFailed => (
                StopReason::BrokerRefused,
                "no right to use the Kafka cluster; grant it to the principal of the FanoutTopic's spec.broker.kafka.consumerAuth (auth where that is absent)",
            ),
            Code::InconsistentGroupProtocol => (
                StopReason::BrokerRefused,
                "the consumer group of status.groupId has members of another kind; end whoever else uses it",
            ),
            _ => (
                StopReason::BrokerUnreachable,
                "the brokers do not serve this worker; it is tried again",
            ),
        };
        Self { reason, message }
    }
}

/// Only what a human has to look at: everything else the client mends by itself.
pub(super) const fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::InconsistentGroupProtocol
    )
}

/// What the brokers said to a commit, where a human has to look at it.
pub(crate) fn refusal(code: Code) -> Option<Trouble> {
    is_refusal(code).then(|| Trouble::of(code))
}
