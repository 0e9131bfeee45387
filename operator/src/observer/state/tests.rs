//! The observer's tables under lists, reports and readings, with a clock of the test's own.

mod load;
mod positions;

use super::*;
use crate::kafka::{ClusterParams, ErrorClass, Watermarks};
use crate::observer::log::TopicState;
use crate::observer::target::{Log, SubscriptionTarget, WorkerKind};
use fanout_contract::consumer::{
    ConsumerStatus, PartitionStatus, SubscriptionState, SubscriptionStatus,
};
use fanout_contract::kafka::{KafkaCredentials, Mechanism};
use fanout_contract::relay::{Pending, RangeStatus, RelayStatus};
use prometheus_client::registry::Registry;

const EVERY: Duration = Duration::from_secs(5);

fn worker(kind: WorkerKind, pod: &str) -> WorkerTarget {
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
        addr: "127.0.0.1:1".parse().unwrap(),
    }
}

fn topic(shown: Shown) -> TopicTarget {
    TopicTarget {
        uid: "t".to_owned(),
        namespace: "ns".to_owned(),
        name: "posts".to_owned(),
        relay: "posts-relay".to_owned(),
        log: Some(Log {
            params: params(),
            consumer: params(),
            topic: "ns.posts".to_owned(),
            settings: Vec::new(),
        }),
        shown: Shown::default(),
        subscriptions: vec![SubscriptionTarget {
            uid: "s".to_owned(),
            name: "search".to_owned(),
            group_id: "ns.search".to_owned(),
            shown,
            topic_id: Some("id".to_owned()),
            scaling: None,
            worker: Some("posts-pool-0".to_owned()),
            is_served: true,
        }],
    }
}

fn params() -> ClusterParams {
    ClusterParams {
        bootstrap_servers: "k:9092".to_owned(),
        mechanism: Mechanism::None,
        credentials: KafkaCredentials::default(),
    }
}

fn relay_status(rows: i64) -> WorkerStatus {
    WorkerStatus::Relay(RelayStatus {
        ranges: vec![RangeStatus {
            id: 1,
            lo: 0,
            hi: 64,
            term: 1,
        }],
        pending: Some(Pending {
            rows,
            oldest_event_time: None,
        }),
        ..RelayStatus::default()
    })
}

fn consumer_status(oldest: Option<&str>) -> WorkerStatus {
    WorkerStatus::Consumer(ConsumerStatus {
        config_hash: "h".to_owned(),
        subscriptions: vec![SubscriptionStatus {
            name: "search".to_owned(),
            uid: "s".to_owned(),
            generation: 1,
            state: SubscriptionState::Running,
            delivering: Some(true),
            partitions: vec![PartitionStatus {
                partition: 0,
                committed: None,
                oldest_event_time: oldest.map(ToOwned::to_owned),
                expired: 0,
            }],
            ..SubscriptionStatus::default()
        }],
    })
}

fn reading(end: i64, committed: Option<i64>) -> Reading {
    Reading {
        topic: TopicState {
            id: Some("id".to_owned()),
            ..TopicState::default()
        },
        refused: BTreeSet::new(),
        marks: BTreeMap::from([(0, Watermarks { start: 0, end })]),
        committed: committed
            .map(|offset| ("s".to_owned(), BTreeMap::from([(0, offset)])))
            .into_iter()
            .collect(),
    }
}

const REFUSED: KafkaError = KafkaError {
    class: ErrorClass::AuthenticationFailed,
    operation: "observe topic",
    code: 0,
};

struct Fixture {
    state: State,
    registry: Registry,
    metrics: Metrics,
    start: Instant,
}

