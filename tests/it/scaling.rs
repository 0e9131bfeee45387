//! The autoscaler's decision on modelled topics: what the benchmark plots, as facts.

#[path = "../bench/scaling/mod.rs"]
#[expect(
    dead_code,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "shared with the benchmark"
)]
mod simulation;

use simulation::model::{Scenario, Trace, run};
use simulation::rules::Operator;
use simulation::{report, scenarios};

fn trace(scenario: &Scenario) -> Trace {
    run(scenario, &mut Operator::default())
}

fn named(name: &str) -> Scenario {
    let mut all = scenarios::all().into_iter();
    all.find(|scenario| scenario.name == name).unwrap()
}

fn reasons(trace: &Trace) -> Vec<&str> {
    let reason = |(_, _, why): &'_ (i64, u32, String)| why.split(':').next().map(str::len);
    trace
        .changes
        .iter()
        .filter_map(|change| change.2.get(..reason(change)?))
        .collect()
}

/// With all replicas the topic allows at once it would be empty when the burst ends.
#[test]
fn a_burst_is_drained_within_twice_the_ideal_time() {
    let trace = trace(&scenarios::burst());
    let (begin, length) = scenarios::BURST;
    let end = usize::try_from(begin + 2 * length).unwrap();
    assert!(trace.depth[end] < 100.0, "{} wait", trace.depth[end]);
    let (changes, turns) = report::turns(&trace);
    assert!(turns <= 2, "{changes} changes, {turns} of direction");
    assert_eq!(trace.replicas.last(), Some(&1));
}

#[test]
fn a_saw_tooth_changes_at_most_twice_a_period() {
    let scenario = scenarios::saw_tooth();
    let trace = trace(&scenario);
    // The first tooth is the way up from one replica.
    for period in 1..scenario.seconds / scenarios::TOOTH {
        let begin = period * scenarios::TOOTH;
        let changes = trace
            .changes
            .iter()
            .filter(|(second, ..)| (begin..begin + scenarios::TOOTH).contains(second));
        assert!(changes.count() <= 2, "period {period}: {:?}", trace.changes);
    }
    assert!(trace.age.iter().all(|age| *age <= 60));
}

#[test]
fn a_slow_sink_is_not_asked_by_more_and_more() {
    let trace = trace(&named("slow-sink"));
    assert!(
        reasons(&trace).contains(&"SinkSaturated"),
        "{:?}",
        trace.changes
    );
    let most = trace
        .replicas
        .iter()
        .filter(|replicas| **replicas > 3)
        .count();
    assert!(
        most < 3_600 / 10,
        "{most} s above what helps: {:?}",
        trace.changes
    );
}

#[test]
fn a_dead_sink_gets_no_more_and_its_backlog_is_drained_after() {
    let trace = trace(&named("dead-sink"));
    let dead = 600..1_800;
    let before = trace.replicas[600];
    assert!(
        trace.replicas[dead]
            .iter()
            .all(|replicas| *replicas <= before)
    );
    assert_eq!(trace.replicas[1_799], 1);
    assert!(trace.depth[3_599] < 200.0, "{}", trace.depth[3_599]);
}

#[test]
fn a_poison_event_keeps_no_replicas() {
    let trace = trace(&named("poison"));
    assert!(
        trace.replicas[600..1_800]
            .iter()
            .all(|replicas| *replicas <= 2)
    );
    assert!(trace.depth[3_599] < 100.0, "{}", trace.depth[3_599]);
}

#[test]
fn a_single_hot_partition_gets_no_crowd() {
    let trace = trace(&named("skewed-keys"));
    assert!(trace.replicas.iter().all(|replicas| *replicas <= 2));
}

#[test]
fn nothing_is_decided_while_nothing_is_known() {
    let trace = trace(&named("metric-gaps"));
    let gap = trace
        .changes
        .iter()
        .find(|(second, ..)| (900..1_800).contains(second));
    assert_eq!(gap, None);
    assert!(trace.age.iter().all(|age| *age <= 60));
}

#[test]
fn a_clock_that_is_set_ends_no_window() {
    let trace = trace(&named("clock-steps"));
    let in_load = trace
        .changes
        .iter()
        .find(|(second, ..)| (901..2_100).contains(second));
    assert_eq!(in_load, None);
    assert_eq!(trace.replicas.last(), Some(&1));
}

#[test]
fn none_at_low_tide_and_back_within_a_look() {
    let trace = trace(&named("tide"));
    assert_eq!(trace.replicas[1_799], 0);
    assert!(trace.replicas[1_806] > 0);
    assert!(
        trace.age.iter().all(|age| *age <= 60),
        "{:?}",
        trace.age.iter().max()
    );
}

#[test]
fn the_documentation_shows_what_the_simulator_does() {
    let all = report::all();
    let document = std::fs::read_to_string(report::docs().join("scaling.md")).unwrap();
    let expected = report::with_table(&document, &report::table(&all));
    assert!(
        document == expected,
        "the table is old: make bench BENCH=scaling"
    );
    for outcome in &all {
        let name = format!("scaling/{}.svg", outcome.scenario.name);
        let drawn = std::fs::read_to_string(report::docs().join(&name)).unwrap_or_default();
        assert!(
            drawn == report::plot(outcome),
            "{name} is old: make bench BENCH=scaling"
        );
        assert!(document.contains(&name), "{name} is not shown");
    }
}
