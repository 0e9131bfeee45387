//! The decisions one by one, and a model of a group, its broker and the operator under which no event may be skipped.

use super::*;
use proptest::prelude::*;

fn pairs<const N: usize>(pairs: [(i32, i64); N]) -> Offsets {
    Offsets::from(pairs)
}

fn of<const N: usize>(offsets: [(i32, i64); N]) -> Recorded {
    Recorded {
        offsets: pairs(offsets),
        replaced: false,
    }
}

#[test]
fn a_new_group_starts_where_it_is_told() {
    let start = pairs([(0, 7), (1, 9)]);
    assert!(needs_start(&of([]), &pairs([])));
    assert_eq!(
        complete(2, &of([]), &pairs([]), Some(&start)),
        Some(start.clone())
    );
    assert_eq!(complete(2, &of([]), &pairs([]), None), None);
    assert_eq!(complete(3, &of([]), &pairs([]), Some(&start)), None);
}

#[test]
fn the_recorded_start_is_never_decided_again() {
    let later = pairs([(0, 70), (1, 90)]);
    assert_eq!(
        complete(2, &of([(0, 7), (1, 9)]), &pairs([]), Some(&later)),
        Some(pairs([(0, 7), (1, 9)]))
    );
}

#[test]
fn a_group_that_exists_keeps_its_offsets() {
    let committed = pairs([(0, 5), (1, 6)]);
    let start = pairs([(0, 100), (1, 100)]);
    assert_eq!(
        complete(2, &of([]), &committed, Some(&start)),
        Some(committed)
    );
}

#[test]
fn a_partition_added_later_starts_at_its_beginning() {
    let latest = pairs([(0, 100), (1, 100)]);
    assert_eq!(
        complete(2, &of([(0, 7)]), &pairs([]), Some(&latest)),
        Some(pairs([(0, 7), (1, 0)]))
    );
}

#[test]
fn committed_offsets_are_saved_over_older_ones() {
    let saved = saved(&pairs([(0, 7), (1, 9)]), &pairs([(0, 50)]));
    assert_eq!(saved, pairs([(0, 50), (1, 9)]));
    assert_eq!(offsets(&to_record(&saved)), saved);
}

#[test]
fn positions_of_another_log_mean_nothing_and_all_of_this_one_is_new() {
    let positions = to_record(&pairs([(0, 500), (1, 500)]));
    assert_eq!(
        recorded(&positions, Some("a"), "a"),
        of([(0, 500), (1, 500)])
    );
    // Written before the log's id was.
    assert_eq!(recorded(&positions, None, "a"), of([(0, 500), (1, 500)]));
    let replaced = recorded(&positions, Some("a"), "b");
    assert!(!needs_start(&replaced, &pairs([])));
    let latest = pairs([(0, 3), (1, 3)]);
    assert_eq!(
        complete(2, &replaced, &pairs([]), Some(&latest)),
        Some(pairs([(0, 0), (1, 0)]))
    );
}

/// A group, what the broker knows of it, what the status says, and the truth.
#[derive(Debug)]
struct Model {
    partitions: i32,
    committed: Offsets,
    recorded: Offsets,
    /// Start offsets in the worker's configuration.
    configured: Offsets,
    has_member: bool,
    /// Partitions that the member reads.
    reading: Offsets,
    /// One past the last event that was delivered, in each partition.
    delivered: Offsets,
    /// The last offset that was committed, in each partition.
    last: Offsets,
    /// The status has it.
    is_saved: bool,
}

impl Model {
    fn new(partitions: i32, start: i64) -> Self {
        let start: Offsets = (0..partitions)
            .map(|partition| (partition, start))
            .collect();
        let mut model = Self {
            partitions,
            committed: Offsets::new(),
            recorded: Offsets::new(),
            configured: Offsets::new(),
            has_member: false,
            reading: Offsets::new(),
            delivered: start.clone(),
            last: start.clone(),
            is_saved: true,
        };
        model.pass(&start);
        model
    }

    /// One pass of the operator, which can see all of the log.
    fn pass(&mut self, start: &Offsets) {
        let recorded = Recorded {
            offsets: self.recorded.clone(),
            replaced: false,
        };
        self.recorded = complete(self.partitions, &recorded, &self.committed, Some(start)).unwrap();
        if !self.has_member {
            self.save();
        }
        if !incomplete(self.partitions, &self.committed) {
            self.configured.clear();
        } else if self.has_member {
            self.configured.clone_from(&self.recorded);
        } else {
            for (partition, offset) in &self.recorded {
                self.committed.entry(*partition).or_insert(*offset);
            }
            self.configured.clear();
        }
    }

