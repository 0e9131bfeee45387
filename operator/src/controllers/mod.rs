//! Both controllers, and what they have in common.

pub(crate) mod conditions;
pub(crate) mod deletion;
pub(crate) mod error;
mod events;
pub(crate) mod fanout_topic;
mod queue;
mod reports;
pub(crate) mod secrets;
pub(crate) mod subscription;
mod triggers;
mod undecodable;
pub(crate) mod workers;

pub(crate) use triggers::{Addresses, Triggers};

use crate::context::Context;
use crate::leadership::Leadership;
use crate::metrics::{Kind, Passed};
use crate::watches::Watches;
use error::{Class, Error};
use futures::{Stream, StreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::core::DeserializeGuard;
use kube::runtime::controller::{Action, Config, Error as ControllerError, applier};
use kube::runtime::reflector::ObjectRef;
use queue::Queue;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Passes at once per kind; each may wait for Kafka.
const CONCURRENCY: u16 = 16;
/// What the API server did not take is tried again at least this often: it converges soon after an outage.
const RETRY_LONGEST: Duration = Duration::from_secs(20);
/// The same after a 409: the cache is behind what is stored, usually for a moment.
const CONFLICT_LONGEST: Duration = Duration::from_secs(5);

/// Runs both controllers until `shutdown`; passes under way end first.
pub(crate) async fn run(
    ctx: Arc<Context>,
    watches: Watches,
    leadership: &Leadership,
    shutdown: CancellationToken,
) {
    let (topic_queue, topic_requests) = Queue::new();
    let (subscription_queue, subscription_requests) = Queue::new();
    let triggers = Arc::new(Triggers::new(
        ctx.stores.clone(),
        topic_queue,
        subscription_queue,
    ));
    let work = async {
        // With half-filled caches a FanoutTopic would seem to have no Subscriptions, and its workers would be pruned.
        tokio::select! {
            ready = ctx.stores.wait_until_ready() => {
                if let Err(error) = ready {
                    tracing::error!(%error, "a watch ended before its cache was filled");
                    return;
                }
            }
            () = shutdown.cancelled() => return,
        }
        leadership.caches_filled();
        let topics = applier(
            |object, ctx| Box::pin(fanout_topic::reconcile(object, ctx)),
            |object, error, ctx| retry(&*object, error, &ctx),
            Arc::clone(&ctx),
            ctx.stores.topics.clone(),
            requests(topic_requests, &shutdown),
            config(),
        );
        let subscriptions = applier(
            |object, ctx| Box::pin(subscription::reconcile(object, ctx)),
            |object, error, ctx| retry(&*object, error, &ctx),
            Arc::clone(&ctx),
            ctx.stores.subscriptions.clone(),
            requests(subscription_requests, &shutdown),
            config(),
        );
        tokio::join!(
            drive(Kind::FanoutTopic, &ctx, topics),
            drive(Kind::Subscription, &ctx, subscriptions)
        );
    };
    let observed = async {
        loop {
            for trigger in ctx.observer.triggers().await {
                triggers.observed(&trigger);
            }
        }
    };
    let described = async {
        loop {
            ctx.served.changed().await;
            triggers.everything();
        }
    };
    tokio::select! {
        () = work => {}
        () = described => {}
        () = watches.run(Arc::clone(&triggers)) => tracing::error!("the watches ended"),
        () = observed => {}
    }
}

/// A controller's queue, which ends with `shutdown`.
fn requests<K: Resource>(
    queue: impl Stream<Item = ObjectRef<K>>,
    shutdown: &CancellationToken,
) -> impl Stream<Item = Result<ObjectRef<K>, Infallible>> {
    queue.take_until(shutdown.clone().cancelled_owned()).map(Ok)
}

fn config() -> Config {
    Config::default().concurrency(CONCURRENCY)
}

/// How one pass ended.
type Pass<K> = Result<(ObjectRef<K>, Action), ControllerError<Error, Infallible>>;

/// Runs a controller's stream to its end; the one place where failed passes are logged.
async fn drive<K, S>(kind: Kind, ctx: &Context, stream: S)
where
    K: Resource<DynamicType = ()>,
    S: Stream<Item = Pass<K>>,
{
    let log = async |pass: Pass<K>| match pass {
        Ok((object, action)) => {
            ctx.metrics.reconciled(kind, Passed::Ok);
            tracing::debug!(?kind, %object, ?action, "reconciled");
        }
        Err(ControllerError::ReconcilerFailed(error, object)) => {
            let causes = causes(&error);
            if error.class() == Class::Conflict {
                ctx.metrics.reconciled(kind, Passed::Conflict);
                tracing::info!(?kind, %object, error = causes, "written by somebody else at the same time; again");
            } else {
                ctx.metrics.reconciled(kind, Passed::Failed);
                tracing::warn!(?kind, %object, error = causes, "reconcile failed");
            }
        }
        Err(ControllerError::ObjectNotFound(object)) => {
            ctx.retries.forget_deleted(&object);
            tracing::debug!(?kind, %object, "object is gone");
        }
        Err(error) => tracing::warn!(?kind, %error, "controller"),
    };
    stream.for_each(log).await;
}

/// An error with its causes in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// When to try a failed pass again.
fn retry<K>(object: &DeserializeGuard<K>, error: &Error, ctx: &Context) -> Action
where
    K: Resource<DynamicType = ()>,
    DeserializeGuard<K>: Resource<DynamicType = ()>,
{
    match error.class() {
        Class::Invalid => Action::await_change(),
        Class::Conflict => Action::requeue(ctx.retries.delay(object, CONFLICT_LONGEST)),
        // An object that is being deleted goes at its deadline, whatever fails.
        Class::Transient => {
            let delay = ctx.retries.delay(object, RETRY_LONGEST);
            let deadline = ctx.settings.deletion_deadline;
            let left = deletion::left(object.meta(), deadline, Timestamp::now());
            Action::requeue(left.map_or(delay, |left| delay.min(left)))
        }
    }
}
