//! One case of each rule.

use super::{Bounds, Ceiling, Decision, Fewer, History, Observed, Reason, Seconds, Trial, scale};
use rstest::rstest;

const NOW: Seconds = 1_700_000_000;

pub(super) const BOUNDS: Bounds = Bounds {
    min: 1,
    max: 8,
    target_age_seconds: 60,
    target_depth_per_replica: 1_000,
};

/// One replica of a topic with six partitions, at rest.
pub(super) fn quiet() -> Observed {
    Observed {
        now: NOW,
        replicas: 1,
        ready: 1,
        depth: Some(0),
        depth_is_a_floor: false,
        stuck: 0,
        largest: Some(0),
        age_seconds: None,
        arrival: Some(0.0),
        drain: Some(0.0),
        in_flight: Some(0),
        retrying: Some(0),
        partitions: Some(6),
        carries: 64,
    }
}

/// Far behind: `depth` records, evenly in six partitions.
fn behind(replicas: u32, depth: u64, arrival: f64, drain: f64) -> Observed {
    Observed {
        replicas,
        ready: replicas,
        depth: Some(depth),
        largest: Some(depth.div_ceil(6)),
        age_seconds: Some(90),
        arrival: Some(arrival),
        drain: Some(drain),
        in_flight: Some(64),
        ..quiet()
    }
}

/// A worker that was looked at a moment ago, and whose replicas have been ready for long.
fn seen(observed: &Observed) -> History {
    History {
        seen_at: Some(observed.now - 5),
        ready: Some((observed.ready, observed.now - 1_000)),
        more_since: Some(observed.now - 30),
        ..History::default()
    }
}

fn with_capacity(observed: &Observed, per_second: u64) -> History {
    History {
        capacity_milli: Some(per_second * 1_000),
        ..seen(observed)
    }
}

/// Looks again and again, 5 s apart, for `seconds`; all replicas are ready at once.
fn watch(
    mut observed: Observed,
    bounds: &Bounds,
    mut history: History,
    seconds: Seconds,
) -> Decision {
    let end = observed.now + seconds;
    loop {
        let decision = scale(&observed, bounds, &history);
        if observed.now >= end {
            return decision;
        }
        history = decision.history;
        observed.replicas = decision.replicas;
        observed.ready = decision.replicas;
        observed.now += 5;
    }
}

fn outcome(decision: &Decision) -> (u32, Reason) {
    (decision.replicas, decision.reason)
}

#[rstest]
// 100/s arrive and 12,000 shall be gone within 60 s: 300/s, three replicas of 100/s.
#[case::drains_within_the_target_age(behind(1, 12_000, 100.0, 100.0), 3)]
// Four or five would leave one with two of the six partitions, as slow as three: three, then six.
#[case::shares_partitions_evenly(behind(1, 18_000, 150.0, 100.0), 3)]
#[case::shares_partitions_evenly_from_there(behind(3, 18_000, 100.0, 300.0), 6)]
// At most twice as many, or four more.
#[case::grows_in_steps(Observed { partitions: Some(60), ..behind(1, 120_000, 100.0, 100.0) }, 5)]
// No more than there are partitions, whatever is allowed.
#[case::never_beyond_the_partitions(behind(5, 1_200_000, 100.0, 500.0), 6)]
// What fits into one replica at once is no work for another.
#[case::what_is_under_way_is_no_demand(behind(1, 64, 1.0, 1.0), 1)]
fn more_replicas_for_a_backlog(#[case] observed: Observed, #[case] replicas: u32) {
    let decision = scale(&observed, &BOUNDS, &with_capacity(&observed, 100));
    assert_eq!(decision.replicas, replicas, "{}", decision.message);
}

#[test]
fn one_look_is_not_enough() {
    let observed = behind(1, 12_000, 100.0, 100.0);
    let history = History {
        more_since: None,
        ..with_capacity(&observed, 100)
    };
    let first = scale(&observed, &BOUNDS, &history);
    assert_eq!(outcome(&first), (1, Reason::Stabilizing));
    let later = Observed {
        now: NOW + 5,
        ..observed
    };
    let second = scale(&later, &BOUNDS, &first.history);
    assert_eq!(outcome(&second), (3, Reason::Backlog));
    assert_eq!(
        second.message,
        "from 1 to 3: 12000 wait, 100/s arrive, 100/s are completed, a busy replica does 100/s; everything shall be done within 60 s"
    );
}

