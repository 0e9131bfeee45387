use super::*;
use crate::position::History;
use proptest::prelude::*;
use rstest::rstest;

fn layout(widest: i32, narrowest: i32) -> Layout {
    Layout { widest, narrowest }
}

#[rstest]
#[case(0, layout(32, 32))]
#[case(1, layout(32, 32))]
#[case(2, layout(32, 16))]
#[case(3, layout(8, 8))]
#[case(4, layout(16, 8))]
#[case(5, layout(4, 4))]
#[case(8, layout(8, 4))]
#[case(32, layout(2, 1))]
#[case(33, layout(1, 1))]
#[case(64, layout(1, 1))]
#[case(1_000, layout(1, 1))]
fn the_number_of_ranges_follows_the_relays(#[case] relays: usize, #[case] expected: Layout) {
    assert_eq!(Layout::new(relays), expected);
}

/// Ranges of these widths, numbered from 1; `holders` says who holds them, `-` nobody.
fn view(members: &[&str], widths: &[i32], holders: &[&str]) -> View {
    let mut lo = 0;
    let ranges = (1..).zip(widths).zip(holders).map(|((id, width), holder)| {
        let shards = Shards { lo, hi: lo + width };
        lo += width;
        RangeView {
            id,
            shards,
            term: 1,
            holder: (*holder != "-").then(|| (*holder).to_owned()),
        }
    });
    View {
        members: members.iter().map(|&name| name.to_owned()).collect(),
        ranges: ranges.collect(),
        history: History {
            system_identifier: 1,
            timeline: "00000001".into(),
            incarnation: 1,
        },
    }
}

/// What `a` does, as `acquire/release/split/merge`.
fn decides(members: &[&str], widths: &[i32], holders: &[&str], settled: bool) -> String {
    let view = view(members, widths, holders);
    let mine = view
        .ranges
        .iter()
        .filter(|range| range.holder.as_deref() == Some("a"));
    let working: Vec<i64> = mine.map(|range| range.id).collect();
    shown(&decide(Situation {
        view: &view,
        me: "a",
        working: &working,
        settled,
    }))
}

fn shown(decision: &Decision) -> String {
    let ids = |ids: &[i64]| {
        let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
        ids.join(" ")
    };
    let split = decision
        .split
        .iter()
        .map(|split| format!("{}:{} of {}", split.range, split.keep, split.into.len()));
    let merge = decision.merge.iter().map(|group| ids(group));
    format!(
        "{}/{}/{}/{}",
        ids(&decision.acquire),
        ids(&decision.release),
        split.collect::<Vec<_>>().join(","),
        merge.collect::<Vec<_>>().join(",")
    )
}

#[rstest]
#[case::one_relay_takes_all(&["a"], &["-", "-"], "1 2///")]
#[case::one_relay_keeps_all(&["a"], &["a", "a"], "///")]
#[case::a_second_one_makes_the_first_give(&["a", "b"], &["a", "a"], "/2//")]
#[case::the_second_one_takes_what_is_free(&["a", "b"], &["b", "-"], "2///")]
#[case::both_have_their_share(&["a", "b"], &["a", "b"], "///")]
#[case::the_other_one_died(&["a"], &["a", "-"], "2///")]
#[case::the_other_ones_lease_still_runs(&["a"], &["a", "b"], "///")]
#[case::two_take_different_ones(&["0", "a"], &["-", "-"], "2///")]
#[case::a_third_one_makes_both_split(&["a", "b", "c"], &["a", "b"], "//1:2 of 4/")]
#[case::while_one_has_two_another_takes_one(&["a", "b", "c", "d"], &["a", "a"], "/2/1:1 of 2/")]
fn two_ranges_are_shared(
    #[case] members: &[&str],
    #[case] holders: &[&str],
    #[case] expected: &str,
) {
    assert_eq!(decides(members, &[32, 32], holders, true), expected);
}

