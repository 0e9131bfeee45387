//! Tables and properties of the write rules.

use super::*;
use proptest::prelude::*;
use rstest::rstest;
use std::collections::HashMap;

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn shown(count: Option<i64>, age: Option<i64>) -> Shown {
    Shown {
        count,
        oldest: age.map(|age| at(NOW - age)),
        rate_per_second: Some(1),
        positions: BTreeMap::from([(0, 5), (1, 6)]),
    }
}

fn seen(count: Option<i64>, oldest: Head) -> Seen {
    Seen {
        count,
        oldest,
        rate_per_second: Some(1_000.0),
        committed: Some(BTreeMap::from([(1, 7)])),
    }
}

fn rounds(rounds: u32, count: i64) -> AtZero {
    let start = Instant::now();
    (0..rounds).fold(AtZero::default(), |at_zero, round| {
        at_zero.after(Some(count), start + SAME_ROUND * round)
    })
}

#[rstest]
#[case::nothing_moved(500, 500, 9, false)]
#[case::a_hundred_less_one(500, 599, 9, false)]
#[case::a_hundred_and_a_fifth(500, 600, 9, true)]
#[case::down_as_well(500, 400, 9, true)]
#[case::a_hundred_but_not_a_tenth(5_000, 5_499, 9, false)]
#[case::a_tenth(5_000, 5_500, 9, true)]
#[case::a_tenth_but_not_a_hundred(50, 120, 9, false)]
#[case::to_zero_for_one_round(7, 0, 1, false)]
#[case::to_zero_for_two_rounds(7, 0, 2, true)]
#[case::from_zero_for_one_round(0, 7, 1, false)]
#[case::from_zero_for_two_rounds(0, 7, 2, true)]
#[case::from_zero_by_a_lot_at_once(0, 4_000, 1, true)]
#[case::the_cap_is_a_number_like_others(999_950, 1_000_000, 9, false)]
fn counts(#[case] before: i64, #[case] after: i64, #[case] steady: u32, #[case] due: bool) {
    let drift = drift(
        &shown(Some(before), None),
        &seen(Some(after), Head::Unknown),
        rounds(steady, after),
        at(NOW),
    );
    assert_eq!(drift.is_some(), due, "{drift:?}");
}

#[rstest]
#[case::the_same_head(Some(600), Head::Since(at(NOW - 600)), false)]
#[case::off_by_half_a_minute(Some(39), Head::Since(at(NOW - 10)), false)]
#[case::a_head_that_moved(Some(41), Head::Since(at(NOW - 10)), true)]
#[case::off_by_a_tenth(Some(3_900), Head::Since(at(NOW - 3_600)), false)]
#[case::off_by_more(Some(4_000), Head::Since(at(NOW - 3_600)), true)]
#[case::nothing_waits_any_more(Some(31), Head::Empty, true)]
#[case::nothing_waited_and_something_young_does(None, Head::Since(at(NOW - 20)), false)]
#[case::nothing_waited_and_something_old_does(None, Head::Since(at(NOW - 60)), true)]
#[case::without_a_worker_the_last_value_stays(Some(90_000), Head::Unknown, false)]
#[case::a_worker_with_a_fast_clock(None, Head::Since(at(NOW + 500)), false)]
fn ages(#[case] before: Option<i64>, #[case] after: Head, #[case] due: bool) {
    let drift = drift(
        &shown(Some(300), before),
        &seen(Some(300), after),
        rounds(9, 300),
        at(NOW),
    );
    assert_eq!(drift.is_some(), due, "{drift:?}");
}

#[test]
fn a_rate_alone_causes_no_write() {
    let before = Shown {
        rate_per_second: Some(0),
        ..shown(Some(3), None)
    };
    let now = Seen {
        rate_per_second: Some(90_000.0),
        ..seen(Some(3), Head::Unknown)
    };
    assert_eq!(drift(&before, &now, rounds(9, 3), at(NOW)), None);
}

#[test]
fn what_is_not_known_is_neither_news_nor_zero() {
    let before = shown(Some(500), Some(60));
    let nothing = Seen::default();
    assert_eq!(drift(&before, &nothing, rounds(9, 0), at(NOW)), None);
    assert_eq!(next(&before, &nothing), before);
}

#[test]
fn the_first_known_count_is_written() {
    assert!(
        drift(
            &shown(None, None),
            &seen(Some(0), Head::Empty),
            rounds(1, 0),
            at(NOW)
        )
        .is_some()
    );
}

