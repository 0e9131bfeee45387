//! Samples are accepted and bad objects are refused by the CRDs' own rules, without an API server.
//!
//! A file in `crds/tests/bad` holds one object, or two: the first is accepted and its update to the second is refused. Its first
//! two lines name the field and a part of the API server's message. The same files go to a real API server in
//! `tests/it/crds.rs`; here only messages of CEL rules are compared, because the rest is worded by the API server.

use super::folder;
use kube::core::cel::{ValidationErrors, Validator, apply_defaults};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn every_sample_is_accepted() {
    let mut kinds = BTreeSet::new();
    for file in yaml_files(&folder().join("../manifests/samples")) {
        for object in documents(&file) {
            let kind = object["kind"].as_str().expect("a kind").to_owned();
            if kind != "Secret" {
                assert_eq!(refusals(&object, None), [], "{} {kind}", file.display());
            }
            kinds.insert(kind);
        }
    }
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        ["FanoutTopic", "Secret", "Subscription"]
    );
}

#[test]
fn every_bad_object_is_refused_at_the_field_it_names() {
    let files = yaml_files(&folder().join("tests/bad"));
    assert!(files.len() > 90, "only {} files", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let field = header(&text, "# field: ");
        let message = header(&text, "# message: ");
        let objects = documents(&file);
        let found = match objects.as_slice() {
            [object] => refusals(object, None),
            [old, new] => {
                let before = refusals(old, None);
                if !before.is_empty() {
                    wrong.push(format!(
                        "{}: the first object must be accepted: {before:?}",
                        file.display()
                    ));
                }
                refusals(new, Some(old))
            }
            _ => panic!("{}: one object or two", file.display()),
        };
        let as_expected = |refusal: &Refusal| {
            refusal.field == field
                && refusal
                    .rule
                    .as_ref()
                    .is_none_or(|text| text.contains(message))
        };
        if !found.iter().any(as_expected) {
            wrong.push(format!(
                "{}: expected {field}: {message}; found {found:?}",
                file.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_smallest_objects_are_filled_with_defaults() {
    let topic = with_defaults(&json!({
        "apiVersion": "fanout.dev/v1alpha1", "kind": "FanoutTopic", "metadata": {"name": "posts"},
        "spec": {
            "source": {"postgres": {"urlSecretRef": {"name": "db", "key": "url"}, "table": "public.outbox"}},
            "broker": {"kafka": {"bootstrapServers": "kafka:9092"}},
        },
    }));
    assert_eq!(refusals(&topic, None), []);
    let topic: crate::FanoutTopic = serde_json::from_value(topic).expect("a FanoutTopic");
    assert_eq!(topic.spec.relay, crate::fanout_topic::Relay::default());
    assert_eq!(topic.spec.relay.replicas, 2);
    let crate::fanout_topic::Source::Postgres(postgres) = &topic.spec.source;
    assert_eq!(
        (postgres.retention_seconds, &postgres.r#match),
        (86_400, &None)
    );

    let subscription = with_defaults(&json!({
        "apiVersion": "fanout.dev/v1alpha1", "kind": "Subscription", "metadata": {"name": "search"},
        "spec": {"topicRef": {"name": "posts"}, "sink": {"webhook": {"url": "http://search"}}},
    }));
    assert_eq!(refusals(&subscription, None), []);
    assert_eq!(
        subscription["spec"]["startFrom"],
        json!({"position": "Latest"})
    );
    assert_eq!(subscription["spec"]["delivery"]["ordering"], "PerKey");
    assert_eq!(
        subscription["spec"]["sink"]["webhook"]["timeoutSeconds"],
        10
    );
}

#[test]
fn what_the_types_write_is_what_the_schema_takes() {
    for file in yaml_files(&folder().join("../manifests/samples")) {
        for object in documents(&file) {
            let written = match object["kind"].as_str() {
                Some("FanoutTopic") => serde_json::from_value::<crate::FanoutTopic>(object.clone())
                    .map(|typed| json!(typed)),
                Some("Subscription") => {
                    serde_json::from_value::<crate::Subscription>(object.clone())
                        .map(|typed| json!(typed))
                }
                _ => continue,
            }
            .expect("a sample is of its kind");
            assert_eq!(
                with_defaults(&written),
                with_defaults(&object),
                "{}",
                file.display()
            );
        }
    }
}

#[test]
fn updates_that_keep_what_is_immutable_are_accepted() {
    let [old, mut new] = [(); 2].map(|()| sample("FanoutTopic", "posts"));
    new["spec"]["suspend"] = json!(true);
    new["spec"]["broker"]["kafka"]["topic"]["partitions"] = json!(12);
    new["spec"]["broker"]["kafka"]["bootstrapServers"] = json!("other:9092,[::1]:9093");
    assert_eq!(refusals(&new, Some(&old)), []);

    let [old, mut new] = [(); 2].map(|()| sample("Subscription", "search-index"));
    new["spec"]["filter"] = json!("true");
    new["spec"]["sink"]["webhook"]["url"] = json!("http://[2001:db8::1]:8080/a?b=c@d#e");
    new["spec"]["isolation"] = json!("Dedicated");
    assert_eq!(refusals(&new, Some(&old)), []);
}

/// Why an object is refused: the field, and the message where a CEL rule says so.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    field: String,
    rule: Option<String>,
}

/// What the rules of the object's kind say to `object`, or to the update of `old` to it.
fn refusals(object: &Value, old: Option<&Value>) -> Vec<Refusal> {
    let schema = schema(object["kind"].as_str().expect("a kind"));
    let mut closed = schema.clone();
    close(&mut closed);
    let structure = jsonschema::options()
        .should_validate_formats(true)
        .build(&closed)
        .expect("the CRD's schema is a JSON schema");
    let defaulted = apply_defaults(&schema, object);
    let mut found: Vec<Refusal> = structure
        .iter_errors(&defaulted)
        .flat_map(|error| {
            let path = dotted(error.instance_path().as_str());
            let below: Vec<String> = match error.kind() {
                jsonschema::error::ValidationErrorKind::Required { property } => {
                    vec![property.as_str().unwrap_or_default().to_owned()]
                }
                jsonschema::error::ValidationErrorKind::AdditionalProperties { unexpected } => {
                    unexpected.clone()
                }
                _ => return vec![path],
            };
            below.iter().map(|name| format!("{path}.{name}")).collect()
        })
        .map(|field| Refusal { field, rule: None })
        .collect();
    duplicates(&schema, &defaulted, "", &mut found);
    let rules = Validator::new().validate(&schema, object, old);
    found.extend(
        rules
            .err()
            .into_iter()
            .flat_map(ValidationErrors::into_vec)
            .map(|error| Refusal {
                field: if error.field_path.is_empty() {
                    "<root>".to_owned()
                } else {
                    error.field_path
                },
                rule: Some(error.message),
            }),
    );
    found
}

fn schema(kind: &str) -> Value {
    let crd = crate::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .expect("a kind of this group");
    let schema = crd.spec.versions[0].schema.as_ref().expect("a schema");
    serde_json::to_value(&schema.open_api_v3_schema).expect("JSON")
}

fn with_defaults(object: &Value) -> Value {
    apply_defaults(&schema(object["kind"].as_str().expect("a kind")), object)
}

/// Refuses unknown fields, as strict field validation does. The root holds apiVersion, kind and metadata besides.
fn close(schema: &mut Value) {
    for (_, property) in children(schema) {
        close_below(property);
    }
}

fn close_below(node: &mut Value) {
    if node.get("properties").is_some() {
        node["additionalProperties"] = json!(false);
    }
    for (_, child) in children(node) {
        close_below(child);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = node.get_mut(key).filter(|child| child.is_object()) {
            close_below(child);
        }
    }
}

fn children(node: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    node.get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
}

/// Lists of type map whose keys repeat.
fn duplicates(schema: &Value, value: &Value, path: &str, found: &mut Vec<Refusal>) {
    for (name, child) in value.as_object().into_iter().flatten() {
        let below = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        duplicates(&schema["properties"][name], child, &below, found);
    }
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    let mut seen = BTreeSet::new();
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        let key = keys.map(|keys| {
            keys.iter()
                .filter_map(Value::as_str)
                .map(|key| item[key].to_string())
                .collect::<Vec<_>>()
        });
        if key.is_some_and(|key| !seen.insert(key)) {
            found.push(Refusal {
                field: format!("{path}[{index}]"),
                rule: None,
            });
        }
        duplicates(&schema["items"], item, &format!("{path}[{index}]"), found);
    }
}

/// `/spec/list/0/name` as the API server writes it: `spec.list[0].name`.
fn dotted(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            path = format!("{path}[{part}]");
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path += part;
        }
    }
    path
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    files
}

fn documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("readable");
    serde_yaml::from_multiple(&text).expect("a sample or bad object is YAML")
}

fn header<'a>(text: &'a str, prefix: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.strip_prefix(prefix))
        .expect("the first lines name field and message")
}

fn sample(kind: &str, name: &str) -> Value {
    yaml_files(&folder().join("../manifests/samples"))
        .iter()
        .flat_map(|file| documents(file))
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .expect("a sample")
}
