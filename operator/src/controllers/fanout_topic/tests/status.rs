//! The status of a FanoutTopic from what a pass found.

use super::topic;
use crate::controllers::error::Invalid;
use crate::controllers::fanout_topic::log::Problem;
use crate::controllers::fanout_topic::status::{Identity, LogState, Outcome, Relays, next};
use crate::controllers::workers::{Pods, Report};
use fanout_contract::reason::{BrokerError, SourceError};
use fanout_contract::relay::{LongTransaction, Parked, Problem as Reported, RelayStatus};
use fanout_crds::condition::{
    LOG_READY, OUTBOX_BLOCKED, READY, RECONCILING, RELAY_AVAILABLE, SOURCE_REACHABLE, STALLED,
    reason,
};
use fanout_crds::{FanoutTopic, FanoutTopicStatus};
use k8s_openapi::jiff::Timestamp;
use rstest::rstest;

fn relay() -> RelayStatus {
    RelayStatus {
        config_hash: "new".to_owned(),
        source_checked: true,
        ..RelayStatus::default()
    }
}

fn outcome(reports: Vec<RelayStatus>) -> Outcome {
    Outcome {
        log: Some(Ok(LogState::default())),
        identity: Identity {
            cluster_id: Some("cluster".to_owned()),
            topic_name: Some("social.posts".to_owned()),
            topic_id: Some("id".to_owned()),
            dead_letter_topic_id: Some("dead".to_owned()),
            positions_topic_id: None,
        },
        relay: Some(Relays {
            pods: Pods {
                wanted: 2,
                ready: 2,
                rolled_out: true,
            },
            hash: "new".to_owned(),
            reports: reports
                .into_iter()
                .map(|status| Report {
                    pod: "p".to_owned(),
                    status: Some(status),
                })
                .collect(),
        }),
        subscriptions: 3,
        ..Outcome::default()
    }
}

fn status(topic: &FanoutTopic, outcome: &Outcome) -> FanoutTopicStatus {
    next(topic, outcome, Timestamp::UNIX_EPOCH)
}

/// `<status>/<reason>` of a condition.
fn shown(status: &FanoutTopicStatus, kind: &str) -> String {
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .unwrap();
    assert_eq!(condition.observed_generation, Some(3));
    format!("{}/{}", condition.status, condition.reason)
}

#[test]
fn it_is_ready_when_log_source_and_every_relay_are() {
    let status = status(&topic(), &outcome(vec![relay(), relay()]));
    for kind in [READY, SOURCE_REACHABLE, LOG_READY, RELAY_AVAILABLE] {
        assert_eq!(shown(&status, kind), "True/Succeeded", "{kind}");
    }
    for kind in [RECONCILING, STALLED, OUTBOX_BLOCKED] {
        assert_eq!(shown(&status, kind), "False/Succeeded", "{kind}");
    }
    assert_eq!(status.relay.unwrap().ready.as_deref(), Some("2/2"));
    assert_eq!(status.subscriptions, Some(3));
    assert_eq!(status.broker.as_deref(), Some("Kafka"));
    assert_eq!(status.topic_name.as_deref(), Some("social.posts"));
}

#[test]
fn one_relay_with_the_old_configuration_keeps_it_from_ready_and_not_from_available() {
    let old = RelayStatus {
        config_hash: "old".to_owned(),
        ..relay()
    };
    let status = status(&topic(), &outcome(vec![relay(), old]));
    assert_eq!(shown(&status, RELAY_AVAILABLE), "True/Progressing");
    assert_eq!(shown(&status, READY), "False/Progressing");
    assert_eq!(shown(&status, RECONCILING), "True/Progressing");
}

#[test]
fn suspended_is_ready_for_that_reason() {
    let mut topic = topic();
    topic.spec.suspend = true;
    assert_eq!(
        shown(&status(&topic, &outcome(vec![relay(), relay()])), READY),
        "True/Suspended"
    );
}

