//! From commit to webhook: real relays and consumers, judged by the checker.

use fanout_contract::consumer::{Sink, SubscriptionConfig};
use fanout_tests::checker::Checker;
use fanout_tests::checker::load::{self, Journal, Load, Options};
use fanout_tests::checker::outbox::Row;
use fanout_tests::checker::writer::Writer;
use fanout_tests::process::{Consumer, Files, Relay};
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::services::child::Signal;
use fanout_tests::services::kafka::Kafka;
use fanout_tests::verdict::{self, Verdict};
use fanout_tests::{Deadline, Sandbox, eventually, services};
use std::time::Duration;

/// A stopped relay is relieved and a dead member thrown out well within this.
const SETTLE: Duration = Duration::from_mins(1);
/// For the writers, on a busy machine.
const LOADED: Duration = Duration::from_mins(5);
const SIGNING_FILE: &str = "signed-uid.signing.0";

/// The subscription `name` of `receiver` with `files` that hold its secrets.
struct Subscriber {
    receiver: Receiver,
    subscription: SubscriptionConfig,
}

impl Subscriber {
    async fn new(
        sandbox: &Sandbox,
        name: &str,
        behaviour: fanout_tests::receiver::Behaviour,
    ) -> Self {
        let receiver = Receiver::start(sandbox, name, behaviour).await;
        let subscription = sandbox.webhook(name, receiver.url());
        Self {
            receiver,
            subscription,
        }
    }

    fn signed(mut self) -> Self {
        let Sink::Webhook(webhook) = &mut self.subscription.sink;
        webhook.signing_secret_files = vec![SIGNING_FILE.to_owned()];
        self
    }

    fn filtered(mut self, filter: &str) -> Self {
        self.subscription.filter = Some(filter.to_owned());
        self
    }

    /// Waits until nothing is missing or queued, or nothing moves any more, and judges.
    async fn settled(
        &self,
        checker: &Checker<'_>,
        wants: impl Fn(&Row) -> bool,
    ) -> (String, Verdict) {
        let verdict = Checker::settle(SETTLE, async || {
            checker
                .judge_receiver(&self.receiver, &self.subscription, &wants)
                .await
        })
        .await;
        (self.subscription.name.clone(), verdict)
    }
}

fn files(sandbox: &Sandbox) -> Files {
    let mut files = sandbox.secret_files();
    let secret = "whsec_UGxhbnRlZFNlY3JldCBzaWducyBmb3IgZW5kIHRlc3Rz";
    files.insert(SIGNING_FILE.to_owned(), secret.as_bytes().to_vec());
    files
}

fn assert_sound(rows: &[(String, Verdict)]) {
    let table = verdict::table(rows);
    for (name, verdict) in rows {
        assert!(
            verdict.is_sound(),
            "{name}: {:#?}\n{table}",
            verdict.examples
        );
        let open = verdict.queued + verdict.dead_lettered;
        assert_eq!(open, 0, "{name} has not got everything\n{table}");
    }
    eprintln!("{table}");
}

