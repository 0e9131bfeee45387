//! What retention removed before it was read, as a condition. Pure.

use super::position::Offsets;
use crate::controllers::conditions::Finding;
use fanout_contract::consumer::PartitionStatus;
use fanout_crds::condition::{RECORDS_EXPIRED, reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// A loss is shown for so long.
const SHOWN: SignedDuration = SignedDuration::from_hours(24);
/// A message names so many partitions.
const NAMED: usize = 10;

/// The condition, from what workers report of the `partitions` and from what is gone of a Subscription that nobody serves
/// (`unserved`). Workers report a loss for a day and forget it when they end, so what was said stays for a day as well.
pub(crate) fn finding<'a>(
    partitions: impl Iterator<Item = &'a PartitionStatus>,
    unserved: &Offsets,
    old: &[Condition],
    now: Timestamp,
) -> Finding {
    let mut lost = Offsets::new();
    for partition in partitions.filter(|partition| partition.expired > 0) {
        *lost.entry(partition.partition).or_default() += partition.expired;
    }
    // What a worker has noticed by now may still be a gap in what was read of Kafka before: never both.
    let mut most = unserved.clone();
    most.retain(|partition, records| *records > lost.get(partition).copied().unwrap_or(0));
    if !lost.is_empty() || !most.is_empty() {
        return Finding::yes(reason::EXPIRED, message(&lost, &most));
    }
    let said = old.iter().find(|condition| {
        condition.type_ == RECORDS_EXPIRED
            && condition.status == "True"
            && now.duration_since(condition.last_transition_time.0) < SHOWN
    });
    match said {
        Some(said) => Finding::yes(&said.reason, &said.message),
        None => Finding::no(reason::SUCCEEDED, ""),
    }
}

/// A worker that is suspended may have some of what is gone ready, and some of it may be finished beyond the committed
/// offset: of those that nobody serves the number is the `most` it can be.
fn message(lost: &Offsets, most: &Offsets) -> String {
    let known = lost
        .iter()
        .filter(|(partition, _)| !most.contains_key(partition))
        .map(|(partition, records)| (*partition, format!("{records} of partition {partition}")));
    let at_most = most.iter().map(|(partition, records)| {
        (
            *partition,
            format!("up to {records} of partition {partition}"),
        )
    });
    let all: BTreeMap<i32, String> = known.chain(at_most).collect();
    let more = all.len().saturating_sub(NAMED);
    let mut parts: Vec<String> = all.into_values().take(NAMED).collect();
    if more > 0 {
        parts.push(format!("those of {more} more partitions"));
    }
    format!(
        "retention removed records before they were delivered: {}; raise retention.ms of the Kafka topic above the longest \
         time that a Subscription may be behind, suspended or without a worker",
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::conditions::merge;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(hours * 3_600).unwrap()
    }

    fn reported(partition: i32, expired: i64) -> PartitionStatus {
        PartitionStatus {
            partition,
            committed: None,
            oldest_event_time: None,
            expired,
        }
    }

    fn found(of: &[PartitionStatus], unserved: &Offsets, old: &[Condition], hours: i64) -> Finding {
        finding(of.iter(), unserved, old, at(hours))
    }

    #[test]
    fn the_message_names_each_partition_and_how_many() {
        let unserved = Offsets::from([(0, 7), (2, 5), (4, 1)]);
        let found = found(
            &[reported(0, 7), reported(1, 0), reported(2, 3)],
            &unserved,
            &[],
            0,
        );
        assert!(found.holds());
        let named =
            "delivered: 7 of partition 0, up to 5 of partition 2, up to 1 of partition 4; raise";
        assert!(found.message.contains(named), "{}", found.message);
    }

    #[test]
    fn a_message_stays_readable_and_fits_its_condition() {
        let all: Vec<_> = (0..4096)
            .map(|partition| reported(partition, i64::MAX))
            .collect();
        let found = found(&all, &Offsets::new(), &[], 0);
        assert!(found.message.contains("those of 4086 more partitions"));
        assert!(found.message.len() < 1_024);
    }

    #[test]
    fn a_loss_stays_for_a_day_when_the_worker_that_noticed_it_is_gone() {
        let none = Offsets::new();
        assert!(!found(&[reported(0, 0)], &none, &[], 0).holds());
        let lost = found(&[reported(0, 7)], &none, &[], 0);
        let old = merge(&[], 1, at(0), vec![(RECORDS_EXPIRED, lost.clone())]);
        assert_eq!(found(&[], &none, &old, 23), lost);
        let over = found(&[], &none, &old, 24);
        assert!(!over.holds());
        let old = merge(&old, 1, at(24), vec![(RECORDS_EXPIRED, over)]);
        assert!(!found(&[], &none, &old, 25).holds());
    }
}
