//! A standby is promoted: nothing that the new primary has is lost.

use super::super::LIMIT;
use super::{administer, blocking, own_postgres};
use fanout_tests::checker::Checker;
use fanout_tests::checker::load::{Load, Options};
use fanout_tests::faults::postgres_proxy::PostgresProxy;
use fanout_tests::process::Relay;
use fanout_tests::services::pgbouncer::PgBouncer;
use fanout_tests::services::postgres::{Postgres, RELAY_ROLE};
use fanout_tests::{Sandbox, configs, eventually, services};
use std::sync::Arc;
use std::time::Duration;

/// Whether a commit waits for the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replication {
    Synchronous,
    Asynchronous,
}

/// Who stands between the relay and the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Direct,
    Pooler,
}

/// From here on a commit waits until the standby has it.
async fn wait_for_the_standby(primary: &Arc<Postgres>) {
    let settings = "alter system set synchronous_standby_names = '*'; select pg_reload_conf()";
    administer(primary, settings).await;
    eventually(LIMIT, "commits wait", async || {
        let state = "select max(sync_state) from pg_stat_replication";
        let state = administer(primary, state).await;
        if state == "sync" { Ok(()) } else { Err(state) }
    })
    .await;
}

/// From here on the standby gets nothing more.
async fn leave_behind(primary: &Arc<Postgres>, standby: &Arc<Postgres>) {
    let settings = "alter system set primary_conninfo = ''; select pg_reload_conf()";
    administer(standby, settings).await;
    eventually(LIMIT, "nothing is replicated", async || {
        let count = administer(primary, "select count(*) from pg_stat_replication").await;
        if count == "0" { Ok(()) } else { Err(count) }
    })
    .await;
}

async fn failover(test: &str, replication: Replication, path: Path) {
    let primary = own_postgres().await;
    let kafka = blocking(services::kafka).await;
    let proxy = PostgresProxy::start(&primary).await.unwrap();
    let sandbox = Sandbox::through(test, &primary, kafka, proxy.port()).await;
    let server = Arc::clone(&primary);
    let standby = blocking(move || Arc::new(server.standby().unwrap())).await;
    if replication == Replication::Synchronous {
        wait_for_the_standby(&primary).await;
    }
    let mut files = sandbox.secret_files();
    let port = proxy.port();
    let pooler = match path {
        Path::Direct => None,
        Path::Pooler => Some(blocking(move || PgBouncer::before(port).unwrap()).await),
    };
    if let Some(pooler) = &pooler {
        let url = pooler.url_as(RELAY_ROLE, &sandbox.database);
        files.insert(configs::URL_FILE.to_owned(), url.into_bytes());
    }
    let relay = Relay::start_with(&sandbox, "a", &sandbox.relay_config(), files).await;
    let options = Options {
        transactions: 1_500,
        prepared: false,
        hold: Duration::from_millis(500),
        rest: Duration::from_millis(10),
        ..Options::default()
    };
    let load = Load::start(&sandbox, &options).await;
    let published = relay
        .wait_until(LIMIT, "it publishes", |status| status.published_total > 300)
        .await
        .published_total;
    if replication == Replication::Asynchronous {
        // What is committed and published from here on, the new primary will not have.
        leave_behind(&primary, &standby).await;
        relay
            .wait_until(LIMIT, "it publishes what will be lost", |status| {
                status.published_total > published + 200
            })
            .await;
    }
    let server = Arc::clone(&primary);
    blocking(move || server.kill().unwrap()).await;
    proxy.lead_to(&standby);
    assert_eq!(
        administer(&standby, "select pg_promote(true, 60)").await,
        "t"
    );
    let journal = load.finish().await;
    let checker = match replication {
        Replication::Synchronous => Checker::new(&sandbox, &journal).await,
        // The database itself forgot what was confirmed.
        Replication::Asynchronous => Checker::of_outbox(&sandbox).await,
    };
    let mut verdict = Checker::settle(LIMIT, async || checker.judge_log().await).await;
    if replication == Replication::Asynchronous {
        assert!(verdict.rolled_back > 0, "the scene is set: {verdict:?}");
        verdict.rolled_back = 0;
    }
    assert!(verdict.is_sound(), "{verdict:?}");
    relay
        .wait_until(LIMIT, "it is well", |status| {
            status.source_error.is_none() && status.ranges.len() == 2
        })
        .await;
    // The load went on after the failover, and the position is one of the new timeline.
    let timeline = "select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    let stored = super::super::value(&sandbox, "select max(timeline) from fanout.positions").await;
    assert_eq!(stored, Some(administer(&standby, timeline).await));
    assert_ne!(stored.as_deref(), Some("00000001"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_synchronous_standby_loses_nothing() {
    failover("wild_sync", Replication::Synchronous, Path::Direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_to_an_asynchronous_standby_all_it_has_is_published() {
    failover("wild_async", Replication::Asynchronous, Path::Pooler).await;
}
