//! What opens the breaker, what it spares the events, and how it closes again.

use super::*;
use proptest::prelude::*;

const DOWN: Failure = Failure::Connect;
const WRONG: Failure = Failure::Status(500);

fn second(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A failure of event `n`, begun now.
fn fail(breaker: &mut Breaker, failure: Failure, n: u64, now: Instant) -> Weight {
    let failed = failed(breaker, n);
    breaker.failure(failure, failed, now, 0.0)
}

fn failed(breaker: &Breaker, n: u64) -> Failed {
    Failed {
        id: n,
        event: (0, i64::try_from(n).unwrap()),
        began: breaker.number(),
        is_suspect: false,
    }
}

fn opened(now: Instant) -> Breaker {
    let mut breaker = Breaker::default();
    let weights = [0; 3].map(|_| fail(&mut breaker, DOWN, 1, now));
    assert_eq!(weights, [Weight::Spared, Weight::Spared, Weight::Opened]);
    breaker
}

#[test]
fn an_endpoint_that_takes_no_connection_costs_no_attempt_and_opens_it() {
    let now = Instant::now();
    let breaker = opened(now);
    assert_eq!(breaker.is_open(), Some(DOWN));
    assert_eq!(breaker.gate(now), Gate::Shut);
    assert_eq!(breaker.gate(now + second(1)), Gate::Probe);
}

#[test]
fn an_event_that_fails_alone_never_opens_it() {
    let (mut breaker, begin) = (Breaker::default(), Instant::now());
    for n in 0..1000 {
        // The four that fail all the time, and nothing else.
        let weight = fail(&mut breaker, WRONG, n % 4, begin + second(n));
        assert_eq!(weight, Weight::Counts);
    }
    assert_eq!(breaker.gate(begin), Gate::Open);
}

#[test]
fn events_that_saw_others_succeed_never_open_it_however_many_they_are() {
    let (mut breaker, begin) = (Breaker::default(), Instant::now());
    for n in 0..1000 {
        let suspect = Failed {
            is_suspect: true,
            ..failed(&breaker, n)
        };
        let weight = breaker.failure(WRONG, suspect, begin + second(n), 0.0);
        assert_eq!(weight, Weight::Counts);
    }
    assert_eq!(breaker.gate(begin), Gate::Open);
}

#[test]
fn many_events_that_fail_for_a_while_open_it() {
    let (mut breaker, begin) = (Breaker::default(), Instant::now());
    for n in 0..5 {
        assert_eq!(fail(&mut breaker, WRONG, n, begin), Weight::Counts);
    }
    assert_eq!(
        fail(&mut breaker, WRONG, 1, begin + second(1)),
        Weight::Opened
    );
}

#[test]
fn many_failures_at_once_open_it() {
    let (mut breaker, now) = (Breaker::default(), Instant::now());
    for n in 0..19 {
        assert_eq!(fail(&mut breaker, WRONG, n, now), Weight::Counts);
    }
    assert_eq!(fail(&mut breaker, WRONG, 19, now), Weight::Opened);
}

#[test]
fn one_success_in_between_keeps_it_closed() {
    let (mut breaker, begin) = (Breaker::default(), Instant::now());
    for n in 0..500 {
        if n % 10 == 9 {
            breaker.success(8);
        }
        let failure = if n % 3 == 0 { DOWN } else { WRONG };
        assert_ne!(
            fail(&mut breaker, failure, n, begin + Duration::from_millis(n)),
            Weight::Opened
        );
    }
}

#[test]
fn probes_come_one_at_a_time_and_further_and_further_apart() {
    let mut now = Instant::now();
    let mut breaker = opened(now);
    let mut waits = Vec::new();
    for id in 0..8 {
        let mut waited = Duration::ZERO;
        while breaker.gate(now + waited) == Gate::Shut {
            waited += Duration::from_millis(100);
        }
        waits.push(waited.as_millis());
        now += waited;
        breaker.probing(id);
        assert_eq!(breaker.gate(now + second(1000)), Gate::Shut);
        assert_eq!(fail(&mut breaker, DOWN, id, now), Weight::Spared);
    }
    // With the shortest jitter: half of each step.
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 15000, 15000, 15000]);
}

