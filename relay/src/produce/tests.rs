//! What becomes of records that the producer does not even take.

use super::*;
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::time::Instant;

const ROW: Row<'static> = Row {
    id: 1,
    event_id: "5f0c3e1a-0000-4000-8000-000000000001",
    key: Some("key"),
    r#type: "post.created",
    subject: None,
    content_type: "application/json",
    headers: None,
    traceparent: None,
    payload: Some("7b7d"),
    created_at: "\"2026-01-02T03:04:05.678\"",
    identity: None,
};

/// A producer whose principal may not write is dead before its first record. A batch of which it took nothing, or
/// only the first records, must not pass for one that was answered: its position would be stored, and its rows lost.
#[test]
fn a_batch_that_a_dead_producer_does_not_take_has_failed() {
    let mock = MockCluster::new(1).unwrap();
    mock.request_errors(
        RDKafkaApiKey::InitProducerId,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 8],
    );
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", mock.bootstrap_servers());
    let producer = Producer::new(config, "posts", 1_000_000, Duration::ZERO, None).unwrap();
    let started = Instant::now();
    while producer.inner.client().fatal_error().is_none() {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "no fatal error"
        );
        std::thread::yield_now();
    }
    let encoder = Encoder::new(crate::encode::tests::cloud_events(), 1_000_000);
    let tracker = Tracker::new();
    let sent = producer.send(&ROW, &encoder, &tracker, &mut Vec::new());
    tracker.close();
    let denied = RDKafkaErrorCode::ClusterAuthorizationFailed;
    assert_eq!(sent, Err(denied));
    assert!(tracker.is_done());
    assert!(tracker.has_failed());
    assert_eq!(producer.failure(), Some(denied));
}
