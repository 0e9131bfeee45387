//! The generated CRDs lie in the repository as they are generated, and keep the Kubernetes API conventions.

use super::folder;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

#[test]
fn the_yaml_beside_the_types_is_what_the_types_say() {
    for crd in crate::crds() {
        let file = folder().join(format!("{}.yaml", crd.spec.names.plural));
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            found == crate::yaml(&crd),
            "{} is not what the types say: run `make generate`",
            file.display()
        );
        let parsed: CustomResourceDefinition =
            serde_yaml::from_str(&found).expect("the YAML is a CRD");
        assert_eq!(parsed, crd, "the YAML says the same as the types");
    }
}

#[test]
fn the_conventions_hold_at_every_field() {
    let mut broken = Vec::new();
    for crd in crate::crds() {
        let schema = schema(&crd);
        lint(&crd.spec.names.kind, &schema, &mut broken);
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_lint_finds_what_it_looks_for() {
    let bad = serde_json::json!({
        "description": "x", "type": "object", "required": ["gone"],
        "x-kubernetes-validations": [{"rule": "true"}],
        "properties": {
            "Upper": {"description": "x", "type": "boolean"},
            "phase": {"description": "x", "type": "string", "maxLength": 1},
            "silent": {"type": "boolean"},
            "open": {"description": "x", "type": "string"},
            "number": {"description": "x", "type": "integer", "format": "int32", "minimum": 0},
            "unsigned": {"description": "x", "type": "integer", "format": "uint32", "minimum": 0, "maximum": 1},
            "null": {"description": "x", "type": "boolean", "nullable": true},
            "choice": {"description": "x", "type": "string", "enum": ["lower"]},
            "list": {"description": "x", "type": "array", "items": {"description": "x", "type": "boolean"}},
            "keys": {"description": "x", "type": "array", "maxItems": 1, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"], "items": {"description": "x", "type": "object"}},
            "map": {"description": "x", "type": "object", "additionalProperties": {"description": "x", "type": "boolean"}},
        },
    });
    let mut broken = Vec::new();
    lint("Bad", &bad, &mut broken);
    for expected in [
        "Bad.gone: required, but not a property",
        "Bad: rule without a message",
        "Bad.Upper: not camelCase",
        "Bad.phase: conditions, not a phase",
        "Bad.silent: no description",
        "Bad.open: string without maxLength",
        "Bad.number: number without maximum",
        "Bad.unsigned: format uint32",
        "Bad.null: nullable",
        "Bad.choice: enum value lower is not CamelCase",
        "Bad.list: list without maxItems",
        "Bad.list: list without a list type",
        "Bad.keys: list key name is not required",
        "Bad.map: map without maxProperties",
    ] {
        assert!(
            broken.iter().any(|line| line == expected),
            "{expected} is missing in {broken:#?}"
        );
    }
    assert_eq!(broken.len(), 14, "{broken:#?}");
}

#[test]
fn each_kind_is_small_enough_for_client_side_apply() {
    for crd in crate::crds() {
        let size = serde_json::to_vec(&crd).expect("JSON").len();
        assert!(
            size < 100 * 1024,
            "{} has {size} bytes",
            crd.spec.names.kind
        );
    }
}

#[test]
fn names_columns_and_selectors_are_as_documented() {
    let columns = |crd: &CustomResourceDefinition, wide: bool| -> Vec<String> {
        crd.spec.versions[0]
            .additional_printer_columns
            .iter()
            .flatten()
            .filter(|column| (column.priority == Some(1)) == wide)
            .map(|column| column.name.to_uppercase())
            .collect()
    };
    let [topic, subscription] = crate::crds();
    assert_eq!(
        columns(&topic, false).join(" "),
        "BROKER READY PENDING OLDEST RELAYS SUBS REASON AGE"
    );
    assert_eq!(columns(&topic, true).join(" "), "PARKED MESSAGE");
    assert_eq!(
        columns(&subscription, false).join(" "),
        "TOPIC SINK READY DEPTH OLDEST WORKERS REASON AGE"
    );
    assert_eq!(columns(&subscription, true).join(" "), "RATE MESSAGE");
    for (crd, short) in [(&topic, "ftopic"), (&subscription, "fsub")] {
        assert_eq!(
            crd.spec.names.short_names.as_deref(),
            Some(&[short.to_owned()][..])
        );
        assert_eq!(
            crd.spec.names.categories.as_deref(),
            Some(&["fanout".to_owned()][..])
        );
        assert_eq!(crd.spec.scope, "Namespaced");
        assert_eq!(
            schema(crd)["properties"]["status"]["default"],
            serde_json::json!({"observedGeneration": -1}),
            "an object nobody looked at must not look finished"
        );
    }
    let selectable: Vec<&str> = subscription.spec.versions[0]
        .selectable_fields
        .iter()
        .flatten()
        .map(|field| field.json_path.as_str())
        .collect();
    assert_eq!(selectable, [".spec.topicRef.name"]);
}

#[test]
fn every_printer_column_shows_a_field_that_exists() {
    for crd in crate::crds() {
        let schema = schema(&crd);
        for column in crd.spec.versions[0]
            .additional_printer_columns
            .iter()
            .flatten()
        {
            let path = column.json_path.replace("[?(@.type==\"Ready\")]", ".items");
            let mut node = &schema;
            for part in path.split('.').filter(|part| !part.is_empty()) {
                node = match (part, &node["properties"]) {
                    ("metadata" | "creationTimestamp", _) => node,
                    ("items", _) => &node["items"],
                    (part, properties) => &properties[part],
                };
            }
            assert!(
                node.is_object(),
                "{} {}: nothing at {}",
                crd.spec.names.kind,
                column.name,
                column.json_path
            );
        }
    }
}

fn schema(crd: &CustomResourceDefinition) -> Value {
    let schema = crd.spec.versions[0].schema.as_ref().expect("a schema");
    serde_json::to_value(&schema.open_api_v3_schema).expect("JSON")
}

/// Adds what breaks the conventions at `node` and below to `broken`, a line each.
fn lint(path: &str, node: &Value, broken: &mut Vec<String>) {
    let mut found = |what: &str| broken.push(format!("{path}: {what}"));
    let has = |key: &str| !node[key].is_null();
    let name = path.rsplit('.').next().unwrap_or_default();

    if node["description"]
        .as_str()
        .unwrap_or_default()
        .trim()
        .is_empty()
    {
        found("no description");
    }
    if has("nullable") {
        found("nullable");
    }
    if name == "phase" {
        found("conditions, not a phase");
    }
    if path.contains('.') && !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        found("not camelCase");
    }
    for rule in node["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        if rule["message"].as_str().unwrap_or_default().is_empty() {
            found("rule without a message");
        }
    }
    limits(node, &mut found);
    for key in names(&node["required"]) {
        let property = &node["properties"][key];
        if property.is_null() {
            broken.push(format!("{path}.{key}: required, but not a property"));
        } else if !property["default"].is_null() {
            broken.push(format!("{path}.{key}: required, but has a default"));
        }
    }

    for (key, child) in node["properties"].as_object().into_iter().flatten() {
        lint(&format!("{path}.{key}"), child, broken);
    }
    for key in ["items", "additionalProperties"] {
        if has(key) {
            lint(&format!("{path}.{key}"), &node[key], broken);
        }
    }
}

/// Calls `found` with everything that is open in a node of one type.
fn limits(node: &Value, found: &mut impl FnMut(&str)) {
    let has = |key: &str| !node[key].is_null();
    let format = node["format"].as_str().unwrap_or_default();
    match node["type"].as_str() {
        Some("string") if has("enum") => {
            for value in names(&node["enum"]) {
                if !value.starts_with(|first: char| first.is_ascii_uppercase()) {
                    found(&format!("enum value {value} is not CamelCase"));
                }
            }
        }
        Some("string") => {
            if !has("maxLength") {
                found("string without maxLength");
            }
            if !["", "date-time"].contains(&format) {
                found(&format!("format {format}"));
            }
        }
        Some("integer") => {
            for bound in ["minimum", "maximum"] {
                if !has(bound) {
                    found(&format!("number without {bound}"));
                }
            }
            if !["int32", "int64"].contains(&format) {
                found(&format!("format {format}"));
            }
        }
        Some("array") => {
            if !has("maxItems") {
                found("list without maxItems");
            }
            if !has("x-kubernetes-list-type") {
                found("list without a list type");
            }
            let required: Vec<&str> = names(&node["items"]["required"]).collect();
            for key in names(&node["x-kubernetes-list-map-keys"]) {
                if !required.contains(&key) {
                    found(&format!("list key {key} is not required"));
                }
            }
        }
        Some("object") => {
            if has("additionalProperties") && !has("maxProperties") {
                found("map without maxProperties");
            }
        }
        Some("boolean") => {}
        None if node["x-kubernetes-int-or-string"] == true => {}
        other => found(&format!("type {other:?}")),
    }
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}
