//! Reconciles a Subscription: its group, its position, its worker, and what is said about it. The worker's objects are the
//! FanoutTopic's.

mod cleanup;
mod expired;
mod filters;
#[cfg(test)]
mod hostile_tests;
mod observe;
pub(crate) mod position;
pub(crate) mod status;
#[cfg(test)]
mod tests;
pub(crate) mod validate;

use super::conditions::{self, Finding};
use super::error::{Class, Error};
use super::fanout_topic::validate::ValidTopic;
use super::fanout_topic::{self, status::Identity};
use super::workers::Pods;
use super::{deletion, events, reports, undecodable};
use crate::apply;
use crate::context::{Context, safety_net};
use crate::placement::Placeable;
use crate::stores::GuardedSubscription;
use fanout_contract::names;
use fanout_crds::condition::{POSITION_INITIALIZED, READY, STALLED, WORKERS_AVAILABLE, reason};
use fanout_crds::fanout_topic::Format;
use fanout_crds::subscription::{Isolation, Sink};
use fanout_crds::{FanoutTopic, Subscription, SubscriptionStatus};
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use observe::Group;
use status::{Outcome, Progress, Worker};
use std::sync::Arc;
use std::time::Duration;

/// Look again at what is not settled, should no event tell.
const UNSETTLED: Duration = Duration::from_secs(30);

/// One pass.
pub(crate) async fn reconcile(
    object: Arc<GuardedSubscription>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let subscription = match &object.0 {
        Ok(subscription) => subscription,
        Err(_) if object.meta().deletion_timestamp.is_some() => {
            return deletion::undecodable(&ctx, &object).await;
        }
        Err(invalid) => return undecodable::tell::<Subscription>(&ctx, &invalid.metadata).await,
    };
    if subscription.metadata.deletion_timestamp.is_some() {
        let status = subscription.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let pass = Box::pin(cleanup::pass(subscription, &ctx));
        return deletion::run(&ctx, &object, conditions, pass).await;
    }
    let namespace = subscription.namespace().unwrap_or_default();
    if ctx
        .is_terminating(&namespace)
        .await
        .map_err(Error::reading("the namespace"))?
    {
        return Ok(Action::await_change());
    }
    // The object as it is known to be stored: each write of the status in this pass goes on from the one before.
    let mut subscription = subscription.clone();
    let mut outcome = Outcome::starting(&subscription);
    let policy = subscription.spec.deletion_policy;
    let converged = match deletion::prepare(&ctx, &mut subscription, policy).await {
        Ok(true) => converge(&mut subscription, &ctx, &mut outcome).await,
        Ok(false) => return Ok(Action::await_change()),
        Err(error) => Err(error),
    };
    match &converged {
        Err(error) if error.namespace_terminating() => return Ok(Action::await_change()),
        Err(error) if error.class() == Class::Conflict => {
            return converged.map(|_| Action::await_change());
        }
        Err(error) => outcome.failure = Some(error.finding()),
        Ok(_) => {}
    }
    let written = write_status(&ctx, &mut subscription, &outcome).await;
    let next = converged?;
    written?;
    if matches!(next, Next::Retry) {
        return Ok(ctx.retries.next(&subscription));
    }
    ctx.retries.forget(&subscription);
    let conditions = subscription
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let settled = conditions::holds(conditions, READY) || conditions::holds(conditions, STALLED);
    let offsets_configured = conditions::get(conditions, POSITION_INITIALIZED)
        .is_some_and(|it| it.reason == reason::START_OFFSETS_CONFIGURED);
    Ok(if settled && !offsets_configured {
        safety_net()
    } else {
        Action::requeue(UNSETTLED)
    })
}

/// How to go on after a pass that did not fail.
enum Next {
    /// Events tell.
    Wait,
    /// Kafka did not answer: later.
    Retry,
}

impl Outcome {
    /// Nothing found yet: everything recorded stays.
    fn starting(subscription: &Subscription) -> Self {
        let status = subscription.status.clone().unwrap_or_default();
        Self {
            progress: Progress::shown(&status),
            group_id: status.group_id,
            placement: status.placement,
            positions: status.positions,
            topic_id: status.topic_id,
            ..Self::default()
        }
    }
}

