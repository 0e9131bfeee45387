//! What is set aside, and what becomes of it.

use super::*;
use rstest::rstest;

const LARGE: Result<(), Unencodable> = Err(Unencodable::RecordTooLarge);

fn plan(on_parked: OnParked) -> Plan {
    let mut held = Held::default();
    held.add("old", 5);
    held.add("c", 12);
    let mut plan = Plan::new(on_parked);
    plan.add(&held, 1, Some("a"), Ok(()));
    plan.add(&held, 2, Some("a"), LARGE);
    plan.add(&held, 3, Some("a"), Ok(()));
    plan.add(&held, 4, Some("b"), Ok(()));
    plan.add(&held, 5, Some("old"), Ok(()));
    plan.add(&held, 6, None, LARGE);
    plan.add(&held, 7, None, Ok(()));
    plan.add(&held, 8, Some("a"), LARGE);
    // Read again after row 12 was parked: what comes before it is not behind it.
    plan.add(&held, 9, Some("c"), Ok(()));
    plan.add(&held, 12, Some("c"), Ok(()));
    plan
}

const REASON: Option<Unencodable> = Some(Unencodable::RecordTooLarge);

#[rstest]
#[case::block(OnParked::Block, &[(2, REASON), (3, None), (5, None), (6, REASON), (8, None), (12, None)], &[("a", 2)])]
#[case::skip(OnParked::Skip, &[(2, REASON), (5, None), (6, REASON), (8, REASON), (12, None)], &[])]
fn later_rows_of_a_parked_key_are_held_or_go_on_and_others_go_on(
    #[case] on_parked: OnParked,
    #[case] expected: &[(i64, Option<Unencodable>)],
    #[case] keys: &[(&str, i64)],
) {
    let plan = plan(on_parked);
    let parked: Vec<_> = plan.parked.iter().map(|p| (p.id, p.reason)).collect();
    assert_eq!(parked, expected);
    let mut held = Held::default();
    for (key, id) in keys {
        held.add(key, *id);
    }
    assert_eq!(plan.keys, held);
}

#[rstest]
#[case::block(OnParked::Block, &[1, 4, 6])]
#[case::skip(OnParked::Skip, &[1, 3, 4, 6])]
fn what_is_released_goes_in_order_up_to_the_next_row_that_fails(
    #[case] on_parked: OnParked,
    #[case] publish: &[i64],
) {
    let mut releases = Releases::default();
    for (id, key, drop, check) in [
        (1, Some("a"), false, Ok(())),
        (2, Some("a"), false, LARGE),
        (3, Some("a"), false, Ok(())),
        (4, Some("b"), false, Ok(())),
        (5, Some("a"), true, Ok(())),
        (6, None, false, Ok(())),
        (7, None, false, LARGE),
    ] {
        releases.add(on_parked, drop, id, key, check);
    }
    assert_eq!(releases.publish, publish);
    assert_eq!(releases.dropped, [5]);
    let reason = Unencodable::RecordTooLarge;
    assert_eq!(releases.refused, [(2, reason), (7, reason)]);
}
