//! Deletes the consumer group of a Subscription with `deletionPolicy: Delete`, once no worker has the Subscription any more:
//! one that has it would join again, and its next commit would make the group anew.

use crate::apply;
use crate::context::Context;
use crate::controllers::conditions::{self, Finding};
use crate::controllers::deletion::Step;
use crate::controllers::error::Error;
use crate::controllers::fanout_topic::log::Asked;
use crate::controllers::fanout_topic::{kafka_access, log, members};
use crate::controllers::reports;
use crate::controllers::workers::Report;
use crate::kafka::{ClusterParams, GroupDeletion};
use crate::stores::has_begun;
use fanout_contract::consumer::ConsumerStatus;
use fanout_contract::names;
use fanout_crds::condition::reason;
use fanout_crds::{DeletionPolicy, Subscription, SubscriptionStatus};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use std::collections::BTreeSet;

/// Goes as far as it can, and shows what it waits for.
pub(crate) async fn pass(subscription: &Subscription, ctx: &Context) -> Result<Step, Error> {
    let step = advance(subscription, ctx).await?;
    if let Step::Waiting(why) = &step {
        show(subscription, ctx, why.clone()).await?;
    }
    Ok(step)
}

async fn advance(subscription: &Subscription, ctx: &Context) -> Result<Step, Error> {
    // The group is recorded before anything uses it: without a record there is none.
    let group = subscription
        .status
        .as_ref()
        .and_then(|status| status.group_id.as_deref());
    let (DeletionPolicy::Delete, Some(group)) = (subscription.spec.deletion_policy, group) else {
        return Ok(Step::done());
    };
    if let Some(other) = shared_with(subscription, ctx, group) {
        return Ok(Step::Done(vec![format!(
            "consumer group {group} stays: Subscription {other} has it too"
        )]));
    }
    if let Some(holder) = holder(subscription, ctx).await? {
        return Ok(Step::Waiting(Finding::no(
            reason::DELETING,
            format!("consumer group {group}: waiting for {holder} to let the Subscription go"),
        )));
    }
    let Some(params) = access(subscription, ctx) else {
        let topic = &subscription.spec.topic_ref.name;
        return Ok(Step::Waiting(Finding::no(
            reason::TOPIC_NOT_FOUND,
            format!(
                "consumer group {group}: FanoutTopic {topic}, or a Secret it refers to, is gone, so Kafka can't be reached"
            ),
        )));
    };
    let deleted = match ctx.clusters.get(&params).await {
        Ok(cluster) => cluster.delete_group(group).await,
        Err(error) => Err(error),
    };
    Ok(match deleted {
        Ok(GroupDeletion::Gone) => {
            tracing::info!(group, "consumer group deleted");
            Step::done()
        }
        Ok(GroupDeletion::Active) => Step::Waiting(Finding::no(
            reason::DELETING,
            format!("consumer group {group}: waiting for its last member to leave"),
        )),
        Err(error) => {
            let asked = Asked {
                auth: log::AUTH,
                topic: "",
                group: Some(group),
            };
            let problem = log::problem(error, asked);
            let message = format!("consumer group {group}: {}", problem.message);
            Step::Waiting(Finding::no(problem.reason, message))
        }
    })
}

async fn show(subscription: &Subscription, ctx: &Context, why: Finding) -> Result<(), Error> {
    let old = subscription.status.clone().unwrap_or_default();
    let generation = subscription.metadata.generation.unwrap_or_default();
    let status = SubscriptionStatus {
        observed_generation: Some(generation),
        conditions: conditions::deleting(&old.conditions, generation, Timestamp::now(), why),
        ..old
    };
    if subscription.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let api: Api<Subscription> = Api::namespaced(
        ctx.client.clone(),
        &subscription.namespace().unwrap_or_default(),
    );
    apply::status(&api, subscription, &status).await?;
    Ok(())
}

/// Another Subscription that is not being deleted and has recorded the same group: two installations with prefixes may have
/// come to the same name.
fn shared_with(subscription: &Subscription, ctx: &Context, group: &str) -> Option<String> {
    let shares = |other: &Subscription| {
        other.uid() != subscription.uid()
            && other.metadata.deletion_timestamp.is_none()
            && other.status.as_ref().and_then(|it| it.group_id.as_deref()) == Some(group)
    };
    let all = ctx.stores.subscriptions.state();
    let mut all = all.iter().filter_map(|object| object.0.as_ref().ok());
    let other = all.find(|other| shares(other))?;
    Some(format!(
        "{}/{}",
        other.namespace().unwrap_or_default(),
        other.name_any()
    ))
}

