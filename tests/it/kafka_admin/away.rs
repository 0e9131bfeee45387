//! Brokers that were away are found again by the same client, which outlives the requests that got no answer.

use super::{LIMIT, params, topic};
use fanout_operator::kafka::Clusters;
use fanout_tests::faults::kafka_proxy::KafkaProxy;
use fanout_tests::services;
use std::time::{Duration, Instant};

/// So long the broker is away.
const AWAY: Duration = Duration::from_secs(5);

#[tokio::test]
async fn requests_without_an_answer_do_no_harm_when_the_broker_is_back() {
    let kafka = tokio::task::spawn_blocking(services::kafka).await.unwrap();
    let proxy = KafkaProxy::start(kafka).await.unwrap();
    let cluster = Clusters::new()
        .get(&params(&proxy.bootstrap()))
        .await
        .unwrap();
    let topic = topic(&cluster, "away", 1).await;
    cluster.topic_config(&topic).await.unwrap();
    cluster.committed("nobody", &topic).await.unwrap();

    proxy.turn_away().await.unwrap();
    let began = Instant::now();
    while began.elapsed() < AWAY {
        // Each kind finds its broker in its own way.
        let (config, watermarks, committed) = tokio::join!(
            cluster.topic_config(&topic),
            cluster.watermarks(&topic),
            cluster.committed("nobody", &topic),
        );
        assert!(config.is_err() && watermarks.is_err() && committed.is_err());
    }
    assert!(proxy.turned_away() > 0);
    proxy.up().await.unwrap();
    fanout_tests::eventually(LIMIT, "it is found again", async || {
        cluster.topic_config(&topic).await?;
        cluster.watermarks(&topic).await?;
        cluster.committed("nobody", &topic).await
    })
    .await;
}
