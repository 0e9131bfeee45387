//! The CRDs as they are installed: what the derive macro makes, brought in line with the Kubernetes API conventions.

use crate::{FanoutTopic, Subscription};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// Both CRDs, in the order of their names.
///
/// # Panics
/// When the derived definition is not valid JSON of a CRD, which a test of this crate would show first.
#[allow(clippy::expect_used)]
pub fn crds() -> [CustomResourceDefinition; 2] {
    [FanoutTopic::crd(), Subscription::crd()].map(|crd| {
        let mut crd = serde_json::to_value(crd).expect("a CRD is JSON");
        for version in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
            conform(&mut version["schema"]["openAPIV3Schema"]);
        }
        serde_json::from_value(crd).expect("a conforming CRD is a CRD")
    })
}

/// The YAML of a CRD, as it lies beside this crate's source.
///
/// # Panics
/// Like [`crds`].
#[allow(clippy::expect_used)]
pub fn yaml(crd: &CustomResourceDefinition) -> String {
    let mut crd = serde_json::to_value(crd).expect("a CRD is JSON");
    whole_numbers(&mut crd);
    let body = serde_yaml::to_string(&crd).expect("JSON is YAML");
    format!("# Generated from crds/src by `make generate`. Do not edit.\n{body}")
}

/// Bounds are floating point in the types of a CRD; 64 reads better than 64.0.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Number(number) => {
            let text = number.to_string();
            if let Some(whole) = text
                .strip_suffix(".0")
                .and_then(|whole| whole.parse::<i64>().ok())
            {
                *value = whole.into();
            }
        }
        _ => {}
    }
}

/// Brings the schema of one version in line with the conventions.
fn conform(schema: &mut Value) {
    visit(schema, &mut |node| {
        node.remove("nullable");
        node.remove("title");
        if node.get("format") == Some(&json!("date-time")) {
            node.insert("maxLength".into(), json!(64));
        }
        if let Some(Value::String(text)) = node.get_mut("description") {
            *text = unwrap_lines(text);
        }
        union_rules(node);
    });
    // kstatus: an object whose status nobody wrote yet must not look finished.
    schema["properties"]["status"]["default"] = json!({"observedGeneration": -1});
}

/// Calls `change` on every schema node below and including `schema`.
fn visit(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Some(node) = schema.as_object_mut() else {
        return;
    };
    change(node);
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        for property in properties.values_mut() {
            visit(property, change);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = node.get_mut(key) {
            visit(child, change);
        }
    }
}

/// Joins the lines of each paragraph: `kubectl explain` wraps by itself.
fn unwrap_lines(text: &str) -> String {
    text.split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// A union comes as `oneOf` with one `required` each; as rules it says what is wrong, and forbids that an update
/// exchanges the member.
fn union_rules(node: &mut Map<String, Value>) {
    let members: Option<Vec<String>> =
        node.get("oneOf").and_then(Value::as_array).map(|variants| {
            variants
                .iter()
                .filter_map(|variant| variant["required"][0].as_str().map(str::to_owned))
                .collect()
        });
    let Some(members) = members else { return };
    node.remove("oneOf");
    let list = members.join(", ");
    let count: Vec<String> = members
        .iter()
        .map(|member| format!("(has(self.{member}) ? 1 : 0)"))
        .collect();
    let rules = node
        .entry("x-kubernetes-validations")
        .or_insert_with(|| json!([]));
    if let Some(rules) = rules.as_array_mut() {
        rules.push(json!({
            "rule": format!("{} == 1", count.join(" + ")),
            "message": format!("must have exactly one member of: {list}"),
        }));
        if members.len() > 1 {
            let kept: Vec<String> = members
                .iter()
                .map(|member| format!("has(self.{member}) == has(oldSelf.{member})"))
                .collect();
            rules.push(json!({
                "rule": kept.join(" && "),
                "message": "must keep its member",
            }));
        }
    }
}

/// Schema of `status.conditions`.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": {
            "description": "One aspect of the object's state.",
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {
                    "description": "Name of the condition.",
                    "type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Z][A-Za-z0-9]*$",
                },
                "status": {
                    "description": "True, False or Unknown.",
                    "type": "string", "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "Generation of the spec that the condition describes.",
                    "type": "integer", "format": "int64", "minimum": 0, "maximum": 9_007_199_254_740_991_i64,
                },
                "lastTransitionTime": {
                    "description": "When status last changed.",
                    "type": "string", "format": "date-time",
                },
                "reason": {
                    "description": "Why, as one word that scripts may rely on.",
                    "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Z][A-Za-z0-9]*$",
                },
                "message": {
                    "description": "What it means and what to do next; may be empty.",
                    "type": "string", "maxLength": 4096,
                },
            },
        },
    })
}
