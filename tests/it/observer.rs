//! The operator's observer against a real broker and workers played by small HTTP servers.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use fanout_contract::consumer::{
    ConsumerStatus, PartitionStatus, StopReason, SubscriptionState, SubscriptionStatus,
};
use fanout_contract::kafka::{KafkaCredentials, Mechanism};
use fanout_contract::relay::{Pending, RangeStatus, RelayStatus};
use fanout_operator::kafka::{ClusterParams, Clusters, CommitOutcome, ErrorClass, NewTopic};
use fanout_operator::observer::{
    Head, Log, Observer, Shown, SubscriptionTarget, Targets, Timing, TopicTarget, Trigger,
    TriggerKind, WorkerKind, WorkerStatus, WorkerTarget,
};
use fanout_tests::{eventually, services};
use prometheus_client::registry::Registry;
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

const LIMIT: Duration = Duration::from_secs(30);
const OLDEST: &str = "2026-01-02T03:04:05Z";

/// What a worker answers; changed by the test while it runs.
#[derive(Clone)]
enum Answer {
    Status(serde_json::Value),
    Code(u16),
    Endless,
    Nothing,
}

type Answers = Arc<Mutex<Answer>>;

async fn status(State(answers): State<Answers>) -> Response {
    let answer = answers.lock().unwrap().clone();
    match answer {
        Answer::Status(status) => Json(status).into_response(),
        Answer::Code(code) => StatusCode::from_u16(code).unwrap().into_response(),
        Answer::Endless => " ".repeat(64 << 20).into_response(),
        Answer::Nothing => std::future::pending().await,
    }
}

/// A worker's admin server, until the test ends.
async fn worker(first: Answer) -> (SocketAddr, Answers) {
    let answers = Arc::new(Mutex::new(first));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/status", get(status))
        .with_state(Arc::clone(&answers));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (addr, answers)
}

#[derive(Default)]
struct Lists {
    workers: Vec<WorkerTarget>,
    topics: Vec<TopicTarget>,
}

#[derive(Clone, Default)]
struct Listed(Arc<Mutex<Lists>>);

impl Targets for Listed {
    fn workers(&self) -> Vec<WorkerTarget> {
        self.0.lock().unwrap().workers.clone()
    }

    fn topics(&self) -> Vec<TopicTarget> {
        self.0.lock().unwrap().topics.clone()
    }
}

/// A running observer and what it is given to look at.
struct Running {
    observer: Arc<Observer>,
    registry: Registry,
    listed: Listed,
    _stop: DropGuard,
}

impl Running {
    fn start() -> Self {
        fanout_runtime::tls::install_ring_provider();
        let mut registry = Registry::default();
        let timing = Timing {
            tick: Duration::from_millis(20),
            workers: Duration::from_millis(100),
            logs: Duration::from_millis(200),
        };
        let observer = Observer::new(Arc::new(Clusters::new()), timing, &mut registry).unwrap();
        let (observer, listed) = (Arc::new(observer), Listed::default());
        let shutdown = CancellationToken::new();
        let (running, targets, token) = (Arc::clone(&observer), listed.clone(), shutdown.clone());
        tokio::spawn(async move { running.run(&targets, token).await });
        Self {
            observer,
            registry,
            listed,
            _stop: shutdown.drop_guard(),
        }
    }

    fn list(&self, workers: Vec<WorkerTarget>, topics: Vec<TopicTarget>) {
        *self.listed.0.lock().unwrap() = Lists { workers, topics };
    }

    /// Collects triggers until `wanted` is among them.
    async fn wait_for(&self, kind: TriggerKind, name: &str) {
        let wanted = Trigger {
            kind,
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        };
        let mut seen = BTreeSet::new();
        let waiting = async {
            while !seen.contains(&wanted) {
                seen.append(&mut self.observer.triggers().await);
            }
        };
        let result = tokio::time::timeout(LIMIT, waiting).await;
        assert!(result.is_ok(), "no trigger {wanted:?}, only {seen:?}");
    }

