//! The metrics of the three programs, from what their `/metrics` shows when everything happened once.

use crate::markdown::{code, join, page as start, table};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The page.
pub(crate) fn page() -> anyhow::Result<String> {
    let mut page = start(
        "Metrics",
        "Every program serves OpenMetrics on `/metrics`, port 8080; so do the workers' pods, whose port is named `admin`. A \
         series exists only while its value is known: what is not known is absent, never 0. Beside them `/status` shows a \
         worker's state as JSON, and `/livez` and `/readyz` are the probes.",
    );
    for (program, text) in [
        ("Operator", fanout_operator::sample_metrics()?),
        ("Relay", fanout_relay::stats::sample_metrics()?),
        ("Consumers", fanout_consumers::sample_metrics()?),
    ] {
        write!(page, "\n## {program}\n\n")?;
        let rows = families(&text).into_iter().map(Family::row);
        page.push_str(&table(
            ["Series", "Type", "Unit", "Labels", "Meaning"],
            rows,
        ));
    }
    Ok(page)
}

/// A metric family as OpenMetrics describes it.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Name without suffix.
    pub(crate) name: String,
    kind: String,
    unit: String,
    help: String,
    /// Values by label.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Lines with a value.
    pub(crate) samples: usize,
}

impl Family {
    fn row(self) -> [String; 5] {
        let series = match self.kind.as_str() {
            "counter" => format!("{}_total", self.name),
            _ => self.name,
        };
        let labels = self.labels.into_iter().map(|(name, values)| {
            // A label without a closed set of values shows its own name as an example.
            if values.len() == 1 && values.contains(&name) {
                code(&name)
            } else {
                let values = values.iter().map(|value| code(value));
                format!("{} ({})", code(&name), join(values, ", "))
            }
        });
        [
            code(&series),
            self.kind,
            self.unit,
            join(labels, ", "),
            self.help,
        ]
    }
}

/// The families in `text`, in its order.
pub(crate) fn families(text: &str) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# ") {
            let mut words = described.splitn(3, ' ');
            let (Some(what), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let value = words.next().unwrap_or_default().to_owned();
            if all.last().is_none_or(|family| family.name != name) {
                all.push(Family {
                    name: name.to_owned(),
                    ..Family::default()
                });
            }
            if let Some(family) = all.last_mut() {
                match what {
                    "HELP" => family.help = value,
                    "TYPE" => family.kind = value,
                    "UNIT" => family.unit = value,
                    _ => {}
                }
            }
        } else if let Some(family) = all.last_mut() {
            family.samples += 1;
            for (name, value) in labels(line) {
                family.labels.entry(name).or_default().insert(value);
            }
        }
    }
    all.retain(|family| !family.kind.is_empty());
    all
}

/// The labels of a sample but those that a histogram adds.
fn labels(sample: &str) -> Vec<(String, String)> {
    let Some((_, rest)) = sample.split_once('{') else {
        return Vec::new();
    };
    let (labels, _) = rest.split_once('}').unwrap_or((rest, ""));
    labels
        .split(',')
        .filter_map(|label| label.split_once('='))
        .filter(|(name, _)| *name != "le")
        .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
        .collect()
}
