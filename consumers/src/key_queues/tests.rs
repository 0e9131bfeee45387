//! The queues against a model: order per key, budget, nothing lost.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

const LIMITS: Limits = Limits {
    in_flight: 3,
    in_flight_bytes: 100,
    held: 50,
    held_bytes: 1000,
};

fn queues() -> KeyQueues<u32> {
    KeyQueues::new(LIMITS)
}

/// Starts all that may start; returns the items.
fn started(queues: &mut KeyQueues<u32>, now: Instant) -> Vec<u32> {
    std::iter::from_fn(|| queues.start(now))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|id| *queues.get_mut(id).unwrap())
        .collect()
}

#[test]
fn one_event_of_a_key_at_a_time_and_other_keys_beside_it() {
    let (mut queues, now) = (queues(), Instant::now());
    let first = queues.push(0, Some(b"a"), 1, 1);
    queues.push(0, Some(b"a"), 1, 2);
    queues.push(0, Some(b"b"), 1, 3);
    assert_eq!(started(&mut queues, now), [1, 3]);
    assert_eq!(queues.finish(first), Some(1));
    assert_eq!(started(&mut queues, now), [2]);
}

#[test]
fn events_without_a_key_wait_for_nobody() {
    let (mut queues, now) = (queues(), Instant::now());
    for item in 1..=2 {
        queues.push(0, None, 1, item);
    }
    assert_eq!(started(&mut queues, now), [1, 2]);
}

#[test]
fn a_waiting_event_blocks_its_key_and_no_budget() {
    let (mut queues, now) = (queues(), Instant::now());
    let later = now + Duration::from_secs(5);
    for (key, item) in [(b"a", 1), (b"a", 2), (b"b", 3), (b"c", 4), (b"d", 5)] {
        queues.push(0, Some(key), 1, item);
    }
    let failing = queues.start(now).unwrap();
    queues.retry(failing, later);
    assert_eq!((queues.waiting(), queues.next_wake()), (1, Some(later)));
    assert_eq!(started(&mut queues, now), [3, 4, 5]);
    assert_eq!(queues.start(later), None, "three are under way");
    for id in queues.under_way_of(|_| true) {
        queues.finish(id);
    }
    assert_eq!(started(&mut queues, later), [1]);
    queues.finish(failing);
    assert_eq!(started(&mut queues, later), [2]);
}

#[test]
fn bytes_under_way_are_bounded_and_a_larger_event_goes_alone() {
    let (mut queues, now) = (queues(), Instant::now());
    let large = queues.push(0, None, 500, 1);
    let next = queues.push(0, None, 60, 2);
    queues.push(0, None, 60, 3);
    assert_eq!(started(&mut queues, now), [1]);
    queues.finish(large);
    assert_eq!(started(&mut queues, now), [2]);
    queues.finish(next);
    assert_eq!(started(&mut queues, now), [3]);
}

#[test]
fn what_is_put_back_is_still_the_first_of_its_key_and_lets_others_go_before() {
    let (mut queues, now) = (queues(), Instant::now());
    let id = queues.push(0, Some(b"a"), 1, 1);
    queues.push(0, Some(b"a"), 1, 2);
    queues.push(0, Some(b"b"), 1, 3);
    assert_eq!(queues.start(now), Some(id));
    queues.put_back(id);
    assert_eq!(queues.under_way(), 0);
    assert!(!queues.is_under_way(id));
    assert_eq!(started(&mut queues, now), [3, 1]);
}

/// A key with a long queue has its turn once all others had theirs.
#[test]
fn keys_take_turns() {
    let (mut queues, now) = (queues(), Instant::now());
    queues.set_limits(Limits {
        in_flight: 1,
        ..LIMITS
    });
    for item in 0..10 {
        queues.push(0, Some(b"hot"), 1, item);
    }
    for (key, item) in [(b"a", 100), (b"a", 101), (b"b", 200), (b"b", 201)] {
        queues.push(1, Some(key), 1, item);
    }
    let mut order = Vec::new();
    while let Some(id) = queues.start(now) {
        order.extend(queues.finish(id));
    }
    assert_eq!(
        order,
        [0, 100, 200, 1, 101, 201, 2, 3, 4, 5, 6, 7, 8, 9],
        "one of each key in turn"
    );
}

#[test]
fn what_is_preferred_goes_first_and_everything_goes_in_the_end() {
    let (mut queues, now) = (queues(), Instant::now());
    for item in 1..=3 {
        queues.push(0, None, 1, item);
    }
    let mut order = Vec::new();
    while let Some(id) = queues.start_preferred(now, |item| *item == 2) {
        order.extend(queues.finish(id));
    }
    assert_eq!(order, [2, 1, 3]);
}

#[test]
fn only_what_is_chosen_wakes_early() {
    let (mut queues, now) = (queues(), Instant::now());
    for item in 1..=2 {
        queues.push(0, None, 1, item);
    }
    while let Some(id) = queues.start(now) {
        queues.retry(id, now + Duration::from_secs(5));
    }
    queues.wake_early(|item| *item == 2);
    assert_eq!(started(&mut queues, now), [2]);
    assert_eq!(started(&mut queues, now + Duration::from_secs(5)), [1]);
}

#[test]
fn room_ends_with_count_or_bytes() {
    let mut queues = queues();
    for item in 0..50 {
        assert!(queues.has_room());
        queues.push(0, None, 1, item);
    }
    assert!(!queues.has_room());
    let mut by_bytes = KeyQueues::new(LIMITS);
    by_bytes.push(0, None, 1000, 1);
    assert!(!by_bytes.has_room());
}

