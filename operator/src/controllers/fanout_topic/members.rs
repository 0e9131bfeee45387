//! Which Subscriptions each worker's configuration lists. Pure.

use crate::controllers::secrets::Files;
use fanout_contract::consumer::{ConsumerConfig, SubscriptionConfig};
use std::collections::{BTreeMap, BTreeSet};

/// A Subscription that may be served: valid, placed, and with a position. Has no `Debug`: it holds secret values.
pub(crate) struct Member {
    /// Worker its status names.
    pub(crate) placement: String,
    /// Its part of the configuration.
    pub(crate) config: SubscriptionConfig,
    /// Files the configuration names.
    pub(crate) files: Files,
    /// Replicas of a worker of its own.
    pub(crate) replicas: i32,
}

/// The uids in the configuration that each worker has now.
pub(crate) type Held = BTreeMap<String, BTreeSet<String>>;

/// The uids in a consumer's configuration file; none where it can't be read, which is as good as a new worker's.
pub(crate) fn held(config: &str) -> BTreeSet<String> {
    serde_yaml::from_str::<ConsumerConfig>(config)
        .map(|config| {
            config
                .subscriptions
                .into_iter()
                .map(|subscription| subscription.uid)
                .collect()
        })
        .unwrap_or_default()
}

/// The members of each worker. A member is in the worker that its status names, and stays in the one it had before until
/// the new one runs it (`runs(worker, member)`): both are in one consumer group meanwhile, which is the fence.
pub(crate) fn assign<'a>(
    members: &'a [Member],
    held: &Held,
    runs: impl Fn(&str, &Member) -> bool,
) -> BTreeMap<String, Vec<&'a Member>> {
    let mut workers: BTreeMap<String, Vec<&Member>> = BTreeMap::new();
    for member in members {
        workers
            .entry(member.placement.clone())
            .or_default()
            .push(member);
        if runs(&member.placement, member) {
            continue;
        }
        for (worker, uids) in held {
            if *worker != member.placement && uids.contains(&member.config.uid) {
                workers.entry(worker.clone()).or_default().push(member);
            }
        }
    }
    workers
}
