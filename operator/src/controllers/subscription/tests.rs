//! Validation and status of a Subscription, from YAML, without a client.

use super::status::{Outcome, Progress, Worker, next};
use super::validate::{check_ordering, check_partitions, validate};
use crate::controllers::conditions::{Finding, get};
use crate::controllers::error::Invalid;
use crate::controllers::fanout_topic::log::Problem;
use crate::controllers::workers::{Pods, Report};
use fanout_contract::consumer::{
    ConsumerStatus, PartitionStatus, StopReason, SubscriptionState, SubscriptionStatus as Reported,
};
use fanout_crds::condition::{
    DELIVERING, POSITION_INITIALIZED, READY, RECONCILING, RECORDS_EXPIRED, SINK_ACCEPTED, STALLED,
    WORKERS_AVAILABLE, reason,
};
use fanout_crds::{Subscription, SubscriptionStatus};
use fanout_runtime::guard::Guard;
use k8s_openapi::jiff::Timestamp;
use rstest::rstest;

fn subscription(extra: &str) -> Subscription {
    let text = format!(
        r"
apiVersion: fanout.dev/v1alpha1
kind: Subscription
metadata: {{name: search, namespace: social, uid: bbbb, generation: 5}}
spec:
  topicRef: {{name: posts}}
  sink: {{webhook: {{url: 'https://search.example.com/hook'}}}}
{extra}"
    );
    serde_yaml::from_str(&text).unwrap()
}

fn with_url(url: &str) -> Subscription {
    let mut subscription = subscription("");
    let fanout_crds::subscription::Sink::Webhook(webhook) = &mut subscription.spec.sink;
    webhook.url = url.to_owned();
    subscription
}

fn judge(subscription: &Subscription) -> Option<Invalid> {
    let guard = Guard::new(
        &["10.0.0.0/8".parse().unwrap()],
        &["10.96.0.1/32".parse().unwrap()],
    );
    validate(subscription, &|_| None, &guard).err()
}

#[rstest]
#[case::public("https://search.example.com/hook", None)]
#[case::admitted_range("http://10.1.2.3:8080/hook", None)]
#[case::private("http://192.168.0.1/", Some(reason::ADDRESS_REFUSED))]
#[case::metadata("http://169.254.169.254/latest", Some(reason::ADDRESS_REFUSED))]
#[case::api_server("https://10.96.0.1/api", Some(reason::ADDRESS_REFUSED))]
#[case::api_server_by_name("https://kubernetes.default.svc/api", Some(reason::ADDRESS_REFUSED))]
#[case::loopback("http://localhost:1/", Some(reason::ADDRESS_REFUSED))]
#[case::user_information("http://user:canary@search.example.com/", Some(reason::SINK_INVALID))]
#[case::another_scheme("ftp://search.example.com/", Some(reason::SINK_INVALID))]
fn an_address_is_judged_before_anything_is_delivered(
    #[case] url: &str,
    #[case] expected: Option<&str>,
) {
    let refused = judge(&with_url(url));
    assert_eq!(refused.as_ref().map(|invalid| invalid.reason), expected);
    if let Some(refused) = refused {
        assert!(
            refused.message.starts_with("spec.sink.webhook.url: "),
            "{}",
            refused.message
        );
        assert!(!refused.message.contains("canary"), "{}", refused.message);
    }
}

#[rstest]
#[case::ordered("PerKey", Some(true), true)]
#[case::not_known_yet("PerKey", None, true)]
#[case::unordered("PerKey", Some(false), false)]
#[case::wants_no_order("None", Some(false), true)]
fn an_order_that_the_outbox_does_not_have_is_refused(
    #[case] ordering: &str,
    #[case] ordered: Option<bool>,
    #[case] expected: bool,
) {
    let subscription = subscription(&format!("  delivery: {{ordering: {ordering}}}"));
    let checked = check_ordering(&subscription, ordered);
    assert_eq!(checked.is_ok(), expected);
    if let Err(invalid) = checked {
        assert_eq!(invalid.reason, reason::ORDERING_UNAVAILABLE);
        assert!(invalid.message.starts_with("spec.delivery.ordering: "));
    }
}