#[test]
fn the_depth_decides_until_the_rate_of_a_replica_is_known() {
    let observed = behind(1, 3_500, 100.0, 50.0);
    // A moment after the start nobody knows what the replica can do...
    let fresh = History {
        ready: Some((1, NOW - 10)),
        ..seen(&observed)
    };
    let decision = scale(&observed, &BOUNDS, &fresh);
    assert_eq!(outcome(&decision), (1, Reason::Stabilizing));
    // ...nor later, where one partition has more than the others: then depth decides.
    let uneven = Observed {
        replicas: 2,
        ready: 2,
        largest: Some(3_500 * 4 / 5),
        ..observed
    };
    let bounds = Bounds {
        target_depth_per_replica: 100,
        ..BOUNDS
    };
    let decision = scale(&uneven, &bounds, &seen(&uneven));
    assert_eq!(outcome(&decision), (2, Reason::AtParallelism));
    let less = Observed {
        largest: Some(1_400),
        ..uneven
    };
    let decision = scale(&less, &bounds, &seen(&less));
    assert_eq!(outcome(&decision), (3, Reason::Backlog));
}

#[rstest]
#[case::depth(Observed { depth: None, ..behind(3, 12_000, 0.0, 300.0) })]
#[case::arrival(Observed { arrival: None, ..behind(3, 0, 0.0, 0.0) })]
#[case::drain(Observed { drain: None, ..behind(3, 0, 0.0, 0.0) })]
#[case::in_flight(Observed { in_flight: None, age_seconds: None, ..behind(3, 0, 0.0, 0.0) })]
#[case::retrying(Observed { retrying: None, age_seconds: None, ..behind(3, 0, 0.0, 0.0) })]
#[case::age(Observed { age_seconds: None, ..behind(3, 9, 1.0, 1.0) })]
fn nothing_goes_on_what_is_not_known(#[case] observed: Observed) {
    let history = History {
        fewer: Some(Fewer {
            since: NOW - 10_000,
            most: 1,
        }),
        idle_since: Some(NOW - 10_000),
        ..with_capacity(&observed, 100)
    };
    let decision = watch(observed, &BOUNDS, history, 3_600);
    assert_eq!(outcome(&decision), (3, Reason::Unknown));
}

#[test]
fn a_gap_in_the_data_begins_the_window_anew() {
    let quiet = Observed {
        replicas: 4,
        ready: 4,
        ..quiet()
    };
    let history = with_capacity(&quiet, 100);
    let before = watch(quiet, &BOUNDS, history, 295);
    assert_eq!(before.replicas, 4);
    let at = |seconds, depth| Observed {
        now: NOW + seconds,
        depth,
        ..quiet
    };
    let gap = scale(&at(298, None), &BOUNDS, &before.history);
    assert_eq!(outcome(&gap), (4, Reason::Unknown));
    let after = watch(at(300, Some(0)), &BOUNDS, gap.history, 290);
    assert_eq!(after.replicas, 4, "{}", after.message);
    let later = watch(at(595, Some(0)), &BOUNDS, after.history, 10);
    assert!(later.replicas < 4, "{}", later.message);
}

#[test]
fn fewer_once_fewer_were_enough_for_the_whole_window() {
    // 90/s: one replica of 100/s would be too tight, two are enough.
    let observed = Observed {
        age_seconds: Some(1),
        ..behind(6, 90, 90.0, 90.0)
    };
    let history = with_capacity(&observed, 100);
    assert_eq!(watch(observed, &BOUNDS, history, 295).replicas, 6);
    let first = watch(observed, &BOUNDS, history, 300);
    assert_eq!(outcome(&first), (3, Reason::FewerSuffice), "half at most");
    let last = watch(observed, &BOUNDS, history, 3_600);
    assert_eq!(outcome(&last), (2, Reason::Sufficient));
}