#[rstest]
#[case::a_merges_its_blocks(&["a"], &["a", "a", "a", "a"], "///1 2,3 4")]
#[case::a_block_goes_to_whoever_holds_its_first(&["a", "b"], &["a", "b", "b", "a"], "///")]
#[case::and_is_given_away_by_the_other(&["a"], &["b", "a", "a", "a"], "/2//3 4")]
#[case::and_taken(&["a"], &["a", "-", "a", "a"], "2///3 4")]
#[case::no_merge_while_some_are_missing(&["a"], &["a", "b", "a", "b"], "///")]
#[case::four_relays_need_four(&["a", "b", "c", "d"], &["a", "b", "c", "d"], "///")]
#[case::the_first_of_those_with_two_gives(&["a", "b", "c"], &["a", "a", "b", "b"], "/2//")]
#[case::the_second_waits(&["0", "a", "c"], &["0", "0", "a", "a"], "///")]
fn four_ranges_are_shared(
    #[case] members: &[&str],
    #[case] holders: &[&str],
    #[case] expected: &str,
) {
    let settled = members.len() != 3;
    assert_eq!(decides(members, &[16; 4], holders, settled), expected);
}

#[test]
fn nothing_is_split_or_merged_before_the_relays_are_settled() {
    let members = ["a", "b", "c"];
    assert_eq!(decides(&members, &[32, 32], &["a", "b"], false), "///");
    assert_eq!(decides(&["a"], &[16; 4], &["a"; 4], false), "///");
}

#[test]
fn a_relay_below_its_share_is_hungry() {
    let hungry = |holders: &[&str], working: &[i64]| {
        let view = view(&["a", "b"], &[32, 32], holders);
        let situation = Situation {
            view: &view,
            me: "a",
            working,
            settled: true,
        };
        decide(situation).hungry
    };
    assert!(hungry(&["b", "b"], &[]));
    assert!(!hungry(&["a", "b"], &[1]));
}

/// Leases and members as a database has them.
#[derive(Clone, Debug)]
struct World {
    view: View,
    next: i64,
}

impl World {
    fn new() -> Self {
        Self {
            view: view(&[], &[32, 32], &["-", "-"]),
            next: 3,
        }
    }

    fn holds(&self, id: i64, name: &str) -> bool {
        let range = self.view.ranges.iter().find(|range| range.id == id);
        range.is_some_and(|range| range.holder.as_deref() == Some(name))
    }

    /// Relays are these from now on; ranges of others are free.
    fn members(&mut self, number: usize) {
        self.view.members = (0..number).map(|n| format!("r{n:02}")).collect();
        for range in &mut self.view.ranges {
            let members = &self.view.members;
            range.holder.take_if(|holder| !members.contains(holder));
        }
    }

    fn decide(&self, name: &str, seen: &View, settled: bool) -> Decision {
        let mine = self.view.ranges.iter().map(|range| range.id);
        let working: Vec<i64> = mine.filter(|id| self.holds(*id, name)).collect();
        decide(Situation {
            view: seen,
            me: name,
            working: &working,
            settled,
        })
    }

    /// Does what `name` decides on what it saw; true where something changed.
    fn turn(&mut self, name: &str, seen: &View, settled: bool) -> bool {
        let Decision {
            acquire,
            release,
            split,
            merge,
            ..
        } = self.decide(name, seen, settled);
        let mut changed = false;
        for id in &release {
            assert!(self.holds(*id, name), "{name} gives back what it has not");
            self.set(*id, None);
            changed = true;
        }
        for id in acquire {
            let free = |range: &&RangeView| range.id == id && range.holder.is_none();
            if self.view.ranges.iter().any(|range| free(&range)) {
                self.set(id, Some(name));
                changed = true;
            }
        }
        for Split { range, into, keep } in split {
            assert!(self.holds(range, name) && !release.contains(&range));
            assert!(into.len() > 1 && (1..=into.len()).contains(&keep));
            self.replace(&[range], &into, keep, name);
            changed = true;
        }
        for ids in merge {
            assert!(ids.iter().all(|id| self.holds(*id, name)));
            let shards: Vec<Shards> = self.shards(&ids);
            let whole = Shards {
                lo: shards[0].lo,
                hi: shards[shards.len() - 1].hi,
            };
            self.replace(&ids, &[whole], 1, name);
            changed = true;
        }
        changed
    }