/// Writes the status if it differs, and leaves it in `subscription`.
async fn write_status(
    ctx: &Context,
    subscription: &mut Subscription,
    outcome: &Outcome,
) -> Result<(), Error> {
    let fit = |status| ctx.served.fit(&Subscription::kind(&()), status);
    let mut next = status::next(subscription, outcome, Timestamp::now());
    next.scaling = reports::scaling(ctx, subscription);
    let mut next = fit(next);
    let changed = subscription.status.as_ref() != Some(&next);
    let (progress, positions) = reports::progress(ctx, subscription, &next, changed);
    next.depth = progress.depth;
    next.oldest_event_time = progress.oldest_event_time;
    next.rate_per_second = progress.rate_per_second;
    if may_save(outcome, &next) {
        next.positions = position::to_record(&positions);
    }
    let next = fit(next);
    if subscription.status.as_ref() == Some(&next) {
        return Ok(());
    }
    let api: Api<Subscription> = Api::namespaced(
        ctx.client.clone(),
        &subscription.namespace().unwrap_or_default(),
    );
    let stored = apply::status(&api, subscription, &next).await?;
    subscription.metadata.resource_version = stored.metadata.resource_version;
    let old = subscription.status.replace(next).unwrap_or_default();
    let new = subscription
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    events::publish(ctx, subscription, &old.conditions, new).await;
    let scaling = subscription.status.as_ref();
    let scaling = scaling.and_then(|status| status.scaling.as_ref());
    if let (Some(old), Some(new)) = (&old.scaling, scaling)
        && old.replicas != new.replicas
    {
        let is_more = new.replicas > old.replicas;
        events::scaled(ctx, subscription, is_more, new.message.clone()).await;
    }
    Ok(())
}

/// True where the committed offsets that the observer saw may be saved: they are of the recorded log, this pass has
/// read no younger ones, and no worker's configuration has the positions, which would change with them.
fn may_save(outcome: &Outcome, next: &SubscriptionStatus) -> bool {
    let settled = conditions::get(&next.conditions, POSITION_INITIALIZED)
        .is_some_and(|finding| finding.holds() && finding.reason == reason::SUCCEEDED);
    settled && !outcome.positions_read && !next.positions.is_empty()
}

async fn converge(
    subscription: &mut Subscription,
    ctx: &Context,
    outcome: &mut Outcome,
) -> Result<Next, Error> {
    let namespace = subscription.namespace().unwrap_or_default();
    let secrets = |secret: &str| ctx.stores.secret(&namespace, secret);
    let guard = ctx.stores.guard(&ctx.settings.egress_allowed);
    outcome.invalid = validate::validate(subscription, &secrets, &guard).err();

    if outcome.group_id.is_none() {
        // Before anything uses it: whatever changes later (the prefix, the rule for names), the group stays.
        outcome.group_id = Some(names::group_id(
            &ctx.settings.kafka_prefix,
            &namespace,
            &subscription.name_any(),
        ));
        write_status(ctx, subscription, outcome).await?;
    }

    outcome.worker = worker(ctx, subscription, outcome);
    outcome.expired = reports::expired(ctx, subscription);
    let name = subscription.spec.topic_ref.name.clone();
    let found = ctx.stores.topic(&namespace, &name);
    let problem = match &found {
        None if ctx.stores.has_topic(&namespace, &name) => {
            // It can't be decoded: what it was goes on.
            if !initialised(subscription, outcome) {
                outcome.position = Some(topic_not_ready(&name));
            }
            return Ok(Next::Wait);
        }
        None => "does not exist in this namespace; create it",
        Some(topic) if topic.metadata.deletion_timestamp.is_some() => "is being deleted",
        Some(_) => "",
    };
    let Some(topic) = found.filter(|_| problem.is_empty()) else {
        outcome.position = Some(Finding::no(
            reason::TOPIC_NOT_FOUND,
            format!("spec.topicRef.name: FanoutTopic {name} {problem}"),
        ));
        return Ok(Next::Wait);
    };
    if topic.spec.relay.format != Format::CloudEvents {
        outcome.position = Some(Finding::no(
            reason::FORMAT_UNSUPPORTED,
            format!(
                "spec.topicRef.name: FanoutTopic {name} publishes in format Debezium, and Subscriptions need CloudEvents; read its Kafka topic yourself, or make a FanoutTopic of another name"
            ),
        ));
        return Ok(Next::Wait);
    }
    if outcome.invalid.is_none() {
        let ordered = topic.status.as_ref().and_then(|status| status.ordered);
        outcome.invalid = validate::check_ordering(subscription, ordered).err();
    }
    let position = initialise(subscription, ctx, &topic, outcome).await?;
    if outcome.invalid.is_none() {
        // Each partition has a position.
        let observed = reports::partitions(ctx, &topic).unwrap_or_default();
        let partitions = outcome.positions.len().max(observed);
        outcome.invalid = validate::check_partitions(subscription, partitions).err();
    }
    if initialised(subscription, outcome) {
        outcome.placement = Some(place(ctx, subscription, &topic));
        outcome.worker = worker(ctx, subscription, outcome);
    }
    Ok(position)
}

