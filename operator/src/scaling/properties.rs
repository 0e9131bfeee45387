//! What holds whatever is observed.

use super::tests::{BOUNDS, quiet};
use super::{Bounds, Decision, History, Observed, Seconds, scale};
use proptest::prelude::*;

const BEGIN: Seconds = 1_700_000_000;

/// Anything a worker may be seen to do, at `now` and with the replicas filled in later.
fn anything() -> impl Strategy<Value = Observed> {
    let counts = (
        proptest::option::weighted(0.9, 0_u64..2_000_000),
        0_u64..2_000_000,
        proptest::option::weighted(0.8, 0_u64..2_000_000),
        proptest::option::weighted(0.9, 0_u64..10_000),
        proptest::option::weighted(0.9, 0_u64..300),
        proptest::option::weighted(0.9, 0_u64..300),
    );
    let rates = (
        proptest::option::weighted(0.9, 0.0_f64..50_000.0),
        proptest::option::weighted(0.9, 0.0_f64..50_000.0),
        proptest::option::weighted(0.8, 1_u32..65),
        0_u32..12,
        any::<bool>(),
    );
    (counts, rates).prop_map(|(counts, rates)| {
        let (depth, stuck, largest, age_seconds, in_flight, retrying) = counts;
        let (arrival, drain, partitions, ready, depth_is_a_floor) = rates;
        let stuck = stuck.min(depth.unwrap_or(0));
        Observed {
            ready,
            depth,
            depth_is_a_floor,
            stuck,
            largest: largest.map(|largest| largest.min(depth.unwrap_or(0) - stuck)),
            age_seconds,
            arrival,
            drain,
            in_flight,
            retrying,
            partitions,
            ..quiet()
        }
    })
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (0_u32..6, 0_u32..40, 1_u32..600, 1_u32..100_000).prop_map(|(min, more, age, depth)| Bounds {
        min,
        max: min + more,
        target_age_seconds: age,
        target_depth_per_replica: depth,
    })
}

/// Looks one after the other; `jump` seconds may pass in between, also backwards.
fn run(
    looks: &[(Observed, Seconds)],
    bounds: &Bounds,
    replicas: u32,
) -> Vec<(Observed, History, Decision)> {
    let (mut now, mut replicas, mut history) = (BEGIN, replicas, History::default());
    let mut all = Vec::new();
    for (look, jump) in looks {
        now += jump;
        let observed = Observed {
            now,
            replicas,
            ready: look.ready.min(replicas),
            ..*look
        };
        let decision = scale(&observed, bounds, &history);
        all.push((observed, history, decision.clone()));
        replicas = decision.replicas;
        history = decision.history;
    }
    all
}

fn looks() -> impl Strategy<Value = Vec<(Observed, Seconds)>> {
    let jump = prop_oneof![20 => 1_i64..30, 1 => -4_000_i64..4_000];
    proptest::collection::vec((anything(), jump), 1..200)
}

