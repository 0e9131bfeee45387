//! A server that crashes gives out again the ids of transactions that rolled back and were not flushed.

use super::super::{LIMIT, execute, value};
use super::{administer, blocking, own_postgres};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::RelayStart;
use fanout_relay::claim::snapshot::Limits;
use fanout_relay::claim::{Completion, Kind, Reader, Shards};
use fanout_relay::lease::{self, Member};
use fanout_relay::position;
use fanout_relay::source::Source;
use fanout_runtime::config::Files;
use fanout_tests::services::child::Signal;
use fanout_tests::services::pgbouncer::PgBouncer;
use fanout_tests::services::postgres::{Postgres, RELAY_ROLE};
use fanout_tests::{Sandbox, configs, eventually, services};
use sqlx::{Connection as _, PgConnection, Row as _};
use std::sync::Arc;

/// How the server crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    /// As a whole.
    Server,
    /// One of its processes is killed, as the kernel does when memory is short: it starts all others anew, and keeps its
    /// start time.
    Backend,
}

const ALL: Shards = Shards { lo: 0, hi: 64 };
const LIMITS: Limits = Limits {
    rows: 100,
    bytes: 1 << 20,
};

/// The sandbox's outbox through `pooler`, as a relay reaches it.
async fn pooled(sandbox: &Sandbox, pooler: &PgBouncer) -> Source {
    let url = pooler.url_as(RELAY_ROLE, &sandbox.database);
    let files = Files([(configs::URL_FILE.to_owned(), url.into_bytes())].into());
    Source::connect(&sandbox.relay_config(), &files)
        .await
        .unwrap()
}

async fn execute_on(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

/// Inserts a row; returns its transaction id.
async fn insert(connection: &mut PgConnection) -> i64 {
    let insert = "insert into outbox (topic, key, type) values ('posts', 'k', 't') returning xid::text::bigint";
    let row = sqlx::raw_sql(insert).fetch_one(connection).await.unwrap();
    row.get(0)
}

/// Signals a process of the server.
fn signal(pid: i32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Makes the server crash, `writer` being one of its sessions; returns a new session once it is back.
async fn strike(
    how: Crash,
    postgres: &Arc<Postgres>,
    sandbox: &Sandbox,
    mut writer: PgConnection,
    flusher: i32,
) -> PgConnection {
    let started = administer(postgres, "select pg_postmaster_start_time()").await;
    match how {
        Crash::Server => {
            let server = Arc::clone(postgres);
            blocking(move || server.kill().and_then(|()| server.start_again()).unwrap()).await;
        }
        Crash::Backend => {
            signal(flusher, Signal::KILL);
        }
    }
    let session = eventually(LIMIT, "the server is back", async || {
        // The old session may stand for a moment.
        let mut connection = PgConnection::connect(&sandbox.url).await?;
        sqlx::raw_sql("select 1").execute(&mut connection).await?;
        anyhow::ensure!(writer.ping().await.is_err(), "it has not crashed yet");
        anyhow::Ok(connection)
    })
    .await;
    if how == Crash::Backend {
        let now = administer(postgres, "select pg_postmaster_start_time()").await;
        assert_eq!(now, started, "the scene is set");
    }
    session
}

/// Reads through a pooler in transaction mode, which hides that the server was away; then stores what it read before.
async fn crash(test: &str, how: Crash) {
    let postgres = own_postgres().await;
    let kafka = blocking(services::kafka).await;
    let sandbox = Sandbox::with(test, &postgres, kafka).await;
    let server = Arc::clone(&postgres);
    let pooler = blocking(move || PgBouncer::start(&server).unwrap()).await;
    let source = pooled(&sandbox, &pooler).await;
    let topic = lease::register(&source, "cluster", "topic", RelayStart::Earliest)
        .await
        .unwrap();
    let owner = "a".to_owned();
    let member = Member { topic, owner };
    let view = lease::observe(&source, &member).await.unwrap();
    let range = &view.ranges[0];
    let taken = lease::acquire(&source, &member, range.id)
        .await
        .unwrap()
        .unwrap();
    let history = taken.history.clone();
    let mut reader = Reader::new(source.clone(), ALL, LIMITS, history, taken.position);
    assert_eq!(reader.next().await.unwrap().kind, Kind::Idle);

    let mut writer = PgConnection::connect(&sandbox.url).await.unwrap();
    // Nobody flushes what rolls back from here on.
    let flusher = "select pid from pg_stat_activity where backend_type = 'walwriter'";
    let flusher = administer(&postgres, flusher).await.parse().unwrap();
    signal(flusher, Signal::STOP);
    let mut aborted = 0;
    for _ in 0..5 {
        execute_on(&mut writer, "begin").await;
        aborted = insert(&mut writer).await;
        execute_on(&mut writer, "rollback").await;
    }
    let read = reader.next().await.unwrap();
    assert_eq!(read.kind, Kind::Idle, "nothing is committed");
    let Completion::Position(after) = read.after else {
        panic!("a reader moves a position");
    };
    let mut writer = strike(how, &postgres, &sandbox, writer, flusher).await;
    let mut first = None;
    loop {
        let xid = insert(&mut writer).await;
        first.get_or_insert(xid);
        if xid >= aborted {
            break;
        }
    }
    assert!(
        first.is_some_and(|first| first <= aborted),
        "the scene is set: {first:?} is given out again, {aborted} was the last"
    );

    // The pooler may answer the first with an error of its own; none may come as rows or as nothing due.
    let failure = reader.next().await.unwrap_err();
    assert_eq!(failure.class, SourceError::SourceUnreachable, "{failure:?}");
    let again = eventually(LIMIT, "an answer through the pooler", async || {
        let sql = position::append(&taken.fence, 1, &after, &taken.history);
        source.execute(sql).await.map_err(|failure| failure.message)
    })
    .await;
    assert_eq!(
        again, 0,
        "what was read before the crash is not stored after it"
    );
    assert_eq!(
        value(&sandbox, "select max(seq) from fanout.positions").await,
        Some("0".to_owned())
    );
    // What is stored is durable: from there nothing is missed.
    execute(
        &sandbox,
        "update fanout.leases set expires_at = clock_timestamp()",
    )
    .await;
    let taken = lease::acquire(&source, &member, range.id)
        .await
        .unwrap()
        .unwrap();
    let mut reader = Reader::new(source, ALL, LIMITS, taken.history, taken.position);
    let batch = reader.next().await.unwrap();
    let rows = value(&sandbox, "select count(*) from outbox").await;
    assert_eq!(Some(batch.len().to_string()), rows);
}

#[tokio::test]
async fn ids_given_out_again_after_a_crash_are_not_missed_behind_a_pooler() {
    crash("wild_crash", Crash::Server).await;
}

#[tokio::test]
async fn nor_after_one_backend_was_killed() {
    crash("wild_backend", Crash::Backend).await;
}