    /// What the broker has forgotten by then can't be saved any more.
    fn save(&mut self) {
        self.recorded = saved(&self.recorded, &self.committed);
        let is_last = |(partition, offset)| self.committed.get(partition) == Some(offset);
        self.is_saved |= self.last.iter().all(is_last);
    }

    /// The member takes over what it can: at commits, else at start offsets, else not.
    fn join(&mut self) -> Result<(), TestCaseError> {
        self.has_member = true;
        for partition in 0..self.partitions {
            if self.reading.contains_key(&partition) {
                continue;
            }
            let committed = self.committed.get(&partition).copied();
            let Some(at) = committed.or_else(|| self.configured.get(&partition).copied()) else {
                continue;
            };
            let delivered = self.delivered.get(&partition).copied().unwrap_or(0);
            prop_assert!(
                at <= delivered,
                "partition {partition} skips from {delivered} to {at}"
            );
            if self.is_saved {
                let last = self.last.get(&partition).copied().unwrap_or(0);
                prop_assert_eq!(at, last, "partition {} repeats", partition);
            }
            self.last.insert(partition, at);
            self.reading.insert(partition, at);
            self.committed.insert(partition, at);
        }
        Ok(())
    }

    fn deliver(&mut self, partition: i32, count: i64) {
        if let Some(at) = self.reading.get_mut(&partition) {
            *at += count;
            let delivered = self.delivered.entry(partition).or_default();
            *delivered = (*delivered).max(*at);
            self.committed.insert(partition, *at);
            self.last.insert(partition, *at);
            self.is_saved = false;
        }
    }

    fn leave(&mut self) {
        self.has_member = false;
        self.reading.clear();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join,
    Leave,
    Deliver(i32, i64),
    /// The broker forgets a group without members.
    Expire,
    Grow,
    Pass,
    /// The operator saves the offsets of a group that is at work.
    Save,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Join),
        2 => Just(Step::Leave),
        6 => (0..6, 1..50_i64).prop_map(|(partition, count)| Step::Deliver(partition, count)),
        2 => Just(Step::Expire),
        1 => Just(Step::Grow),
        4 => Just(Step::Pass),
        1 => Just(Step::Save),
    ]
}

proptest! {
    /// Whatever comes, goes, expires, grows and is absent: no event is skipped, and none is repeated when the operator
    /// saw the last commit.
    #[test]
    fn no_event_is_skipped(steps in prop::collection::vec(step(), 1..120), start in 0..100_i64) {
        let mut model = Model::new(3, start);
        for step in steps {
            match step {
                Step::Join => model.join()?,
                Step::Leave => model.leave(),
                Step::Deliver(partition, count) => model.deliver(partition, count),
                Step::Expire if !model.has_member => model.committed.clear(),
                Step::Expire => {}
                Step::Grow => model.partitions = (model.partitions + 1).min(6),
                Step::Pass => {
                    // The end of the log by now: a first position decided again would skip to it.
                    let latest = (0..model.partitions).map(|partition| (partition, 1_000_000)).collect();
                    model.pass(&latest);
                }
                Step::Save if !model.configured.is_empty() => {}
                Step::Save => model.save(),
            }
        }
    }

    #[test]
    fn deciding_again_changes_nothing(
        partitions in 1..8_i32,
        recorded in prop::collection::btree_map(0..8_i32, 0..1_000_i64, 0..8),
        committed in prop::collection::btree_map(0..8_i32, 0..1_000_i64, 0..8),
        replaced in any::<bool>(),
    ) {
        let recorded = Recorded {
            offsets: if replaced { Offsets::new() } else { recorded },
            replaced,
        };
        let start: Offsets = (0..8).map(|partition| (partition, 77)).collect();
        let all = complete(partitions, &recorded, &committed, Some(&start)).unwrap();
        prop_assert!((0..partitions).all(|partition| all.contains_key(&partition)));
        prop_assert!(recorded.offsets.iter().all(|(partition, offset)| all[partition] == *offset));
        let again = Recorded { offsets: all.clone(), replaced: false };
        let later: Offsets = (0..8).map(|partition| (partition, 99)).collect();
        prop_assert_eq!(complete(partitions, &again, &committed, Some(&later)).unwrap(), all.clone());
        let kept = saved(&all, &committed);
        prop_assert_eq!(saved(&kept, &committed), kept.clone());
        prop_assert!(committed.iter().all(|(partition, offset)| kept[partition] == *offset));
    }
}