#[test]
fn a_write_shows_everything_that_is_known() {
    let written = next(&shown(Some(1), Some(9)), &seen(Some(2), Head::Empty));
    let expected = Shown {
        count: Some(2),
        oldest: None,
        rate_per_second: Some(1_000),
        positions: BTreeMap::from([(0, 5), (1, 7)]),
    };
    assert_eq!(written, expected);
}

#[test]
fn an_unknown_round_does_not_count_and_a_flicker_starts_anew() {
    let start = Instant::now();
    let later = start + SAME_ROUND;
    let once = AtZero::default().after(Some(0), start);
    assert_eq!(once.after(None, later), once);
    assert_eq!(once.after(Some(3), later).after(Some(0), later).rounds, 1);
    assert_eq!(once.after(Some(0), later).rounds, 2);
    // A second pod that answers in the same round.
    assert_eq!(once.after(Some(0), start + SAME_ROUND / 2).rounds, 1);
}

fn due<const N: usize>(of: [(&str, f64); N]) -> Vec<(String, f64)> {
    of.map(|(uid, drift)| (uid.to_owned(), drift)).into()
}

#[test]
fn the_largest_drift_comes_first_and_five_at_a_time_at_most() {
    let mut scheduler = Scheduler::default();
    let all = due([
        ("a", 1.0),
        ("b", 9.0),
        ("c", 2.0),
        ("d", 5.0),
        ("e", 3.0),
        ("f", 4.0),
        ("g", 8.0),
    ]);
    let start = Instant::now();
    assert_eq!(scheduler.grant(start, &all), ["b", "g", "d", "f", "e"]);
    assert!(
        scheduler
            .grant(start + SPAN.saturating_sub(Duration::from_millis(1)), &all)
            .is_empty()
    );
    assert_eq!(scheduler.grant(start + SPAN, &all), ["c", "a"]);
    // Granted ones that are still off were not written.
    assert_eq!(
        scheduler.grant(start + AGAIN_AFTER, &due([("a", 1.0), ("b", 9.0)])),
        ["b"]
    );
}

#[test]
fn a_small_drift_beside_endless_large_ones_gets_its_turn() {
    let mut scheduler = Scheduler::default();
    let start = Instant::now();
    let granted = (0..200).any(|second| {
        let mut all: Vec<_> = (0..50)
            .map(|number| (format!("large-{number}"), 3.0))
            .collect();
        all.push(("small".to_owned(), 1.0));
        scheduler
            .grant(start + Duration::from_secs(second), &all)
            .contains(&"small".to_owned())
    });
    assert!(granted);
}

#[test]
fn the_gate_lets_five_at_a_time_through_whenever_they_were_granted() {
    let mut gate = Gate::default();
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    // Five that are late, and the next five in time.
    let admitted: Vec<u64> = [600, 610, 620, 630, 640, 1_500, 1_505, 2_105, 2_106, 2_111]
        .into_iter()
        .filter(|milliseconds| gate.admit(at(*milliseconds)))
        .collect();
    assert_eq!(admitted, [600, 610, 620, 630, 640, 2_105, 2_111]);
}

proptest! {
    #[test]
    fn never_more_than_five_in_any_second(
        rounds in proptest::collection::vec((0_u64..1_500, proptest::collection::vec((0_u8..30, 1.0_f64..100.0), 0..30)), 1..60),
    ) {
        let mut scheduler = Scheduler::default();
        let mut now = Instant::now();
        let mut granted: Vec<Instant> = Vec::new();
        for (pause, due) in rounds {
            now += Duration::from_millis(pause);
            let due: HashMap<String, f64> = due.into_iter().map(|(uid, drift)| (uid.to_string(), drift)).collect();
            let due: Vec<(String, f64)> = due.into_iter().collect();
            let chosen = scheduler.grant(now, &due);
            for uid in &chosen {
                prop_assert!(due.iter().any(|(wanted, _)| wanted == uid));
            }
            granted.extend(chosen.iter().map(|_| now));
            let recent = granted.iter().filter(|at| now.duration_since(**at) < Duration::from_secs(1)).count();
            prop_assert!(recent <= AT_MOST, "{recent}");
        }
    }

    #[test]
    fn what_was_just_written_is_not_due(
        count in proptest::option::of(0_i64..2_000_000),
        before in proptest::option::of(0_i64..2_000_000),
        age in proptest::option::of(0_i64..100_000),
        steady in 1_u32..5,
    ) {
        let oldest = age.map_or(Head::Empty, |age| Head::Since(at(NOW - age)));
        let now = seen(count, oldest);
        let written = next(&shown(before, Some(17)), &now);
        prop_assert_eq!(drift(&written, &now, rounds(steady, count.unwrap_or(0)), at(NOW)), None);
    }
}