#[rstest]
#[case(
    SourceError::SourceAuthenticationFailed,
    "SourceAuthenticationFailed",
    true
)]
#[case(SourceError::SourceChanged, "SourceChanged", true)]
#[case(SourceError::SourceUnreachable, "SourceUnreachable", false)]
#[case(SourceError::SourceReadOnly, "SourceReadOnly", false)]
fn what_a_relay_says_of_the_source_is_the_reason(
    #[case] class: SourceError,
    #[case] reason: &str,
    #[case] human: bool,
) {
    let broken = RelayStatus {
        source_error: Some(Reported {
            class,
            message: "what to do".to_owned(),
        }),
        ..relay()
    };
    let status = status(&topic(), &outcome(vec![relay(), broken]));
    assert_eq!(shown(&status, SOURCE_REACHABLE), format!("False/{reason}"));
    assert_eq!(shown(&status, READY), format!("False/{reason}"));
    let stalled = if human {
        format!("True/{reason}")
    } else {
        "False/Succeeded".to_owned()
    };
    assert_eq!(shown(&status, STALLED), stalled);
}

#[rstest]
#[case(BrokerError::Unreachable, "BrokerUnreachable", false)]
#[case(BrokerError::AuthenticationFailed, "BrokerAuthenticationFailed", true)]
#[case(BrokerError::TlsFailed, "BrokerTlsFailed", true)]
#[case(BrokerError::PermissionDenied, "BrokerRefused", true)]
#[case(BrokerError::TransactionsUnavailable, "BrokerRefused", true)]
fn what_a_relay_says_of_the_broker_is_the_logs(
    #[case] class: BrokerError,
    #[case] reason: &str,
    #[case] human: bool,
) {
    let broken = RelayStatus {
        broker_error: Some(Reported {
            class,
            message: "what to do".to_owned(),
        }),
        ..relay()
    };
    let status = status(&topic(), &outcome(vec![broken]));
    assert_eq!(shown(&status, LOG_READY), format!("False/{reason}"));
    assert_eq!(shown(&status, STALLED).starts_with("True"), human);
}

#[rstest]
#[case::rows(RelayStatus { parked: Parked { rows: 1, held: 4 }, ..relay() }, "True/RowsParked")]
#[case::transaction(RelayStatus { long_transaction: Some(LongTransaction { pid: 7, age_seconds: Some(90) }), ..relay() }, "True/LongTransaction")]
#[case::nothing(relay(), "False/Succeeded")]
fn what_holds_rows_back_is_said_and_leaves_it_ready(
    #[case] reported: RelayStatus,
    #[case] expected: &str,
) {
    let status = status(&topic(), &outcome(vec![reported, relay()]));
    assert_eq!(shown(&status, OUTBOX_BLOCKED), expected);
    assert_eq!(shown(&status, READY), "True/Succeeded");
}

#[rstest]
#[case::first(None, &[(1, 4)], Some(5))]
#[case::gone(Some(5), &[(0, 0)], Some(0))]
#[case::hardly_moved(Some(1_000), &[(1, 1_003)], Some(1_000))]
#[case::grown(Some(1_000), &[(1, 1_500)], Some(1_501))]
#[case::the_newest_report(Some(1), &[(1, 0), (2, 1)], Some(3))]
#[case::unknown(Some(5), &[], Some(5))]
fn parked_rows_are_counted_and_small_moves_of_many_are_not_written(
    #[case] shown: Option<i64>,
    #[case] reported: &[(i64, i64)],
    #[case] expected: Option<i64>,
) {
    let mut topic = topic();
    topic.status = Some(FanoutTopicStatus {
        parked: shown,
        ..FanoutTopicStatus::default()
    });
    let report = |&(rows, held): &(i64, i64)| RelayStatus {
        parked: Parked { rows, held },
        ..relay()
    };
    let outcome = outcome(reported.iter().map(report).collect());
    assert_eq!(status(&topic, &outcome).parked, expected);
}

