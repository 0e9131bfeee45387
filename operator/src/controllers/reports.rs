//! What the observer knows, in the form that a reconcile uses.

use super::workers::Report;
use crate::context::Context;
use fanout_contract::consumer::{ConsumerStatus, SubscriptionConfig, SubscriptionState};
use fanout_contract::relay::RelayStatus;
use fanout_crds::fanout_topic::OutboxStatus;
use fanout_crds::{FanoutTopic, Subscription, SubscriptionStatus};
use k8s_openapi::api::core::v1::Pod;

pub(crate) fn relays(_ctx: &Context, _namespace: &str, _worker: &str) -> Vec<Report<RelayStatus>> {
    Vec::new()
}

pub(crate) fn consumers(
    _ctx: &Context,
    _namespace: &str,
    _worker: &str,
) -> Vec<Report<ConsumerStatus>> {
    Vec::new()
}

pub(crate) fn config_hash(_ctx: &Context, _pod: &Pod) -> Option<String> {
    None
}

pub(crate) fn runs(
    ctx: &Context,
    namespace: &str,
    worker: &str,
    config: &SubscriptionConfig,
) -> bool {
    consumers(ctx, namespace, worker).iter().any(|report| {
        report
            .status
            .iter()
            .flat_map(|status| &status.subscriptions)
            .any(|entry| {
                entry.uid == config.uid
                    && entry.generation == config.generation
                    && entry.state != SubscriptionState::Starting
            })
    })
}

pub(crate) fn outbox(_ctx: &Context, topic: &FanoutTopic) -> Option<OutboxStatus> {
    topic
        .status
        .as_ref()
        .and_then(|status| status.outbox.clone())
}

pub(crate) fn show_progress(
    _ctx: &Context,
    _subscription: &Subscription,
    _next: &mut SubscriptionStatus,
    _changed: bool,
) {
}