proptest! {
    #[test]
    fn never_outside_of_what_is_allowed(looks in looks(), bounds in bounds(), from in 0_u32..50) {
        for (_, _, decision) in run(&looks, &bounds, from) {
            prop_assert!((bounds.min..=bounds.max).contains(&decision.replicas), "{}", decision.message);
        }
    }

    #[test]
    fn steps_are_bounded_and_none_goes_beyond_what_can_work_side_by_side(
        looks in looks(), bounds in bounds(),
    ) {
        for (observed, _, decision) in run(&looks, &bounds, bounds.min) {
            let (before, after) = (observed.replicas, decision.replicas);
            prop_assert!(after <= (2 * before).max(before + 4));
            if let Some(partitions) = observed.partitions {
                prop_assert!(after <= before.max(partitions).max(bounds.min));
            }
            if after < before && decision.reason != super::Reason::Idle {
                prop_assert!(after >= before / 2);
            }
        }
    }

    #[test]
    fn never_fewer_on_what_is_not_known(looks in looks(), bounds in bounds()) {
        for (observed, _, decision) in run(&looks, &bounds, bounds.max) {
            let known = observed.depth.is_some() && observed.arrival.is_some() && observed.drain.is_some();
            prop_assert!(known || decision.replicas >= observed.replicas, "{}", decision.message);
        }
    }

    #[test]
    fn never_none_while_there_is_work(looks in looks(), bounds in bounds()) {
        for (observed, _, decision) in run(&looks, &bounds, bounds.max) {
            let is_idle = observed.depth == Some(0) && observed.in_flight == Some(0) && observed.retrying == Some(0);
            let falls = decision.replicas == 0 && observed.replicas > 0;
            prop_assert!(!falls || is_idle, "{}", decision.message);
        }
    }

    #[test]
    fn a_restart_never_makes_replicas_fewer_and_only_delays(
        looks in looks(), bounds in bounds(), at in 0_usize..200,
    ) {
        let all = run(&looks, &bounds, bounds.max);
        let (observed, history, decision) = &all[at % all.len()];
        let restarted = History { seen_at: None, ready: None, ..*history };
        let after = scale(observed, &bounds, &restarted);
        prop_assert!(
            after.replicas >= decision.replicas || after.replicas >= observed.replicas,
            "{} after a restart: {}", decision.message, after.message
        );
    }

    #[test]
    fn more_depth_never_wants_fewer(looks in looks(), bounds in bounds(), more in 0_u64..1_000_000) {
        for (observed, history, decision) in run(&looks, &bounds, bounds.min) {
            let Some(depth) = observed.depth else { continue };
            // Evenly more, of the same age.
            let scaled = |count: u64| count + count * more / depth.max(1);
            let fuller = Observed {
                depth: Some(scaled(depth)),
                stuck: scaled(observed.stuck),
                largest: observed.largest.map(scaled),
                ..observed
            };
            // Two trials differ in what they find out, and a busy look measures what another does not.
            let history = History { trial: None, ceiling: None, ready: None, ..history };
            let (less, more) = (scale(&observed, &bounds, &history), scale(&fuller, &bounds, &history));
            prop_assert!(more.replicas >= less.replicas, "{} -> {}, then {}", decision.message, less.message, more.message);
        }
    }

    /// A load that stays the same comes to rest, whatever a replica can do.
    #[test]
    fn no_oscillation_under_a_constant_load(
        capacity in 5_u32..2_000, load in 0.05_f64..10.0, partitions in 1_u32..33, from in 1_u32..9,
    ) {
        let bounds = Bounds { max: 8, ..BOUNDS };
        let arrival = load * f64::from(capacity);
        let (mut replicas, mut depth, mut history) = (from, 0.0_f64, History::default());
        let mut turns = Vec::new();
        for look in 0..4 * 720_i64 {
            let useful = replicas.min(partitions);
            // Whole partitions: the replica with the most of them decides.
            let share = f64::from(partitions.div_ceil(useful)) / f64::from(partitions);
            let most = f64::from(capacity) / share;
            let drain = (arrival + depth / 5.0).min(most);
            depth = 5.0_f64.mul_add(arrival - drain, depth).max(0.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
            let count = depth as u64;
            let observed = Observed {
                now: BEGIN + 5 * look,
                replicas,
                ready: replicas,
                depth: Some(count),
                largest: Some(count.div_ceil(u64::from(partitions))),
                age_seconds: Some(count / u64::from(capacity)),
                arrival: Some(arrival),
                drain: Some(drain),
                in_flight: Some(1),
                partitions: Some(partitions),
                ..quiet()
            };
            let decision = scale(&observed, &bounds, &history);
            if decision.replicas != replicas {
                turns.push((look, replicas, decision.replicas));
            }
            replicas = decision.replicas;
            history = decision.history;
        }
        let late = turns.iter().filter(|(look, ..)| *look > 2 * 720).count();
        let directions: Vec<bool> = turns.iter().map(|(_, from, to)| to > from).collect();
        let reversals = directions.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert!(late == 0, "still changing after two hours: {turns:?}");
        prop_assert!(reversals <= 2, "{turns:?}");
    }
}