#[test]
fn a_drifted_topic_is_ready_and_says_so() {
    let mut drifted = outcome(vec![relay()]);
    drifted.log = Some(Ok(LogState {
        drift: vec!["retention.ms is 5, spec says 6".to_owned()],
    }));
    let status = status(&topic(), &drifted);
    assert_eq!(shown(&status, LOG_READY), "True/TopicDrifted");
    assert_eq!(shown(&status, READY), "True/TopicDrifted");
    assert_eq!(shown(&status, STALLED), "False/Succeeded");
}

#[rstest]
#[case::transient(reason::BROKER_UNREACHABLE, false)]
#[case::human(reason::FOREIGN_TOPIC, true)]
fn a_log_that_is_not_ready_stalls_only_when_a_human_must_mend_it(
    #[case] why: &'static str,
    #[case] human: bool,
) {
    let mut broken = outcome(vec![relay()]);
    broken.log = Some(Err(Problem {
        reason: why,
        message: "what to do".to_owned(),
        needs_human: human,
        usable: false,
    }));
    let status = status(&topic(), &broken);
    assert_eq!(shown(&status, LOG_READY), format!("False/{why}"));
    assert_eq!(shown(&status, READY), format!("False/{why}"));
    assert_eq!(shown(&status, STALLED).starts_with("True"), human);
    assert_eq!(shown(&status, RECONCILING).starts_with("True"), !human);
    // What was identified stays known.
    assert_eq!(status.topic_id.as_deref(), Some("id"));
}

#[test]
fn an_invalid_spec_stalls_and_what_was_known_stays() {
    let mut known = topic();
    known.status = Some(status(&known, &outcome(vec![relay(), relay()])));
    let invalid = Outcome {
        invalid: Some(Invalid::new(
            reason::SECRET_NOT_PERMITTED,
            "Secret db is missing",
        )),
        identity: Identity::recorded(&known),
        ..Outcome::default()
    };
    let status = status(&known, &invalid);
    assert_eq!(shown(&status, STALLED), "True/SecretNotPermitted");
    assert_eq!(shown(&status, READY), "False/SecretNotPermitted");
    assert_eq!(shown(&status, LOG_READY), "True/Succeeded");
    assert_eq!(status.topic_id.as_deref(), Some("id"));
}

#[test]
fn the_first_status_has_every_condition() {
    let status = status(&topic(), &Outcome::default());
    assert_eq!(status.conditions.len(), 7);
    assert_eq!(shown(&status, LOG_READY), "Unknown/Pending");
    assert_eq!(shown(&status, READY), "False/Pending");
    assert_eq!(shown(&status, RECONCILING), "True/Progressing");
}

#[test]
fn the_same_findings_give_the_same_status() {
    let mut topic = topic();
    let outcome = outcome(vec![relay(), relay()]);
    topic.status = Some(status(&topic, &outcome));
    assert_eq!(
        next(&topic, &outcome, Timestamp::now()),
        topic.status.unwrap()
    );
}

#[test]
fn whether_the_outbox_has_an_order_is_what_a_relay_read_last() {
    let mut topic = topic();
    let ordered = |topic: &FanoutTopic, relay| status(topic, &outcome(vec![relay])).ordered;
    let unordered = RelayStatus {
        ordered: Some(false),
        ..relay()
    };
    let in_order = RelayStatus {
        ordered: Some(true),
        ..relay()
    };
    let unread = RelayStatus::default();
    assert_eq!(ordered(&topic, unread.clone()), None);
    assert_eq!(ordered(&topic, in_order), Some(true));
    assert_eq!(ordered(&topic, unordered), Some(false));
    topic.status = Some(FanoutTopicStatus {
        ordered: Some(false),
        ..FanoutTopicStatus::default()
    });
    assert_eq!(ordered(&topic, unread), Some(false));
}
