//! Reconciles a FanoutTopic: its Kafka topics, its relays, and the workers of all its Subscriptions.

pub(crate) mod build;
mod cleanup;
mod ensure;
pub(crate) mod log;
pub(crate) mod members;
mod observe;
mod rivals;
pub(crate) mod status;
#[cfg(test)]
mod tests;
pub(crate) mod validate;

use super::error::{Class, Error, Invalid};
use super::workers::Pods;
use super::{conditions, deletion, events, reports, subscription, undecodable};
use crate::apply;
use crate::context::{Context, safety_net};
use crate::kafka::ClusterParams;
use crate::stores::GuardedTopic;
use build::WorkerObjects;
use fanout_contract::names;
use fanout_crds::condition::{POSITION_INITIALIZED, reason};
use fanout_crds::subscription::Ordering;
use fanout_crds::{FanoutTopic, FanoutTopicStatus, Subscription};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use members::Member;
use observe::Live;
use status::{Identity, Outcome, Relays};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use validate::ValidTopic;

/// Look again at what is not settled, should no event tell.
const UNSETTLED: Duration = Duration::from_secs(30);

/// One pass.
pub(crate) async fn reconcile(
    object: Arc<GuardedTopic>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let topic = match &object.0 {
        Ok(topic) => topic,
        Err(_) if object.meta().deletion_timestamp.is_some() => {
            return deletion::undecodable(&ctx, &object).await;
        }
        Err(invalid) => return undecodable::tell::<FanoutTopic>(&ctx, &invalid.metadata).await,
    };
    if topic.metadata.deletion_timestamp.is_some() {
        let status = topic.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let pass = Box::pin(cleanup::pass(topic, &ctx));
        return deletion::run(&ctx, &object, conditions, pass).await;
    }
    let namespace = topic.namespace().unwrap_or_default();
    if ctx
        .is_terminating(&namespace)
        .await
        .map_err(Error::reading("the namespace"))?
    {
        return Ok(Action::await_change());
    }
    let mut topic = topic.clone();
    let mut outcome = Outcome {
        identity: Identity::recorded(&topic),
        ..Outcome::default()
    };
    let policy = topic.spec.deletion_policy;
    let converged = match deletion::prepare(&ctx, &mut topic, policy).await {
        Ok(true) => converge(&topic, &ctx, &mut outcome).await,
        Ok(false) => return Ok(Action::await_change()),
        Err(error) => Err(error),
    };
    match &converged {
        Err(error) if error.namespace_terminating() => {
            keep_identity(&ctx, &topic, &outcome.identity).await?;
            return Ok(Action::await_change());
        }
        // Somebody else wrote at the same moment: no news for anybody.
        Err(error) if error.class() == Class::Conflict => {
            keep_identity(&ctx, &topic, &outcome.identity).await?;
            return converged.map(|()| Action::await_change());
        }
        Err(error) => outcome.failure = Some(error.finding()),
        Ok(()) => {}
    }
    let written = write_status(&ctx, &topic, &outcome).await;
    if matches!(&written, Err(error) if error.class() == Class::Conflict) {
        keep_identity(&ctx, &topic, &outcome.identity).await?;
    }
    converged?;
    let status = written?;
    // Also where a human has to mend it: in Kafka nobody tells when it is done.
    if let Some(Err(_)) = &outcome.log {
        return Ok(ctx.retries.next(&topic));
    }
    ctx.retries.forget(&topic);
    let settled = conditions::holds(&status.conditions, fanout_crds::condition::READY)
        || conditions::holds(&status.conditions, fanout_crds::condition::STALLED);
    Ok(if settled {
        safety_net()
    } else {
        Action::requeue(UNSETTLED)
    })
}

/// What Kafka told is recorded also where the status as a whole can't be written. Without it nobody would know the topics
/// that were just created, least of all a deletion that has begun meanwhile.
async fn keep_identity(
    ctx: &Context,
    topic: &FanoutTopic,
    identity: &Identity,
) -> Result<(), Error> {
    if *identity == Identity::recorded(topic) {
        return Ok(());
    }
    let part = FanoutTopicStatus {
        cluster_id: identity.cluster_id.clone(),
        topic_name: identity.topic_name.clone(),
        topic_id: identity.topic_id.clone(),
        dead_letter_topic_id: identity.dead_letter_topic_id.clone(),
        positions_topic_id: identity.positions_topic_id.clone(),
        ..FanoutTopicStatus::default()
    };
    let api: Api<FanoutTopic> =
        Api::namespaced(ctx.client.clone(), &topic.namespace().unwrap_or_default());
    Ok(apply::record(&api, topic, &part).await?)
}

