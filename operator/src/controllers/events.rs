//! Kubernetes events: one for each condition that changed its value.

use crate::context::Context;
use fanout_crds::condition::{Polarity, READY, RECONCILING, polarity};
use fanout_crds::deletion::CLEANUP_INCOMPLETE;
use fanout_crds::scaling::SCALED;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::events::{Event, EventType};

/// Longest note that the API server accepts, bytes.
const NOTE_MAX: usize = 1024;

/// Publishes what changed from `old` to `new`. A failure is logged and nothing else: events are not the truth.
pub(crate) async fn publish<K>(ctx: &Context, object: &K, old: &[Condition], new: &[Condition])
where
    K: Resource<DynamicType = ()>,
{
    publish_on(ctx, &object.object_ref(&()), old, new).await;
}

/// The same for an object that is no `K`, although it is called one.
pub(crate) async fn publish_about<K>(
    ctx: &Context,
    object: &DynamicObject,
    old: &[Condition],
    new: &[Condition],
) where
    K: Resource<DynamicType = ()>,
{
    let reference = object.object_ref(&ApiResource::erase::<K>(&()));
    publish_on(ctx, &reference, old, new).await;
}

async fn publish_on(
    ctx: &Context,
    reference: &ObjectReference,
    old: &[Condition],
    new: &[Condition],
) {
    let events = events(old, new);
    // A pass may have begun before its namespace was deleted; where that can't be told there is nobody to tell anything.
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    if events.is_empty() || !matches!(ctx.is_terminating(namespace).await, Ok(false)) {
        return;
    }
    for event in events {
        if let Err(error) = ctx.recorder.publish(&event, reference).await {
            tracing::warn!(%error, reason = %event.reason, "event not published");
        }
    }
}

/// Says that `object` is gone, and that something of it stays.
pub(crate) async fn cleanup_incomplete<K>(ctx: &Context, object: &K, note: String)
where
    K: Resource<DynamicType = ()>,
{
    let event = Event {
        type_: EventType::Warning,
        reason: CLEANUP_INCOMPLETE.to_owned(),
        note: Some(cut(note)),
        action: "Cleanup".to_owned(),
        secondary: None,
    };
    let reference = object.object_ref(&());
    if let Err(error) = ctx.recorder.publish(&event, &reference).await {
        tracing::warn!(%error, reason = %event.reason, "event not published");
    }
}

/// Says that the number of replicas of the worker of `object` was changed: to more, or to fewer. Repeats of one direction are
/// folded into one series.
pub(crate) async fn scaled<K>(ctx: &Context, object: &K, is_more: bool, note: String)
where
    K: Resource<DynamicType = ()>,
{
    let event = Event {
        type_: EventType::Normal,
        reason: SCALED.to_owned(),
        note: Some(cut(note)),
        action: if is_more { "ScaleOut" } else { "ScaleIn" }.to_owned(),
        secondary: None,
    };
    let reference = object.object_ref(&());
    if let Err(error) = ctx.recorder.publish(&event, &reference).await {
        tracing::warn!(%error, reason = %event.reason, "event not published");
    }
}

/// `note` as far as the API server takes it.
fn cut(mut note: String) -> String {
    while note.len() > NOTE_MAX {
        note.pop();
    }
    note
}

/// The events for the difference between `old` and `new`. Reconciling has none: it mirrors Ready.
fn events(old: &[Condition], new: &[Condition]) -> Vec<Event> {
    super::conditions::transitions(old, new)
        .into_iter()
        .filter(|condition| condition.type_ != RECONCILING)
        .filter(|condition| {
            let first = old.iter().all(|before| before.type_ != condition.type_);
            // The first value is news when it is bad, or the summary.
            !first || is_bad(condition) || condition.type_ == READY
        })
        .map(|condition| {
            let mut note = format!("{} is {}", condition.type_, condition.status);
            if !condition.message.is_empty() {
                note = format!("{note}: {}", condition.message);
            }
            // A topic that is merely not ready yet is no warning.
            let warning = is_bad(condition) && condition.type_ != READY;
            Event {
                type_: if warning {
                    EventType::Warning
                } else {
                    EventType::Normal
                },
                reason: condition.reason.clone(),
                note: Some(cut(note)),
                // The recorder folds repeats by reason and action: each condition is a series of its own.
                action: condition.type_.clone(),
                secondary: None,
            }
        })
        .collect()
}

fn is_bad(condition: &Condition) -> bool {
    condition.status
        == if polarity(&condition.type_) == Some(Polarity::Abnormal) {
            "True"
        } else {
            "False"
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::conditions::{Finding, merge};
    use fanout_crds::condition::STALLED;
    use k8s_openapi::jiff::Timestamp;

    fn conditions(old: &[Condition], findings: Vec<(&'static str, Finding)>) -> Vec<Condition> {
        merge(old, 1, Timestamp::UNIX_EPOCH, findings)
    }

    #[test]
    fn there_is_one_event_per_transition_and_none_without() {
        let old = conditions(
            &[],
            vec![
                (READY, Finding::yes("Succeeded", "")),
                (STALLED, Finding::no("Succeeded", "")),
            ],
        );
        let new = conditions(
            &old,
            vec![
                (READY, Finding::no("FilterInvalid", "spec.filter: bad")),
                (STALLED, Finding::yes("FilterInvalid", "spec.filter: bad")),
            ],
        );
        let published: Vec<_> = events(&old, &new)
            .into_iter()
            .map(|event| (event.action, event.type_, event.note))
            .collect();
        assert_eq!(
            published,
            [
                (
                    READY.to_owned(),
                    EventType::Normal,
                    Some("Ready is False: spec.filter: bad".to_owned())
                ),
                (
                    STALLED.to_owned(),
                    EventType::Warning,
                    Some("Stalled is True: spec.filter: bad".to_owned())
                ),
            ]
        );
        assert!(events(&new, &new).is_empty());
    }

    #[test]
    fn a_good_first_value_is_no_news_except_the_summary() {
        let new = conditions(
            &[],
            vec![
                (READY, Finding::yes("Succeeded", "")),
                (STALLED, Finding::no("Succeeded", "")),
                ("SinkAccepted", Finding::yes("Succeeded", "")),
            ],
        );
        let published: Vec<_> = events(&[], &new)
            .into_iter()
            .map(|event| event.action)
            .collect();
        assert_eq!(published, [READY]);
    }
}