impl Fixture {
    /// With one topic, one Subscription, a relay and a consumer.
    fn new() -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let mut fixture = Self {
            state: State::default(),
            registry,
            metrics,
            start: Instant::now(),
        };
        fixture.list(&Self::workers(), &[topic(Shown::default())]);
        fixture
    }

    fn workers() -> Vec<WorkerTarget> {
        vec![
            worker(WorkerKind::Relay, "r"),
            worker(WorkerKind::Consumer, "c"),
        ]
    }

    fn list(&mut self, workers: &[WorkerTarget], topics: &[TopicTarget]) -> BTreeSet<Trigger> {
        self.list_at(workers, topics, 0)
    }

    fn list_at(
        &mut self,
        workers: &[WorkerTarget],
        topics: &[TopicTarget],
        seconds: u64,
    ) -> BTreeSet<Trigger> {
        let now = self.at(seconds);
        self.state.list(workers, topics, &self.metrics, now)
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn depth(&self) -> Option<i64> {
        self.state.subscription("s")?.progress.count
    }

    fn scrape(&self) -> String {
        self.state.measure(&self.metrics, Timestamp::now());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

fn names(triggers: &BTreeSet<Trigger>) -> Vec<&str> {
    triggers
        .iter()
        .map(|trigger| trigger.name.as_str())
        .collect()
}

#[test]
fn a_depth_that_can_no_longer_be_read_is_unknown_and_no_series() {
    let mut fixture = Fixture::new();
    fixture
        .state
        .read("t", Ok(reading(10, Some(4))), fixture.start);
    assert_eq!(fixture.depth(), Some(6));
    assert!(
        fixture
            .scrape()
            .contains("fanout_subscription_lag_records{")
    );
    fixture.state.read("t", Err(REFUSED), fixture.at(5));
    assert_eq!(fixture.depth(), None);
    assert!(
        !fixture
            .scrape()
            .contains("fanout_subscription_lag_records{")
    );
    fixture
        .state
        .read("t", Ok(reading(10, None)), fixture.at(10));
    assert_eq!(fixture.depth(), None);
}

#[test]
fn another_error_class_and_other_partitions_are_news_for_the_topic_and_its_subscriptions() {
    let mut fixture = Fixture::new();
    let first = fixture
        .state
        .read("t", Ok(reading(10, Some(4))), fixture.start);
    assert!(first.is_empty(), "{first:?}");
    let refused = fixture.state.read("t", Err(REFUSED), fixture.at(5));
    assert_eq!(names(&refused), ["posts", "search"]);
    let again = fixture.state.read("t", Err(REFUSED), fixture.at(10));
    assert!(again.is_empty(), "{again:?}");
    let back = fixture
        .state
        .read("t", Ok(reading(11, Some(4))), fixture.at(15));
    assert_eq!(names(&back), ["posts", "search"]);
    let mut grown = reading(11, Some(4));
    grown.marks.insert(1, Watermarks { start: 0, end: 0 });
    let grown = fixture.state.read("t", Ok(grown), fixture.at(20));
    assert_eq!(names(&grown), ["posts", "search"]);
}

#[test]
fn what_a_human_changes_in_kafka_is_news_once() {
    let mut fixture = Fixture::new();
    let with = |setting: &str| {
        let mut reading = reading(10, Some(4));
        let settings = &mut reading.topic.settings;
        settings.insert("retention.ms".to_owned(), setting.to_owned());
        reading
    };
    fixture.state.read("t", Ok(with("5")), fixture.start);
    let same = fixture.state.read("t", Ok(with("5")), fixture.at(5));
    assert!(same.is_empty(), "{same:?}");
    let drifted = fixture.state.read("t", Ok(with("6")), fixture.at(10));
    assert_eq!(names(&drifted), ["posts", "search"]);
    // It was away in between; then it is another topic.
    fixture.state.read("t", Err(REFUSED), fixture.at(15));
    fixture.state.read("t", Ok(with("6")), fixture.at(20));
    let mut replaced = with("6");
    replaced.topic.id = Some("another".to_owned());
    let replaced = fixture.state.read("t", Ok(replaced), fixture.at(25));
    assert_eq!(names(&replaced), ["posts", "search"]);
}

#[test]
fn a_group_that_is_refused_is_news_for_its_subscription_alone() {
    let mut fixture = Fixture::new();
    fixture
        .state
        .read("t", Ok(reading(10, Some(4))), fixture.start);
    let mut refused = reading(10, None);
    refused.refused.insert("s".to_owned());
    let news = fixture.state.read("t", Ok(refused), fixture.at(5));
    assert_eq!(names(&news), ["search"]);
    assert!(fixture.state.subscription("s").unwrap().refused);
    let back = fixture
        .state
        .read("t", Ok(reading(10, Some(4))), fixture.at(10));
    assert_eq!(names(&back), ["search"]);
    assert!(!fixture.state.subscription("s").unwrap().refused);
}

#[test]
fn a_log_that_fails_is_asked_less_often_and_at_once_after_it_worked() {
    let mut fixture = Fixture::new();
    let due = |fixture: &mut Fixture, at: u64| {
        let now = fixture.at(at);
        !fixture
            .state
            .due_logs(vec![topic(Shown::default())], now, EVERY, 9)
            .is_empty()
    };
    assert!(due(&mut fixture, 0));
    assert!(!due(&mut fixture, 9), "it is under way");
    fixture.state.read("t", Err(REFUSED), fixture.at(9));
    assert!(!due(&mut fixture, 10), "backoff");
    assert!(due(&mut fixture, 15));
    for at in [20, 40, 80, 160, 320] {
        fixture.state.read("t", Err(REFUSED), fixture.at(at));
    }
    assert!(!due(&mut fixture, 329));
    assert!(due(&mut fixture, 341), "but at least every 20 seconds");
    fixture
        .state
        .read("t", Ok(reading(1, Some(1))), fixture.at(342));
    assert!(due(&mut fixture, 346));
}

#[test]
fn questions_under_way_are_bounded_and_those_that_waited_longest_come_first() {
    let mut fixture = Fixture::new();
    let many: Vec<_> = (0..5)
        .map(|number| worker(WorkerKind::Relay, &format!("pod-{number}")))
        .collect();
    fixture.list(&many, &[]);
    let pods = |targets: Vec<WorkerTarget>| -> Vec<String> {
        targets.into_iter().map(|target| target.pod).collect()
    };
    let now = fixture.start;
    let first = fixture.state.due_workers(many.clone(), now, EVERY, 2);
    assert_eq!(first.len(), 2);
    assert!(
        fixture
            .state
            .due_workers(many.clone(), now, EVERY, 2)
            .is_empty()
    );
    for target in &first {
        fixture.state.reported(target, Ok(relay_status(0)), now);
    }
    let second = pods(fixture.state.due_workers(many, fixture.at(60), EVERY, 2));
    assert!(
        first.iter().all(|target| !second.contains(&target.pod)),
        "{second:?}"
    );
}

#[test]
fn one_missed_answer_is_no_news_and_silence_is() {
    let mut fixture = Fixture::new();
    let relay = worker(WorkerKind::Relay, "r");
    let known = |fixture: &Fixture| {
        fixture.state.workers("ns", "posts-relay", fixture.start)[0]
            .status
            .is_some()
    };
    assert_eq!(
        names(
            &fixture
                .state
                .reported(&relay, Ok(relay_status(7)), fixture.start)
        ),
        ["posts"]
    );
    assert_eq!(fixture.state.topic("t").unwrap().outbox.count, Some(7));
    let missed = fixture
        .state
        .reported(&relay, Err(PollError::Unreachable), fixture.at(4));
    assert!(missed.is_empty() && known(&fixture));
    let silent = fixture
        .state
        .reported(&relay, Err(PollError::Unreachable), fixture.at(16));
    assert_eq!(names(&silent), ["posts"]);
    assert!(!known(&fixture));
    assert_eq!(fixture.state.topic("t").unwrap().outbox.count, None);
}

#[test]
fn a_pod_that_is_gone_takes_its_report_along() {
    let mut fixture = Fixture::new();
    let consumer = worker(WorkerKind::Consumer, "c");
    fixture
        .state
        .read("t", Ok(reading(10, Some(4))), fixture.start);
    fixture.state.reported(
        &consumer,
        Ok(consumer_status(Some("2026-01-02T03:04:05Z"))),
        fixture.start,
    );
    let head = |fixture: &Fixture| fixture.state.subscription("s").unwrap().progress.oldest;
    assert_eq!(
        head(&fixture),
        Head::Since("2026-01-02T03:04:05Z".parse().unwrap())
    );
    let news = fixture.list(
        &[worker(WorkerKind::Relay, "r")],
        &[topic(Shown::default())],
    );
    assert_eq!(names(&news), ["posts", "search"]);
    assert!(
        fixture
            .state
            .workers("ns", "posts-pool-0", fixture.start)
            .is_empty()
    );
    fixture
        .state
        .read("t", Ok(reading(10, Some(4))), fixture.at(5));
    assert_eq!(head(&fixture), Head::Unknown);
}

#[test]
fn what_is_no_longer_listed_is_forgotten_with_its_series() {
    let mut fixture = Fixture::new();
    fixture
        .state
        .read("t", Ok(reading(10, Some(4))), fixture.start);
    assert!(fixture.scrape().contains("subscription=\"search\""));
    fixture.list(&[], &[]);
    assert_eq!(fixture.state.topic("t"), None);
    assert_eq!(fixture.state.subscription("s"), None);
    assert!(!fixture.scrape().contains("search"));
    // Answers that come late change nothing.
    assert!(
        fixture
            .state
            .read("t", Ok(reading(10, Some(4))), fixture.start)
            .is_empty()
    );
}

#[test]
fn a_number_that_moved_asks_for_one_write_and_gets_it() {
    let mut fixture = Fixture::new();
    let shown = Shown {
        count: Some(0),
        ..Shown::default()
    };
    fixture.list(&Fixture::workers(), &[topic(shown.clone())]);
    fixture
        .state
        .read("t", Ok(reading(5_000, Some(0))), fixture.start);
    // A pass for another reason writes no number.
    assert_eq!(fixture.state.show("s", &shown, false, fixture.start), shown);
    let now = Timestamp::now();
    assert_eq!(names(&fixture.state.grant(fixture.start, now)), ["search"]);
    let next = fixture.state.show("s", &shown, false, fixture.start);
    assert_eq!(next.count, Some(5_000));
    // Once only.
    assert_eq!(fixture.state.show("s", &shown, false, fixture.start), shown);
    // The watch caches show it: nothing is due any more.
    fixture.list(&Fixture::workers(), &[topic(next)]);
    assert!(fixture.state.grant(fixture.at(60), now).is_empty());
}

#[test]
fn a_condition_that_changes_takes_the_numbers_along() {
    let mut fixture = Fixture::new();
    fixture
        .state
        .read("t", Ok(reading(50, Some(0))), fixture.start);
    let shown = Shown {
        count: Some(10),
        ..Shown::default()
    };
    assert_eq!(
        fixture.state.show("s", &shown, true, fixture.start).count,
        Some(50)
    );
    fixture.state.read("t", Err(REFUSED), fixture.at(5));
    assert_eq!(
        fixture.state.show("s", &shown, true, fixture.start).count,
        Some(10),
        "unknown is not 0"
    );
    assert_eq!(
        fixture.state.show("nobody", &shown, true, fixture.start),
        shown
    );
}