#[rstest]
#[case("Strict", 1, true)]
#[case("Strict", 2, false)]
#[case("PerKey", 2, true)]
#[case("None", 6, true)]
fn strict_order_needs_one_partition(
    #[case] ordering: &str,
    #[case] partitions: usize,
    #[case] expected: bool,
) {
    let subscription = subscription(&format!("  delivery: {{ordering: {ordering}}}"));
    let checked = check_partitions(&subscription, partitions);
    assert_eq!(checked.is_ok(), expected);
    if let Err(invalid) = checked {
        assert_eq!(invalid.reason, reason::ORDERING_UNAVAILABLE);
        assert!(invalid.message.contains("has 2"), "{}", invalid.message);
    }
}

#[test]
fn a_filter_that_does_not_compile_is_named() {
    let invalid = judge(&subscription("  filter: 'event.type =='")).unwrap();
    assert_eq!(invalid.reason, reason::FILTER_INVALID);
    assert!(
        invalid.message.starts_with("spec.filter: "),
        "{}",
        invalid.message
    );
    assert_eq!(judge(&subscription("  filter: event.type == 'a'")), None);
}

#[test]
fn a_signing_secret_without_label_is_named_with_its_index() {
    let mut subscription = subscription("");
    let fanout_crds::subscription::Sink::Webhook(webhook) = &mut subscription.spec.sink;
    webhook.signing = serde_yaml::from_str("secretRefs: [{name: s, key: k}]").unwrap();
    let invalid = judge(&subscription).unwrap();
    assert_eq!(invalid.reason, reason::SECRET_NOT_PERMITTED);
    assert_eq!(
        invalid.message,
        "spec.sink.webhook.signing.secretRefs[0]: Secret s is missing or not labelled fanout.dev/credentials=true; create or label it"
    );
}

fn entry(generation: i64) -> Reported {
    Reported {
        name: "search".to_owned(),
        uid: "bbbb".to_owned(),
        generation,
        state: SubscriptionState::Running,
        ..Reported::default()
    }
}

fn stopped(why: StopReason) -> Reported {
    Reported {
        state: SubscriptionState::Stopped,
        reason: Some(why),
        message: Some("what to do".to_owned()),
        ..entry(5)
    }
}

fn outcome(ready: i32, reports: Vec<Option<Reported>>) -> Outcome {
    let reports = reports
        .into_iter()
        .map(|entry| Report {
            pod: "p".to_owned(),
            status: entry.map(|entry| ConsumerStatus {
                config_hash: "h".to_owned(),
                subscriptions: vec![entry],
            }),
        })
        .collect();
    Outcome {
        group_id: Some("social.search".to_owned()),
        placement: Some("posts-pool-0".to_owned()),
        position: Some(Finding::yes(reason::SUCCEEDED, "")),
        worker: Some(Worker {
            pods: Pods {
                wanted: 1,
                ready,
                rolled_out: ready == 1,
            },
            reports,
            overdue: false,
        }),
        ..Outcome::default()
    }
}

fn status(subscription: &Subscription, outcome: &Outcome) -> SubscriptionStatus {
    next(subscription, outcome, Timestamp::UNIX_EPOCH)
}

/// `<status>/<reason>` of a condition.
fn shown(status: &SubscriptionStatus, kind: &str) -> String {
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .unwrap();
    assert_eq!(condition.observed_generation, Some(5));
    format!("{}/{}", condition.status, condition.reason)
}

#[test]
fn it_is_ready_when_its_worker_runs_this_generation() {
    let status = status(&subscription(""), &outcome(1, vec![Some(entry(5))]));
    assert_eq!(shown(&status, READY), "True/Succeeded");
    assert_eq!(shown(&status, RECONCILING), "False/Succeeded");
    assert_eq!(shown(&status, STALLED), "False/Succeeded");
    assert_eq!(shown(&status, WORKERS_AVAILABLE), "True/Succeeded");
    assert_eq!(shown(&status, DELIVERING), "Unknown/Pending");
    assert_eq!(status.observed_generation, Some(5));
    assert_eq!(status.sink.as_deref(), Some("webhook"));
    assert_eq!(status.workers.as_deref(), Some("1/1"));
    assert_eq!(status.placement.as_deref(), Some("posts-pool-0"));
}

