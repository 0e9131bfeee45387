//! How Kafka was last reached for each FanoutTopic: for deletions that come after its Secrets, or the FanoutTopic itself,
//! are gone, as in a namespace that is being deleted.

use crate::kafka::ClusterParams;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Below this number of entries nothing is looked through.
const FEW: usize = 64;

/// Access by namespace and name of the FanoutTopic. In memory alone: after a restart only what can still be read is known.
/// Has no `Debug`: it holds secret values.
#[derive(Default)]
pub(crate) struct Accesses(Mutex<Known>);

#[derive(Default)]
struct Known {
    entries: HashMap<(String, String), ClusterParams>,
    /// Entries that were left when it was last looked through.
    kept: usize,
}

impl Accesses {
    /// Remembers `params`. From time to time forgets what nothing can need any more: `needed` is asked for each entry.
    pub(crate) fn remember(
        &self,
        (namespace, topic): (&str, &str),
        params: &ClusterParams,
        needed: impl Fn(&str, &str) -> bool,
    ) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), topic.to_owned());
        if known.entries.get(&key) == Some(params) {
            return;
        }
        known.entries.insert(key, params.clone());
        if known.entries.len() > FEW.max(known.kept * 2) {
            known
                .entries
                .retain(|(namespace, topic), _| needed(namespace, topic));
            known.kept = known.entries.len();
        }
    }

    /// What was remembered last.
    pub(crate) fn get(&self, namespace: &str, topic: &str) -> Option<ClusterParams> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entries
            .get(&(namespace.to_owned(), topic.to_owned()))
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_contract::kafka::{KafkaCredentials, Mechanism};

    fn params(bootstrap: &str) -> ClusterParams {
        ClusterParams {
            bootstrap_servers: bootstrap.to_owned(),
            mechanism: Mechanism::None,
            credentials: KafkaCredentials::default(),
        }
    }

    #[test]
    fn the_last_access_is_known_and_what_nobody_needs_is_forgotten() {
        let accesses = Accesses::default();
        let needed = |_: &str, topic: &str| topic == "kept";
        accesses.remember(("ns", "kept"), &params("old:9092"), needed);
        accesses.remember(("ns", "kept"), &params("new:9092"), needed);
        for number in 0..FEW {
            accesses.remember(("ns", &format!("gone-{number}")), &params("a:1"), needed);
        }
        let found = accesses.get("ns", "kept").map(|it| it.bootstrap_servers);
        assert_eq!(found.as_deref(), Some("new:9092"));
        assert!(accesses.get("ns", "gone-0").is_none());
        assert!(accesses.get("other", "kept").is_none());
    }
}