fn access(subscription: &Subscription, ctx: &Context) -> Option<ClusterParams> {
    let namespace = subscription.namespace().unwrap_or_default();
    let name = &subscription.spec.topic_ref.name;
    ctx.stores.topic(&namespace, name).map_or_else(
        || ctx.accesses.get(&namespace, name),
        |topic| kafka_access(ctx, &topic),
    )
}

/// A worker that has the Subscription, will get it, or may have it.
async fn holder(subscription: &Subscription, ctx: &Context) -> Result<Option<String>, Error> {
    let namespace = subscription.namespace().unwrap_or_default();
    let uid = subscription.uid().unwrap_or_default();
    let placement = subscription
        .status
        .as_ref()
        .and_then(|status| status.placement.as_deref());
    if let Some(worker) = placement {
        let config_maps: Api<ConfigMap> = Api::namespaced(ctx.client.clone(), &namespace);
        let config_map = config_maps
            .get_opt(worker)
            .await
            .map_err(Error::reading("the worker's ConfigMap"))?;
        let file = config_map
            .as_ref()
            .and_then(|it| it.data.as_ref()?.get(names::CONFIG_FILE));
        if file.is_some_and(|file| members::held(file).contains(&uid)) {
            return Ok(Some(format!("worker {worker}")));
        }
    }
    // Beside its own one that it moved away from may still have it.
    let topic = &subscription.spec.topic_ref.name;
    let relay = names::relay_deployment(topic);
    let workers: BTreeSet<String> = ctx
        .stores
        .pods_of_topic(&namespace, topic)
        .iter()
        .filter_map(|pod| pod.labels().get(names::WORKER_LABEL).cloned())
        .filter(|worker| *worker != relay)
        .collect();
    Ok(workers.into_iter().find_map(|worker| {
        let pods: Vec<String> = ctx
            .stores
            .pods_of(&namespace, &worker)
            .iter()
            .filter(|pod| has_begun(pod))
            .map(|pod| pod.name_any())
            .collect();
        let reports = reports::consumers(ctx, &namespace, &worker, &uid);
        let own = placement == Some(worker.as_str());
        holding_pod(&pods, &reports, own).map(|pod| format!("pod {pod}"))
    }))
}

/// The first of `pods` that has the Subscription by its report (of this Subscription's entries alone). In its own worker
/// (`own`) a pod that does not report may have it as well.
fn holding_pod<'a>(
    pods: &'a [String],
    reports: &[Report<ConsumerStatus>],
    own: bool,
) -> Option<&'a str> {
    let holds = |pod: &&String| {
        let status = reports
            .iter()
            .find(|report| report.pod == **pod)
            .and_then(|report| report.status.as_ref());
        status.map_or(own, |status| !status.subscriptions.is_empty())
    };
    pods.iter().find(holds).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_contract::consumer::{SubscriptionState, SubscriptionStatus};
    use rstest::rstest;

    fn report(holds: Option<bool>) -> Vec<Report<ConsumerStatus>> {
        let entry = SubscriptionStatus {
            name: "search".to_owned(),
            uid: "uid".to_owned(),
            generation: 1,
            state: SubscriptionState::Running,
            ..SubscriptionStatus::default()
        };
        vec![Report {
            pod: "pool-0-a".to_owned(),
            status: holds.map(|holds| ConsumerStatus {
                config_hash: String::new(),
                subscriptions: if holds { vec![entry] } else { Vec::new() },
            }),
        }]
    }

    #[rstest]
    #[case::it_has_it(report(Some(true)), false, true)]
    #[case::it_let_it_go(report(Some(false)), true, false)]
    #[case::its_own_worker_does_not_answer(report(None), true, true)]
    #[case::its_own_worker_was_not_asked_yet(Vec::new(), true, true)]
    #[case::another_worker_does_not_answer(report(None), false, false)]
    fn a_pod_that_may_have_the_subscription_is_waited_for(
        #[case] reports: Vec<Report<ConsumerStatus>>,
        #[case] own: bool,
        #[case] holds: bool,
    ) {
        let pods = ["pool-0-a".to_owned()];
        assert_eq!(holding_pod(&pods, &reports, own).is_some(), holds);
        assert_eq!(holding_pod(&[], &reports, own), None);
    }
}