#[rstest]
#[case::an_old_generation(1, vec![Some(entry(4))], "False/ConfigurationPending")]
#[case::one_pod_of_two_has_an_old_one(1, vec![Some(entry(5)), Some(entry(4))], "False/ConfigurationPending")]
#[case::it_is_starting(1, vec![Some(Reported { state: SubscriptionState::Starting, ..entry(5) })], "False/ConfigurationPending")]
#[case::no_pod(0, vec![], "False/PodsNotReady")]
#[case::no_report(1, vec![None], "Unknown/StatusUnknown")]
fn until_then_it_is_reconciling(
    #[case] ready: i32,
    #[case] reports: Vec<Option<Reported>>,
    #[case] workers: &str,
) {
    let status = status(&subscription(""), &outcome(ready, reports));
    assert_eq!(shown(&status, WORKERS_AVAILABLE), workers);
    assert_eq!(shown(&status, READY).split('/').next(), Some("False"));
    assert_eq!(shown(&status, RECONCILING), "True/Progressing");
    assert_eq!(shown(&status, STALLED), "False/Succeeded");
}

#[test]
fn one_missing_answer_is_no_news() {
    let mut subscription = subscription("");
    subscription.status = Some(status(&subscription, &outcome(1, vec![Some(entry(5))])));
    let status = status(&subscription, &outcome(1, vec![None]));
    assert_eq!(shown(&status, WORKERS_AVAILABLE), "True/Succeeded");
    assert_eq!(shown(&status, READY), "True/Succeeded");
}

#[test]
fn suspended_is_ready_for_that_reason() {
    let mut suspended = subscription("");
    suspended.spec.suspend = true;
    let entry = Reported {
        state: SubscriptionState::Suspended,
        ..entry(5)
    };
    assert_eq!(
        shown(&status(&suspended, &outcome(1, vec![Some(entry)])), READY),
        "True/Suspended"
    );
}

#[rstest]
#[case(StopReason::EndpointGone, "EndpointGone", "False/EndpointGone")]
#[case(StopReason::AddressRefused, "AddressRefused", "False/AddressRefused")]
#[case(StopReason::SinkInvalid, "SinkInvalid", "False/SinkInvalid")]
#[case(StopReason::FilterInvalid, "FilterInvalid", "True/Succeeded")]
#[case(StopReason::DeliveryExhausted, "DeliveryExhausted", "True/Succeeded")]
fn what_a_worker_stops_for_stalls(
    #[case] why: StopReason,
    #[case] reason: &str,
    #[case] sink: &str,
) {
    let status = status(&subscription(""), &outcome(1, vec![Some(stopped(why))]));
    assert_eq!(shown(&status, STALLED), format!("True/{reason}"));
    assert_eq!(shown(&status, READY), format!("False/{reason}"));
    assert_eq!(shown(&status, RECONCILING), "False/Succeeded");
    assert_eq!(shown(&status, SINK_ACCEPTED), sink);
    assert_eq!(
        get(&status.conditions, STALLED).unwrap().message,
        "what to do"
    );
}

#[test]
fn what_an_old_generation_stopped_for_does_not_stall_the_new_one() {
    let old = Reported {
        generation: 4,
        ..stopped(StopReason::AddressRefused)
    };
    let status = status(&subscription(""), &outcome(1, vec![Some(old)]));
    assert_eq!(shown(&status, STALLED), "False/Succeeded");
    assert_eq!(shown(&status, SINK_ACCEPTED), "True/Succeeded");
    assert_eq!(shown(&status, READY), "False/ConfigurationPending");
}

