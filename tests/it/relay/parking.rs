//! Rows that can't be produced are set aside before they harm others, and so are the later rows of their keys.

use super::{LIMIT, execute, sandbox, value};
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, eventually, services};
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};

/// Types of the records in the topic, by the number in the subject.
pub(super) async fn published(sandbox: &Sandbox) -> Vec<i64> {
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    let mut numbers: Vec<i64> = log
        .records
        .iter()
        .map(|record| record.attributes().subject.unwrap().parse().unwrap())
        .collect();
    numbers.sort_unstable();
    // Brokers that are too slow on a busy machine are a reason to send again.
    numbers.dedup();
    numbers
}

pub(super) async fn expect_published(sandbox: &Sandbox, numbers: &[i64]) {
    eventually(LIMIT, "the other rows arrive", async || {
        let found = published(sandbox).await;
        if found == numbers {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

/// `number`, `key` and payload size of one row.
pub(super) fn row(number: i64, key: &str, bytes: usize) -> String {
    // Random bytes: compression must not decide.
    format!(
        "insert into outbox (topic, key, type, subject, payload) values ('posts', {key}, 't', '{number}',
           (select decode(string_agg(md5(n::text), ''), 'hex') from generate_series(1, {}) n));",
        bytes / 16
    )
}

pub(super) async fn parked(sandbox: &Sandbox) -> Option<String> {
    value(
        sandbox,
        "select string_agg(subject || ':' || coalesce(reason, 'held'), ' ' order by id) from fanout.parked",
    )
    .await
}

#[tokio::test]
async fn an_oversize_row_is_parked_its_key_held_and_others_go_on() {
    let sandbox = sandbox("park_oversize").await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    let large = 2 << 20;
    let rows = [
        row(1, "'a'", 16),
        row(2, "'a'", large),
        row(3, "'a'", 16),
        row(4, "'b'", 16),
        row(5, "null", large),
        row(6, "null", 16),
    ];
    execute(&sandbox, &rows.concat()).await;
    expect_published(&sandbox, &[1, 4, 6]).await;
    // Later, in another difference.
    execute(&sandbox, &[row(7, "'a'", 16), row(8, "'b'", 16)].concat()).await;
    expect_published(&sandbox, &[1, 4, 6, 8]).await;
    let expected = "2:RecordTooLarge 3:held 5:RecordTooLarge 7:held";
    assert_eq!(parked(&sandbox).await.as_deref(), Some(expected));
    let copied =
        format!("select octet_length(payload) = {large} from fanout.parked where subject = '2'");
    assert_eq!(value(&sandbox, &copied).await.as_deref(), Some("true"));
    let status = relay
        .wait_until(LIMIT, "it is reported", |status| status.parked.held == 2)
        .await;
    assert_eq!((status.parked.rows, status.broker_error), (2, None));
    let metrics = relay.metrics().await.unwrap();
    assert!(metrics.contains("fanout_relay_parked_rows 2"), "{metrics}");

    // A new owner knows what is held before it publishes.
    relay.kill();
    execute(&sandbox, &[row(9, "'a'", 16), row(10, "'b'", 16)].concat()).await;
    let _second = Relay::start(&sandbox, "b", &sandbox.relay_config()).await;
    expect_published(&sandbox, &[1, 4, 6, 8, 10]).await;
    assert_eq!(parked(&sandbox).await, Some(format!("{expected} 9:held")));
}

#[tokio::test]
async fn a_row_that_fills_the_limit_exactly_is_published() {
    let sandbox = sandbox("park_exact").await;
    let _relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    // Sizes around the broker's default limit: whatever is not parked must be taken by the broker.
    let limit = 1_048_588;
    let sizes: Vec<String> = (0..40)
        .map(|n| {
            format!(
                "insert into outbox (topic, key, type, subject, payload)
                 values ('posts', 'k{n}', 't', '{n}', convert_to(repeat('x', {}), 'UTF8'));",
                limit - 460 + n * 10
            )
        })
        .collect();
    execute(&sandbox, &sizes.concat()).await;
    eventually(LIMIT, "each row is published or parked", async || {
        let parked = value(&sandbox, "select count(*) from fanout.parked").await;
        let parked: usize = parked.unwrap().parse().unwrap();
        let published = published(&sandbox).await;
        if published.len() + parked < 40 {
            return Err(format!("{parked} parked, {} published", published.len()));
        }
        assert_eq!(
            published,
            (0i64..).take(published.len()).collect::<Vec<_>>(),
            "the smaller ones"
        );
        assert!(!published.is_empty() && parked > 0, "{parked} parked");
        Ok(())
    })
    .await;
    let refused = "select count(*) from fanout.parked where reason <> 'RecordTooLarge'";
    assert_eq!(
        value(&sandbox, refused).await.as_deref(),
        Some("0"),
        "found before, not by the broker"
    );
}

#[tokio::test]
async fn rows_that_are_no_events_are_parked_with_their_reason() {
    let sandbox = sandbox("park_invalid").await;
    let _relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    execute(
        &sandbox,
        r#"insert into outbox (topic, type, subject, headers) values
             ('posts', '', '1', null), ('posts', 't', '2', '[1]'), ('posts', 't', '3', '{"ce_id": "x"}'), ('posts', 't', '4', null);
           insert into outbox (topic, type, subject, created_at) values ('posts', 't', '5', 'infinity')"#,
    )
    .await;
    expect_published(&sandbox, &[4]).await;
    let reasons = "1:TypeEmpty 2:HeadersInvalid 3:HeadersInvalid 5:TimeInvalid";
    eventually(LIMIT, "they are parked", async || {
        let parked = parked(&sandbox).await;
        if parked.as_deref() == Some(reasons) {
            Ok(())
        } else {
            Err(format!("{parked:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn a_limit_lowered_behind_the_relays_back_parks_the_row_and_keeps_order() {
    let sandbox = sandbox("park_lowered").await;
    let _relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    execute(&sandbox, &row(1, "'a'", 300_000)).await;
    expect_published(&sandbox, &[1]).await;
    set_limit(&sandbox, "100000").await;
    let rows: Vec<String> = (2..200)
        .map(|n| {
            row(
                n,
                &format!("'{}'", n % 7),
                if n == 100 { 300_000 } else { 160 },
            )
        })
        .collect();
    execute(&sandbox, &rows.concat()).await;
    // Row 100 has key 2; of that key, what came before it goes out, what comes after it is held.
    let expected: Vec<i64> = (1..200).filter(|n| n % 7 != 100 % 7 || *n < 100).collect();
    expect_published(&sandbox, &expected).await;
    eventually(LIMIT, "the row is parked", async || {
        let reason = "select reason from fanout.parked where subject = '100'";
        match value(&sandbox, reason).await.as_deref() {
            None => Err("not yet".to_owned()),
            reason => {
                assert_eq!(reason, Some("RecordTooLarge"));
                Ok(())
            }
        }
    })
    .await;
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    // The first occurrences of a key's rows are in order.
    let mut seen = std::collections::HashSet::new();
    let mut last = std::collections::HashMap::new();
    for record in &log.records {
        let number: i64 = record.attributes().subject.unwrap().parse().unwrap();
        if seen.insert(number) {
            let before = last.insert(record.key.clone(), number);
            assert!(
                before.is_none_or(|before| before < number),
                "{number} after {before:?}"
            );
        }
    }
}

pub(super) async fn set_limit(sandbox: &Sandbox, bytes: &str) {
    let change = AlterConfig::new(ResourceSpecifier::Topic(&sandbox.kafka_topic))
        .set("max.message.bytes", bytes);
    let altered = services::kafka()
        .admin()
        .alter_configs([&change], &AdminOptions::new())
        .await
        .unwrap();
    assert!(altered.iter().all(Result::is_ok), "{altered:?}");
}

#[tokio::test]
async fn a_limit_that_was_raised_is_noticed_before_anything_is_parked() {
    let sandbox = sandbox("park_raised").await;
    set_limit(&sandbox, "100000").await;
    let _relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    execute(&sandbox, &row(1, "'a'", 160)).await;
    expect_published(&sandbox, &[1]).await;
    set_limit(&sandbox, "400000").await;
    execute(&sandbox, &row(2, "'a'", 300_000)).await;
    expect_published(&sandbox, &[1, 2]).await;
    assert_eq!(
        value(&sandbox, "select count(*) from fanout.parked")
            .await
            .as_deref(),
        Some("0")
    );
}
