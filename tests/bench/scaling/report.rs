//! Figures and plots of what became of each scenario.

use super::model::{Scenario, Trace, run};
use super::rules::{Keda, Numaflow, Operator, Rule};
use super::scenarios;
use fanout_tests::plot::{Line, Panel, panels};
use std::fmt::Write as _;
use std::path::Path;

/// Who decides, with the colour of its lines.
const RULES: [(&str, &str); 3] = [
    ("operator", "#0b6e4f"),
    ("KEDA", "#1f6fd1"),
    ("Numaflow", "#d1541f"),
];
/// Seconds between two points of a plot.
const STEP: usize = 15;
/// Lines of `docs/scaling.md` between which the table stands.
pub(crate) const MARKS: (&str, &str) = ("<!-- table: begin -->\n", "<!-- table: end -->\n");

/// A scenario with what each rule made of it.
pub(crate) struct Outcome {
    /// What happened.
    pub(crate) scenario: Scenario,
    /// In the order of [`RULES`].
    pub(crate) traces: Vec<Trace>,
}

/// Runs everything.
pub(crate) fn all() -> Vec<Outcome> {
    scenarios::all()
        .into_iter()
        .map(|scenario| {
            let mut rules: [Box<dyn Rule>; 3] = [
                Box::<Operator>::default(),
                Box::<Keda>::default(),
                Box::<Numaflow>::default(),
            ];
            let traces = rules
                .iter_mut()
                .map(|rule| run(&scenario, rule.as_mut()))
                .collect();
            Outcome { scenario, traces }
        })
        .collect()
}

/// Changes, and changes of direction.
pub(crate) fn turns(trace: &Trace) -> (usize, usize) {
    let first = trace.replicas.first().copied().unwrap_or(0);
    let mut before = first;
    let mut up = Vec::new();
    for replicas in &trace.replicas {
        if *replicas != before {
            up.push(*replicas > before);
        }
        before = *replicas;
    }
    let turns = up.windows(2).filter(|pair| pair[0] != pair[1]).count();
    (up.len(), turns)
}

/// The figures as a table.
pub(crate) fn table(all: &[Outcome]) -> String {
    let mut text = String::from(
        "| scenario | rule | replica minutes | longest age, s | late, s | changes | of direction | depth at the end |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for outcome in all {
        for ((rule, _), trace) in RULES.iter().zip(&outcome.traces) {
            let minutes = trace
                .replicas
                .iter()
                .map(|count| f64::from(*count))
                .sum::<f64>()
                / 60.0;
            let target = i64::from(outcome.scenario.bounds.target_age_seconds);
            let late = trace.age.iter().filter(|age| **age > target).count();
            let longest = trace.age.iter().max().copied().unwrap_or(0);
            let (changes, turns) = turns(trace);
            let end = trace.depth.last().copied().unwrap_or(0.0);
            writeln!(
                text,
                "| {} | {rule} | {minutes:.0} | {longest} | {late} | {changes} | {turns} | {end:.0} |",
                outcome.scenario.name
            )
            .expect("a string takes what is written to it");
        }
    }
    text
}

/// The plot of one scenario.
pub(crate) fn plot(outcome: &Outcome) -> String {
    let scenario = &outcome.scenario;
    let load = (0..scenario.seconds)
        .step_by(STEP)
        .map(|second| (scenario.arrival)(second));
    let thin = |values: Vec<f64>| values.into_iter().step_by(STEP).collect::<Vec<_>>();
    let lines = |of: &dyn Fn(&Trace) -> Vec<f64>| {
        RULES
            .iter()
            .zip(&outcome.traces)
            .map(|((name, colour), trace)| Line {
                name: (*name).to_owned(),
                colour,
                values: thin(of(trace)),
            })
            .collect()
    };
    let all = [
        Panel {
            title: "load, records/s".to_owned(),
            lines: vec![Line {
                name: String::new(),
                colour: "#555",
                values: load.collect(),
            }],
        },
        Panel {
            title: "depth, records".to_owned(),
            lines: lines(&|trace| trace.depth.clone()),
        },
        Panel {
            title: "replicas".to_owned(),
            lines: lines(&|trace| {
                trace
                    .replicas
                    .iter()
                    .map(|count| f64::from(*count))
                    .collect()
            }),
        },
    ];
    panels(
        scenario.title,
        scenario.seconds as f64 / 60.0,
        "minutes",
        &all,
    )
}

/// Folder of the documentation.
pub(crate) fn docs() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))
}

/// `docs/scaling.md` with `table` in it.
pub(crate) fn with_table(document: &str, table: &str) -> String {
    let (before, rest) = document.split_once(MARKS.0).expect("a place for the table");
    let (_, after) = rest.split_once(MARKS.1).expect("its end");
    format!("{before}{}{table}{}{after}", MARKS.0, MARKS.1)
}

/// Writes plots and table into the documentation.
pub(crate) fn write(all: &[Outcome]) {
    let folder = docs().join("scaling");
    std::fs::create_dir_all(&folder).expect("docs/scaling");
    for outcome in all {
        let file = folder.join(format!("{}.svg", outcome.scenario.name));
        std::fs::write(file, plot(outcome)).expect("a plot");
    }
    let document = docs().join("scaling.md");
    let text = std::fs::read_to_string(&document).expect("docs/scaling.md");
    std::fs::write(document, with_table(&text, &table(all))).expect("the table");
}