async fn write_status(
    ctx: &Context,
    topic: &FanoutTopic,
    outcome: &Outcome,
) -> Result<FanoutTopicStatus, Error> {
    let fit = |status| ctx.served.fit(&FanoutTopic::kind(&()), status);
    let mut status = fit(status::next(topic, outcome, Timestamp::now()));
    let changed = topic.status.as_ref() != Some(&status);
    status.outbox = reports::outbox(ctx, topic, changed);
    let status = fit(status);
    if topic.status.as_ref() == Some(&status) {
        return Ok(status);
    }
    let api: Api<FanoutTopic> =
        Api::namespaced(ctx.client.clone(), &topic.namespace().unwrap_or_default());
    apply::status(&api, topic, &status).await?;
    let old = topic
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    events::publish(ctx, topic, old, &status.conditions).await;
    Ok(status)
}

/// Observe, validate, build, apply, prune, push. What was found on the way is left in `outcome`.
async fn converge(topic: &FanoutTopic, ctx: &Context, outcome: &mut Outcome) -> Result<(), Error> {
    let namespace = topic.namespace().unwrap_or_default();
    let name = topic.name_any();
    let all = ctx.stores.subscriptions_for(&namespace, &name);
    let subscriptions: Vec<&Subscription> = all
        .iter()
        .filter_map(|object| object.0.as_ref().ok())
        .collect();
    let undecodable: BTreeSet<String> = all
        .iter()
        .filter(|object| object.0.is_err())
        .filter_map(|object| object.uid())
        .collect();
    outcome.subscriptions = subscriptions.len();

    let secrets = |secret: &str| ctx.stores.secret(&namespace, secret);
    let valid = match validate::validate(topic, &secrets, &ctx.settings.kafka_prefix) {
        Ok(valid) => valid,
        Err(invalid) => {
            // Its workers go on with what they have: the spec's author is the platform team, and an unreadable Secret
            // must not stop a running relay.
            outcome.invalid = Some(invalid);
            outcome.relay = watched_relays(ctx, &namespace, &name);
            return Ok(());
        }
    };

    remember_access(ctx, &valid, (&namespace, &name));
    // One that can't be read may want its order, too.
    let ordered = !undecodable.is_empty()
        || subscriptions
            .iter()
            .any(|subscription| subscription.spec.delivery.ordering != Ordering::None);
    let keep_order = ordered && !valid.log.allow_reorder;
    if let Some(conflict) = conflict(ctx, topic, &valid, &outcome.identity) {
        outcome.invalid = Some(conflict);
        return stop(ctx, &namespace, &name).await;
    }
    let identity = &mut outcome.identity;
    let reached = ensure::reach(&ctx.clusters, &valid, identity).await;
    // Now that Kafka told its id, a rival that names the cluster by other addresses is found too.
    if let Some(conflict) = conflict(ctx, topic, &valid, &outcome.identity) {
        outcome.invalid = Some(conflict);
        return stop(ctx, &namespace, &name).await;
    }
    let log = match reached {
        Ok(cluster) => {
            let (clusters, identity) = (&ctx.clusters, &mut outcome.identity);
            ensure::ensure(&cluster, clusters, &valid, keep_order, identity).await
        }
        Err(problem) => Err(problem),
    };
    let usable = match &log {
        Ok(_) => true,
        // Once identified, a topic needs no answer from Kafka for its workers to be configured.
        Err(problem) => problem.usable || (!problem.needs_human && outcome.identity.is_complete()),
    };
    outcome.log = Some(log);
    if !usable {
        outcome.relay = watched_relays(ctx, &namespace, &name);
        return Ok(());
    }

    let live = Live::list(ctx, &namespace, &name).await?;
    let ordered = is_ordered(ctx, topic);
    let mut members = admitted(ctx, &namespace, &subscriptions, &outcome.identity, ordered);
    let kept = live.kept(&undecodable);
    outcome.subscriptions += kept.len();
    members.extend(kept);
    let desired = desired(ctx, &valid, &members, &live)?;
    apply_all(ctx, &live, &desired).await?;
    prune(ctx, &live, &desired).await?;
    for worker in &desired {
        push(ctx, &namespace, &worker.name, &worker.hash).await?;
    }

    let relay = names::relay_deployment(&name);
    outcome.relay = desired
        .iter()
        .find(|worker| worker.name == relay)
        .map(|worker| Relays {
            pods: Pods::of(live.deployment(&relay)),
            hash: worker.hash.clone(),
            reports: reports::relays(ctx, &namespace, &relay),
        });
    Ok(())
}

