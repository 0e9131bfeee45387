//! The consumers: what design and manifest promise about them, each with a test that fails without the rule.

mod configuration;
mod delivery;
mod endpoint;
mod faults;
pub(crate) mod log;
mod outage;
mod positions;
mod retention;
mod sharing;

use fanout_contract::consumer::{
    ConsumerConfig, ConsumerStatus, Sink, StopReason, SubscriptionConfig, SubscriptionState,
    SubscriptionStatus,
};
use fanout_tests::process::Consumer;
use fanout_tests::receiver::{Answer, Behaviour, Receiver, Request};
use fanout_tests::{Sandbox, eventually};
use log::Log;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Long enough for anything that works, on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// A sandbox, its log, one receiver and a subscription to it.
struct Scene {
    sandbox: Sandbox,
    log: Log,
    hook: Receiver,
    subscription: SubscriptionConfig,
}

impl Scene {
    async fn new(test: &str, behaviour: Behaviour) -> Self {
        let sandbox = Sandbox::new(test).await;
        Self {
            log: Log::new(&sandbox.bootstrap, &sandbox.kafka_topic),
            hook: Receiver::start(&sandbox, "hook", behaviour).await,
            subscription: sandbox.webhook("hook", ""),
            sandbox,
        }
        .aimed()
    }

    /// Aims the subscription at the receiver. A busy machine may take long to answer: what the receiver accepted and
    /// the consumer no longer waited for would be repeated, rightly.
    fn aimed(mut self) -> Self {
        self.subscription = self.sandbox.webhook("hook", self.hook.url());
        let Sink::Webhook(webhook) = &mut self.subscription.sink;
        webhook.timeout_seconds = 30;
        self
    }

    fn with(mut self, change: impl FnOnce(&mut SubscriptionConfig)) -> Self {
        change(&mut self.subscription);
        self
    }

    async fn consumer(&self, instance: &str) -> Consumer {
        let config = self
            .sandbox
            .consumer_config(vec![self.subscription.clone()]);
        start(&self.sandbox, instance, &config).await
    }

    /// Puts the subscription in force as it is now.
    async fn reconfigure(&self, consumer: &mut Consumer) {
        consumer.reconfigure(
            &self
                .sandbox
                .consumer_config(vec![self.subscription.clone()]),
        );
        in_force(consumer).await;
    }

    /// Ids that were accepted, repeats included, by arrival.
    async fn accepted(&self) -> Vec<String> {
        accepted(&self.sandbox, "hook").await
    }

    /// Waits until `ids` are accepted, whatever else is.
    async fn arrive(&self, ids: &[String]) {
        arrive(&self.sandbox, "hook", ids).await;
    }

    /// Waits until the group has committed all of the log.
    async fn drained(&self) {
        self.log.drained(&self.subscription.group_id).await;
    }
}

/// Starts a worker and waits until its configuration is in force.
async fn start(sandbox: &Sandbox, instance: &str, config: &ConsumerConfig) -> Consumer {
    let consumer = Consumer::start(sandbox, instance, config).await;
    in_force(&consumer).await;
    consumer
}

async fn in_force(consumer: &Consumer) {
    let hash = consumer.config_hash();
    consumer
        .wait_until(LIMIT, "the configuration is in force", |status| {
            status.config_hash == hash
        })
        .await;
}

pub(crate) async fn accepted(sandbox: &Sandbox, receiver: &str) -> Vec<String> {
    sqlx::query_scalar(
        "select event_id from harness.received
         where receiver = $1 and status between 200 and 299 order by seq",
    )
    .bind(receiver)
    .fetch_all(sandbox.pool())
    .await
    .unwrap()
}

pub(crate) async fn arrive(sandbox: &Sandbox, receiver: &str, ids: &[String]) {
    let what = format!("{} events arrive at {receiver}", ids.len());
    eventually(LIMIT, &what, async || {
        let seen: BTreeSet<_> = accepted(sandbox, receiver).await.into_iter().collect();
        let missing = ids.iter().filter(|id| !seen.contains(*id)).count();
        if missing == 0 {
            Ok(())
        } else {
            Err(format!("{missing} are missing"))
        }
    })
    .await;
}

/// `<prefix>-0000`, …
pub(crate) fn ids(prefix: &str, range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("{prefix}-{n:04}")).collect()
}

/// First acceptances of each key (the id up to its number) rise.
fn assert_in_order(accepted: &[String]) {
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    for id in accepted {
        if !seen.insert(id) {
            continue;
        }
        let (key, number) = id.rsplit_once('-').unwrap();
        if let Some(before) = last.insert(key, number) {
            assert!(before < number, "{id} came after {key}-{before}");
        }
    }
}

pub(crate) fn assert_no_repeats(accepted: &[String]) {
    let mut seen = BTreeSet::new();
    let repeats: Vec<_> = accepted.iter().filter(|id| !seen.insert(*id)).collect();
    assert!(repeats.is_empty(), "delivered twice: {repeats:?}");
}

fn the<'s>(status: &'s ConsumerStatus, name: &str) -> &'s SubscriptionStatus {
    let found = status
        .subscriptions
        .iter()
        .find(|subscription| subscription.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {status:?}"))
}

fn is_stopped(status: &ConsumerStatus, name: &str, reason: StopReason) -> bool {
    let subscription = the(status, name);
    subscription.state == SubscriptionState::Stopped && subscription.reason == Some(reason)
}

fn is_running(status: &ConsumerStatus, name: &str) -> bool {
    the(status, name).state == SubscriptionState::Running
}

/// Fails the events whose id starts with `prefix`.
fn failing(prefix: &'static str, answer: Answer) -> Behaviour {
    Box::new(move |request: &Request| {
        let id = request.event_id.as_deref().unwrap_or_default();
        if id.starts_with(prefix) {
            answer.clone()
        } else {
            Answer::OK
        }
    })
}
