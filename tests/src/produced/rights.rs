//! Compares the rights that the operator used, as the audit logs say, with those that the chart gives it.

use anyhow::Context as _;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

/// The operator's user.
pub const USER: &str = "system:serviceaccount:fanout-system:fanout-operator";
/// The same where Helm names it after the release.
const USER_OF_RELEASE: &str = "system:serviceaccount:fanout-system:fanout-fanout-operator";
/// What the operator's requests call themselves; tests also ask in its name what it may do.
const USER_AGENT: &str = "fanout-operator/";
/// How the names of audit logs end.
const AUDIT: &str = "audit.log";

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Namespace it is limited to; empty: everywhere.
    pub namespace: String,
    /// API group; empty: the core one.
    pub group: String,
    /// Resource, or `resource/subresource`.
    pub resource: String,
    /// Verb.
    pub verb: String,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            namespace,
            group,
            resource,
            verb,
        } = self;
        write!(f, "{verb} {resource}.{group}")?;
        if namespace.is_empty() {
            return Ok(());
        }
        write!(f, " in {namespace}")
    }
}

/// What the manifests give to the operator.
///
/// # Errors
/// They are no manifests.
pub fn granted(manifests: &str) -> anyhow::Result<BTreeSet<Right>> {
    let objects: Vec<Value> = serde_yaml::from_multiple(manifests)?;
    let text = |value: &Value, path: &str| {
        let value = value.pointer(path).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let mut granted = BTreeSet::new();
    for binding in &objects {
        let kind = text(binding, "/kind");
        let namespace = text(binding, "/metadata/namespace");
        let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
        let is_operator = |subject: &Value| {
            let (namespace, name) = (text(subject, "/namespace"), text(subject, "/name"));
            format!("system:serviceaccount:{namespace}:{name}") == USER
        };
        if !kind.ends_with("RoleBinding") || !subjects.iter().any(is_operator) {
            continue;
        }
        let (role_kind, role) = (
            text(binding, "/roleRef/kind"),
            text(binding, "/roleRef/name"),
        );
        let role = objects
            .iter()
            .find(|object| {
                text(object, "/kind") == role_kind
                    && text(object, "/metadata/name") == role
                    && text(object, "/metadata/namespace") == namespace
            })
            .with_context(|| format!("{role_kind} {role} is not in the manifests"))?;
        for rule in role["rules"].as_array().into_iter().flatten() {
            granted.extend(rights_of(rule, &namespace));
        }
    }
    anyhow::ensure!(!granted.is_empty(), "no role is bound to {USER}");
    Ok(granted)
}

fn rights_of(rule: &Value, namespace: &str) -> Vec<Right> {
    let list = |name: &str| -> Vec<String> {
        let values = rule[name].as_array().into_iter().flatten();
        values
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let mut rights = Vec::new();
    for group in list("apiGroups") {
        for resource in list("resources") {
            rights.extend(list("verbs").into_iter().map(|verb| Right {
                namespace: namespace.to_owned(),
                group: group.clone(),
                resource: resource.clone(),
                verb,
            }));
        }
    }
    rights
}

/// What the operator did, by what and where; true where all of it was refused.
///
/// # Errors
/// A log can't be read.
pub fn used(dir: &Path) -> anyhow::Result<BTreeMap<Right, bool>> {
    let mut used = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if !path.to_string_lossy().ends_with(AUDIT) {
            continue;
        }
        for line in BufReader::new(File::open(&path)?).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if !line.contains(USER_AGENT) {
                continue;
            }
            // The last line of a server that was killed may be half written.
            let Ok(event) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            for (right, refused) in of_event(&event) {
                let all_refused = used.entry(right).or_insert(true);
                *all_refused &= refused;
            }
        }
    }
    Ok(used)
}

/// What an event shows, and whether it was refused. A patch that makes an object needs the right to create it, too.
fn of_event(event: &Value) -> Vec<(Right, bool)> {
    let Some((right, refused)) = request(event) else {
        return Vec::new();
    };
    let made = event["responseStatus"]["code"] == 201;
    let creates = (right.verb == "patch" && made).then(|| Right {
        verb: "create".to_owned(),
        ..right.clone()
    });
    let mut used = vec![(right, refused)];
    used.extend(creates.map(|right| (right, false)));
    used
}

fn request(event: &Value) -> Option<(Right, bool)> {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str);
    let user = text("/impersonatedUser/username").or_else(|| text("/user/username"))?;
    if ![USER, USER_OF_RELEASE].contains(&user) || !text("/userAgent")?.starts_with(USER_AGENT) {
        return None;
    }
    let resource = text("/objectRef/resource")?;
    let resource = text("/objectRef/subresource").map_or_else(
        || resource.to_owned(),
        |subresource| format!("{resource}/{subresource}"),
    );
    let right = Right {
        namespace: text("/objectRef/namespace").unwrap_or_default().to_owned(),
        group: text("/objectRef/apiGroup").unwrap_or_default().to_owned(),
        resource,
        verb: text("/verb")?.to_owned(),
    };
    let decision = event.pointer("/annotations/authorization.k8s.io~1decision");
    Some((right, decision.and_then(Value::as_str) == Some("forbid")))
}

