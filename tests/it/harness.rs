//! The harness itself: what every other test relies on.

use fanout_tests::receiver::{Answer, Receiver, behave};
use fanout_tests::services::postgres::PASSWORD;
use fanout_tests::{Sandbox, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use sqlx::{Connection as _, PgConnection, Row as _};
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

#[tokio::test]
async fn roles_need_their_password_and_have_their_rights_only() {
    let sandbox = Sandbox::new("harness_roles").await;
    let wrong = sandbox.app_url.replace(PASSWORD, "wrong");
    let refused = PgConnection::connect(&wrong).await.unwrap_err();
    assert!(refused.to_string().contains("password"), "{refused}");
    let mut app = PgConnection::connect(&sandbox.app_url).await.unwrap();
    let refused = sqlx::query("delete from public.outbox")
        .execute(&mut app)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("permission denied"),
        "{refused}"
    );
    let mut relay = PgConnection::connect(&sandbox.relay_url).await.unwrap();
    sqlx::query("select from public.outbox, fanout.schema_version")
        .execute(&mut relay)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_pooler_gives_transactions_different_server_connections() {
    let sandbox = Sandbox::new("harness_pooler").await;
    let url = sandbox.pooled_relay_url().await;
    let pid = "select pg_backend_pid()";
    let mut first = PgConnection::connect(&url).await.unwrap();
    let mut second = PgConnection::connect(&url).await.unwrap();
    let read = async |connection: &mut PgConnection| -> i32 {
        sqlx::raw_sql(pid)
            .fetch_one(connection)
            .await
            .unwrap()
            .get(0)
    };
    // Without a transaction of its own, a connection leaves its server connection to the other.
    let shared = read(&mut first).await;
    assert_eq!(read(&mut second).await, shared);
    sqlx::raw_sql("begin").execute(&mut first).await.unwrap();
    let kept = read(&mut first).await;
    assert_ne!(read(&mut second).await, kept);
}

#[tokio::test]
async fn a_receiver_records_what_it_answers() {
    let sandbox = Sandbox::new("harness_receiver").await;
    let answers = vec![
        Answer::RetryAfter(429, "7".to_owned()),
        Answer::Redirect("http://198.18.0.1:1/".to_owned()),
    ];
    let receiver = Receiver::start(&sandbox, "hook", behave::sequence(answers)).await;
    fanout_runtime::tls::install_ring_provider();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let post = async |id: &str| {
        client
            .post(receiver.url())
            .header("ce-id", id)
            .body(format!("body of {id}"))
            .send()
            .await
            .unwrap()
    };
    let limited = post("a").await;
    assert_eq!(
        (limited.status().as_u16(), &limited.headers()["retry-after"]),
        (429, &"7".parse().unwrap())
    );
    assert_eq!(post("a").await.status(), 302);
    assert_eq!(post("b").await.status(), 200);
    let recorded: Vec<(String, Option<i32>, Vec<u8>)> = sqlx::query_as(
        "select event_id, status, body from harness.received where receiver = 'hook' order by seq",
    )
    .fetch_all(sandbox.pool())
    .await
    .unwrap();
    let row = |id: &str, status| {
        (
            id.to_owned(),
            Some(status),
            format!("body of {id}").into_bytes(),
        )
    };
    assert_eq!(recorded, [row("a", 429), row("a", 302), row("b", 200)]);
    assert_eq!(receiver.requests(), 3);
}

#[tokio::test]
async fn a_hanging_receiver_answers_when_it_is_released() {
    let sandbox = Sandbox::new("harness_hang").await;
    let receiver = Receiver::start(&sandbox, "hook", behave::always(Answer::Hang)).await;
    fanout_runtime::tls::install_ring_provider();
    let request = reqwest::Client::new().post(receiver.url()).send();
    let answer = tokio::spawn(request);
    eventually(Duration::from_secs(10), "the request arrives", async || {
        (receiver.requests() == 1).then_some(()).ok_or("not yet")
    })
    .await;
    assert!(!answer.is_finished());
    receiver.release();
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_behaviour_sees_attempts_and_numbers() {
    let sandbox = Sandbox::new("harness_behaviour").await;
    let receiver = Receiver::start(
        &sandbox,
        "hook",
        behave::attempts(vec![Answer::Status(503)]),
    )
    .await;
    fanout_runtime::tls::install_ring_provider();
    let client = reqwest::Client::new();
    let post = async |id: &str| {
        let request = client.post(receiver.url()).header("ce-id", id);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(
        [post("a").await, post("b").await, post("a").await],
        [503, 503, 200]
    );
    receiver.set(behave::every_nth_fails(2));
    assert_eq!([post("c").await, post("d").await], [500, 200]);
}

/// Runs another test of this binary as a process of its own, kills it while its servers run, and looks for them.
#[tokio::test]
async fn nothing_survives_a_fault_that_kills_the_test_process() {
    let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "harness::a_sandbox_has_topics_of_its_own"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mark = format!("/{}-", victim.id());
    let minute = Duration::from_mins(1);
    let servers = eventually(minute, "both servers run", async || {
        assert!(victim.try_wait().unwrap().is_none(), "it ended by itself");
        let found = processes_of(&mark);
        let runs = |name: &str| found.iter().any(|(_, command)| command.starts_with(name));
        if runs("java") && runs("/usr/lib/postgresql") {
            Ok(found)
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually(minute, "all are gone", async || {
        let left: Vec<_> = servers.iter().filter(|(pid, _)| is_alive(*pid)).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
    .await;
    fanout_tests::services::dirs::remove_dead().unwrap();
    let folders = std::fs::read_dir(fanout_tests::services::dirs::runs().unwrap()).unwrap();
    let prefix = mark.trim_start_matches('/');
    let left: Vec<_> = folders
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(prefix))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Process ids and command lines that contain `mark`, which only servers of that process have.
fn processes_of(mark: &str) -> Vec<(u32, String)> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let command = command.replace('\0', " ");
            let dir = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            let marked = command.contains(mark) || dir.to_string_lossy().contains(mark);
            marked.then_some((pid, command))
        })
        .collect()
}

/// A process that has ended but was not waited for by its new parent is not alive.
fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .starts_with(" Z")
    })
}