#[test]
fn delivering_keeps_its_value_while_nothing_arrives() {
    let failing = Reported {
        delivering: Some(false),
        reason: Some(StopReason::DeliveryFailing),
        ..entry(5)
    };
    let mut subscription = subscription("");
    subscription.status = Some(status(&subscription, &outcome(1, vec![Some(failing)])));
    assert_eq!(
        shown(subscription.status.as_ref().unwrap(), DELIVERING),
        "False/DeliveryFailing"
    );
    // A failing endpoint is not the worker's fault: two questions, two conditions. The column shows why nothing arrives.
    assert_eq!(
        shown(subscription.status.as_ref().unwrap(), READY),
        "True/DeliveryFailing"
    );
    let idle = status(&subscription, &outcome(1, vec![Some(entry(5))]));
    assert_eq!(shown(&idle, DELIVERING), "False/DeliveryFailing");
    let succeeded = Reported {
        delivering: Some(true),
        ..entry(5)
    };
    let again = status(&subscription, &outcome(1, vec![Some(succeeded)]));
    assert_eq!(shown(&again, DELIVERING), "True/Succeeded");
}

#[test]
fn an_endpoint_that_is_down_is_no_fault_of_the_spec_or_the_worker() {
    let down = Reported {
        delivering: Some(false),
        reason: Some(StopReason::EndpointUnavailable),
        message: Some("why".to_owned()),
        ..entry(5)
    };
    let status = status(&subscription(""), &outcome(1, vec![Some(down)]));
    assert_eq!(shown(&status, DELIVERING), "False/EndpointUnavailable");
    assert_eq!(shown(&status, READY), "True/EndpointUnavailable");
    assert_eq!(shown(&status, STALLED), "False/Succeeded");
    assert_eq!(shown(&status, SINK_ACCEPTED), "True/Succeeded");
    assert_eq!(get(&status.conditions, DELIVERING).unwrap().message, "why");
}

#[rstest]
#[case(StopReason::BrokerUnreachable, "BrokerUnreachable", false)]
#[case(
    StopReason::BrokerAuthenticationFailed,
    "BrokerAuthenticationFailed",
    true
)]
#[case(StopReason::BrokerTlsFailed, "BrokerTlsFailed", true)]
#[case(StopReason::BrokerRefused, "BrokerRefused", true)]
#[case(StopReason::TopicMissing, "TopicNotReady", false)]
fn a_worker_without_the_log_is_not_ready_for_that_reason_and_over_it_when_it_is_back(
    #[case] why: StopReason,
    #[case] reason: &str,
    #[case] human: bool,
) {
    for state in [SubscriptionState::Starting, SubscriptionState::Running] {
        let cut_off = Reported {
            state,
            reason: Some(why),
            message: Some("what to do".to_owned()),
            ..entry(5)
        };
        let mut subscription = subscription("");
        let away = status(&subscription, &outcome(1, vec![Some(cut_off)]));
        assert_eq!(shown(&away, READY), format!("False/{reason}"));
        assert_eq!(shown(&away, DELIVERING), format!("False/{reason}"));
        assert_eq!(shown(&away, STALLED).starts_with("True"), human);
        assert_eq!(get(&away.conditions, READY).unwrap().message, "what to do");
        subscription.status = Some(away);
        let back = status(&subscription, &outcome(1, vec![Some(entry(5))]));
        assert_eq!(shown(&back, READY), "True/Succeeded");
        assert_eq!(shown(&back, DELIVERING), "Unknown/Pending");
        assert_eq!(shown(&back, STALLED), "False/Succeeded");
    }
}

#[test]
fn what_kafka_refuses_the_operator_in_the_consumers_name_stalls() {
    let refused = Outcome {
        refused: Some(Problem {
            reason: reason::BROKER_REFUSED,
            message: "what to do".to_owned(),
            needs_human: true,
            usable: false,
        }),
        ..outcome(1, vec![Some(entry(5))])
    };
    let status = status(&subscription(""), &refused);
    assert_eq!(shown(&status, STALLED), "True/BrokerRefused");
    assert_eq!(shown(&status, READY), "False/BrokerRefused");
    assert_eq!(shown(&status, POSITION_INITIALIZED), "True/Succeeded");
}