#[test]
fn a_success_lets_more_and_more_through() {
    let now = Instant::now();
    let mut breaker = opened(now);
    breaker.probing(7);
    breaker.success(4);
    for ramp in 1..=4 {
        assert_eq!(breaker.gate(now), Gate::Ramp(ramp));
        assert!(breaker.is_half_open());
        breaker.success(4);
    }
    assert_eq!(breaker.gate(now), Gate::Open);
    assert_eq!(breaker.is_open(), None);
    // And it begins with short waits again.
    for _ in 0..3 {
        fail(&mut breaker, DOWN, 1, now);
    }
    assert_eq!(breaker.gate(now + second(1)), Gate::Probe);
}

#[test]
fn one_refused_connection_opens_it_again_while_it_is_half_open() {
    let now = Instant::now();
    let mut breaker = opened(now);
    breaker.success(64);
    assert_eq!(fail(&mut breaker, DOWN, 2, now), Weight::Opened);
    assert_eq!(breaker.gate(now + Duration::from_millis(900)), Gate::Shut);
}

#[test]
fn answers_to_what_was_sent_before_it_opened_say_nothing() {
    let now = Instant::now();
    let mut breaker = Breaker::default();
    let early = failed(&breaker, 9);
    for _ in 0..3 {
        fail(&mut breaker, DOWN, 1, now);
    }
    let late = |breaker: &mut Breaker| breaker.failure(WRONG, early, now, 0.0);
    assert_eq!(late(&mut breaker), Weight::Spared);
    breaker.success(64);
    assert_eq!(late(&mut breaker), Weight::Spared);
    assert_eq!(breaker.gate(now), Gate::Ramp(1));
}

#[test]
fn a_probe_that_is_answered_where_nothing_was_counts_against_its_event() {
    let now = Instant::now();
    let mut breaker = opened(now);
    breaker.probing(7);
    assert_eq!(fail(&mut breaker, WRONG, 7, now), Weight::Counts);
    assert_eq!(breaker.gate(now), Gate::Ramp(1));
}

#[test]
fn a_probe_that_fails_as_all_others_did_does_not() {
    let (mut breaker, now) = (Breaker::default(), Instant::now());
    for n in 0..20 {
        fail(&mut breaker, WRONG, n, now);
    }
    breaker.probing(7);
    assert_eq!(fail(&mut breaker, WRONG, 7, now), Weight::Spared);
    assert_eq!(breaker.is_open(), Some(WRONG));
}

#[test]
fn a_probe_that_is_gone_makes_room_for_another() {
    let now = Instant::now();
    let mut breaker = opened(now);
    breaker.probing(7);
    breaker.forget_probe();
    assert_eq!(breaker.gate(now + second(1)), Gate::Probe);
    breaker.probing(8);
    breaker.postponed(8, now + second(1));
    assert_eq!(breaker.gate(now + second(1)), Gate::Probe);
}

proptest! {
    /// Whatever happens, it never sends more than one request while open, and a success always leads on.
    #[test]
    fn it_is_never_stuck(steps in prop::collection::vec((0..4u8, 0..30u64, 0..3000u64, 0.0..1.0f64), 1..300)) {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        for (step, id, milliseconds, unit) in steps {
            now += Duration::from_millis(milliseconds);
            let failed = failed(&breaker, id);
            let failure = if step == 0 { DOWN } else { WRONG };
            match step {
                0 | 1 => {
                    let weight = breaker.failure(failure, failed, now, unit);
                    prop_assert!(weight != Weight::Counts || !failure.is_unreachable());
                    prop_assert!(weight != Weight::Opened || breaker.is_open() == Some(failure));
                }
                2 => breaker.success(8),
                _ => if breaker.gate(now) == Gate::Probe {
                    breaker.probing(id);
                    prop_assert_eq!(breaker.gate(now), Gate::Shut);
                }
            }
        }
        breaker.forget_probe();
        prop_assert!(breaker.gate(now + PROBE.1) != Gate::Shut);
        for _ in 0..10 {
            breaker.success(8);
        }
        prop_assert_eq!(breaker.gate(now), Gate::Open);
    }
}
