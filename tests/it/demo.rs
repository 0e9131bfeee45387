//! The demo's application on real services: what the cluster's demo shows, without a cluster.

use fanout_contract::consumer::{Sink, SubscriptionConfig};
use fanout_tests::process::{Consumer, Relay};
use fanout_tests::services::child::{Process, Signal, Spec};
use fanout_tests::services::dirs;
use fanout_tests::{Sandbox, eventually, services};
use std::path::PathBuf;
use std::time::Duration;

const SIGNING_SECRET: &str = "whsec_UGxhbnRlZFNlY3JldCBzaWducyBmb3IgZGVtbyB0ZXN0cw==";
const SIGNING_FILE: &str = "search-uid.signing.0";
const FILTER: &str = r#"event.type == "post.created" && event.data.visibility == "public""#;

/// The demo's tables in a sandbox, and its URL as a file.
struct Demo {
    sandbox: Sandbox,
    url_file: PathBuf,
    runs: u32,
}

impl Demo {
    async fn new(test: &str) -> Self {
        let sandbox = Sandbox::new(test).await;
        let sql = dirs::tests_dir().join("demo/social.sql");
        services::postgres()
            .psql_file(&sandbox.database, &sql, &[])
            .unwrap();
        let url_file = sandbox.dir().join("app-url");
        std::fs::write(&url_file, &sandbox.app_url).unwrap();
        Self {
            sandbox,
            url_file,
            runs: 0,
        }
    }

    fn spawn(&mut self, command: &str, args: &[&str]) -> Process {
        self.runs += 1;
        let dir = self.sandbox.dir();
        let log = dir.join(format!("demo-{command}-{}.log", self.runs));
        Spec::new(env!("CARGO_BIN_EXE_fanout-demo"), dir, &log)
            .args([command, "--database-url-file"])
            .args([self.url_file.as_os_str()])
            .args(args)
            .spawn()
            .unwrap()
    }

    /// Runs a subcommand to its end; returns its exit status and what it printed.
    async fn run(&mut self, command: &str, args: &[&str]) -> (i32, String) {
        let process = self.spawn(command, args);
        let status = eventually(Duration::from_mins(2), command, async || {
            process.ended().ok_or_else(|| process.log())
        })
        .await;
        (status.code().unwrap_or(-1), process.log())
    }

    async fn write(&mut self, events: &str) {
        let (code, log) = self
            .run(
                "write",
                &[
                    "--events",
                    events,
                    "--rate",
                    "300",
                    "--open-milliseconds",
                    "600",
                ],
            )
            .await;
        assert_eq!(code, 0, "{log}");
    }

    /// A receiver and the base of its URL.
    async fn receiver(&mut self, args: &[&str]) -> (Process, String) {
        let listen = format!("{}:0", services::receiver_address());
        let mut all = vec!["--listen", &listen];
        all.extend(args);
        let process = self.spawn("receive", &all);
        let address = eventually(
            Duration::from_secs(30),
            "the receiver's address",
            async || {
                process
                    .ensure_running()
                    .map_err(|error| error.to_string())?;
                let log = process.log();
                let (_, rest) = log.split_once("address=").ok_or("not logged yet")?;
                rest.split_once('\n')
                    .map(|(address, _)| address.trim().to_owned())
                    .ok_or_else(|| "half logged".to_owned())
            },
        )
        .await;
        (process, format!("http://{address}"))
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query)
            .fetch_one(self.sandbox.pool())
            .await
            .unwrap()
    }
}

/// Relay, consumer and the three receivers of the demo's manifests.
struct System {
    _relay: Relay,
    _consumer: Consumer,
    _receivers: Vec<Process>,
    fast: String,
}

async fn system(demo: &mut Demo) -> System {
    let secret = demo.sandbox.dir().join("signing-secret");
    std::fs::write(&secret, SIGNING_SECRET).unwrap();
    let secret = secret.to_str().unwrap();
    let fast = demo.receiver(&["--signing-secret-file", secret]).await;
    let flaky = demo.receiver(&["--behaviour", "every-third-fails"]).await;
    let slow = demo
        .receiver(&["--behaviour", "slow", "--delay-milliseconds", "20"])
        .await;
    let subscription = |name: &str, base: &str| -> SubscriptionConfig {
        demo.sandbox.webhook(name, &format!("{base}/hooks/{name}"))
    };
    let mut search = subscription("search-index", &fast.1);
    search.filter = Some(FILTER.to_owned());
    let Sink::Webhook(webhook) = &mut search.sink;
    webhook.signing_secret_files = vec![SIGNING_FILE.to_owned()];
    let config = demo.sandbox.consumer_config(vec![
        subscription("analytics", &slow.1),
        subscription("notifications", &flaky.1),
        search,
    ]);
    let mut files = demo.sandbox.secret_files();
    files.insert(SIGNING_FILE.to_owned(), SIGNING_SECRET.into());
    System {
        _relay: Relay::start(&demo.sandbox, "relay-0", &demo.sandbox.relay_config()).await,
        _consumer: Consumer::start_with(&demo.sandbox, "pool-0", &config, files).await,
        fast: fast.1,
        _receivers: vec![fast.0, flaky.0, slow.0],
    }
}

