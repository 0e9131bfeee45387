//! Writes docs/reference from the code: API fields, conditions, events, metrics, chart values, labels, records, database
//! tables. Its tests compare, and check the runbooks.

mod chart;
mod conditions;
mod constants;
mod database;
mod fields;
mod markdown;
mod metrics;
#[cfg(test)]
mod tests;

use anyhow::Context as _;
use fanout_tests::documents::root;

/// A page of docs/reference.
struct Page {
    /// File name.
    file: &'static str,
    /// Whole text.
    text: String,
}

/// A file of the repository.
fn read(file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root().join(file)).with_context(|| file.to_owned())
}

/// Every page.
fn pages() -> anyhow::Result<Vec<Page>> {
    let [topic, subscription] = fanout_crds::crds();
    Ok(vec![
        Page {
            file: "fanouttopic.md",
            text: fields::page(&topic)?,
        },
        Page {
            file: "subscription.md",
            text: fields::page(&subscription)?,
        },
        Page {
            file: "conditions.md",
            text: conditions::page(),
        },
        Page {
            file: "metrics.md",
            text: metrics::page()?,
        },
        Page {
            file: "chart.md",
            text: chart::page()?,
        },
        Page {
            file: "names.md",
            text: constants::names()?,
        },
        Page {
            file: "records.md",
            text: constants::records()?,
        },
        Page {
            file: "database.md",
            text: database::page()?,
        },
    ])
}

fn main() -> anyhow::Result<()> {
    for page in pages()? {
        let file = root().join("docs/reference").join(page.file);
        std::fs::write(&file, page.text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}