async fn load_until(load: &Load, transactions: u64) {
    eventually(
        LOADED,
        &format!("{transactions} transactions"),
        async || {
            let done = load.done();
            if done >= transactions {
                Ok(())
            } else {
                Err(done)
            }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_events_reach_every_subscriber_in_order() {
    let sandbox = Sandbox::new("end_to_end").await;
    let plain = Subscriber::new(&sandbox, "plain", behave::ok()).await;
    let signed = Subscriber::new(&sandbox, "signed", behave::ok())
        .await
        .signed();
    let filtered = Subscriber::new(&sandbox, "filtered", behave::ok())
        .await
        .filtered(r#"event.type == "post.deleted""#);
    let subscribers = [&filtered, &plain, &signed];
    let relay = Relay::start(&sandbox, "relay-0", &sandbox.relay_config()).await;
    let config = sandbox.consumer_config(subscribers.map(|s| s.subscription.clone()).to_vec());
    let _consumer = Consumer::start_with(&sandbox, "pool-0", &config, files(&sandbox)).await;

    let options = Options {
        transactions: 300,
        hold: Duration::from_secs(1),
        ..Options::default()
    };
    let journal = Load::start(&sandbox, &options).await.finish().await;
    let checker = Checker::new(&sandbox, &journal).await;
    let log = Checker::settle(SETTLE, async || checker.judge_log().await).await;
    let mut rows = vec![("log".to_owned(), log)];
    rows.push(plain.settled(&checker, |_| true).await);
    rows.push(signed.settled(&checker, |_| true).await);
    rows.push(
        filtered
            .settled(&checker, |row| row.r#type == "post.deleted")
            .await,
    );
    assert_sound(&rows);
    assert_eq!(rows[0].1.duplicates, 0, "nothing crashed");
    let status = relay.status().await.unwrap();
    assert_eq!((status.parked.rows, status.parked.held), (0, 0));
}

/// Each worker is killed once while writers write and endpoints fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_workers_lose_nothing_and_keep_the_order() {
    let sandbox = Sandbox::new("worker_faults").await;
    let steady = Subscriber::new(&sandbox, "steady", behave::ok()).await;
    let flaky = Subscriber::new(&sandbox, "flaky", behave::every_nth_fails(3)).await;
    let subscribers = [&flaky, &steady];
    let mut relays = [
        Relay::start(&sandbox, "relay-0", &sandbox.relay_config()).await,
        Relay::start(&sandbox, "relay-1", &sandbox.relay_config()).await,
    ];
    let config = sandbox.consumer_config(subscribers.map(|s| s.subscription.clone()).to_vec());
    let mut consumers = [
        Consumer::start(&sandbox, "pool-0", &config).await,
        Consumer::start(&sandbox, "pool-1", &config).await,
    ];

    let options = Options {
        transactions: 4_000,
        hold: Duration::from_secs(1),
        ..Options::default()
    };
    let load = Load::start(&sandbox, &options).await;
    load_until(&load, 800).await;
    relays[0].kill();
    load_until(&load, 1_200).await;
    consumers[0].kill();
    load_until(&load, 1_600).await;
    relays[0].start_again().await;
    consumers[0].start_again().await;
    load_until(&load, 2_400).await;
    relays[1].kill();
    consumers[1].kill();
    load_until(&load, 3_200).await;
    relays[1].start_again().await;
    consumers[1].start_again().await;
    let journal = load.finish().await;

    let checker = Checker::new(&sandbox, &journal).await;
    let log = Checker::settle(SETTLE, async || checker.judge_log().await).await;
    let mut rows = vec![("log".to_owned(), log)];
    rows.push(steady.settled(&checker, |_| true).await);
    rows.push(flaky.settled(&checker, |_| true).await);
    assert_sound(&rows);
    for worker in &relays {
        assert!(
            worker.ended().is_none(),
            "a relay that was started again runs"
        );
    }
    for worker in &consumers {
        assert!(
            worker.ended().is_none(),
            "a consumer that was started again runs"
        );
    }
}

/// What happens to the broker in the middle of the load.
async fn broker_fault(test: &str, strike: impl FnOnce(&Kafka) + Send + 'static) {
    let kafka = tokio::task::spawn_blocking(|| Kafka::start().unwrap())
        .await
        .unwrap();
    let postgres = tokio::task::spawn_blocking(services::postgres)
        .await
        .unwrap();
    let sandbox = Sandbox::with(test, postgres, &kafka).await;
    let hook = Subscriber::new(&sandbox, "hook", behave::ok()).await;
    let _relay = Relay::start(&sandbox, "relay-0", &sandbox.relay_config()).await;
    let config = sandbox.consumer_config(vec![hook.subscription.clone()]);
    let _consumers = [
        Consumer::start(&sandbox, "pool-0", &config).await,
        Consumer::start(&sandbox, "pool-1", &config).await,
    ];
    let options = Options {
        transactions: 1_500,
        hold: Duration::from_secs(1),
        ..Options::default()
    };
    let load = Load::start(&sandbox, &options).await;
    load_until(&load, 500).await;
    let kafka = tokio::task::spawn_blocking(move || {
        strike(&kafka);
        kafka
    })
    .await
    .unwrap();
    let journal = load.finish().await;
    let checker = Checker::new(&sandbox, &journal).await;
    let log = Checker::settle(SETTLE, async || checker.judge_log().await).await;
    assert_sound(&[
        ("log".to_owned(), log),
        hook.settled(&checker, |_| true).await,
    ]);
    drop(kafka);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_broker_that_is_killed_lose_nothing() {
    broker_fault("broker_killed", |kafka| {
        kafka.kill();
        kafka.start_again().unwrap();
    })
    .await;
}

/// First for longer than the sessions of the groups, so that members are thrown out before they can answer; then
/// again and again for as long as the controller takes to believe the broker dead: it then vanishes from its own
/// metadata, and clients forget it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_broker_that_stalls_lose_nothing() {
    broker_fault("broker_stalls", |kafka| {
        let wait = |seconds| {
            let over = Deadline::after(Duration::from_secs(seconds));
            while !over.passed() {
                std::thread::park_timeout(over.left());
            }
        };
        for stall in [15, 7, 7, 7] {
            kafka.signal(Signal::STOP);
            wait(stall);
            kafka.signal(Signal::CONT);
            wait(2);
        }
    })
    .await;
}

/// Others commit for a minute while one writing transaction stays open.
#[tokio::test]
async fn a_transaction_open_for_a_minute_holds_nobody_back() {
    let sandbox = Sandbox::new("open_minute").await;
    let hook = Subscriber::new(&sandbox, "hook", behave::ok()).await;
    let _relay = Relay::start(&sandbox, "relay-0", &sandbox.relay_config()).await;
    let config = sandbox.consumer_config(vec![hook.subscription.clone()]);
    let _consumer = Consumer::start(&sandbox, "pool-0", &config).await;
    load::create_keys(&sandbox, 2).await;
    let connect = async || {
        Writer::connect(&sandbox.app_url, &sandbox.topic_name)
            .await
            .unwrap()
    };
    let (mut late, mut others) = (connect().await, connect().await);
    let received = async |id: &str| -> bool {
        sqlx::query_scalar("select exists (select from harness.received where event_id = $1)")
            .bind(id)
            .fetch_one(sandbox.pool())
            .await
            .unwrap()
    };
    let arrives = async |id: &str| {
        eventually(Duration::from_secs(30), "an event arrives", async || {
            received(id).await.then_some(()).ok_or("not yet")
        })
        .await;
    };

    late.begin().await.unwrap();
    let held_back = late.write("key-0").await.unwrap();
    let minute = Deadline::after(Duration::from_mins(1));
    while !minute.passed() {
        others.begin().await.unwrap();
        let id = others.write("key-1").await.unwrap();
        others.commit().await.unwrap();
        arrives(&id).await;
    }
    assert!(!received(&held_back).await, "it is not committed");
    late.commit().await.unwrap();
    arrives(&held_back).await;

    let mut journal: Journal = late.into_journal();
    journal.merge(others.into_journal());
    let checker = Checker::new(&sandbox, &journal).await;
    let log = Checker::settle(SETTLE, async || checker.judge_log().await).await;
    assert_sound(&[
        ("log".to_owned(), log),
        hook.settled(&checker, |_| true).await,
    ]);
}
