//! The end of an object with `deletionPolicy: Delete`: its finalizer, the deadline, and what is said when something stays.
//!
//! The deadline counts from the object's deletion, so that a restart of the operator changes nothing. What is to be deleted
//! is the matter of each kind's `cleanup`. Nothing here creates an object, and no event is written in a namespace that is
//! being deleted.

use super::conditions::Finding;
use super::error::Error;
use super::{conditions, events};
use crate::apply;
use crate::context::Context;
use fanout_contract::names::CLEANUP_FINALIZER;
use fanout_crds::DeletionPolicy;
use fanout_crds::condition::{READY, reason};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;

/// Longest pause between two looks at what is not deleted yet.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// How far a cleanup got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is left to do. What stays all the same, a sentence each.
    Done(Vec<String>),
    /// Not yet; why is in the condition `Ready`.
    Waiting(Finding),
}

impl Step {
    /// All is gone.
    pub(crate) const fn done() -> Self {
        Self::Done(Vec::new())
    }
}

/// A kind that can have the finalizer.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug
{
}

/// True when the object carries the finalizer.
pub(crate) fn has_finalizer(meta: &ObjectMeta) -> bool {
    meta.finalizers
        .iter()
        .flatten()
        .any(|found| found == CLEANUP_FINALIZER)
}

/// Time left until the finalizer goes, whatever is left; `None` for an object that is not being deleted.
pub(crate) fn left(meta: &ObjectMeta, deadline: Duration, now: Timestamp) -> Option<Duration> {
    let since = meta.deletion_timestamp.as_ref()?.0;
    // Clocks that disagree must not make it longer than the deadline.
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some(deadline.saturating_sub(passed))
}

/// Gives an object that is not being deleted the finalizer, or takes it, as its policy says: before anything is made outside
/// of Kubernetes. `object` is what is stored then; false when it is gone.
pub(crate) async fn prepare<K: Kind>(
    ctx: &Context,
    object: &mut K,
    policy: DeletionPolicy,
) -> Result<bool, Error> {
    let wanted = policy == DeletionPolicy::Delete;
    let stored =
        apply::finalizer::<K>(&ctx.client, object.meta(), CLEANUP_FINALIZER, wanted).await?;
    let exists = stored.is_some();
    if let Some(stored) = stored {
        object.meta_mut().finalizers = stored.finalizers;
        object.meta_mut().resource_version = stored.resource_version;
    }
    Ok(exists)
}

/// One pass of an object that is being deleted: lets `pass` go on until the deadline, and lets the object go in the end.
/// `conditions` are those of its status.
pub(crate) async fn run<K: Kind>(
    ctx: &Context,
    object: &DeserializeGuard<K>,
    conditions: &[Condition],
    pass: impl Future<Output = Result<Step, Error>>,
) -> Result<Action, Error> {
    let meta = object.meta();
    let deadline = ctx.settings.deletion_deadline;
    let left_now = || left(meta, deadline, Timestamp::now()).unwrap_or_default();
    if !has_finalizer(meta) {
        return Ok(Action::await_change());
    }
    let time = left_now();
    let step = if time.is_zero() {
        None
    } else {
        tokio::time::timeout(time, pass).await.ok().transpose()?
    };
    let stays = match step {
        Some(Step::Done(stays)) => stays,
        Some(Step::Waiting(_)) => {
            let pause = ctx.retries.delay(object, LONGEST_PAUSE);
            return Ok(Action::requeue(pause.min(left_now())));
        }
        None => vec![given_up(conditions, deadline)],
    };
    let stored = apply::finalizer::<K>(&ctx.client, meta, CLEANUP_FINALIZER, false).await?;
    if stored.is_none() {
        return Ok(Action::await_change());
    }
    ctx.retries.forget(object);
    let name = object.name_any();
    let namespace = object.namespace().unwrap_or_default();
    if stays.is_empty() {
        tracing::info!(kind = %K::kind(&()), namespace, name, "cleaned up after a deleted object");
    } else {
        let note = stays.join("; ");
        tracing::warn!(kind = %K::kind(&()), namespace, name, note, "cleanup is incomplete");
        // Where that can't be told, nobody is left to read an event either.
        if matches!(ctx.is_terminating(&namespace).await, Ok(false)) {
            events::cleanup_incomplete(ctx, object, note).await;
        }
    }
    Ok(Action::await_change())
}

/// An object that is being deleted and that this version can't decode: what it has outside of Kubernetes is not known, so it stays, and the object
/// goes at the deadline. Another version may come until then.
pub(crate) async fn undecodable<K: Kind>(
    ctx: &Context,
    object: &DeserializeGuard<K>,
) -> Result<Action, Error> {
    let waiting = async { Ok(Step::Waiting(Finding::no(reason::DELETING, ""))) };
    run(ctx, object, &[], waiting).await
}

/// What to say at the deadline, from what the status said last.
fn given_up(conditions: &[Condition], deadline: Duration) -> String {
    let waited = conditions::get(conditions, READY)
        .map(|ready| ready.message)
        .filter(|message| !message.is_empty())
        .unwrap_or_else(|| "what deletionPolicy Delete stands for".to_owned());
    format!(
        "not deleted within {} seconds, so it stays: {waited}",
        deadline.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[rstest]
    #[case::not_deleted(None, 1000, None)]
    #[case::just_deleted(Some(1000), 1000, Some(300))]
    #[case::after_a_while(Some(1000), 1100, Some(200))]
    #[case::over(Some(1000), 1300, Some(0))]
    #[case::long_over(Some(1000), 9999, Some(0))]
    #[case::the_servers_clock_is_ahead(Some(1000), 900, Some(300))]
    fn the_deadline_counts_from_the_deletion(
        #[case] deleted: Option<i64>,
        #[case] now: i64,
        #[case] expected: Option<u64>,
    ) {
        let meta = ObjectMeta {
            deletion_timestamp: deleted.map(|second| Time(at(second))),
            ..ObjectMeta::default()
        };
        let found = left(&meta, Duration::from_mins(5), at(now));
        assert_eq!(found, expected.map(Duration::from_secs));
    }

    #[test]
    fn what_it_waited_for_is_what_stays() {
        let deadline = Duration::from_mins(5);
        let conditions = conditions::deleting(
            &[],
            1,
            at(1),
            Finding::no(reason::BROKER_UNREACHABLE, "Kafka topic social.posts: why"),
        );
        assert_eq!(
            given_up(&conditions, deadline),
            "not deleted within 300 seconds, so it stays: Kafka topic social.posts: why"
        );
        assert!(given_up(&[], deadline).ends_with("what deletionPolicy Delete stands for"));
    }
}
