//! Behaviour towards a broker that answers with errors, on librdkafka's mock cluster.

use super::{ClusterParams, Clusters, ErrorClass, NewTopic};
use fanout_contract::kafka::{KafkaCredentials, Mechanism};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::sync::Arc;

/// With a client of the producer type this ends the process by SIGSEGV.
#[tokio::test]
async fn a_coordinator_that_has_moved_is_an_error_and_no_crash() {
    let mock = MockCluster::new(1).unwrap();
    mock.request_errors(
        RDKafkaApiKey::OffsetFetch,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR],
    );
    let params = ClusterParams {
        bootstrap_servers: mock.bootstrap_servers(),
        mechanism: Mechanism::None,
        credentials: KafkaCredentials::default(),
    };
    let cluster = Clusters::new().get(&params).await.unwrap();
    let error = cluster.committed("group", "topic").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::NotReady);
    assert!(
        cluster
            .committed("group", "topic")
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn changes_are_sent_with_a_permit_alone() {
    let params = ClusterParams {
        // Nobody listens there: what is sent fails another way.
        bootstrap_servers: "127.0.0.1:1".to_owned(),
        mechanism: Mechanism::None,
        credentials: KafkaCredentials::default(),
    };
    let topic = NewTopic {
        name: "topic".to_owned(),
        ..NewTopic::default()
    };
    let error = async |permitted| {
        let clusters = Clusters::permitted(Arc::new(move || permitted));
        let cluster = clusters.get(&params).await.unwrap();
        cluster.create_topic(&topic).await.unwrap_err().class
    };
    assert_eq!(error(false).await, ErrorClass::NotReady);
    assert_eq!(error(true).await, ErrorClass::Unreachable);
    let clusters = Clusters::permitted(Arc::new(|| false));
    let cluster = clusters.get(&params).await.unwrap();
    let error = cluster.add_partitions("topic", 4).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::NotReady);
}