#[test]
fn an_invalid_spec_stalls_and_says_why() {
    let outcome = Outcome {
        invalid: Some(Invalid::new(
            reason::ADDRESS_REFUSED,
            "spec.sink.webhook.url: refused",
        )),
        ..outcome(0, vec![])
    };
    let status = status(&subscription(""), &outcome);
    assert_eq!(shown(&status, STALLED), "True/AddressRefused");
    assert_eq!(shown(&status, READY), "False/AddressRefused");
    assert_eq!(shown(&status, SINK_ACCEPTED), "False/AddressRefused");
    assert_eq!(shown(&status, POSITION_INITIALIZED), "True/Succeeded");
}

#[test]
fn a_failure_keeps_what_is_known() {
    let mut known = subscription("");
    known.status = Some(status(&known, &outcome(1, vec![Some(entry(5))])));
    let failed = Outcome {
        failure: Some((
            reason::API_ERROR,
            "apply Deployment posts-pool-0 failed (HTTP 500)".to_owned(),
        )),
        positions: vec![],
        ..Outcome::default()
    };
    let status = status(&known, &failed);
    assert_eq!(shown(&status, READY), "False/ApiError");
    assert_eq!(shown(&status, WORKERS_AVAILABLE), "True/Succeeded");
    assert_eq!(status.group_id.as_deref(), Some("social.search"));
    assert_eq!(status.placement.as_deref(), Some("posts-pool-0"));
}

#[test]
fn the_same_findings_give_the_same_status() {
    let mut subscription = subscription("");
    let mut outcome = outcome(1, vec![Some(entry(5))]);
    outcome.progress = Progress {
        depth: Some(7),
        ..Progress::default()
    };
    subscription.status = Some(status(&subscription, &outcome));
    assert_eq!(
        next(&subscription, &outcome, Timestamp::now()),
        subscription.status.unwrap()
    );
}

#[test]
fn what_retention_removed_is_loud_and_delivery_goes_on() {
    let lost = Reported {
        partitions: vec![PartitionStatus {
            partition: 3,
            committed: Some(9),
            oldest_event_time: None,
            expired: 7,
        }],
        ..entry(5)
    };
    let mut known = subscription("");
    known.status = Some(status(&known, &outcome(1, vec![Some(lost)])));
    let first = known.status.clone().unwrap();
    assert_eq!(shown(&first, RECORDS_EXPIRED), "True/Expired");
    assert_eq!(shown(&first, READY), "True/Expired");
    assert_eq!(shown(&first, STALLED), "False/Succeeded");
    let ready = get(&first.conditions, READY).unwrap();
    assert!(ready.message.contains("7 of partition 3"), "{ready:?}");
    // Its worker was restarted.
    let again = status(&known, &outcome(1, vec![Some(entry(5))]));
    assert_eq!(again.conditions, first.conditions);
    let suspended = Reported {
        state: SubscriptionState::Suspended,
        ..entry(5)
    };
    known.spec.suspend = true;
    let suspended = status(&known, &outcome(1, vec![Some(suspended)]));
    assert_eq!(shown(&suspended, READY), "True/Suspended");
    assert_eq!(shown(&suspended, RECORDS_EXPIRED), "True/Expired");
}

#[test]
fn a_position_that_the_log_does_not_have_needs_a_human() {
    let lost = Reported {
        reason: Some(StopReason::PositionOutOfRange),
        message: Some("change the annotation".to_owned()),
        ..entry(5)
    };
    let status = status(&subscription(""), &outcome(1, vec![Some(lost)]));
    assert_eq!(shown(&status, STALLED), "True/PositionOutOfRange");
    assert_eq!(shown(&status, READY), "False/PositionOutOfRange");
    assert_eq!(shown(&status, DELIVERING), "False/PositionOutOfRange");
    // Its worker keeps it: the other partitions go on.
    assert_eq!(shown(&status, POSITION_INITIALIZED), "True/Succeeded");
}
