//! Behaviour towards a broker that answers with errors, on librdkafka's mock cluster.

use super::{ClusterParams, Clusters, ErrorClass};
use fanout_contract::kafka::{KafkaCredentials, Mechanism};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

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