fn initialised(subscription: &Subscription, outcome: &Outcome) -> bool {
    let before = subscription
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    outcome.position.as_ref().map_or_else(
        || conditions::holds(before, POSITION_INITIALIZED),
        Finding::holds,
    )
}

/// Sees to it that the group has an offset for every partition.
async fn initialise(
    subscription: &mut Subscription,
    ctx: &Context,
    topic: &FanoutTopic,
    outcome: &mut Outcome,
) -> Result<Next, Error> {
    let identity = Identity::recorded(topic);
    let partitions = reports::partitions(ctx, topic);
    let is_other_log = outcome.topic_id.is_none() || outcome.topic_id != identity.topic_id;
    if !needs_kafka(subscription, outcome, partitions)
        && !is_other_log
        && !is_refused(ctx, subscription)
    {
        return Ok(Next::Wait);
    }
    let namespace = topic.namespace().unwrap_or_default();
    let secrets = |secret: &str| ctx.stores.secret(&namespace, secret);
    let valid = fanout_topic::validate::validate(topic, &secrets, &ctx.settings.kafka_prefix);
    let (Ok(valid), Some(topic_id), true) = (valid, &identity.topic_id, identity.is_complete())
    else {
        not_ready(subscription, outcome, topic);
        return Ok(Next::Wait);
    };
    let group_id = outcome.group_id.clone().unwrap_or_default();
    match position_of(subscription, ctx, &valid, (&group_id, topic_id), outcome).await? {
        Ok(finding) => {
            outcome.position = Some(finding);
            Ok(Next::Wait)
        }
        Err(missing) => {
            let problem = missing.problem(&valid, &group_id);
            // What was initialised stays so while Kafka can't be asked.
            if !initialised(subscription, outcome) {
                outcome.position = Some(Finding::no(problem.reason, &problem.message));
            }
            if problem.needs_human {
                outcome.refused = Some(problem);
            }
            Ok(Next::Retry)
        }
    }
}

fn not_ready(subscription: &Subscription, outcome: &mut Outcome, topic: &FanoutTopic) {
    if !initialised(subscription, outcome) {
        outcome.position = Some(topic_not_ready(&topic.name_any()));
    }
}

fn topic_not_ready(topic: &str) -> Finding {
    Finding::no(
        reason::TOPIC_NOT_READY,
        format!("spec.topicRef.name: FanoutTopic {topic} is not ready; its status says why"),
    )
}

/// True when Kafka refused the consumers' principal the group in the last round of observation. Its client tells nobody.
fn is_refused(ctx: &Context, subscription: &Subscription) -> bool {
    let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
    let seen = ctx.observer.subscription(uid);
    seen.is_some_and(|seen| seen.refused)
}

/// Once initialised and served, the worker commits and would tell of a partition without an offset. Nobody commits for a
/// Subscription that is not served, or was not until now, and a group without members is forgotten. Of `partitions`, as
/// far as they are known, those that were added have no position yet.
fn needs_kafka(subscription: &Subscription, outcome: &Outcome, partitions: Option<usize>) -> bool {
    let before = subscription
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let settled = conditions::get(before, POSITION_INITIALIZED)
        .is_some_and(|finding| finding.holds() && finding.reason == reason::SUCCEEDED);
    !settled
        || !is_served(subscription, outcome)
        || !conditions::holds(before, WORKERS_AVAILABLE)
        || position_missing(subscription, outcome)
        || partitions.is_some_and(|partitions| partitions > outcome.positions.len())
}

fn is_served(subscription: &Subscription, outcome: &Outcome) -> bool {
    !subscription.spec.suspend
        && outcome.invalid.is_none()
        && outcome
            .worker
            .as_ref()
            .is_some_and(|worker| worker.pods.ready > 0)
}

