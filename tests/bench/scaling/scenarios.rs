//! What happens to topics. A replica completes 100 records a second, and a topic has six partitions, unless told otherwise.

use super::model::Scenario;
use fanout_operator::scaling::{Bounds, History, Observed, scale};

const BOUNDS: Bounds = Bounds {
    min: 1,
    max: 6,
    target_age_seconds: 60,
    target_depth_per_replica: 1_000,
};

/// When the burst begins, and how long it takes, seconds.
pub(crate) const BURST: (i64, i64) = (600, 120);
/// Length of a tooth, seconds.
pub(crate) const TOOTH: i64 = 600;

/// Everything.
pub(crate) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "steady",
            title: "steady: 250 records a second",
            arrival: |_| 250.0,
            ..calm()
        },
        burst(),
        saw_tooth(),
        Scenario {
            name: "slow-sink",
            title: "slow sink: it takes 150 a second whoever asks; 250 arrive for 30 minutes, then 100",
            arrival: |second| if second < 1_800 { 250.0 } else { 100.0 },
            sink: |_| 150.0,
            ..calm()
        },
        Scenario {
            name: "dead-sink",
            title: "dead sink: 150 records a second, and nothing gets through for 20 minutes",
            arrival: |_| 150.0,
            sink: |second| {
                if (600..1_800).contains(&second) {
                    0.0
                } else {
                    f64::INFINITY
                }
            },
            ..calm()
        },
        Scenario {
            name: "poison",
            title: "poison: 80 records a second, and one blocks its partition for 20 minutes",
            arrival: |_| 80.0,
            blocked: |second| (600..1_800).contains(&second).then_some(3),
            ..calm()
        },
        Scenario {
            name: "skewed-keys",
            title: "skewed keys: 130 records a second, nine of ten in one partition",
            weights: vec![0.9, 0.02, 0.02, 0.02, 0.02, 0.02],
            arrival: |_| 130.0,
            ..calm()
        },
        Scenario {
            name: "metric-gaps",
            title: "metric gaps: 250 records a second, nothing is known from minute 15 to 30 and every fourth look later",
            arrival: |_| 250.0,
            is_known: |second| {
                !(900..1_800).contains(&second) && (second < 1_800 || second / 5 % 4 != 0)
            },
            ..calm()
        },
        Scenario {
            name: "clock-steps",
            title: "clock steps: two hours ahead from minute 15 to 40; load falls from 250 to 50 in minute 30",
            arrival: |second| if second < 1_800 { 250.0 } else { 50.0 },
            clock: |second| {
                if (900..2_400).contains(&second) {
                    7_200
                } else {
                    0
                }
            },
            ..calm()
        },
        Scenario {
            name: "tide",
            title: "tide: 150 records a second for ten minutes, then nothing for twenty; none is allowed",
            arrival: |second| if second % 1_800 < 600 { 150.0 } else { 0.0 },
            bounds: Bounds { min: 0, ..BOUNDS },
            ..calm()
        },
    ]
}

/// Ten times the rate for two minutes.
pub(crate) fn burst() -> Scenario {
    Scenario {
        name: "burst",
        title: "burst: 50 records a second, and ten times as many for two minutes",
        arrival: |second| {
            if (BURST.0..BURST.0 + BURST.1).contains(&second) {
                500.0
            } else {
                50.0
            }
        },
        ..calm()
    }
}

/// Six teeth in an hour.
pub(crate) fn saw_tooth() -> Scenario {
    Scenario {
        name: "saw-tooth",
        title: "saw-tooth: from 0 to 500 records a second in ten minutes, again and again",
        arrival: |second| 500.0 * (second % TOOTH) as f64 / TOOTH as f64,
        ..calm()
    }
}

fn calm() -> Scenario {
    Scenario {
        name: "",
        title: "",
        seconds: 3_600,
        weights: vec![1.0 / 6.0; 6],
        arrival: |_| 0.0,
        each: 100.0,
        sink: |_| f64::INFINITY,
        blocked: |_| None,
        is_known: |_| true,
        clock: |_| 0,
        bounds: BOUNDS,
    }
}

/// Decides for many at once, `looks` times, each with a load of its own. Returns how often a number of replicas changed.
pub(crate) fn crowd(subscriptions: u32, looks: u32) -> u64 {
    let mut all: Vec<(u32, History, f64)> = (0..subscriptions)
        .map(|_| (1, History::default(), 0.0))
        .collect();
    let mut changes = 0;
    for look in 0..looks {
        for (number, (replicas, history, depth)) in (0_u32..).zip(&mut all) {
            let arrival = f64::from(number % 500);
            let drain = (f64::from(*replicas) * 100.0).min(arrival + *depth / 5.0);
            *depth = 5.0_f64.mul_add(arrival - drain, *depth).max(0.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "small"
            )]
            let count = *depth as u64;
            let observed = Observed {
                now: 1_700_000_000 + 5 * i64::from(look),
                replicas: *replicas,
                ready: *replicas,
                depth: Some(count),
                largest: Some(count.div_ceil(6)),
                age_seconds: Some(count / 100),
                arrival: Some(arrival),
                drain: Some(drain),
                in_flight: Some(1),
                retrying: Some(0),
                partitions: Some(6),
                carries: 64,
                ..Observed::default()
            };
            let decision = scale(&observed, &BOUNDS, history);
            changes += u64::from(decision.replicas != *replicas);
            (*replicas, *history) = (decision.replicas, decision.history);
        }
    }
    changes
}