/// Every difference between what was granted and what was used, as a sentence.
pub fn differences(granted: &BTreeSet<Right>, used: &BTreeMap<Right, bool>) -> Vec<String> {
    let covers = |granted: &Right, used: &Right| {
        let everywhere = granted.namespace.is_empty();
        (everywhere || granted.namespace == used.namespace)
            && (&granted.group, &granted.resource, &granted.verb)
                == (&used.group, &used.resource, &used.verb)
    };
    let mut differences = Vec::new();
    for right in granted {
        let was_used = |(other, refused): (&Right, &bool)| covers(right, other) && !refused;
        if !used.iter().any(was_used) {
            differences.push(format!("granted and never used: {right}"));
        }
    }
    for (right, refused) in used {
        if *refused {
            differences.push(format!("wanted and refused: {right}"));
        } else if !granted.iter().any(|other| covers(other, right)) {
            differences.push(format!("used and not granted by the chart: {right}"));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: &str = "
kind: ClusterRole
metadata: {name: all}
rules: [{apiGroups: [''], resources: [secrets, pods], verbs: [get]}]
---
kind: ClusterRole
metadata: {name: other}
rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]
---
kind: Role
metadata: {name: own, namespace: fanout-system}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [update]}]
---
kind: ClusterRoleBinding
roleRef: {kind: ClusterRole, name: all}
subjects: [{kind: ServiceAccount, name: fanout-operator, namespace: fanout-system}]
---
kind: ClusterRoleBinding
roleRef: {kind: ClusterRole, name: other}
subjects: [{kind: ServiceAccount, name: somebody, namespace: fanout-system}]
---
kind: RoleBinding
metadata: {namespace: fanout-system}
roleRef: {kind: Role, name: own}
subjects: [{kind: ServiceAccount, name: fanout-operator, namespace: fanout-system}]
";

    fn right(text: &str) -> Right {
        let words: Vec<&str> = text.split(' ').collect();
        let word = |at: usize| words[at].trim_matches('-').to_owned();
        Right {
            namespace: word(0),
            group: word(1),
            resource: word(2),
            verb: word(3),
        }
    }

    fn event(verb: &str, resource: &str, namespace: &str, decision: &str) -> Value {
        serde_json::json!({
            "verb": verb, "userAgent": "fanout-operator/0.1.0", "user": {"username": USER},
            "objectRef": {"resource": resource, "namespace": namespace},
            "annotations": {"authorization.k8s.io/decision": decision},
        })
    }

    #[test]
    fn the_rights_are_those_of_the_roles_bound_to_the_operator() {
        let expected = [
            "- - pods get",
            "- - secrets get",
            "fanout-system coordination.k8s.io leases update",
        ];
        assert_eq!(
            granted(ROLES).unwrap(),
            expected.into_iter().map(right).collect()
        );
    }

    #[test]
    fn what_is_used_and_what_is_granted_must_be_the_same() {
        let granted = granted(ROLES).unwrap();
        let events = [
            event("get", "secrets", "social", "allow"),
            event("get", "secrets", "social", "forbid"),
            event("list", "secrets", "social", "allow"),
            event("delete", "pods", "social", "forbid"),
        ];
        let mut used = BTreeMap::new();
        for (right, refused) in events.iter().flat_map(of_event) {
            *used.entry(right).or_insert(true) &= refused;
        }
        let expected = [
            "granted and never used: get pods.",
            "granted and never used: update leases.coordination.k8s.io in fanout-system",
            "wanted and refused: delete pods. in social",
            "used and not granted by the chart: list secrets. in social",
        ];
        let mut found = differences(&granted, &used);
        found.sort_by_key(|it| expected.iter().position(|other| other == it));
        assert_eq!(found, expected);
    }

    #[test]
    fn what_others_did_is_not_counted() {
        let mut other = event("get", "pods", "social", "allow");
        other["userAgent"] = "kubectl".into();
        assert_eq!(of_event(&other), []);
        let mut other = event("get", "pods", "social", "allow");
        other["user"]["username"] = "admin".into();
        assert_eq!(of_event(&other), []);
    }

    #[test]
    fn an_apply_that_makes_the_object_uses_two_rights() {
        let mut apply = event("patch", "secrets", "social", "allow");
        let verbs = |event: &Value| {
            let used = of_event(event).into_iter();
            used.map(|(right, _)| right.verb).collect::<Vec<_>>()
        };
        assert_eq!(verbs(&apply), ["patch"]);
        apply["responseStatus"] = serde_json::json!({"code": 201});
        assert_eq!(verbs(&apply), ["patch", "create"]);
    }
}