#[test]
fn losing_a_partition_leaves_the_others_alone() {
    let (mut queues, now) = (queues(), Instant::now());
    let lost = queues.push(0, Some(b"a"), 1, 1);
    queues.push(0, Some(b"a"), 1, 2);
    let kept = queues.push(1, Some(b"a"), 1, 3);
    queues.push(1, Some(b"a"), 1, 4);
    assert_eq!(started(&mut queues, now), [1, 3]);
    queues.drop_idle(|partition| partition == 0);
    assert_eq!(queues.under_way_of(|partition| partition == 0), [lost]);
    assert_eq!(queues.finish(lost), Some(1));
    assert_eq!(started(&mut queues, now), [] as [u32; 0]);
    queues.finish(kept);
    assert_eq!(started(&mut queues, now), [4]);
    assert_eq!(queues.drop_all(|partition| partition == 1).len(), 1);
    assert_eq!(
        (queues.under_way(), queues.entries.len(), queues.lanes.len()),
        (0, 0, 0)
    );
    assert_eq!((queues.held_bytes, queues.under_way_bytes), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        partition: i32,
        key: Option<u8>,
        bytes: usize,
    },
    Start,
    Finish(prop::sample::Index),
    Retry(prop::sample::Index, u64),
    PutBack(prop::sample::Index),
    Lose(i32),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (0..3i32, prop::option::of(0..4u8), 1..60usize)
            .prop_map(|(partition, key, bytes)| Step::Push { partition, key, bytes }),
        4 => Just(Step::Start),
        3 => index().prop_map(Step::Finish),
        2 => (index(), 1..20u64).prop_map(|(index, delay)| Step::Retry(index, delay)),
        1 => index().prop_map(Step::PutBack),
        1 => (0..3i32).prop_map(Step::Lose),
        2 => (1..20u64).prop_map(Step::Pass),
    ]
}

struct Model {
    /// (id, partition, key) of everything held, in log order.
    held: Vec<(Id, i32, Option<u8>)>,
    under_way: Vec<Id>,
}

impl Model {
    fn remove(&mut self, id: Id) {
        self.held.retain(|(other, ..)| *other != id);
        self.under_way.retain(|other| *other != id);
    }

    /// No earlier event of the same key is held.
    fn may_go(&self, id: Id) -> bool {
        let (_, partition, key) = self.held.iter().find(|(other, ..)| *other == id).unwrap();
        key.is_none()
            || self
                .held
                .iter()
                .all(|(other, p, k)| *other >= id || (p, k) != (partition, key))
    }
}

proptest! {
    #[test]
    fn order_budget_and_completeness_hold(steps in prop::collection::vec(step(), 1..300)) {
        let mut now = Instant::now();
        let mut queues = queues();
        let mut model = Model { held: Vec::new(), under_way: Vec::new() };
        for step in steps {
            match step {
                Step::Push { partition, key, bytes } => {
                    let id = queues.push(partition, key.as_ref().map(std::slice::from_ref), bytes, 0);
                    model.held.push((id, partition, key));
                }
                Step::Start => if let Some(id) = queues.start(now) {
                    prop_assert!(model.may_go(id) && !model.under_way.contains(&id));
                    model.under_way.push(id);
                },
                Step::Finish(index) => if !model.under_way.is_empty() {
                    let id = *index.get(&model.under_way);
                    prop_assert!(queues.finish(id).is_some());
                    model.remove(id);
                },
                Step::Retry(index, delay) => if !model.under_way.is_empty() {
                    let id = *index.get(&model.under_way);
                    queues.retry(id, now + Duration::from_secs(delay));
                    model.under_way.retain(|other| *other != id);
                },
                Step::PutBack(index) => if !model.under_way.is_empty() {
                    let id = *index.get(&model.under_way);
                    queues.put_back(id);
                    model.under_way.retain(|other| *other != id);
                },
                Step::Lose(partition) => {
                    let lost = queues.drop_all(|p| p == partition);
                    prop_assert!(lost.iter().all(|id| model.under_way.contains(id)));
                    model.held.retain(|(_, p, _)| *p != partition);
                    let held = model.held.iter().map(|(id, ..)| *id).collect::<Vec<_>>();
                    model.under_way.retain(|id| held.contains(id));
                }
                Step::Pass(seconds) => now += Duration::from_secs(seconds),
            }
            prop_assert!(queues.under_way() <= LIMITS.in_flight);
            prop_assert!(queues.under_way_bytes <= LIMITS.in_flight_bytes);
            prop_assert_eq!(queues.under_way(), model.under_way.len());
            prop_assert_eq!(queues.entries.len(), model.held.len());
        }
        // Everything that is held comes out in the end.
        now += Duration::from_secs(1000);
        while !model.held.is_empty() {
            while let Some(id) = queues.start(now) {
                prop_assert!(model.may_go(id));
                model.under_way.push(id);
            }
            prop_assert!(!model.under_way.is_empty(), "stuck with {} events", model.held.len());
            for id in std::mem::take(&mut model.under_way) {
                prop_assert!(queues.finish(id).is_some());
                model.remove(id);
            }
        }
        prop_assert_eq!((queues.held_bytes, queues.under_way_bytes, queues.lanes.len()), (0, 0, 0));
    }
}
