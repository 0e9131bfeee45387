//! Offsets against a model that remembers everything.

use super::*;
use proptest::prelude::*;

#[test]
fn the_prefix_stops_at_the_first_unfinished_offset() {
    let mut offsets = Offsets::resume(10, "");
    for offset in 10..15 {
        assert!(offsets.see(offset, Some(offset * 100)));
    }
    assert_eq!(offsets.prefix(), 10);
    offsets.finish(11);
    offsets.finish(13);
    assert_eq!(offsets.prefix(), 10);
    offsets.finish(10);
    assert_eq!((offsets.prefix(), offsets.oldest()), (12, Some(1200)));
    offsets.finish(12);
    offsets.finish(14);
    assert_eq!((offsets.prefix(), offsets.oldest()), (15, None));
}

#[test]
fn what_finished_beyond_the_prefix_is_not_seen_again_after_a_restart() {
    let mut offsets = Offsets::resume(10, "");
    for offset in 10..20 {
        offsets.see(offset, None);
    }
    for offset in [12, 13, 19] {
        offsets.finish(offset);
    }
    let commit = offsets.due().unwrap();
    let mut again = Offsets::resume(commit.offset, &commit.metadata);
    let seen: Vec<_> = (10..21).filter(|offset| again.see(*offset, None)).collect();
    assert_eq!(seen, [10, 11, 14, 15, 16, 17, 18, 20]);
}

#[test]
fn holes_left_by_transaction_markers_are_not_waited_for() {
    let mut offsets = Offsets::resume(0, "");
    offsets.see(0, None);
    offsets.see(5, None);
    offsets.finish(5);
    offsets.finish(0);
    assert_eq!(offsets.prefix(), 6);
    offsets.reach(9);
    assert_eq!(offsets.due().unwrap().offset, 9);
    offsets.reach(7);
    assert_eq!(offsets.prefix(), 9);
}

#[test]
fn an_open_event_holds_back_the_end_of_the_log() {
    let mut offsets = Offsets::resume(0, "");
    offsets.see(0, None);
    offsets.reach(50);
    assert_eq!(offsets.prefix(), 0);
    offsets.finish(0);
    assert_eq!(offsets.prefix(), 50);
}

#[test]
fn a_start_without_a_commit_is_committed_at_once_and_then_only_changes_are() {
    let mut offsets = Offsets::start(7);
    let start = offsets.due().unwrap();
    assert_eq!((start.offset, start.metadata.as_str()), (7, ""));
    offsets.acknowledge(&start);
    assert_eq!((offsets.due(), offsets.committed()), (None, Some(7)));
    offsets.see(7, None);
    assert_eq!(offsets.due(), None);
    offsets.finish(7);
    assert_eq!(offsets.due().unwrap().offset, 8);
}

#[test]
fn what_finishes_while_a_commit_is_under_way_is_due_again() {
    let mut offsets = Offsets::resume(0, "");
    offsets.see(0, None);
    offsets.see(1, None);
    offsets.finish(0);
    let commit = offsets.due().unwrap();
    offsets.finish(1);
    offsets.acknowledge(&commit);
    assert_eq!(offsets.due().unwrap().offset, 2);
}

#[test]
fn the_largest_metadata_fits_the_brokers_default_limit() {
    let mut offsets = Offsets::resume(0, "");
    let mut offset = 0;
    while offsets.has_room() {
        offsets.see(offset, None);
        offset += 1;
    }
    assert_eq!(offset, SPAN);
    for finished in 1..offset {
        offsets.finish(finished);
    }
    let commit = offsets.due().unwrap();
    assert_eq!(commit.offset, 0);
    assert!(commit.metadata.len() < 4096, "{}", commit.metadata.len());
    let mut again = Offsets::resume(0, &commit.metadata);
    assert!(again.see(0, None));
    assert!((1..SPAN).all(|offset| !again.see(offset, None)));
}

#[test]
fn foreign_metadata_is_read_as_nothing_finished() {
    for metadata in ["", "hello", "f1:", "f1:***", "f2:AAAA", "f1:\u{fffd}"] {
        let mut offsets = Offsets::resume(3, metadata);
        assert!(
            (3..50).all(|offset| offsets.see(offset, None)),
            "{metadata}"
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    See(i64),
    Finish(prop::sample::Index),
    Commit,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1i64..4).prop_map(Step::See),
        4 => any::<prop::sample::Index>().prop_map(Step::Finish),
        2 => Just(Step::Commit),
        1 => Just(Step::Restart),
    ]
}

#[test]
fn retention_takes_what_was_not_finished() {
    let mut offsets = Offsets::resume(10, "");
    assert_eq!(offsets.expire(7), 0);
    assert_eq!(offsets.expire(14), 4);
    assert_eq!((offsets.prefix(), offsets.due().unwrap().offset), (14, 14));
    assert!(!offsets.see(13, None), "what is gone is not waited for");
    assert!(offsets.is_done());
}

proptest! {
    /// However events finish and workers restart: the committed offset never goes back, never passes an
    /// unfinished event, and what a commit covered is not delivered again.
    #[test]
    fn nothing_is_skipped_and_committed_work_is_not_repeated(steps in prop::collection::vec(step(), 1..200)) {
        let mut offsets = Offsets::resume(100, "");
        let mut log: Vec<i64> = Vec::new();
        let mut finished: BTreeSet<i64> = BTreeSet::new();
        let mut covered: BTreeSet<i64> = BTreeSet::new();
        let mut last = Commit { offset: 100, metadata: String::new(), revision: 0 };
        let mut next = 100;
        for step in steps {
            match step {
                Step::See(gap) => {
                    next += gap;
                    log.push(next);
                    prop_assert!(offsets.see(next, None));
                }
                Step::Finish(index) => {
                    let open: Vec<_> = log.iter().filter(|at| !finished.contains(at)).collect();
                    if !open.is_empty() {
                        let offset = **index.get(&open);
                        finished.insert(offset);
                        offsets.finish(offset);
                    }
                }
                Step::Commit => {
                    if let Some(commit) = offsets.due() {
                        prop_assert!(commit.offset >= last.offset);
                        prop_assert!(log.iter().filter(|at| **at < commit.offset).all(|at| finished.contains(at)));
                        offsets.acknowledge(&commit);
                        last = commit;
                        covered.clone_from(&finished);
                    }
                    prop_assert_eq!(offsets.due(), None);
                }
                Step::Restart => {
                    offsets = Offsets::resume(last.offset, &last.metadata);
                    finished.clone_from(&covered);
                    for offset in log.iter().filter(|at| **at >= last.offset) {
                        prop_assert_eq!(offsets.see(*offset, None), !covered.contains(offset));
                    }
                }
            }
        }
    }
}
