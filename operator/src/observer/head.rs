//! The first event that waits, and the outbox as its relays see it together. Pure.

use fanout_contract::consumer::ConsumerStatus;
use fanout_contract::relay::{PENDING_CAP, RelayStatus};
use k8s_openapi::jiff::Timestamp;
use std::collections::HashMap;

/// The oldest event that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// Nobody can tell.
    #[default]
    Unknown,
    /// Nothing waits.
    Empty,
    /// Since this time.
    Since(Timestamp),
}

/// Shards of an outbox; relays own ranges of them.
const SHARDS: i32 = 64;

/// The oldest event that any of these workers has, by uid of the Subscription.
pub(super) fn oldest<'a>(
    workers: impl Iterator<Item = &'a ConsumerStatus>,
) -> HashMap<&'a str, Timestamp> {
    let mut oldest = HashMap::new();
    for entry in workers.flat_map(|status| &status.subscriptions) {
        let times = entry.partitions.iter();
        let first = times
            .filter_map(|partition| time(partition.oldest_event_time.as_deref()))
            .min();
        if let Some(first) = first {
            let known = oldest.entry(entry.uid.as_str()).or_insert(first);
            *known = first.min(*known);
        }
    }
    oldest
}

/// The head of a Subscription, from the `oldest` event that its workers have and from its depth.
///
/// A worker that is starting, or that has not fetched a partition yet, knows no head although records wait: then the
/// answer is unknown, not empty.
pub(super) const fn subscription(oldest: Option<Timestamp>, depth: Option<i64>) -> Head {
    match (oldest, depth) {
        // Depth comes from Kafka and is read at another moment: what a worker holds does wait.
        (Some(oldest), _) => Head::Since(oldest),
        (None, Some(0)) => Head::Empty,
        (None, _) => Head::Unknown,
    }
}

/// Rows of an outbox that wait, and the first of them: known only while the relays that report own every shard once.
pub(super) fn outbox<'a>(relays: impl Iterator<Item = &'a RelayStatus>) -> (Option<i64>, Head) {
    let mut shards = 0;
    let mut rows: i64 = 0;
    let mut oldest: Option<Timestamp> = None;
    for relay in relays.filter(|relay| !relay.ranges.is_empty()) {
        let Some(pending) = &relay.pending else {
            return (None, Head::Unknown);
        };
        shards += relay
            .ranges
            .iter()
            .map(|range| range.hi - range.lo)
            .sum::<i32>();
        rows = rows.saturating_add(pending.rows).min(PENDING_CAP);
        oldest = oldest
            .into_iter()
            .chain(time(pending.oldest_event_time.as_deref()))
            .min();
    }
    if shards != SHARDS {
        return (None, Head::Unknown);
    }
    let head = match (oldest, rows) {
        (Some(oldest), _) => Head::Since(oldest),
        (None, 0) => Head::Empty,
        (None, _) => Head::Unknown,
    };
    (Some(rows), head)
}

/// A worker's time stamp; what can't be read is not there.
fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_contract::consumer::{PartitionStatus, SubscriptionState, SubscriptionStatus};
    use fanout_contract::relay::{Pending, RangeStatus};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn consumer(uid: &str, oldest: &[Option<i64>]) -> ConsumerStatus {
        let partitions = (0..)
            .zip(oldest)
            .map(|(partition, second)| PartitionStatus {
                partition,
                committed: None,
                oldest_event_time: second.map(|second| at(second).to_string()),
                expired: 0,
            })
            .collect();
        ConsumerStatus {
            config_hash: String::new(),
            subscriptions: vec![SubscriptionStatus {
                name: uid.to_owned(),
                uid: uid.to_owned(),
                generation: 1,
                state: SubscriptionState::Running,
                partitions,
                ..SubscriptionStatus::default()
            }],
        }
    }

    fn relay(ranges: &[(i32, i32)], pending: Option<(i64, Option<i64>)>) -> RelayStatus {
        RelayStatus {
            ranges: (1..)
                .zip(ranges)
                .map(|(id, (lo, hi))| RangeStatus {
                    id,
                    lo: *lo,
                    hi: *hi,
                    term: 1,
                })
                .collect(),
            pending: pending.map(|(rows, oldest)| Pending {
                rows,
                oldest_event_time: oldest.map(|second| at(second).to_string()),
            }),
            ..RelayStatus::default()
        }
    }

    #[test]
    fn the_head_is_the_oldest_of_all_partitions_on_all_workers() {
        let workers = [
            consumer("a", &[Some(70), None]),
            consumer("a", &[Some(50)]),
            consumer("b", &[Some(10)]),
        ];
        let oldest = oldest(workers.iter());
        assert_eq!(
            oldest,
            HashMap::from([("a", at(50)), ("b", at(10))]),
            "no entry for a Subscription that no worker has"
        );
        assert_eq!(subscription(Some(at(50)), Some(9)), Head::Since(at(50)));
        assert_eq!(subscription(None, Some(0)), Head::Empty);
    }

    #[test]
    fn a_worker_that_does_not_know_the_head_yet_does_not_say_that_nothing_waits() {
        assert!(oldest([consumer("a", &[None])].iter()).is_empty());
        assert_eq!(subscription(None, Some(9)), Head::Unknown);
        assert_eq!(subscription(None, None), Head::Unknown);
        assert_eq!(subscription(None, Some(0)), Head::Empty);
    }

    #[test]
    fn an_outbox_is_the_sum_of_its_ranges() {
        let relays = [
            relay(&[(0, 32)], Some((3, Some(90)))),
            relay(&[(32, 64)], Some((4, Some(80)))),
        ];
        assert_eq!(outbox(relays.iter()), (Some(7), Head::Since(at(80))));
        let one = [
            relay(&[(0, 32), (32, 64)], Some((0, None))),
            relay(&[], None),
        ];
        assert_eq!(outbox(one.iter()), (Some(0), Head::Empty));
    }

    #[test]
    fn an_outbox_is_unknown_while_a_range_has_no_owner_or_two() {
        let half = [relay(&[(0, 32)], Some((3, None)))];
        assert_eq!(outbox(half.iter()), (None, Head::Unknown));
        let twice = [
            relay(&[(0, 64)], Some((3, None))),
            relay(&[(32, 64)], Some((3, None))),
        ];
        assert_eq!(outbox(twice.iter()), (None, Head::Unknown));
        let uncounted = [relay(&[(0, 64)], None)];
        assert_eq!(outbox(uncounted.iter()), (None, Head::Unknown));
        assert_eq!(outbox([].iter()), (None, Head::Unknown));
    }

    #[test]
    fn pending_is_capped() {
        let relays = [
            relay(&[(0, 32)], Some((PENDING_CAP, Some(1)))),
            relay(&[(32, 64)], Some((PENDING_CAP, None))),
        ];
        assert_eq!(outbox(relays.iter()).0, Some(PENDING_CAP));
    }
}