/// Whether the rows of the outbox have an order, as far as it is known.
fn is_ordered(ctx: &Context, topic: &FanoutTopic) -> Option<bool> {
    let namespace = topic.namespace().unwrap_or_default();
    let relay = names::relay_deployment(&topic.name_any());
    let before = topic.status.as_ref().and_then(|status| status.ordered);
    status::ordered(&reports::relays(ctx, &namespace, &relay), before)
}

/// Keeps how Kafka is reached for deletions that come after the Secrets are gone.
fn remember_access(ctx: &Context, valid: &ValidTopic, topic: (&str, &str)) {
    let needed = |namespace: &str, name: &str| {
        ctx.stores.topic(namespace, name).is_some()
            || !ctx.stores.subscriptions_of(namespace, name).is_empty()
            || !ctx.stores.cleaned_up_of(namespace, name).is_empty()
    };
    ctx.accesses.remember(topic, &valid.producer.params, needed);
}

fn conflict(
    ctx: &Context,
    topic: &FanoutTopic,
    valid: &ValidTopic,
    identity: &Identity,
) -> Option<Invalid> {
    let all = ctx.stores.topics();
    let all: Vec<&FanoutTopic> = all
        .iter()
        .filter_map(|object| object.0.as_ref().ok())
        .collect();
    let rival = rivals::older(topic, valid, identity, &all, &ctx.settings.kafka_prefix)?;
    Some(Invalid::new(
        reason::NAME_CONFLICT,
        format!(
            "spec.broker.kafka.topic.name: Kafka topic {} belongs to the older FanoutTopic {rival}; delete one of the two, or create this one anew with another name",
            valid.log.topic
        ),
    ))
}

/// Removes all workers.
async fn stop(ctx: &Context, namespace: &str, topic: &str) -> Result<(), Error> {
    let live = Live::list(ctx, namespace, topic).await?;
    prune(ctx, &live, &[]).await
}

/// The relays as they are, when nothing is built in this pass.
fn watched_relays(ctx: &Context, namespace: &str, topic: &str) -> Option<Relays> {
    let relay = names::relay_deployment(topic);
    let deployment = ctx.stores.deployment(namespace, &relay)?;
    Some(Relays {
        pods: Pods::of(Some(&deployment)),
        hash: ctx
            .stores
            .config_hash(namespace, &relay)
            .unwrap_or_default(),
        reports: reports::relays(ctx, namespace, &relay),
    })
}

/// The Subscriptions that workers may serve: valid, placed, with a position in every partition of this log, and content with
/// the order there is.
fn admitted(
    ctx: &Context,
    namespace: &str,
    subscriptions: &[&Subscription],
    identity: &Identity,
    ordered: Option<bool>,
) -> Vec<Member> {
    let secrets = |secret: &str| ctx.stores.secret(namespace, secret);
    let guard = ctx.stores.guard(&ctx.settings.egress_allowed);
    subscriptions
        .iter()
        .filter_map(|subscription| {
            let status = subscription.status.as_ref()?;
            status.group_id.as_ref()?;
            if status.topic_id.is_some() && status.topic_id != identity.topic_id {
                return None;
            }
            let placement = status.placement.clone()?;
            let position = conditions::get(&status.conditions, POSITION_INITIALIZED)
                .filter(conditions::Finding::holds)?;
            let mut valid =
                subscription::validate::validate(subscription, &secrets, &guard).ok()?;
            subscription::validate::check_ordering(subscription, ordered).ok()?;
            subscription::validate::check_partitions(subscription, status.positions.len()).ok()?;
            if position.reason == reason::START_OFFSETS_CONFIGURED {
                valid.config.start_offsets =
                    subscription::position::start_offsets(&status.positions);
            }
            Some(Member {
                placement,
                config: valid.config,
                files: valid.files,
                replicas: replicas(subscription),
            })
        })
        .collect()
}

/// Replicas of the worker that serves `subscription` alone: as was decided last.
fn replicas(subscription: &Subscription) -> i32 {
    subscription.spec.scaling.as_ref().map_or(1, |scaling| {
        let decided = subscription.status.as_ref();
        let decided = decided.and_then(|status| Some(status.scaling.as_ref()?.replicas));
        decided.unwrap_or(scaling.min_replicas)
    })
}

