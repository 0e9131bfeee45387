//! What of a worker's status matters to conditions: a change of it asks for a reconcile, a change of a number does not. Pure.

use super::poll::WorkerStatus;
use super::{Trigger, TriggerKind};
use fanout_contract::consumer::{ConsumerStatus, PartitionStatus, SubscriptionStatus};
use fanout_contract::relay::RelayStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Which objects `new` has news for, compared with `old`.
pub(super) fn news(
    namespace: &str,
    topic: &str,
    old: Option<&WorkerStatus>,
    new: Option<&WorkerStatus>,
) -> BTreeSet<Trigger> {
    let of_topic = old.map(topic_part) != new.map(topic_part);
    let (before, after) = (subscriptions(old), subscriptions(new));
    let changed = before
        .keys()
        .chain(after.keys())
        .filter(|name| before.get(*name) != after.get(*name));
    changed
        .map(|name| (TriggerKind::Subscription, *name))
        .chain(of_topic.then_some((TriggerKind::FanoutTopic, topic)))
        .map(|(kind, name)| Trigger {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
        .collect()
}

/// What the conditions of the FanoutTopic, and the pushing of its workers' configurations, depend on.
fn topic_part(status: &WorkerStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    match status {
        WorkerStatus::Relay(RelayStatus {
            config_hash,
            generation,
            suspended,
            positions_deleted,
            source_error,
            broker_error,
            source_checked,
            ordered,
            parked,
            long_transaction,
            pending: _,
            rate_per_second: _,
            published_total: _,
            ranges: _,
        }) => {
            (config_hash, generation, suspended, source_checked).hash(&mut hasher);
            (positions_deleted, ordered).hash(&mut hasher);
            let source = source_error.as_ref();
            let broker = broker_error.as_ref();
            format!("{source:?} {broker:?}").hash(&mut hasher);
            (parked.rows > 0, parked.held > 0, coarse(parked.total())).hash(&mut hasher);
            long_transaction
                .as_ref()
                .map(|open| open.pid)
                .hash(&mut hasher);
        }
        WorkerStatus::Consumer(ConsumerStatus {
            config_hash,
            subscriptions: _,
        }) => config_hash.hash(&mut hasher),
    }
    hasher.finish()
}

/// `count` with its four leading bits: what is equal in them is about the same to a reader.
pub(crate) fn coarse(count: i64) -> i64 {
    let bits = i64::BITS - count.leading_zeros();
    let shift = bits.saturating_sub(4);
    (count >> shift) << shift
}

/// The same for each Subscription of a consumer, by name.
fn subscriptions(status: Option<&WorkerStatus>) -> BTreeMap<&str, u64> {
    let Some(WorkerStatus::Consumer(status)) = status else {
        return BTreeMap::new();
    };
    status
        .subscriptions
        .iter()
        .map(|entry| (entry.name.as_str(), subscription_part(entry)))
        .collect()
}

fn subscription_part(entry: &SubscriptionStatus) -> u64 {
    let SubscriptionStatus {
        name: _,
        uid,
        generation,
        state,
        reason,
        message,
        delivering,
        partitions,
        in_flight: _,
        retrying: _,
        breaker: _,
        concurrency: _,
        rate_per_second: _,
        totals: _,
    } = entry;
    let mut hasher = DefaultHasher::new();
    (uid, generation, message, delivering).hash(&mut hasher);
    format!("{state:?} {reason:?}").hash(&mut hasher);
    // A loss is news, and again each time it has doubled.
    let lost = |partition: &PartitionStatus| {
        let size = partition.expired.checked_ilog2()?;
        Some((partition.partition, size))
    };
    let lost: Vec<_> = partitions.iter().filter_map(lost).collect();
    lost.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_contract::consumer::{StopReason, SubscriptionState};
    use fanout_contract::relay::{Parked, Pending};

    fn entry(name: &str) -> SubscriptionStatus {
        SubscriptionStatus {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            generation: 1,
            state: SubscriptionState::Running,
            delivering: Some(true),
            ..SubscriptionStatus::default()
        }
    }

    fn consumer(hash: &str, subscriptions: Vec<SubscriptionStatus>) -> WorkerStatus {
        WorkerStatus::Consumer(ConsumerStatus {
            config_hash: hash.to_owned(),
            subscriptions,
        })
    }

    fn names(old: &WorkerStatus, new: &WorkerStatus) -> Vec<String> {
        news("ns", "posts", Some(old), Some(new))
            .into_iter()
            .map(|trigger| format!("{:?}/{}", trigger.kind, trigger.name))
            .collect()
    }

    #[test]
    fn numbers_are_no_news() {
        let old = consumer("h", vec![entry("a")]);
        let mut busy = entry("a");
        busy.in_flight = 9;
        busy.rate_per_second = 3.5;
        busy.totals.delivered = 17;
        assert!(names(&old, &consumer("h", vec![busy])).is_empty());
        let relay = |rows| {
            WorkerStatus::Relay(RelayStatus {
                pending: Some(Pending {
                    rows,
                    oldest_event_time: None,
                }),
                published_total: 5,
                ..RelayStatus::default()
            })
        };
        assert!(names(&relay(1), &relay(2)).is_empty());
    }

    #[test]
    fn what_retention_took_is_news_when_it_doubles_and_a_commit_is_not() {
        let lost = |committed, expired| {
            let mut entry = entry("a");
            entry.partitions.push(PartitionStatus {
                partition: 0,
                committed: Some(committed),
                oldest_event_time: None,
                expired,
            });
            consumer("h", vec![entry])
        };
        assert!(names(&lost(1, 0), &lost(9, 0)).is_empty());
        assert_eq!(names(&lost(9, 0), &lost(9, 4)), ["Subscription/a"]);
        assert!(names(&lost(9, 4), &lost(9, 7)).is_empty());
        assert_eq!(names(&lost(9, 7), &lost(9, 8)), ["Subscription/a"]);
    }

    #[test]
    fn a_subscription_that_changed_is_news_for_it_alone() {
        let old = consumer("h", vec![entry("a"), entry("b")]);
        let mut failing = entry("b");
        failing.delivering = Some(false);
        failing.reason = Some(StopReason::DeliveryFailing);
        let new = consumer("h", vec![entry("a"), failing]);
        assert_eq!(names(&old, &new), ["Subscription/b"]);
        assert_eq!(
            names(&old, &consumer("h", vec![entry("a")])),
            ["Subscription/b"]
        );
    }

    #[test]
    fn another_configuration_is_news_for_the_topic() {
        let old = consumer("h", vec![entry("a")]);
        assert_eq!(
            names(&old, &consumer("i", vec![entry("a")])),
            ["FanoutTopic/posts"]
        );
    }

    #[test]
    fn parked_rows_are_news_while_few_and_then_as_they_grow() {
        let relay = |rows| {
            WorkerStatus::Relay(RelayStatus {
                parked: Parked { rows, held: 0 },
                ..RelayStatus::default()
            })
        };
        assert_eq!(names(&relay(0), &relay(1)), ["FanoutTopic/posts"]);
        assert_eq!(names(&relay(1), &relay(2)), ["FanoutTopic/posts"]);
        assert!(names(&relay(1_000), &relay(1_001)).is_empty());
        assert_eq!(names(&relay(1_000), &relay(1_200)), ["FanoutTopic/posts"]);
    }

    #[test]
    fn a_coarse_count_is_exact_while_small_and_off_by_an_eighth_at_most() {
        for count in 0..16 {
            assert_eq!(coarse(count), count);
        }
        assert_eq!(coarse(16), coarse(17));
        for count in [100, 12_345, i64::MAX] {
            let off = count - coarse(count);
            assert!((0..=count / 8).contains(&off), "{count}");
        }
    }

    #[test]
    fn deleted_positions_are_news() {
        let relay = |positions_deleted| {
            WorkerStatus::Relay(RelayStatus {
                positions_deleted,
                ..RelayStatus::default()
            })
        };
        assert_eq!(names(&relay(false), &relay(true)), ["FanoutTopic/posts"]);
    }

    #[test]
    fn a_worker_that_answers_for_the_first_time_or_no_more_is_news() {
        let status = consumer("h", vec![entry("a")]);
        assert_eq!(news("ns", "posts", None, Some(&status)).len(), 2);
        assert_eq!(news("ns", "posts", Some(&status), None).len(), 2);
    }
}
