//! The values of the chart, from values.yaml and its schema.

use crate::markdown::{code, page as start, table};
use crate::read;
use serde_json::Value;

/// The page.
pub(crate) fn page() -> anyhow::Result<String> {
    let values: Value = serde_yaml::from_str(&read("charts/fanout-operator/values.yaml")?)?;
    let schema: Value = serde_json::from_str(&read("charts/fanout-operator/values.schema.json")?)?;
    let mut rows = Vec::new();
    walk("", &schema, &values, &mut rows);
    let mut page = start(
        "Chart values",
        "Values of charts/fanout-operator. The schema refuses what is not listed here.",
    );
    page.push('\n');
    page.push_str(&table(["Value", "Default", "Meaning"], rows));
    Ok(page)
}

fn walk(path: &str, schema: &Value, values: &Value, rows: &mut Vec<[String; 3]>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (name, child) in properties {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let Some(default) = values.get(name) else {
            continue;
        };
        if child["properties"].is_object() && default.as_object().is_some_and(|all| !all.is_empty())
        {
            walk(&path, child, default, rows);
            continue;
        }
        let meaning = child["description"]
            .as_str()
            .or_else(|| schema["description"].as_str());
        rows.push([
            code(&path),
            code(&default.to_string()),
            meaning.unwrap_or_default().to_owned(),
        ]);
    }
}
