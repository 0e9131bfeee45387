//! Ways in which a relay could lose rows without anybody killing it.

use fanout_contract::reason::SourceError;
use fanout_contract::relay::{RelayStart, Source as SourceConfig};
use fanout_relay::claim::snapshot::{Limits, Snapshot};
use fanout_relay::claim::{Completion, Kind, Reader, Shards};
use fanout_relay::lease;
use fanout_relay::position::{History, Position};
use fanout_relay::source::Source;
use fanout_runtime::config::Files;
use fanout_tests::Sandbox;
use fanout_tests::services::postgres::{Postgres, RELAY_ROLE};

const ALL: Shards = Shards { lo: 0, hi: 64 };
/// A difference of more rows than this is large.
const LIMITS: Limits = Limits {
    rows: 4,
    bytes: 8 << 20,
};

/// The sandbox's outbox as the relay's role reaches it on `server`.
async fn source(sandbox: &Sandbox, server: &Postgres) -> Source {
    let mut config = sandbox.relay_config();
    let SourceConfig::Postgres(postgres) = &mut config.source;
    "url".clone_into(&mut postgres.url_file);
    let url = server.url_as(RELAY_ROLE, &sandbox.database);
    let files = Files([("url".to_owned(), url.into_bytes())].into());
    Source::connect(&config, &files).await.unwrap()
}

async fn history(sandbox: &Sandbox) -> History {
    let sql = format!("select h.* from {}", fanout_relay::position::history());
    let (system_identifier, timeline, incarnation) = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .fetch_one(sandbox.pool())
        .await
        .unwrap();
    History {
        system_identifier,
        timeline,
        incarnation,
    }
}

/// A service that spreads connections over a primary and its replicas: the poll reaches the primary, the pages of the
/// large difference it began reach a replica that has not got the rows yet. Positions go to the primary and are stored.
#[tokio::test]
async fn a_replica_that_lags_does_not_end_a_large_difference() {
    let sandbox = Sandbox::new("review_replica").await;
    let primary = fanout_tests::services::postgres();
    let standby = tokio::task::spawn_blocking(|| primary.standby().unwrap())
        .await
        .unwrap();
    standby
        .psql("postgres", "select pg_wal_replay_pause()", &[])
        .unwrap();
    sqlx::query(
        "insert into outbox (topic, type) select 'posts', 'created' from generate_series(1, 20)",
    )
    .execute(sandbox.pool())
    .await
    .unwrap();
    let history = history(&sandbox).await;
    let start = Position::At(Snapshot::nothing());
    let on_primary = source(&sandbox, primary).await;
    let mut reader = Reader::new(on_primary, ALL, LIMITS, history.clone(), start);
    let begin = reader.next().await.unwrap();
    assert_eq!(begin.kind, Kind::Begin);

    let on_standby = source(&sandbox, &standby).await;
    let Completion::Position(begin) = begin.after else {
        panic!("claim mode Snapshot moves a position");
    };
    let mut misled = Reader::new(on_standby, ALL, LIMITS, history, begin);
    match misled.next().await {
        Ok(batch) => panic!(
            "{:?} of {} rows, and then {:?}",
            batch.kind,
            batch.len(),
            batch.after
        ),
        Err(failure) => assert_eq!(failure.class, SourceError::SourceReadOnly),
    }
}

/// A FanoutTopic that was deleted and made anew for the same Kafka topic with another table: the old position would hide
/// everything that is in the new table already.
#[tokio::test]
async fn positions_of_one_table_are_not_used_for_another() {
    let sandbox = Sandbox::new("review_table").await;
    let before = source(&sandbox, fanout_tests::services::postgres()).await;
    let register = async |source: &Source| {
        lease::register(source, "cluster", "topic", RelayStart::Earliest)
            .await
            .unwrap()
    };
    let topic = register(&before).await;
    lease::check_history(&before, topic).await.unwrap();

    let mut after = before.clone();
    after.outbox.table.name = "other".to_owned();
    assert_eq!(register(&after).await, topic, "one row per Kafka topic");
    let failure = lease::check_history(&after, topic).await.unwrap_err();
    assert_eq!(failure.class, SourceError::SourceChanged);
    assert!(failure.message.contains("outbox"), "{}", failure.message);
    // The one that has the positions goes on.
    assert_eq!(register(&before).await, topic);
    lease::check_history(&before, topic).await.unwrap();
}
