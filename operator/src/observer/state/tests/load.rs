//! What arrives, drains, is under way and fails: known from all workers or not at all.

use super::*;
use crate::observer::UnderWay;
use crate::scaling::lag::Waiting;
use fanout_contract::consumer::Totals;

fn report(in_flight: u32, retrying: u32, delivered: u64, failed: u64) -> WorkerStatus {
    let WorkerStatus::Consumer(mut status) = consumer_status(None) else {
        unreachable!("a consumer's")
    };
    let entry = &mut status.subscriptions[0];
    entry.in_flight = in_flight;
    entry.retrying = retrying;
    entry.totals = Totals {
        delivered,
        failed_attempts: failed,
        ..Totals::default()
    };
    WorkerStatus::Consumer(status)
}

impl Fixture {
    fn hear(&mut self, pod: &str, status: WorkerStatus, seconds: u64) {
        let now = self.at(seconds);
        let target = worker(WorkerKind::Consumer, pod);
        self.state.reported(&target, Ok(status), now);
    }

    fn seen(&self) -> SubscriptionObservation {
        self.state.subscription("s").unwrap()
    }
}

#[test]
fn what_is_under_way_is_known_once_every_pod_of_the_worker_said_it() {
    let mut fixture = Fixture::new();
    let mut pods = Fixture::workers();
    pods.push(worker(WorkerKind::Consumer, "d"));
    fixture.list(&pods, &[topic(Shown::default())]);
    fixture.hear("c", report(3, 1, 0, 0), 0);
    assert_eq!(fixture.seen().under_way, None, "one has not answered");
    fixture.hear("d", report(4, 0, 0, 0), 1);
    let both = UnderWay {
        in_flight: 7,
        retrying: 1,
    };
    assert_eq!(fixture.seen().under_way, Some(both));
    let silent = worker(WorkerKind::Consumer, "d");
    let now = fixture.at(30);
    fixture
        .state
        .reported(&silent, Err(PollError::Unreachable), now);
    assert_eq!(
        fixture.seen().under_way,
        None,
        "one does not answer any more"
    );
}

#[test]
fn rates_and_failures_are_measured_and_go_when_they_are_not_known() {
    let mut fixture = Fixture::new();
    for second in [0, 5, 10] {
        let now = fixture.at(second);
        let offset = i64::try_from(second).unwrap();
        let reading = reading(100 + 3 * offset, Some(2 * offset));
        fixture.state.read("t", Ok(reading), now);
        fixture.hear("c", report(1, 0, 3 * second, second), second);
    }
    let seen = fixture.seen();
    assert_eq!(seen.arrival_per_second, Some(3.0));
    assert_eq!(seen.progress.rate_per_second, Some(2.0));
    assert_eq!(seen.failure_ratio, Some(0.25));
    let all = Waiting {
        depth: 110,
        stuck: 0,
        largest: 110,
    };
    assert_eq!(seen.waiting, Some(all));
    let text = fixture.scrape();
    for line in [
        "fanout_subscription_arrival_rate{namespace=\"ns\",topic=\"posts\",subscription=\"search\"} 3.0",
        "fanout_subscription_drain_rate{namespace=\"ns\",topic=\"posts\",subscription=\"search\"} 2.0",
        "fanout_subscription_failure_ratio{namespace=\"ns\",topic=\"posts\",subscription=\"search\"} 0.25",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let now = fixture.at(15);
    fixture.state.read("t", Err(REFUSED), now);
    let seen = fixture.seen();
    assert_eq!((seen.arrival_per_second, seen.waiting), (None, None));
    let text = fixture.scrape();
    assert!(
        !text.contains("fanout_subscription_arrival_rate{"),
        "{text}"
    );
    assert!(!text.contains("fanout_subscription_drain_rate{"), "{text}");
}
