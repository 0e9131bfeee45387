//! Deletes what the database remembers of a topic, once no relay publishes it any more.
//!
//! Every relay of the topic does the same. None takes a lease meanwhile, and nothing is deleted before every lease was given
//! back or has expired: whoever still publishes under an older configuration is waited for, not cut off.

use crate::broker;
use crate::claim::row::flag;
use crate::engine::{Setting, Stopped};
use crate::lease;
use crate::source::{Failure, Source, classify};
use crate::sql::literal;
use fanout_contract::reason::SourceError;
use fanout_contract::relay::Broker as BrokerConfig;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two looks at the leases.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs until `stop`, or until something fails.
pub async fn run(setting: Setting<'_>, stop: CancellationToken) -> Stopped {
    let work = async {
        let forgotten = forget(setting).await;
        if forgotten.is_some() {
            setting.stats.positions_deleted();
            tracing::info!("the topic's positions are deleted");
            loop {
                setting.stats.turn();
                tokio::time::sleep(PAUSE).await;
            }
        }
    };
    tokio::select! {
        () = work => Stopped::Failed,
        () = stop.cancelled() => Stopped::Asked,
    }
}

/// `None` when it failed; `/status` says why.
async fn forget(setting: Setting<'_>) -> Option<()> {
    let Setting { config, stats, .. } = setting;
    let BrokerConfig::Kafka(kafka) = &config.config.broker;
    let source = Source::connect(&config.config, &config.files).await;
    if matches!(&source, Err(failure) if failure.class == SourceError::DatabaseMissing) {
        // The positions went with the database.
        return Some(());
    }
    stats.source(source.as_ref().map(drop).map_err(Clone::clone));
    let source = source.ok()?;
    let cluster = broker::cluster_id(kafka, &config.files).await;
    stats.broker(cluster.as_ref().map(drop).map_err(Clone::clone));
    let forgotten = match cluster {
        Ok(cluster) => until_forgotten(setting, &source, &cluster, &kafka.topic).await,
        Err(_) => None,
    };
    source.close().await;
    forgotten
}

async fn until_forgotten(
    setting: Setting<'_>,
    source: &Source,
    cluster: &str,
    topic: &str,
) -> Option<()> {
    loop {
        setting.stats.turn();
        match delete(source, cluster, topic).await {
            Ok(true) => return Some(()),
            Ok(false) => tokio::time::sleep(PAUSE).await,
            Err(failure) => {
                setting.stats.source(Err(failure));
                return None;
            }
        }
    }
}

/// Deletes positions, parked rows, leases, members and ranges of the topic, all or nothing. False, and nothing is deleted,
/// while somebody holds a lease. Positions of another outbox table are not this topic's, and stay.
pub async fn delete(source: &Source, cluster: &str, topic: &str) -> Result<bool, Failure> {
    match delete_rows(source, cluster, topic).await {
        // Without schema fanout there is nothing to delete.
        Err(failure) if failure.class == SourceError::TableMissing => Ok(true),
        other => other,
    }
}

async fn delete_rows(source: &Source, cluster: &str, topic: &str) -> Result<bool, Failure> {
    let topic = format!(
        "(select id from fanout.topics where cluster_id = {} and topic = {} and source_table = {})",
        literal(cluster),
        literal(topic),
        literal(&source.outbox.table.quoted())
    );
    let ranges = format!("(select id from fanout.ranges where topic_id in {topic})");
    let mut transaction = source.begin().await?;
    // Ranges that are being split or merged are waited for, and none is after it.
    transaction
        .query(format!(
            "select from fanout.topics where id in {topic} for update"
        ))
        .await?;
    // Locked, so that nobody takes a lease before the commit; afterwards there is none to take.
    let leases = transaction
        .query(format!(
            "select not {} from fanout.leases where range_id in {ranges} order by range_id for update",
            lease::ended()
        ))
        .await?;
    for lease in &leases {
        if flag(lease, 0).map_err(|error| classify(&error))? {
            transaction.rollback().await?;
            return Ok(false);
        }
    }
    for (table, of) in [
        ("parked", format!("range_id in {ranges}")),
        ("positions", format!("range_id in {ranges}")),
        ("leases", format!("range_id in {ranges}")),
        ("members", format!("topic_id in {topic}")),
        ("ranges", format!("topic_id in {topic}")),
        ("topics", format!("id in {topic}")),
    ] {
        transaction
            .execute(format!("delete from fanout.{table} where {of}"))
            .await?;
    }
    transaction.commit().await?;
    Ok(true)
}
