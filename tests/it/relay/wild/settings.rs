//! Settings and numbers that other people's databases have.

use super::super::{LIMIT, execute, sandbox, settled, value};
use fanout_tests::checker::load::{Load, Options};
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use std::time::Duration;

/// Role and database ask for another time zone, another way to write times and bytes, short statements, and to end who
/// idles in a transaction.
#[tokio::test]
async fn settings_of_role_and_database_change_no_record() {
    let sandbox = sandbox("wild_settings").await;
    for setting in [
        "timezone = 'Pacific/Kiritimati'",
        "datestyle = 'German, DMY'",
        "intervalstyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "statement_timeout = '2s'",
        "idle_in_transaction_session_timeout = '1s'",
        "lock_timeout = '1s'",
        "standard_conforming_strings = off",
        "search_path = pg_catalog",
        "default_transaction_isolation = 'repeatable read'",
        "extra_float_digits = 0",
    ] {
        execute(
            &sandbox,
            &format!(
                "alter role fanout_relay in database {} set {setting}",
                sandbox.database
            ),
        )
        .await;
    }
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let options = Options {
        transactions: 200,
        hold: Duration::from_millis(500),
        ..Options::default()
    };
    let journal = Load::start(&sandbox, &options).await.finish().await;
    let verdict = settled(&sandbox, &journal).await;
    assert!(verdict.is_sound(), "{verdict:?}");
    // Times are those of the rows, in UTC.
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    for record in log.records.iter().take(20) {
        let id = record.attributes().id;
        let time = record.header("ce_time").unwrap();
        let same =
            format!("select created_at = timestamptz '{time}' from outbox where event_id = '{id}'");
        assert_eq!(
            value(&sandbox, &same).await.as_deref(),
            Some("true"),
            "{time}"
        );
        assert!(time.ends_with('Z'), "{time}");
    }
    let status = relay.status().await.unwrap();
    assert!(status.source_error.is_none(), "{status:?}");
}

/// Ids beyond 32 bits and beyond what a double holds exactly, and the last ones there are.
#[tokio::test]
async fn large_ids_stay_exact_and_in_order() {
    let sandbox = sandbox("wild_ids").await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let mut wanted = Vec::new();
    for first in [
        1_i64 << 31,
        1 << 32,
        (1 << 53) - 1,
        (1 << 53) + 1,
        i64::MAX - 2,
    ] {
        execute(
            &sandbox,
            &format!("alter table outbox alter column id restart with {first}"),
        )
        .await;
        execute(
            &sandbox,
            "insert into outbox (topic, key, type, subject) select 'posts', 'k', 't', 'k/0' from generate_series(1, 2)",
        )
        .await;
        wanted.extend([first, first + 1].map(|id| format!("{id:020}")));
    }
    relay
        .wait_until(LIMIT, "published", |status| {
            status.published_total == wanted.len() as u64
        })
        .await;
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    let sequences: Vec<String> = log
        .records
        .iter()
        .filter_map(|record| record.header("ce_sequence"))
        .collect();
    assert_eq!(sequences, wanted);
}
