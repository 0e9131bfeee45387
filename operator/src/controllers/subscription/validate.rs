//! Turns a Subscription's spec and the Secrets it refers to into its part of a worker's configuration. Pure.
//!
//! A Subscription that fails here is in no worker's configuration: nothing is delivered under a spec that was replaced,
//! its position is kept, and `Stalled` says what to mend.

use super::filters;
use crate::controllers::error::Invalid;
use crate::controllers::secrets::{Files, Lookup, Reader};
use fanout_contract::consumer::{self, SubscriptionConfig, WebhookConfig};
use fanout_contract::names;
use fanout_crds::Subscription;
use fanout_crds::condition::reason;
use fanout_crds::subscription::{Delivery, Ordering, Sink, WebhookSink};
use fanout_runtime::guard::Guard;
use kube::ResourceExt;

/// A Subscription that can be served. Has no `Debug`: it holds secret values.
pub(crate) struct ValidSubscription {
    /// Its part of the configuration; group and start offsets are the position's.
    pub(crate) config: SubscriptionConfig,
    /// Files the configuration names.
    pub(crate) files: Files,
}

/// Checks `subscription`.
pub(crate) fn validate(
    subscription: &Subscription,
    secrets: Lookup<'_>,
    guard: &Guard,
) -> Result<ValidSubscription, Invalid> {
    let uid = subscription.uid().unwrap_or_default();
    let spec = &subscription.spec;
    if let Some(filter) = &spec.filter {
        filters::check(filter).map_err(|error| {
            Invalid::new(reason::FILTER_INVALID, format!("spec.filter: {error}"))
        })?;
    }
    let mut reader = Reader::new(secrets, &uid);
    let sink = match &spec.sink {
        Sink::Webhook(webhook) => {
            consumer::Sink::Webhook(webhook_config(webhook, &mut reader, guard)?)
        }
    };
    Ok(ValidSubscription {
        config: SubscriptionConfig {
            name: subscription.name_any(),
            generation: subscription.metadata.generation.unwrap_or_default(),
            group_id: subscription
                .status
                .as_ref()
                .and_then(|status| status.group_id.clone())
                .unwrap_or_default(),
            suspend: spec.suspend,
            filter: spec.filter.clone(),
            sink,
            delivery: delivery(&spec.delivery),
            start_offsets: Vec::new(),
            resume: subscription
                .annotations()
                .get(names::RESUME_ANNOTATION)
                .cloned(),
            uid: uid.clone(),
        },
        files: reader.into_files(),
    })
}

fn webhook_config(
    webhook: &WebhookSink,
    reader: &mut Reader<'_>,
    guard: &Guard,
) -> Result<WebhookConfig, Invalid> {
    guard.check_url(&webhook.url).map_err(|refused| {
        Invalid::new(
            reason::ADDRESS_REFUSED,
            format!("spec.sink.webhook.url: {refused}"),
        )
    })?;
    let references = webhook
        .signing
        .iter()
        .flat_map(|signing| &signing.secret_refs);
    let mut signing_secret_files = Vec::new();
    for (index, reference) in references.enumerate() {
        let path = format!("spec.sink.webhook.signing.secretRefs[{index}]");
        let (file, _) = reader.text(&path, &format!("signing-{index}"), reference)?;
        signing_secret_files.push(file);
    }
    Ok(WebhookConfig {
        url: webhook.url.clone(),
        signing_secret_files,
        timeout_seconds: webhook.timeout_seconds.unsigned_abs(),
    })
}

fn delivery(delivery: &Delivery) -> consumer::Delivery {
    consumer::Delivery {
        ordering: match delivery.ordering {
            Ordering::None => consumer::Ordering::None,
            Ordering::PerKey => consumer::Ordering::PerKey,
        },
        max_in_flight: delivery.max_in_flight.unsigned_abs(),
        retry: consumer::Retry {
            max_attempts: delivery.retry.max_attempts.unsigned_abs(),
            initial_backoff_milliseconds: delivery
                .retry
                .initial_backoff_milliseconds
                .unsigned_abs(),
            max_backoff_seconds: delivery.retry.max_backoff_seconds.unsigned_abs(),
            max_age_seconds: delivery.retry.max_age_seconds.unsigned_abs(),
        },
    }
}