#[test]
fn a_peak_within_the_window_keeps_its_replicas() {
    let low = Observed {
        age_seconds: Some(1),
        ..behind(6, 10, 10.0, 10.0)
    };
    let decision = watch(low, &BOUNDS, with_capacity(&low, 100), 200);
    let peak = Observed {
        now: NOW + 205,
        ..Observed {
            age_seconds: Some(1),
            ..behind(6, 220, 220.0, 220.0)
        }
    };
    let peak = scale(&peak, &BOUNDS, &decision.history);
    let after = Observed {
        now: NOW + 210,
        ..low
    };
    let kept = watch(after, &BOUNDS, peak.history, 290);
    assert_eq!(kept.replicas, 3, "{}", kept.message);
    let later = watch(after, &BOUNDS, peak.history, 600);
    assert_eq!(later.replicas, 1, "{}", later.message);
}

#[test]
fn none_only_when_idle_for_the_whole_window_and_back_at_once() {
    let bounds = Bounds { min: 0, ..BOUNDS };
    let history = with_capacity(&quiet(), 100);
    assert_eq!(watch(quiet(), &bounds, history, 295).replicas, 1);
    let none = watch(quiet(), &bounds, history, 300);
    assert_eq!(outcome(&none), (0, Reason::Idle));
    let asleep = Observed {
        now: NOW + 305,
        replicas: 0,
        ready: 0,
        ..quiet()
    };
    let still = watch(asleep, &bounds, none.history, 3_600);
    assert_eq!(outcome(&still), (0, Reason::Idle));
    let work = Observed {
        now: NOW + 4_000,
        depth: Some(1),
        ..asleep
    };
    let awake = scale(&work, &bounds, &still.history);
    assert_eq!(outcome(&awake), (1, Reason::Work));
    let much = Observed {
        depth: Some(1_000_000),
        ..work
    };
    assert_eq!(scale(&much, &bounds, &still.history).replicas, 4);
}

#[rstest]
#[case::in_flight(Observed { in_flight: Some(1), ..quiet() })]
#[case::retrying(Observed { retrying: Some(1), ..quiet() })]
#[case::waiting(Observed { depth: Some(1), largest: Some(1), age_seconds: Some(1), ..quiet() })]
#[case::arriving(Observed { arrival: Some(0.1), ..quiet() })]
#[case::unknown(Observed { retrying: None, ..quiet() })]
fn the_last_replica_stays_while_there_is_anything(#[case] observed: Observed) {
    let bounds = Bounds { min: 0, ..BOUNDS };
    let decision = watch(observed, &bounds, seen(&observed), 7_200);
    assert_eq!(decision.replicas, 1, "{}", decision.message);
}

#[test]
fn depth_without_progress_is_no_demand() {
    let observed = Observed {
        stuck: 500_000,
        largest: Some(0),
        drain: Some(0.0),
        ..behind(4, 500_000, 1_000.0, 0.0)
    };
    let history = with_capacity(&observed, 100);
    let first = scale(&observed, &BOUNDS, &history);
    assert_eq!(outcome(&first), (4, Reason::Stalled));
    let later = watch(observed, &BOUNDS, history, 1_200);
    assert_eq!(outcome(&later), (1, Reason::Stalled));
}

#[test]
fn a_sink_that_fails_at_this_moment_gets_no_more_replicas() {
    let observed = behind(2, 12_000, 200.0, 60.0);
    let decision = scale(&observed, &BOUNDS, &with_capacity(&observed, 100));
    assert_eq!(outcome(&decision), (2, Reason::Stabilizing));
    // Some go on and one partition is stuck: the others are served as before.
    let partly = Observed {
        stuck: 12_000,
        largest: Some(0),
        ..behind(4, 12_000, 200.0, 200.0)
    };
    let decision = watch(partly, &BOUNDS, with_capacity(&partly, 100), 1_200);
    assert_ne!(decision.reason, Reason::Stalled);
}

#[test]
fn more_replicas_that_complete_no_more_are_taken_back() {
    // The sink takes 100/s, however many ask.
    let observed = behind(1, 60_000, 200.0, 100.0);
    let decision = watch(observed, &BOUNDS, with_capacity(&observed, 100), 120);
    assert_eq!(outcome(&decision), (1, Reason::SinkSaturated));
    assert!(decision.history.ceiling.is_some());
    // Not tried again at once, and less and less often.
    let mut changes = 0;
    let mut history = decision.history;
    let mut now = Observed {
        now: NOW + 125,
        ..observed
    };
    while now.now < NOW + 24 * 3_600 {
        let decision = scale(&now, &BOUNDS, &history);
        changes += u32::from(decision.replicas != now.replicas);
        (now.replicas, now.ready) = (decision.replicas, decision.replicas);
        now.now += 5;
        history = decision.history;
    }
    assert!((2..=20).contains(&changes), "{changes} changes in a day");
}