/// The line of the report about `subscription`: numbers by column.
fn numbers(report: &str, subscription: &str) -> Vec<u64> {
    report
        .lines()
        .find_map(|line| line.strip_prefix(subscription))
        .unwrap_or_else(|| panic!("no line about {subscription} in\n{report}"))
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect()
}

const ORDER_BREAKS: usize = 4;
const MISSING: usize = 5;
const ROLLED_BACK: usize = 6;

async fn report(demo: &mut Demo) -> (i32, String) {
    let bootstrap = demo.sandbox.bootstrap.clone();
    let namespace = demo.sandbox.namespace.clone();
    demo.run(
        "report",
        &[
            "--bootstrap-servers",
            &bootstrap,
            "--namespace",
            &namespace,
            "--wait-seconds",
            "90",
        ],
    )
    .await
}

#[tokio::test]
async fn demo_writers_commit_business_rows_and_outbox_rows_together() {
    let mut demo = Demo::new("demo_write").await;
    demo.write("300").await;
    let committed = demo.count("select count(*) from social.events").await;
    assert!(committed >= 300, "{committed}");
    let alike = "select count(*) from social.events e join public.outbox o using (event_id, type)
                 where o.key = e.author";
    assert_eq!(demo.count(alike).await, committed);
    assert_eq!(
        demo.count("select count(*) from public.outbox").await,
        committed
    );
    // Numbers of rolled-back events are used again: no author has a gap.
    let gaps = "select count(*) from (select max(sequence) <> count(*) as gap from social.events group by author) a where gap";
    assert_eq!(demo.count(gaps).await, 0);
    assert!(
        demo.count("select max(id) from public.outbox").await > committed,
        "nothing was rolled back"
    );
}

#[tokio::test]
async fn demo_writers_stop_on_sigterm() {
    let mut demo = Demo::new("demo_stop").await;
    let process = demo.spawn("write", &["--open-milliseconds", "60000"]);
    eventually(
        Duration::from_secs(30),
        "a committed event",
        async || match demo.count("select count(*) from social.events").await {
            0 => Err("none"),
            count => Ok(count),
        },
    )
    .await;
    process.signal(Signal::TERM);
    let status = process.wait(Duration::from_secs(10)).unwrap();
    assert!(status.success(), "{}", process.log());
    assert!(process.log().contains("stopped"), "{}", process.log());
}

#[tokio::test]
async fn demo_report_finds_everything_delivered() {
    let mut demo = Demo::new("demo_sound").await;
    let _system = system(&mut demo).await;
    demo.write("600").await;
    let (code, text) = report(&mut demo).await;
    assert_eq!(code, 0, "{text}");
    let committed = demo.count("select count(*) from social.events").await;
    for name in ["search-index", "notifications", "analytics"] {
        let row = numbers(&text, name);
        assert_eq!(row[0], committed.unsigned_abs(), "{text}");
        assert_eq!(row[1], row[2], "{text}");
        assert_eq!(row[ORDER_BREAKS..], [0, 0, 0, 0, 0], "{text}");
    }
    assert!(numbers(&text, "search-index")[1] < numbers(&text, "analytics")[1]);
    let failed = "select count(*) from social.receipts where status = 503";
    assert!(
        demo.count(failed).await > 100,
        "the flaky receiver did not fail"
    );
}

/// Plants `fault`, writes, and expects the report to see it in `column` of the fast receiver.
async fn caught(fault: &str, column: usize) {
    let mut demo = Demo::new(&format!("demo_{fault}")).await;
    let system = system(&mut demo).await;
    demo.write("100").await;
    let bootstrap = demo.sandbox.bootstrap.clone();
    let namespace = demo.sandbox.namespace.clone();
    let args = [
        fault,
        "--receiver",
        &system.fast,
        "--bootstrap-servers",
        &bootstrap,
        "--namespace",
        &namespace,
    ];
    let (code, log) = demo.run("fault", &args).await;
    assert_eq!(code, 0, "{log}");
    demo.write("300").await;
    let (code, text) = report(&mut demo).await;
    assert_eq!(code, 1, "{text}");
    let row = numbers(&text, "search-index");
    for (number, count) in row.iter().enumerate().skip(ORDER_BREAKS).take(3) {
        assert_eq!(
            *count,
            u64::from(number == column),
            "column {number} of\n{text}"
        );
    }
}

#[tokio::test]
async fn demo_report_finds_a_lost_event() {
    caught("lose", MISSING).await;
}

#[tokio::test]
async fn demo_report_finds_a_swap() {
    caught("swap", ORDER_BREAKS).await;
}

#[tokio::test]
async fn demo_report_finds_a_delivered_rollback() {
    caught("rollback", ROLLED_BACK).await;
}