fn desired(
    ctx: &Context,
    topic: &ValidTopic,
    members: &[Member],
    live: &Live,
) -> Result<Vec<WorkerObjects>, Error> {
    let runs = |worker: &str, member: &Member| {
        reports::runs(ctx, &topic.namespace, worker, &member.config)
    };
    let assigned = members::assign(members, &live.held(), runs);
    let keys = |worker: &str| {
        live.hash_key(worker)
            .unwrap_or_else(|| rand::random::<[u8; 32]>().to_vec())
    };
    build::workers(
        topic,
        &assigned,
        &ctx.stores.egress(&ctx.settings.egress_allowed),
        &ctx.settings,
        &keys,
    )
}

/// Configuration before workload: a pod that starts finds its files. Secrets before the configuration that names them.
async fn apply_all(ctx: &Context, live: &Live, desired: &[WorkerObjects]) -> Result<(), Error> {
    for worker in desired {
        apply::apply(&ctx.client, &worker.service_account, &live.service_accounts).await?;
        apply::apply(&ctx.client, &worker.secret, &live.secrets).await?;
        apply::apply(&ctx.client, &worker.config_map, &live.config_maps).await?;
        apply::apply(&ctx.client, &worker.deployment, &live.deployments).await?;
    }
    Ok(())
}

/// Workload before configuration, the other way round.
async fn prune(ctx: &Context, live: &Live, desired: &[WorkerObjects]) -> Result<(), Error> {
    let deployments: Vec<&Deployment> = desired.iter().map(|worker| &worker.deployment).collect();
    let config_maps: Vec<&ConfigMap> = desired.iter().map(|worker| &worker.config_map).collect();
    let secrets: Vec<&Secret> = desired.iter().map(|worker| &worker.secret).collect();
    let accounts: Vec<&ServiceAccount> = desired
        .iter()
        .map(|worker| &worker.service_account)
        .collect();
    apply::prune(&ctx.client, &deployments, &live.deployments).await?;
    apply::prune(&ctx.client, &config_maps, &live.config_maps).await?;
    apply::prune(&ctx.client, &secrets, &live.secrets).await?;
    apply::prune(&ctx.client, &accounts, &live.service_accounts).await?;
    Ok(())
}

/// Tells the kubelets: a changed annotation makes them refresh the pod's volume at once. A pod that runs the
/// configuration already needs no telling.
async fn push(ctx: &Context, namespace: &str, worker: &str, hash: &str) -> Result<(), Error> {
    let running = reports::running(ctx, namespace, worker, hash);
    for pod in ctx.stores.pods_of(namespace, worker) {
        let told = pod
            .annotations()
            .get(names::CONFIG_ANNOTATION)
            .map(String::as_str);
        if told != Some(hash) && !running.contains(&pod.name_any()) {
            apply::annotate(&ctx.client, &*pod, names::CONFIG_ANNOTATION, hash).await?;
        }
    }
    Ok(())
}

/// How Kafka is reached for `topic`: as its Secrets say, or as it was reached before they were gone.
pub(crate) fn kafka_access(ctx: &Context, topic: &FanoutTopic) -> Option<ClusterParams> {
    let namespace = topic.namespace().unwrap_or_default();
    let secrets = |secret: &str| ctx.stores.secret(&namespace, secret);
    validate::producer(topic, &secrets)
        .map(|access| access.params)
        .ok()
        .or_else(|| ctx.accesses.get(&namespace, &topic.name_any()))
}

/// Secrets that a FanoutTopic refers to, by name.
pub(crate) fn secret_names(topic: &FanoutTopic) -> Vec<&str> {
    let fanout_crds::fanout_topic::Source::Postgres(postgres) = &topic.spec.source;
    let fanout_crds::fanout_topic::Broker::Kafka(kafka) = &topic.spec.broker;
    let auths = std::iter::once(&kafka.auth).chain(&kafka.consumer_auth);
    let kafka = auths.flat_map(|auth| {
        [
            &auth.user_secret_ref,
            &auth.password_secret_ref,
            &auth.ca_secret_ref,
            &auth.client_cert_secret_ref,
            &auth.client_key_secret_ref,
        ]
    });
    std::iter::once(&postgres.url_secret_ref)
        .chain(&postgres.ca_secret_ref)
        .chain(kafka.flatten())
        .map(|reference| reference.name.as_str())
        .collect()
}

/// Name and uid for messages and comparisons.
fn full_name<K: Resource>(object: &K) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}
