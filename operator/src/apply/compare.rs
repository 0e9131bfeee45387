//! Decides whether a live object already is what we would apply, so that a converged object costs no write.
//!
//! A server-side apply that changes nothing still is a write request. An object is converged when every field we
//! want has the wanted value, and every field that our manager owns is one we still want.

use serde_json::Value;

/// True when applying `desired` as `manager` would change nothing in `live`.
pub(crate) fn converged(desired: &Value, live: &Value, manager: &str) -> bool {
    contains(desired, live)
        && owned_fields(live, manager).is_some_and(|owned| covers(desired, owned))
}

/// True when every value of `desired` is in `live`. The server adds defaults to `live`; empty maps and lists are not
/// stored at all.
fn contains(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.iter().all(|(key, value)| {
            live.get(key)
                .map_or_else(|| is_empty(value), |live| contains(value, live))
        }),
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() == live.len() && desired.iter().zip(live).all(|(d, l)| contains(d, l))
        }
        (Value::String(desired), Value::String(live)) => {
            desired == live || same_quantity(desired, live)
        }
        _ => desired == live,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// `fieldsV1` of the entry that server-side apply keeps for `manager` on the main resource.
fn owned_fields<'a>(live: &'a Value, manager: &str) -> Option<&'a Value> {
    live.pointer("/metadata/managedFields")?
        .as_array()?
        .iter()
        .find(|entry| {
            entry["manager"] == manager
                && entry["operation"] == "Apply"
                && entry.get("subresource").is_none_or(|name| name == "")
        })
        .map(|entry| &entry["fieldsV1"])
}

/// True when every field of the set `owned` exists in `desired`.
///
/// The set is a tree of `f:<field>`, `k:{<key fields>}` for a list item found by its keys, `v:<value>` for a set's
/// item, and `.` for the node itself (see sigs.k8s.io/structured-merge-diff).
fn covers(desired: &Value, owned: &Value) -> bool {
    let Some(owned) = owned.as_object() else {
        return true;
    };
    owned.iter().all(|(path, below)| {
        if path == "." {
            return true;
        }
        if let Some(field) = path.strip_prefix("f:") {
            return desired.get(field).is_some_and(|value| covers(value, below));
        }
        if let Some(keys) = path.strip_prefix("k:") {
            let Ok(Value::Object(keys)) = serde_json::from_str(keys) else {
                return false;
            };
            return items(desired)
                .iter()
                .find(|item| {
                    keys.iter()
                        .all(|(key, value)| key_matches(item, key, value))
                })
                .is_some_and(|item| covers(item, below));
        }
        if let Some(value) = path.strip_prefix("v:") {
            let value: Option<Value> = serde_json::from_str(value).ok();
            return value.is_some_and(|value| items(desired).contains(&value));
        }
        false
    })
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The server fills a list's key fields that have a default (a port's protocol) before it compares.
fn key_matches(item: &Value, key: &str, value: &Value) -> bool {
    item.get(key).map_or_else(
        || key == "protocol" && value == "TCP",
        |found| found == value,
    )
}

/// The server rewrites quantities in their canonical form: `1000m` is stored as `1`.
fn same_quantity(one: &str, other: &str) -> bool {
    match (quantity(one), quantity(other)) {
        (Some(one), Some(other)) => (one - other).abs() <= one.abs() * 1e-12,
        _ => false,
    }
}

fn quantity(text: &str) -> Option<f64> {
    let digits = text.len()
        - text
            .trim_start_matches(|c: char| c.is_ascii_digit() || "+-.".contains(c))
            .len();
    let (number, suffix) = text.split_at_checked(digits)?;
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024.0_f64.powi(2),
        "Gi" => 1024.0_f64.powi(3),
        "Ti" => 1024.0_f64.powi(4),
        "Pi" => 1024.0_f64.powi(5),
        "Ei" => 1024.0_f64.powi(6),
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn live() -> Value {
        json!({
            "metadata": {
                "name": "w",
                "labels": {"app": "relay"},
                "managedFields": [
                    {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
                    {"manager": "fanout-operator", "operation": "Apply", "fieldsV1": {
                        "f:metadata": {"f:labels": {"f:app": {}}},
                        "f:spec": {
                            "f:replicas": {},
                            "f:containers": {"k:{\"name\":\"relay\"}": {
                                ".": {}, "f:name": {}, "f:image": {},
                                "f:ports": {"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                                "f:cpu": {}
                            }},
                            "f:finalizers": {"v:\"a\"": {}}
                        }
                    }},
                ],
            },
            "spec": {
                "replicas": 2,
                "strategy": {"type": "RollingUpdate"},
                "finalizers": ["a"],
                "containers": [{"name": "relay", "image": "relay:1", "cpu": "1", "terminationMessagePath": "/dev/termination-log",
                                "ports": [{"containerPort": 8080, "protocol": "TCP"}]}],
            },
        })
    }

    fn desired() -> Value {
        json!({
            "metadata": {"name": "w", "labels": {"app": "relay"}, "annotations": {}},
            "spec": {
                "replicas": 2,
                "finalizers": ["a"],
                "containers": [{"name": "relay", "image": "relay:1", "cpu": "1000m", "ports": [{"containerPort": 8080}]}],
            },
        })
    }

    #[test]
    fn what_was_applied_is_converged_in_spite_of_defaults() {
        assert!(converged(&desired(), &live(), "fanout-operator"));
    }

    #[rstest]
    #[case::a_value_changed("/spec/replicas", json!(3))]
    #[case::a_container_changed("/spec/containers/0/image", json!("relay:2"))]
    #[case::a_quantity_changed("/spec/containers/0/cpu", json!("2"))]
    #[case::a_list_grew("/spec/finalizers", json!(["a", "b"]))]
    fn a_difference_is_seen(#[case] pointer: &str, #[case] value: Value) {
        let mut desired = desired();
        *desired.pointer_mut(pointer).unwrap() = value;
        assert!(!converged(&desired, &live(), "fanout-operator"));
    }

    #[rstest]
    #[case::label("/metadata/labels", "app")]
    #[case::field("/spec", "replicas")]
    #[case::field_of_a_list_item("/spec/containers/0", "cpu")]
    #[case::list_item("/spec/containers/0", "ports")]
    #[case::set_item("/spec", "finalizers")]
    fn a_field_that_is_no_longer_wanted_is_seen(#[case] parent: &str, #[case] field: &str) {
        let mut desired = desired();
        desired
            .pointer_mut(parent)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .remove(field);
        assert!(!converged(&desired, &live(), "fanout-operator"));
    }

    #[test]
    fn an_object_that_was_never_applied_is_not_converged() {
        assert!(!converged(&desired(), &live(), "somebody-else"));
    }

    #[rstest]
    #[case("1000m", "1", true)]
    #[case("1024Mi", "1Gi", true)]
    #[case("1e3", "1k", true)]
    #[case("1Gi", "1G", false)]
    #[case("abc", "abd", false)]
    fn quantities_compare_by_value(#[case] one: &str, #[case] other: &str, #[case] same: bool) {
        assert_eq!(same_quantity(one, other), same);
    }
}
