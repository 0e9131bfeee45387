//! The fields of a kind, from its CRD.

use crate::markdown::{code, join, page as start, table};
use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;
use std::fmt::Write as _;

/// The page of a kind.
pub(crate) fn page(crd: &CustomResourceDefinition) -> anyhow::Result<String> {
    let names = &crd.spec.names;
    let version = crd.spec.versions.first().context("no version")?;
    let crd_json = serde_json::to_value(crd)?;
    let schema = &crd_json["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let intro = format!(
        "{}\n\nGroup `{}`, version `{}`, plural `{}`, short name `{}`. {}\n\nThe same is in `kubectl explain {}.{}.spec`. \
         A limit of a field is checked when the object is written; what needs a look at the database, Kafka or the endpoint is \
         told by [conditions](conditions.md).",
        text(schema, "description"),
        crd.spec.group,
        version.name,
        names.plural,
        names
            .short_names
            .iter()
            .flatten()
            .cloned()
            .collect::<Vec<_>>()
            .join("`, `"),
        sentence(&rules(schema)),
        names.plural,
        crd.spec.group,
    );
    let mut page = start(&names.kind, &intro);
    page.push_str("\n## Columns of `kubectl get`\n\n");
    let columns = version.additional_printer_columns.iter().flatten();
    page.push_str(&table(
        ["Column", "Field", "Meaning"],
        columns.map(|column| {
            let wide = if column.priority == Some(1) {
                " (with `-o wide`)"
            } else {
                ""
            };
            [
                format!("{}{wide}", column.name.to_uppercase()),
                code(column.json_path.trim_start_matches('.')),
                column.description.clone().unwrap_or_default(),
            ]
        }),
    ));
    for part in ["spec", "status"] {
        write!(page, "\n## {part}\n\n")?;
        let mut rows = Vec::new();
        walk(part, &schema["properties"][part], false, &mut rows);
        page.push_str(&table(
            ["Field", "Type", "Default", "Limits", "Meaning"],
            rows,
        ));
    }
    Ok(page)
}

fn walk(path: &str, schema: &Value, required: bool, rows: &mut Vec<[String; 5]>) {
    rows.push([
        code(path),
        kind(schema),
        schema
            .get("default")
            .map_or_else(String::new, |default| code(&default.to_string())),
        limits(schema, required),
        text(schema, "description").to_owned(),
    ]);
    let item = &schema["items"];
    if item["properties"].is_object() {
        properties(&format!("{path}[]"), item, rows);
    }
    properties(path, schema, rows);
}

fn properties(path: &str, schema: &Value, rows: &mut Vec<[String; 5]>) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let required = required.contains(&name.as_str());
        walk(&format!("{path}.{name}"), child, required, rows);
    }
}

fn text<'a>(schema: &'a Value, member: &str) -> &'a str {
    schema[member].as_str().unwrap_or_default()
}

fn kind(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == Value::Bool(true) {
        return "quantity".to_owned();
    }
    match (text(schema, "type"), text(schema, "format")) {
        ("array", _) => format!("list of {}", kind(&schema["items"])),
        ("object", _) if schema["additionalProperties"].is_object() => {
            format!("map to {}", kind(&schema["additionalProperties"]))
        }
        ("string", "date-time") => "time".to_owned(),
        ("integer", "int32") => "int32".to_owned(),
        ("integer", "int64") => "int64".to_owned(),
        (other, _) => other.to_owned(),
    }
}

fn limits(schema: &Value, required: bool) -> String {
    let own = |schema: &Value| {
        let number = |member: &str| schema[member].as_number().map(|n| whole(&n.to_string()));
        let span = |low: &str, high: &str, unit: &str| match (number(low), number(high)) {
            (Some(low), Some(high)) => format!("{low} to {high}{unit}"),
            (Some(low), None) => format!("at least {low}{unit}"),
            (None, Some(high)) => format!("at most {high}{unit}"),
            (None, None) => String::new(),
        };
        let choices: Vec<String> = schema["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|value| value.as_str().map(code))
            .collect();
        join(
            [
                join(choices, ", "),
                span("minimum", "maximum", ""),
                span("minLength", "maxLength", " characters"),
                span("minItems", "maxItems", " entries"),
                span("minProperties", "maxProperties", " entries"),
                schema["pattern"].as_str().map_or_else(String::new, code),
                rules(schema),
            ],
            "; ",
        )
    };
    let inner = ["items", "additionalProperties"]
        .into_iter()
        .filter(|member| schema[*member].is_object())
        .map(|member| {
            let each = own(&schema[member]);
            if each.is_empty() {
                each
            } else {
                format!("each: {each}")
            }
        });
    let required = if required { "required" } else { "" };
    join(
        [required.to_owned(), own(schema)].into_iter().chain(inner),
        "; ",
    )
}

/// Messages of the CEL rules: also what must not change.
fn rules(schema: &Value) -> String {
    let messages = schema["x-kubernetes-validations"].as_array();
    let messages = messages.into_iter().flatten();
    join(
        messages.filter_map(|rule| rule["message"].as_str().map(str::to_owned)),
        "; ",
    )
}

fn sentence(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("{text}.")
    }
}

/// 64 reads better than 64.0.
fn whole(number: &str) -> String {
    number.strip_suffix(".0").unwrap_or(number).to_owned()
}