    fn set(&mut self, id: i64, holder: Option<&str>) {
        for range in self.view.ranges.iter_mut().filter(|range| range.id == id) {
            range.holder = holder.map(str::to_owned);
        }
    }

    fn shards(&self, ids: &[i64]) -> Vec<Shards> {
        let ranges = self.view.ranges.iter();
        ranges
            .filter(|range| ids.contains(&range.id))
            .map(|range| range.shards)
            .collect()
    }

    fn replace(&mut self, ids: &[i64], into: &[Shards], keep: usize, name: &str) {
        self.view.ranges.retain(|range| !ids.contains(&range.id));
        for (index, shards) in into.iter().enumerate() {
            self.view.ranges.push(RangeView {
                id: self.next,
                shards: *shards,
                term: 1,
                holder: (index < keep).then(|| name.to_owned()),
            });
            self.next += 1;
        }
        self.view.ranges.sort_by_key(|range| range.shards.lo);
        let mut lo = 0;
        for range in &self.view.ranges {
            assert_eq!(range.shards.lo, lo, "{:?}", self.view.ranges);
            lo = range.shards.hi;
        }
        assert_eq!(lo, SHARDS);
    }

    fn assert_balanced(&self) {
        let relays = self.view.members.len();
        let Layout { widest, narrowest } = Layout::new(relays);
        let ranges = self.view.ranges.len();
        for RangeView { shards, holder, .. } in &self.view.ranges {
            let width = shards.hi - shards.lo;
            assert!((narrowest..=widest).contains(&width), "{:?}", self.view);
            assert!(holder.is_some(), "{:?}", self.view);
        }
        for member in &self.view.members {
            let mine = self.view.ranges.iter();
            let mine = mine
                .filter(|range| range.holder.as_ref() == Some(member))
                .count();
            let share = ranges / relays..=ranges.div_ceil(relays);
            assert!(share.contains(&mine), "{member}: {:?}", self.view);
        }
    }
}

/// Numbers of relays, one after the other.
fn numbers() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![9 => 1_usize..=12, 1 => 13_usize..=70], 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the number of relays was before, whoever decides when and on news however old: everybody gets its share,
    /// the ranges get the width they should have, and then nothing moves any more.
    #[test]
    fn relays_come_to_rest_and_stay_there(
        numbers in numbers(),
        turns in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 200),
    ) {
        let mut world = World::new();
        for number in numbers {
            world.members(number);
            let mut seen = vec![world.view.clone()];
            for (who, when, settled) in &turns {
                let name = who.get(&world.view.members).clone();
                let from = seen.len().saturating_sub(5);
                let old = when.get(&seen[from..]).clone();
                world.turn(&name, &old, *settled);
                seen.push(world.view.clone());
            }
            let mut rounds = 0;
            loop {
                let mut moved = false;
                for name in world.view.members.clone() {
                    let seen = world.view.clone();
                    moved |= world.turn(&name, &seen, true);
                }
                if !moved {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < 100, "{:?}", world.view);
            }
            world.assert_balanced();
            // Not settled is no reason to move anything either, once there is a range for everybody.
            if number <= 2 {
                for name in world.view.members.clone() {
                    let seen = world.view.clone();
                    prop_assert!(!world.turn(&name, &seen, false));
                }
            }
        }
    }

    /// The same when everybody looks at the same moment.
    #[test]
    fn relays_that_look_at_once_come_to_rest(numbers in numbers()) {
        let mut world = World::new();
        for number in numbers {
            world.members(number);
            let mut rounds = 0;
            loop {
                let seen = world.view.clone();
                let members = seen.members.clone();
                let moved: Vec<bool> = members.iter().map(|name| world.turn(name, &seen, true)).collect();
                if !moved.contains(&true) {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < 60, "{:?}", world.view);
            }
            world.assert_balanced();
        }
    }
}
