//! Saving committed offsets, and noticing what Kafka forgot or retention took.

use super::*;

#[test]
fn a_group_without_a_worker_is_saved_and_what_is_saved_costs_no_write() {
    let mut fixture = Fixture::new();
    let mut target = topic(Shown {
        count: Some(6),
        positions: BTreeMap::from([(0, 1)]),
        ..Shown::default()
    });
    target.subscriptions[0].is_served = false;
    fixture.list(&Fixture::workers(), &[target.clone()]);
    let now = Timestamp::now();
    let mut grants = 0;
    for second in (0..30).step_by(5) {
        fixture
            .state
            .read("t", Ok(reading(10, Some(4))), fixture.at(second));
        grants += fixture.state.grant(fixture.at(second), now).len();
        if grants == 1 && target.subscriptions[0].shown.positions != BTreeMap::from([(0, 4)]) {
            let shown = target.subscriptions[0].shown.clone();
            let now = fixture.at(second);
            target.subscriptions[0].shown = fixture.state.show("s", &shown, false, now);
            fixture.list_at(&Fixture::workers(), &[target.clone()], second);
        }
    }
    assert_eq!(grants, 1);
    assert_eq!(
        target.subscriptions[0].shown.positions,
        BTreeMap::from([(0, 4)])
    );
}

#[test]
fn offsets_that_move_under_a_worker_are_saved_with_other_writes_and_seldom_for_their_own_sake() {
    let mut fixture = Fixture::new();
    let shown = Shown {
        count: Some(6),
        positions: BTreeMap::from([(0, 1)]),
        ..Shown::default()
    };
    fixture.list(&Fixture::workers(), &[topic(shown.clone())]);
    let now = Timestamp::now();
    let mut granted_at = Vec::new();
    for second in (0_u32..3_600).step_by(5) {
        let offset = i64::from(second);
        let at = u64::from(second);
        fixture
            .state
            .read("t", Ok(reading(offset + 6, Some(offset))), fixture.at(at));
        if !fixture.state.grant(fixture.at(at), now).is_empty() {
            granted_at.push(second);
            let next = fixture.state.show("s", &shown, false, fixture.at(at));
            assert_eq!(next.positions, BTreeMap::from([(0, offset)]));
            fixture.list_at(&Fixture::workers(), &[topic(next)], at);
        }
    }
    assert_eq!(granted_at.len(), 3, "{granted_at:?}");
    // A condition that changes takes the offsets along.
    let changed = fixture.state.show("s", &shown, true, fixture.at(3_600));
    assert_eq!(changed.positions, BTreeMap::from([(0, 3_595)]));
}

#[test]
fn a_group_that_kafka_has_forgotten_is_news_once_while_no_worker_has_it() {
    let mut fixture = Fixture::new();
    let shown = Shown {
        positions: BTreeMap::from([(0, 4)]),
        ..Shown::default()
    };
    let mut target = topic(shown);
    fixture.list(&Fixture::workers(), &[target.clone()]);
    let nothing = || {
        let mut reading = reading(10, Some(4));
        reading.committed = HashMap::from([("s".to_owned(), BTreeMap::new())]);
        Ok(reading)
    };
    let read = |fixture: &mut Fixture, reading, at| {
        let now = fixture.at(at);
        names(&fixture.state.read("t", reading, now)).join(",")
    };
    assert_eq!(read(&mut fixture, nothing(), 0), "", "its worker tells");
    target.subscriptions[0].is_served = false;
    fixture.list(&Fixture::workers(), &[target.clone()]);
    assert_eq!(read(&mut fixture, nothing(), 5), "search");
    assert_eq!(read(&mut fixture, nothing(), 10), "");
    assert_eq!(read(&mut fixture, Ok(reading(10, Some(4))), 15), "");
    assert_eq!(read(&mut fixture, nothing(), 20), "search");
    // Of another log than the saved positions: nothing to compare.
    target.subscriptions[0].topic_id = Some("another".to_owned());
    fixture.list(&Fixture::workers(), &[target]);
    assert_eq!(read(&mut fixture, Ok(reading(10, Some(4))), 25), "");
    assert_eq!(read(&mut fixture, nothing(), 30), "");
    let seen = fixture.state.subscription("s").unwrap();
    assert_eq!(seen.progress.committed, None);
}

#[test]
fn what_retention_takes_from_a_subscription_without_a_worker_is_news() {
    let mut fixture = Fixture::new();
    let mut target = topic(Shown {
        positions: BTreeMap::from([(0, 4)]),
        ..Shown::default()
    });
    target.subscriptions[0].is_served = false;
    fixture.list(&Fixture::workers(), &[target.clone()]);
    let removed = |start| {
        let mut reading = reading(10, Some(4));
        reading.marks.insert(0, Watermarks { start, end: 10 });
        Ok(reading)
    };
    let now = fixture.start;
    assert!(fixture.state.read("t", removed(4), now).is_empty());
    assert_eq!(names(&fixture.state.read("t", removed(6), now)), ["search"]);
    assert!(fixture.state.read("t", removed(6), now).is_empty());
    let seen = fixture.state.subscription("s").unwrap();
    assert_eq!(seen.expired, BTreeMap::from([(0, 2)]));
    assert_eq!(seen.progress.count, Some(4), "what is gone can't be read");
    // A worker reads on and tells by itself.
    target.subscriptions[0].is_served = true;
    fixture.list(&Fixture::workers(), &[target]);
    assert!(fixture.state.read("t", removed(9), now).is_empty());
    assert!(fixture.state.subscription("s").unwrap().expired.is_empty());
}
