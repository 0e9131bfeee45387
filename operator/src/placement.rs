//! Which worker serves a Subscription: a pure function, and what keeps concurrent decisions consistent.

use fanout_contract::names;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// Most Subscriptions in one pool.
pub(crate) const POOL_CAPACITY: usize = 100;

/// A Subscription as placement sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placeable<'a> {
    /// Name of the FanoutTopic.
    pub(crate) topic: &'a str,
    /// Name of the Subscription.
    pub(crate) name: &'a str,
    /// True when it asks for a worker of its own.
    pub(crate) dedicated: bool,
    /// Worker it was given before.
    pub(crate) recorded: Option<&'a str>,
}

/// Name of the worker (Deployment) for `subscription`, where `occupied` counts the other Subscriptions of the topic by
/// the worker they have.
///
/// A pool is kept for as long as the Subscription wants one (moving costs a rebalance); a new one goes to the lowest pool
/// with room.
pub(crate) fn place(subscription: Placeable<'_>, occupied: &BTreeMap<String, usize>) -> String {
    let own = names::dedicated_deployment(subscription.topic, subscription.name);
    if subscription.dedicated {
        return own;
    }
    if let Some(recorded) = subscription.recorded.filter(|recorded| *recorded != own) {
        return recorded.to_owned();
    }
    (0..=u32::MAX)
        .map(|pool| names::pool_deployment(subscription.topic, pool))
        .find(|pool| occupied.get(pool).copied().unwrap_or(0) < POOL_CAPACITY)
        .unwrap_or(own)
}

/// Decisions that the watch cache may not show yet, so that two Subscriptions reconciled at the same time do not take the
/// same last place.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<HashMap<String, Recorded>>);

#[derive(Clone, Debug)]
struct Recorded {
    topic: String,
    worker: String,
}

/// A Subscription of the topic in the watch cache: its uid and the worker in its status.
pub(crate) type Known<'a> = (&'a str, Option<&'a str>);

impl Recent {
    /// Places `subscription` (identified by `uid`) of the topic `topic_uid`, whose Subscriptions are `known` (all of
    /// them, itself included).
    pub(crate) fn place(
        &self,
        topic_uid: &str,
        uid: &str,
        subscription: Placeable<'_>,
        known: &[Known<'_>],
    ) -> String {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown: HashMap<&str, Option<&str>> = known.iter().copied().collect();
        // What the cache shows, or no longer has, needs no memory.
        recent.retain(|key, decision| {
            decision.topic != topic_uid
                || shown
                    .get(key.as_str())
                    .is_some_and(|worker| *worker != Some(decision.worker.as_str()))
        });
        let mut occupied = BTreeMap::new();
        for (other, worker) in known.iter().filter(|(other, _)| *other != uid) {
            let worker = recent
                .get(*other)
                .map(|decision| decision.worker.as_str())
                .or(*worker);
            if let Some(worker) = worker {
                *occupied.entry(worker.to_owned()).or_insert(0) += 1;
            }
        }
        let decided = recent.get(uid).map(|decision| decision.worker.clone());
        let subscription = Placeable {
            recorded: decided.as_deref().or(subscription.recorded),
            ..subscription
        };
        let worker = place(subscription, &occupied);
        if subscription.recorded != Some(worker.as_str()) {
            recent.insert(
                uid.to_owned(),
                Recorded {
                    topic: topic_uid.to_owned(),
                    worker: worker.clone(),
                },
            );
        }
        worker
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn new(name: &str) -> Placeable<'_> {
        Placeable {
            topic: "posts",
            name,
            dedicated: false,
            recorded: None,
        }
    }

    #[test]
    fn the_lowest_pool_with_room_is_taken() {
        let occupied = BTreeMap::from([
            ("posts-pool-0".to_owned(), POOL_CAPACITY),
            ("posts-pool-1".to_owned(), POOL_CAPACITY - 1),
            ("posts-pool-2".to_owned(), 1),
        ]);
        assert_eq!(place(new("a"), &occupied), "posts-pool-1");
        assert_eq!(place(new("a"), &BTreeMap::new()), "posts-pool-0");
    }

    #[test]
    fn a_pool_is_kept_even_when_a_lower_one_has_room() {
        let sticky = Placeable {
            recorded: Some("posts-pool-3"),
            ..new("a")
        };
        assert_eq!(place(sticky, &BTreeMap::new()), "posts-pool-3");
    }

    #[test]
    fn isolation_moves_out_of_the_pool_and_back() {
        let out = Placeable {
            dedicated: true,
            recorded: Some("posts-pool-0"),
            ..new("a")
        };
        assert_eq!(place(out, &BTreeMap::new()), "posts-s-a");
        let back = Placeable {
            recorded: Some("posts-s-a"),
            ..new("a")
        };
        assert_eq!(place(back, &BTreeMap::new()), "posts-pool-0");
    }

    #[test]
    fn a_decision_the_cache_does_not_show_yet_counts() {
        let recent = Recent::default();
        let names: Vec<String> = (0..=POOL_CAPACITY).map(|n| format!("s{n}")).collect();
        let known: Vec<Known<'_>> = names.iter().map(|name| (name.as_str(), None)).collect();
        let placed: Vec<String> = names
            .iter()
            .map(|name| recent.place("t", name, new(name), &known))
            .collect();
        assert!(
            placed[..POOL_CAPACITY]
                .iter()
                .all(|worker| worker == "posts-pool-0")
        );
        assert_eq!(placed[POOL_CAPACITY], "posts-pool-1");
        // Deciding again, still with an old cache, changes nothing.
        assert_eq!(recent.place("t", "s3", new("s3"), &known), "posts-pool-0");
    }

    proptest! {
        /// Whatever comes, goes and changes its mind: no pool ever holds more than its capacity, nothing that stays moves.
        #[test]
        fn pools_never_overflow_and_stay(steps in prop::collection::vec((0usize..260, any::<bool>(), any::<bool>()), 1..600)) {
            let recent = Recent::default();
            let names: Vec<String> = (0..260).map(|n| format!("s{n}")).collect();
            let mut placed: BTreeMap<usize, String> = BTreeMap::new();
            for (index, leaves, dedicated) in steps {
                if leaves {
                    placed.remove(&index);
                    continue;
                }
                let before = placed.get(&index).cloned();
                let mut known: Vec<Known<'_>> = placed.iter().map(|(n, worker)| (names[*n].as_str(), Some(worker.as_str()))).collect();
                if before.is_none() {
                    known.push((&names[index], None));
                }
                let subscription = Placeable { topic: "posts", name: &names[index], dedicated, recorded: before.as_deref() };
                let worker = recent.place("t", &names[index], subscription, &known);
                if let Some(before) = before.filter(|before| !dedicated && before.contains("-pool-")) {
                    prop_assert_eq!(&worker, &before);
                }
                placed.insert(index, worker);
                let mut count = BTreeMap::new();
                for worker in placed.values() {
                    *count.entry(worker.clone()).or_insert(0) += 1;
                }
                prop_assert!(count.values().all(|count| *count <= POOL_CAPACITY));
                prop_assert!(count.iter().all(|(worker, count)| worker.contains("-pool-") || *count == 1));
            }
        }
    }
}