    fn scrape(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

fn target(kind: WorkerKind, pod: &str, addr: SocketAddr) -> WorkerTarget {
    WorkerTarget {
        kind,
        namespace: "ns".to_owned(),
        topic: "posts".to_owned(),
        worker: match kind {
            WorkerKind::Relay => "posts-relay".to_owned(),
            WorkerKind::Consumer => "posts-pool-0".to_owned(),
        },
        pod: pod.to_owned(),
        pod_uid: format!("uid-{pod}"),
        addr,
    }
}

fn params(bootstrap: &str) -> ClusterParams {
    ClusterParams {
        bootstrap_servers: bootstrap.to_owned(),
        mechanism: Mechanism::None,
        credentials: KafkaCredentials::default(),
    }
}

fn topic(name: &str, log: Log, subscriptions: &[&str]) -> TopicTarget {
    TopicTarget {
        uid: format!("uid-{name}"),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        relay: format!("{name}-relay"),
        shown: Shown::default(),
        subscriptions: subscriptions
            .iter()
            .map(|subscription| SubscriptionTarget {
                uid: format!("uid-{subscription}"),
                name: (*subscription).to_owned(),
                group_id: format!("{}.{subscription}", log.topic),
                shown: Shown::default(),
                topic_id: None,
                scaling: None,
                worker: None,
                is_served: true,
            })
            .collect(),
        log: Some(log),
    }
}

/// A Kafka topic of two partitions with `records` in the first, and a group for each Subscription that has completed
/// that many of them.
async fn kafka_topic(records: i64, groups: &[(&str, i64)]) -> Log {
    let kafka = tokio::task::spawn_blocking(services::kafka).await.unwrap();
    let log = Log {
        params: params(&kafka.bootstrap()),
        consumer: params(&kafka.bootstrap()),
        settings: Vec::new(),
        topic: format!("observed-{:08x}", rand::random::<u32>()),
    };
    let cluster = Clusters::new().get(&log.params).await.unwrap();
    let new = NewTopic {
        name: log.topic.clone(),
        partitions: Some(2),
        ..NewTopic::default()
    };
    cluster.create_topic(&new).await.unwrap();
    produce(&log.topic, records).await;
    for (subscription, offset) in groups {
        let group = format!("{}.{subscription}", log.topic);
        let offsets = BTreeMap::from([(0, *offset), (1, 0)]);
        eventually(LIMIT, "the coordinator commits", async || {
            match cluster.commit_missing(&group, &log.topic, &offsets).await {
                Ok(CommitOutcome::Committed) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    log
}

async fn produce(topic: &str, records: i64) {
    let producer: FutureProducer = services::kafka().client().create().unwrap();
    for _ in 0..records {
        let record = FutureRecord::<str, _>::to(topic).partition(0).payload("x");
        producer.send(record, LIMIT).await.unwrap();
    }
}

fn consumer(subscription: &str, delivering: bool) -> Answer {
    let status = ConsumerStatus {
        config_hash: "hash".to_owned(),
        subscriptions: vec![SubscriptionStatus {
            name: subscription.to_owned(),
            uid: format!("uid-{subscription}"),
            generation: 1,
            state: SubscriptionState::Running,
            reason: (!delivering).then_some(StopReason::DeliveryFailing),
            delivering: Some(delivering),
            partitions: vec![PartitionStatus {
                partition: 0,
                committed: None,
                expired: 0,
                oldest_event_time: Some(OLDEST.to_owned()),
            }],
            ..SubscriptionStatus::default()
        }],
    };
    Answer::Status(serde_json::to_value(status).unwrap())
}

fn relay(rows: i64) -> Answer {
    let status = RelayStatus {
        ranges: vec![RangeStatus {
            id: 1,
            lo: 0,
            hi: 64,
            term: 1,
        }],
        pending: Some(Pending {
            rows,
            oldest_event_time: Some(OLDEST.to_owned()),
        }),
        ..RelayStatus::default()
    };
    Answer::Status(serde_json::to_value(status).unwrap())
}

#[tokio::test]
async fn depth_comes_from_kafka_and_the_oldest_event_from_the_worker() {
    let log = kafka_topic(9, &[("fast", 9), ("slow", 2)]).await;
    let (addr, _answers) = worker(consumer("slow", true)).await;
    let running = Running::start();
    running.list(
        vec![target(WorkerKind::Consumer, "c", addr)],
        vec![topic("posts", log.clone(), &["fast", "slow", "new"])],
    );
    let progress = |name: &str| {
        let observation = running.observer.subscription(&format!("uid-{name}"));
        observation.unwrap_or_default().progress
    };
    eventually(LIMIT, "both depths and the head", async || {
        let (fast, slow) = (progress("fast"), progress("slow"));
        let head = Head::Since(OLDEST.parse().unwrap());
        let there = (fast.count, fast.oldest, slow.count, slow.oldest)
            == (Some(0), Head::Empty, Some(7), head);
        if there {
            Ok(())
        } else {
            Err(format!("{fast:?} {slow:?}"))
        }
    })
    .await;
    // A group that has committed nothing is unknown, not 0 and not 9.
    let new = running.observer.subscription("uid-new").unwrap();
    assert_eq!(
        (new.progress.count, new.progress.oldest),
        (None, Head::Unknown)
    );
    let series =
        "fanout_subscription_lag_records{namespace=\"ns\",topic=\"posts\",subscription=\"slow\"} 7";
    eventually(LIMIT, "the metric", async || {
        let text = running.scrape();
        assert!(!text.contains("subscription=\"new\""), "{text}");
        if text.contains(series) {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await;

    produce(&log.topic, 3).await;
    eventually(LIMIT, "the depths follow", async || {
        match (progress("fast").count, progress("slow").count) {
            (Some(3), Some(10)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn what_matters_to_conditions_asks_for_a_reconcile() {
    let (addr, answers) = worker(consumer("search", true)).await;
    let running = Running::start();
    running.list(vec![target(WorkerKind::Consumer, "c", addr)], Vec::new());
    running.wait_for(TriggerKind::FanoutTopic, "posts").await;
    *answers.lock().unwrap() = consumer("search", false);
    running.wait_for(TriggerKind::Subscription, "search").await;
    let reports = running.observer.workers("ns", "posts-pool-0");
    let Some(WorkerStatus::Consumer(status)) = reports[0].status.as_deref() else {
        panic!("{reports:?}");
    };
    assert_eq!(status.subscriptions[0].delivering, Some(false));
    assert!(reports[0].age.is_some());
}

#[tokio::test]
async fn a_worker_that_hangs_or_talks_nonsense_keeps_nobody_waiting() {
    let (good, _) = worker(relay(3)).await;
    let running = Running::start();
    let mut targets = Vec::new();
    for (pod, answer) in [
        ("hangs", Answer::Nothing),
        ("endless", Answer::Endless),
        ("broken", Answer::Code(500)),
        ("nonsense", Answer::Status(serde_json::json!([1, 2]))),
    ] {
        let (addr, _) = worker(answer).await;
        targets.push(target(WorkerKind::Relay, pod, addr));
    }
    targets.push(target(WorkerKind::Relay, "good", good));
    running.list(targets, Vec::new());
    eventually(LIMIT, "the good one is known twice", async || {
        let reports = running.observer.workers("ns", "posts-relay");
        let known: Vec<_> = reports
            .iter()
            .filter(|report| report.status.is_some())
            .map(|report| report.pod.as_str())
            .collect();
        let failures = running
            .scrape()
            .contains("fanout_observer_failures_total{source=\"Worker\"}");
        if known == ["good"] && failures {
            Ok(())
        } else {
            Err(format!("{known:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn a_dead_cluster_is_said_so_and_delays_no_other() {
    let log = kafka_topic(4, &[("search", 1)]).await;
    let dead = Log {
        params: params("127.0.0.1:1"),
        consumer: params("127.0.0.1:1"),
        settings: Vec::new(),
        topic: "nowhere".to_owned(),
    };
    let running = Running::start();
    running.list(
        Vec::new(),
        vec![
            topic("dead", dead, &["lost"]),
            topic("posts", log, &["search"]),
        ],
    );
    eventually(
        Duration::from_secs(8),
        "the living one, before the dead one's deadline",
        async || match running.observer.subscription("uid-search") {
            Some(seen) if seen.progress.count == Some(3) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    running.wait_for(TriggerKind::FanoutTopic, "dead").await;
    let topic = running.observer.topic("uid-dead").unwrap();
    assert_eq!(topic.log_error, Some(ErrorClass::Unreachable));
    assert_eq!(
        running
            .observer
            .subscription("uid-lost")
            .unwrap()
            .progress
            .count,
        None
    );
}

#[tokio::test]
async fn a_number_that_moved_asks_for_a_write_and_one_that_is_shown_does_not() {
    let (addr, answers) = worker(relay(700)).await;
    let running = Running::start();
    let mut listed = topic(
        "posts",
        Log {
            params: params("127.0.0.1:1"),
            consumer: params("127.0.0.1:1"),
            settings: Vec::new(),
            topic: "unused".to_owned(),
        },
        &[],
    );
    listed.log = None;
    let shown = Shown {
        count: Some(700),
        oldest: Some(OLDEST.parse().unwrap()),
        ..Shown::default()
    };
    listed.shown = shown.clone();
    running.list(vec![target(WorkerKind::Relay, "r", addr)], vec![listed]);
    // The first report is news; it settles nothing about numbers.
    running.wait_for(TriggerKind::FanoutTopic, "posts").await;
    assert_eq!(running.observer.show("uid-posts", &shown, false), shown);
    *answers.lock().unwrap() = relay(900);
    running.wait_for(TriggerKind::FanoutTopic, "posts").await;
    let next = running.observer.show("uid-posts", &shown, false);
    assert_eq!(next.count, Some(900));
}
