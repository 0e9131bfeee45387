//! The claim mode of a topic that is in use is changed as the documentation says: nothing is lost, and nothing comes twice.

use super::{LIMIT, execute, insert, sandbox};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{Claim, RelayConfig, Source as SourceConfig};
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::services::dirs;
use fanout_tests::{Sandbox, eventually};
use std::collections::HashMap;

/// What the documentation has a DBA run, from `Snapshot` to `Lease` and back.
fn statements(sandbox: &Sandbox) -> [String; 2] {
    let path = dirs::tests_dir().join("../docs/claim-modes.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<String> = text
        .split("```sql\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .map(|sql| sql.replace("social.posts", &sandbox.kafka_topic))
        .collect();
    blocks.try_into().unwrap()
}

fn set(config: &mut RelayConfig, claim: Claim, suspend: bool) {
    let SourceConfig::Postgres(postgres) = &mut config.source;
    postgres.claim = claim;
    config.suspend = suspend;
}

async fn suspended(relay: &mut Relay, config: &RelayConfig) {
    relay.reconfigure(config);
    let hash = relay.config_hash();
    relay
        .wait_until(LIMIT, "it is suspended", |status| {
            status.config_hash == hash && status.ranges.len() == 2
        })
        .await;
}

/// Subjects of the records in the order of the log, by key.
async fn arrived(sandbox: &Sandbox) -> HashMap<Option<Vec<u8>>, Vec<u64>> {
    let mut found: HashMap<_, Vec<u64>> = HashMap::new();
    let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
    for record in &log.records {
        let subject = record.attributes().subject.unwrap();
        let number = subject.rsplit('/').next().unwrap().parse().unwrap();
        found.entry(record.key.clone()).or_default().push(number);
    }
    found
}

/// Waits until all of `rows` rows arrived, each once and those of a key in order.
async fn expect(sandbox: &Sandbox, rows: usize) {
    eventually(LIMIT, "every row arrives", async || {
        let found = arrived(sandbox).await;
        let count: usize = found.values().map(Vec::len).sum();
        if count < rows {
            return Err(format!("{count} of {rows}"));
        }
        for numbers in found.values() {
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        }
        assert_eq!(count, rows);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn from_snapshot_to_lease_and_back_every_row_arrives_once() {
    let sandbox = sandbox("contract_change").await;
    let [to_lease, to_snapshot] = statements(&sandbox);
    let mut config = sandbox.relay_config();
    let mut relay = Relay::start(&sandbox, "a", &config).await;
    insert(&sandbox, 500, 20).await;
    expect(&sandbox, 500).await;

    set(&mut config, Claim::Snapshot, true);
    suspended(&mut relay, &config).await;
    // Applications write on, before the table is changed and after.
    insert(&sandbox, 50, 20).await;
    // The mode before the table: it is said, and nothing is published.
    set(&mut config, Claim::Lease, false);
    relay.reconfigure(&config);
    relay
        .wait_until(LIMIT, "it says what is missing", |status| {
            let error = status.source_error.as_ref();
            error.is_some_and(|error| error.class == SourceError::ColumnInvalid)
        })
        .await;
    execute(&sandbox, &to_lease).await;
    insert(&sandbox, 50, 20).await;
    expect(&sandbox, 600).await;

    set(&mut config, Claim::Lease, true);
    suspended(&mut relay, &config).await;
    insert(&sandbox, 50, 20).await;
    execute(&sandbox, &to_snapshot).await;
    insert(&sandbox, 50, 20).await;
    set(&mut config, Claim::Snapshot, false);
    relay.reconfigure(&config);
    expect(&sandbox, 700).await;
}
