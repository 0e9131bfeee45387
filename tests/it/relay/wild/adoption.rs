//! A dump restored into a new server publishes nothing until it is accepted, and then everything.

use super::super::{LIMIT, insert, sandbox};
use super::{arrived, own_postgres};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{RelayConfig, RelayStatus};
use fanout_tests::process::Relay;
use fanout_tests::services::postgres::{Postgres, RELAY_ROLE};
use fanout_tests::{Sandbox, configs, eventually, services};
use sqlx::{Connection as _, PgConnection, Row as _};
use std::collections::HashSet;
use std::sync::Arc;

fn changed(status: &RelayStatus, part: &str) -> bool {
    status.source_error.as_ref().is_some_and(|error| {
        error.class == SourceError::SourceChanged && error.message.contains(part)
    })
}

/// The statement in the last part of a message.
fn statement(status: &RelayStatus) -> String {
    let message = &status.source_error.as_ref().unwrap().message;
    message.rsplit_once(": ").unwrap().1.to_owned()
}

/// Dumps the sandbox's database and restores it as `restored` on another server.
async fn restore(sandbox: &Sandbox, target: &Arc<Postgres>) {
    let (from, to) = (sandbox.url.clone(), target.url("restored"));
    let server = target.clone();
    super::blocking(move || {
        server
            .psql("postgres", "create database restored template template0", &[])
            .unwrap();
        let command = format!(
            "set -e -o pipefail; pg_dump '{from}' | psql -X -q -v ON_ERROR_STOP=1 -d '{to}' > /dev/null"
        );
        services::run(std::process::Command::new("bash").args(["-c", &command])).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_restored_database_is_published_once_it_is_accepted() {
    let sandbox = sandbox("wild_restore").await;
    insert(&sandbox, 20, 5).await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 20)
        .await;
    assert!(relay.terminate().await.success());
    // Committed, not published, and in the dump.
    insert(&sandbox, 10, 5).await;
    let target = own_postgres().await;
    restore(&sandbox, &target).await;
    let mut files = sandbox.secret_files();
    let url = target.url_as(RELAY_ROLE, "restored");
    files.insert(configs::URL_FILE.to_owned(), url.into_bytes());
    let mut config = sandbox.relay_config();
    let mut relay = Relay::start_with(&sandbox, "b", &config, files).await;
    let mut restored = PgConnection::connect(&target.url("restored"))
        .await
        .unwrap();
    let here: i64 = sqlx::raw_sql("select system_identifier from pg_control_system()")
        .fetch_one(&mut restored)
        .await
        .unwrap()
        .get(0);
    // It says which id would release it.
    let named = format!("accept-source: \"{here}\"");
    relay
        .wait_until(LIMIT, "it stops", |status| changed(status, &named))
        .await;
    // Another server's id does not.
    config.accept_source = Some((here - 1).to_string());
    relay.reconfigure(&config);
    let hash = relay.config_hash();
    relay
        .wait_until(LIMIT, "it still stops", |status| {
            status.config_hash == hash && changed(status, &named)
        })
        .await;
    // Nor does the right one while rows can't be read in order.
    config.accept_source = Some(here.to_string());
    relay.reconfigure(&config);
    let status = relay
        .wait_until(LIMIT, "it names the rows", |status| {
            changed(status, "set xid = default")
        })
        .await;
    assert_eq!((status.published_total, status.ranges.len()), (0, 0));
    let stamp = statement(&status);
    sqlx::raw_sql(sqlx::AssertSqlSafe(stamp))
        .execute(&mut restored)
        .await
        .unwrap();
    sqlx::raw_sql(
        "insert into outbox (topic, key, type, subject) values ('posts', 'k', 't', 'k/0')",
    )
    .execute(&mut restored)
    .await
    .unwrap();
    let committed: HashSet<String> = sqlx::query_scalar("select event_id::text from outbox")
        .fetch_all(&mut restored)
        .await
        .unwrap()
        .into_iter()
        .collect();
    assert_eq!(committed.len(), 31);
    eventually(LIMIT, "everything arrives", async || {
        let missing = committed.difference(&arrived(&sandbox).await).count();
        if missing == 0 { Ok(()) } else { Err(missing) }
    })
    .await;
    let status = relay
        .wait_until(LIMIT, "it is well", |status| {
            status.source_error.is_none() && status.published_total == 31
        })
        .await;
    assert_eq!(status.ranges.len(), 2);
    goes_on_unaccepted(&mut relay, config).await;
}

/// The database is the topic's own now, with or without the annotation.
async fn goes_on_unaccepted(relay: &mut Relay, mut config: RelayConfig) {
    config.accept_source = None;
    relay.reconfigure(&config);
    let hash = relay.config_hash();
    relay
        .wait_until(LIMIT, "it goes on", |status| {
            status.config_hash == hash && status.source_checked && status.ranges.len() == 2
        })
        .await;
    assert_eq!(relay.status().await.unwrap().published_total, 31);
}

/// As `pg_upgrade` does: positions and rows came physically, the system has another name.
#[tokio::test]
async fn a_position_that_came_physically_is_kept() {
    let sandbox = sandbox("wild_upgrade").await;
    insert(&sandbox, 20, 5).await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 20)
        .await;
    assert!(relay.terminate().await.success());
    super::super::execute(
        &sandbox,
        "insert into fanout.positions (range_id, term, seq, old, system_identifier, timeline)
         select distinct on (range_id) range_id, term, seq + 1, old, 4711, timeline
           from fanout.positions order by range_id, term desc, seq desc",
    )
    .await;
    let mut config = sandbox.relay_config();
    let mut relay = Relay::start(&sandbox, "b", &config).await;
    relay
        .wait_until(LIMIT, "it stops", |status| changed(status, "4711"))
        .await;
    insert(&sandbox, 3, 3).await;
    let here = "select system_identifier from pg_control_system()";
    config.accept_source = super::super::value(&sandbox, here).await;
    relay.reconfigure(&config);
    relay
        .wait_until(LIMIT, "only what is new", |status| {
            status.published_total == 3 && status.ranges.len() == 2
        })
        .await;
    assert_eq!(arrived(&sandbox).await.len(), 23);
}
