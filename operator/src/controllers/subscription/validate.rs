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
use fanout_crds::reference::SecretKeyRef;
use fanout_crds::subscription::{Delivery, OnExhausted, Ordering, Sink, WebhookSink};
use fanout_runtime::guard::{Guard, Refused};
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
            Invalid::new(
                reason::FILTER_INVALID,
                format!("spec.filter: {error}; correct it"),
            )
        })?;
    }
    let mut reader = Reader::new(secrets, &uid);
    let sink = match &spec.sink {
        Sink::Webhook(webhook) => {
            consumer::Sink::Webhook(webhook_config(webhook, &mut reader, guard)?)
        }
    };
    let config = SubscriptionConfig {
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
            .map(|value| names::annotation_token(value)),
        uid: uid.clone(),
    };
    check_size(&config)?;
    Ok(ValidSubscription {
        config,
        files: reader.into_files(),
    })
}

/// Whether the topic can give what `subscription` asks for; `ordered` is what its status says.
pub(crate) fn check_ordering(
    subscription: &Subscription,
    ordered: Option<bool>,
) -> Result<(), Invalid> {
    if ordered != Some(false) || subscription.spec.delivery.ordering == Ordering::None {
        return Ok(());
    }
    Err(Invalid::new(
        reason::ORDERING_UNAVAILABLE,
        format!(
            "spec.delivery.ordering: the outbox of FanoutTopic {} has no column that orders its rows; use None, or give the table one and name it in spec.source.postgres.columns.id",
            subscription.spec.topic_ref.name
        ),
    ))
}

/// Whether one consumer sees everything `subscription` wants in one order; `partitions` are those of the Kafka topic that are
/// known.
pub(crate) fn check_partitions(
    subscription: &Subscription,
    partitions: usize,
) -> Result<(), Invalid> {
    if partitions <= 1 || subscription.spec.delivery.ordering != Ordering::Strict {
        return Ok(());
    }
    Err(Invalid::new(
        reason::ORDERING_UNAVAILABLE,
        format!(
            "spec.delivery.ordering: Strict needs a Kafka topic with one partition, and that of FanoutTopic {} has {partitions}; use PerKey, or another FanoutTopic",
            subscription.spec.topic_ref.name
        ),
    ))
}

/// A pool's ConfigMap takes 1 MiB. One Subscription must not keep the others' changes out of it, so it may fill no more
/// than its share, however its text has to be escaped.
fn check_size(config: &SubscriptionConfig) -> Result<(), Invalid> {
    const SHARE: usize = 10_000;
    const INDENTATION: usize = 4;
    let text = serde_yaml::to_string(config).unwrap_or_default();
    let size = text.len() + text.lines().count() * INDENTATION;
    if size <= SHARE {
        return Ok(());
    }
    Err(Invalid::new(
        reason::SPEC_INVALID,
        format!(
            "spec.filter and spec.sink take {size} bytes of a worker's configuration, {SHARE} are allowed; shorten them or write them without line breaks and control characters"
        ),
    ))
}

fn webhook_config(
    webhook: &WebhookSink,
    reader: &mut Reader<'_>,
    guard: &Guard,
) -> Result<WebhookConfig, Invalid> {
    guard.check_url(&webhook.url).map_err(|refused| {
        let (reason, advice) = match refused {
            Refused::Private => (
                reason::ADDRESS_REFUSED,
                "use a public address, or ask the platform team to admit its range",
            ),
            Refused::Always | Refused::HostName => (
                reason::ADDRESS_REFUSED,
                "name the endpoint by another address",
            ),
            Refused::NotAUrl | Refused::Scheme | Refused::UserInfo | Refused::Port => {
                (reason::SINK_INVALID, "correct it")
            }
        };
        Invalid::new(
            reason,
            format!("spec.sink.webhook.url: {refused}; {advice}"),
        )
    })?;
    let references = webhook
        .signing
        .iter()
        .flat_map(|signing| &signing.secret_refs);
    let mut signing_secret_files = Vec::new();
    for (index, reference) in references.enumerate() {
        let path = format!("spec.sink.webhook.signing.secretRefs[{index}]");
        let (file, text) = reader.text(&path, &format!("signing-{index}"), reference)?;
        check_signing_secret(&path, reference, &text)?;
        signing_secret_files.push(file);
    }
    Ok(WebhookConfig {
        url: webhook.url.clone(),
        signing_secret_files,
        timeout_seconds: webhook.timeout_seconds.unsigned_abs(),
    })
}

/// Only what was made to sign reaches the worker that signs: a password or a URL would be at its mercy, and signatures
/// made with a weak one would give it away to the endpoint.
fn check_signing_secret(path: &str, reference: &SecretKeyRef, text: &str) -> Result<(), Invalid> {
    const LONGEST: usize = 128;
    let text = text.trim();
    if text.starts_with(names::SIGNING_SECRET_PREFIX) && text.len() <= LONGEST {
        return Ok(());
    }
    let SecretKeyRef { name, key } = reference;
    Err(Invalid::new(
        reason::SINK_INVALID,
        format!(
            "{path}: key {key} of Secret {name} must be {} and the base64 of 24 to 64 bytes",
            names::SIGNING_SECRET_PREFIX
        ),
    ))
}

fn delivery(delivery: &Delivery) -> consumer::Delivery {
    consumer::Delivery {
        ordering: match delivery.ordering {
            Ordering::None => consumer::Ordering::None,
            Ordering::PerKey => consumer::Ordering::PerKey,
            Ordering::Strict => consumer::Ordering::Strict,
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
        non_retryable: delivery
            .non_retryable
            .iter()
            .filter_map(|status| u16::try_from(*status).ok())
            .collect(),
        on_exhausted: match delivery.on_exhausted {
            OnExhausted::DeadLetter => consumer::OnExhausted::DeadLetter,
            OnExhausted::Pause => consumer::OnExhausted::Pause,
        },
    }
}
