//! The harness itself: what every other test relies on.

use fanout_tests::Sandbox;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::time::Duration;

#[tokio::test]
async fn a_sandbox_has_a_database_of_its_own() {
    let (one, two) = (
        Sandbox::new("harness_db").await,
        Sandbox::new("harness_db").await,
    );
    assert_ne!(one.database, two.database);
    let current: String = sqlx::query_scalar("select current_database()")
        .fetch_one(one.pool())
        .await
        .unwrap();
    assert_eq!(current, one.database);
}

#[tokio::test]
async fn a_sandbox_has_topics_of_its_own() {
    let sandbox = Sandbox::new("harness_topics").await;
    let client: BaseConsumer = fanout_tests::services::kafka().client().create().unwrap();
    let metadata = client
        .fetch_metadata(Some(&sandbox.kafka_topic), Duration::from_secs(10))
        .unwrap();
    assert_eq!(metadata.topics()[0].partitions().len(), 6);
}