#[test]
fn a_sink_that_becomes_faster_gets_more_again() {
    let ceiling = Ceiling {
        replicas: 1,
        until: NOW + 3_600,
        rate_milli: 50_000,
        failures: 2,
    };
    let slow = behind(1, 60_000, 200.0, 50.0);
    let history = History {
        ceiling: Some(ceiling),
        ..with_capacity(&slow, 100)
    };
    let kept = scale(&slow, &BOUNDS, &history);
    assert_eq!(outcome(&kept), (1, Reason::SinkSaturated));
    let fast = behind(1, 60_000, 200.0, 100.0);
    let decision = scale(&fast, &BOUNDS, &history);
    assert_eq!(decision.reason, Reason::Backlog);
    assert!(decision.replicas > 1);
}

#[test]
fn a_scale_out_that_is_not_judged_yet_is_followed_by_none() {
    let observed = behind(2, 60_000, 500.0, 200.0);
    let history = History {
        trial: Some(Trial {
            from: 1,
            rate_milli: 100_000,
        }),
        ready: Some((2, NOW - 10)),
        ..with_capacity(&observed, 100)
    };
    let decision = scale(&observed, &BOUNDS, &history);
    assert_eq!(outcome(&decision), (2, Reason::Stabilizing));
}

#[test]
fn no_more_while_pods_are_pending() {
    let observed = Observed {
        ready: 2,
        ..behind(3, 60_000, 500.0, 200.0)
    };
    let decision = watch(observed, &BOUNDS, with_capacity(&observed, 100), 0);
    assert_eq!(outcome(&decision), (3, Reason::NotReady));
}

#[test]
fn a_single_full_partition_is_no_work_for_many() {
    let observed = Observed {
        largest: Some(450_000),
        ..behind(2, 450_100, 500.0, 100.0)
    };
    let decision = scale(&observed, &BOUNDS, &with_capacity(&observed, 100));
    assert_eq!(outcome(&decision), (2, Reason::AtParallelism));
}

#[test]
fn a_count_that_stopped_at_its_limit_goes_by_age() {
    let observed = Observed {
        depth_is_a_floor: true,
        largest: None,
        partitions: None,
        age_seconds: Some(3_600),
        ..behind(1, 1_000_000, 10_000.0, 50_000.0)
    };
    let decision = scale(&observed, &BOUNDS, &with_capacity(&observed, 50_000));
    assert_eq!(outcome(&decision), (2, Reason::Backlog));
}

#[rstest]
#[case::above(9, 8)]
#[case::below(0, 1)]
fn what_is_not_allowed_is_mended_at_once(#[case] replicas: u32, #[case] expected: u32) {
    let observed = Observed {
        replicas,
        depth: None,
        ..quiet()
    };
    let decision = scale(&observed, &BOUNDS, &History::default());
    assert_eq!(outcome(&decision), (expected, Reason::OutOfBounds));
}

#[test]
fn a_clock_that_is_set_forward_ends_no_window() {
    let four = Observed {
        replicas: 4,
        ready: 4,
        ..quiet()
    };
    let decision = watch(four, &BOUNDS, with_capacity(&four, 100), 60);
    let jumped = Observed {
        now: NOW + 7_200,
        ..four
    };
    let decision = scale(&jumped, &BOUNDS, &decision.history);
    assert_eq!(decision.replicas, 4, "{}", decision.message);
    let back = Observed {
        now: NOW - 7_200,
        ..four
    };
    let decision = watch(back, &BOUNDS, decision.history, 290);
    assert_eq!(decision.replicas, 4, "{}", decision.message);
    let later = Observed {
        now: NOW - 6_900,
        ..four
    };
    assert!(watch(later, &BOUNDS, decision.history, 10).replicas < 4);
}