fn position_missing(subscription: &Subscription, outcome: &Outcome) -> bool {
    let uid = subscription.uid().unwrap_or_default();
    outcome
        .worker
        .iter()
        .flat_map(|worker| &worker.reports)
        .filter_map(|report| report.status.as_ref())
        .flat_map(|status| &status.subscriptions)
        .any(|entry| {
            entry.uid == uid
                && entry.reason == Some(fanout_contract::consumer::StopReason::PositionMissing)
        })
}

async fn position_of(
    subscription: &mut Subscription,
    ctx: &Context,
    topic: &ValidTopic,
    (group_id, topic_id): (&str, &str),
    outcome: &mut Outcome,
) -> Result<Result<Finding, observe::Missing>, Error> {
    // As the consumers' principal: what the brokers refuse a worker, they refuse here before.
    let cluster = match ctx.clusters.get(&topic.consumer.params).await {
        Ok(cluster) => cluster,
        Err(error) => return Ok(Err(error.into())),
    };
    let group = Group {
        cluster: &cluster,
        id: group_id,
        topic: &topic.log.topic,
        topic_id,
    };
    let observed = match group.observe().await {
        Ok(observed) => observed,
        Err(missing) => return Ok(Err(missing)),
    };
    let recorded = position::recorded(&outcome.positions, outcome.topic_id.as_deref(), topic_id);
    let mut all = match group
        .complete(&observed, &recorded, &subscription.spec.start_from)
        .await
    {
        Ok(all) => all,
        Err(missing) => return Ok(Err(missing)),
    };
    if !is_served(subscription, outcome) {
        all = position::saved(&all, &observed.committed);
    }
    outcome.positions_read = true;
    if recorded.replaced {
        outcome.position = Some(Finding::no(
            reason::PENDING,
            "the Kafka topic was replaced; all of the new one will be delivered",
        ));
    }
    if all != recorded.offsets || outcome.topic_id.as_deref() != Some(topic_id) {
        outcome.positions = position::to_record(&all);
        outcome.topic_id = Some(topic_id.to_owned());
        write_status(ctx, subscription, outcome).await?;
    }
    if !position::incomplete(observed.partitions, &observed.committed) {
        return Ok(Ok(Finding::yes(reason::SUCCEEDED, "")));
    }
    Ok(group.commit(&all).await)
}

fn place(ctx: &Context, subscription: &Subscription, topic: &FanoutTopic) -> String {
    let siblings = ctx.stores.subscriptions_of(
        &subscription.namespace().unwrap_or_default(),
        &topic.name_any(),
    );
    let known: Vec<_> = siblings
        .iter()
        .filter_map(|object| object.0.as_ref().ok())
        .filter_map(|sibling| {
            let status: Option<&SubscriptionStatus> = sibling.status.as_ref();
            Some((
                sibling.metadata.uid.as_deref()?,
                status.and_then(|status| status.placement.as_deref()),
            ))
        })
        .collect();
    let name = subscription.name_any();
    ctx.placements.place(
        topic.metadata.uid.as_deref().unwrap_or_default(),
        subscription.metadata.uid.as_deref().unwrap_or_default(),
        Placeable {
            topic: &topic.name_any(),
            name: &name,
            dedicated: subscription.spec.isolation == Isolation::Dedicated,
            recorded: subscription
                .status
                .as_ref()
                .and_then(|status| status.placement.as_deref()),
        },
        &known,
    )
}

/// The worker that the outcome names, as it is now.
fn worker(ctx: &Context, subscription: &Subscription, outcome: &Outcome) -> Option<Worker> {
    let namespace = subscription.namespace().unwrap_or_default();
    let name = outcome.placement.as_ref()?;
    let deployment = ctx.stores.deployment(&namespace, name);
    let reports = reports::consumers(
        ctx,
        &namespace,
        name,
        &subscription.uid().unwrap_or_default(),
    );
    let hash = ctx.stores.config_hash(&namespace, name);
    let overdue = ctx
        .pushes
        .overdue(&format!("{namespace}/{name}"), hash.as_deref(), &reports);
    Some(Worker {
        pods: Pods::of(deployment.as_deref()),
        reports,
        overdue,
    })
}

/// Secrets that a Subscription refers to, by name.
pub(crate) fn secret_names(subscription: &Subscription) -> Vec<&str> {
    let Sink::Webhook(webhook) = &subscription.spec.sink;
    webhook
        .signing
        .iter()
        .flat_map(|signing| &signing.secret_refs)
        .map(|reference| reference.name.as_str())
        .collect()
}
