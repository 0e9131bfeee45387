//! The chart renders what Kubernetes accepts, refuses values it does not know, and agrees with what lies in manifests/.

mod helms;
mod installed;

use clap::Parser as _;
use fanout_tests::services::{dirs, run};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// A value for every leaf of values.yaml that is not its default.
const CHANGED: &[(&str, &str)] = &[
    ("image.registry", r#""registry.example.com:5000""#),
    ("image.repository", r#""platform/fanout""#),
    ("image.tag", r#""9.9.9""#),
    (
        "image.digest",
        r#""sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef""#,
    ),
    ("image.pullPolicy", r#""Always""#),
    ("imagePullSecrets", r#"[{"name": "registry"}]"#),
    ("replicas", "2"),
    ("crds.install", "false"),
    ("crds.keep", "false"),
    ("kafka.prefix", r#""prod.""#),
    ("egress.allowedCIDRs", r#"["10.96.0.0/12", "fd00::/8"]"#),
    ("deletion.deadlineSeconds", "60"),
    ("log.format", r#""text""#),
    ("log.filter", r#""fanout_operator=debug,info""#),
    ("resources.requests.cpu", r#""1""#),
    ("resources.requests.memory", r#""128Mi""#),
    ("resources.limits.memory", r#""512Mi""#),
    ("nodeSelector", r#"{"kubernetes.io/os": "linux"}"#),
    (
        "tolerations",
        r#"[{"key": "dedicated", "operator": "Exists"}]"#,
    ),
    (
        "affinity",
        r#"{"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm":
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "fanout-operator"}}}}]}}"#,
    ),
    (
        "topologySpreadConstraints",
        r#"[{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}]"#,
    ),
    ("priorityClassName", r#""system-cluster-critical""#),
    ("podLabels", r#"{"team": "platform"}"#),
    ("podAnnotations", r#"{"example.com/owner": "platform"}"#),
    ("podDisruptionBudget.enabled", "true"),
    ("rbac.aggregateClusterRoles", "false"),
];

/// Values whose keys are the user's.
const FREE: &[&str] = &[
    "resources.requests",
    "resources.limits",
    "nodeSelector",
    "affinity",
    "podLabels",
    "podAnnotations",
];

#[test]
fn every_value_is_known_to_the_schema_and_changes_what_is_rendered() {
    let values: Value = serde_yaml::from_str(&read("charts/fanout-operator/values.yaml")).unwrap();
    let mut leaves = BTreeSet::new();
    leaf_paths("", &values, &mut leaves);
    let changed: BTreeSet<String> = CHANGED.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(
        changed, leaves,
        "this test changes every value of values.yaml"
    );

    let default = template(&[]).unwrap();
    for (path, value) in CHANGED {
        let rendered = template(&[&format!("{path}={value}")])
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_ne!(rendered, default, "{path} changes nothing");
    }
}

#[test]
fn unknown_and_impossible_values_are_refused() {
    for (set, named) in [
        ("replica=2", "replica"),
        ("image.name=\"x\"", "name"),
        ("crds.upgrade=true", "upgrade"),
        ("egress.refusedCIDRs=[]", "refusedCIDRs"),
        ("log.level=\"info\"", "level"),
        ("kafka.topic=\"x\"", "topic"),
        ("resources.claims=[]", "claims"),
        ("imagePullSecrets=[\"registry\"]", "imagePullSecrets"),
        ("replicas=-1", "replicas"),
        ("log.format=\"logfmt\"", "format"),
        ("image.pullPolicy=\"Sometimes\"", "pullPolicy"),
        ("image.digest=\"sha256:short\"", "digest"),
        ("egress.allowedCIDRs=[\"everything\"]", "allowedCIDRs"),
        ("kafka.prefix=\"a b\"", "prefix"),
        ("deletion.deadlineSeconds=0", "deadlineSeconds"),
    ] {
        let error = template(&[set]).expect_err(set).to_string();
        assert!(
            error.contains(named) && error.contains("schema"),
            "{set}: {error}"
        );
    }
}

#[test]
fn an_unknown_value_is_refused_wherever_it_stands() {
    let values: Value = serde_yaml::from_str(&read("charts/fanout-operator/values.yaml")).unwrap();
    let mut places = Vec::new();
    object_paths("", &values, &mut places);
    assert!(places.len() > 8, "{places:?}");
    for place in places {
        let error = template(&[&format!("{place}notThere=1")])
            .expect_err(&place)
            .to_string();
        assert!(
            error.contains("notThere") && error.contains("schema"),
            "{place}: {error}"
        );
    }
}

#[test]
fn every_rendered_object_is_of_its_kind_and_of_nothing_else() {
    let all = all_changed();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    // Changed values add a PodDisruptionBudget and leave the two roles for users out.
    for (values, expected) in [(&[][..], 13), (&all, 12)] {
        let objects = documents(&template(values).unwrap());
        for object in &objects {
            match object["kind"].as_str().unwrap() {
                "CustomResourceDefinition" => same::<CustomResourceDefinition>(object),
                "ServiceAccount" => same::<ServiceAccount>(object),
                "ClusterRole" => same::<ClusterRole>(object),
                "ClusterRoleBinding" => same::<ClusterRoleBinding>(object),
                "Role" => same::<Role>(object),
                "RoleBinding" => same::<RoleBinding>(object),
                "Deployment" => same::<Deployment>(object),
                "PodDisruptionBudget" => same::<PodDisruptionBudget>(object),
                "Pod" => same::<Pod>(object),
                kind => panic!("a new kind, {kind}: add it here"),
            }
            let name = &object["metadata"]["labels"]["app.kubernetes.io/name"];
            let expected = match object["kind"].as_str() {
                Some("Pod") => "fanout-operator-check",
                _ => "fanout-operator",
            };
            assert_eq!(name, expected, "{object}");
        }
        assert_eq!(objects.len(), expected);
    }
}

#[test]
fn the_crds_are_those_of_the_types_and_stay_at_uninstall() {
    for keep in [true, false] {
        let objects = documents(&template(&[&format!("crds.keep={keep}")]).unwrap());
        let crds: Vec<CustomResourceDefinition> = of_kind(&objects, "CustomResourceDefinition");
        let expected = fanout_crds::crds();
        assert_eq!(crds.len(), expected.len());
        for (mut found, expected) in crds.into_iter().zip(expected) {
            let policy = found
                .metadata
                .annotations
                .take()
                .and_then(|mut all| all.remove("helm.sh/resource-policy"));
            assert_eq!(policy.as_deref(), keep.then_some("keep"));
            found.metadata.labels = None;
            assert_eq!(found, expected);
        }
    }
    let objects = documents(&template(&["crds.install=false"]).unwrap());
    assert!(
        objects
            .iter()
            .all(|object| object["kind"] != "CustomResourceDefinition")
    );
}

#[test]
fn generated_files_are_up_to_date() {
    let fresh = dirs::private("manifests", 0o700).unwrap();
    run(Command::new("bash")
        .arg(repository().join("crds/generate.sh"))
        .arg(&fresh))
    .unwrap();
    let mut pairs: Vec<(PathBuf, PathBuf)> = ["crds.yaml", "install.yaml"]
        .iter()
        .map(|name| (fresh.join(name), repository().join("manifests").join(name)))
        .collect();
    for name in ["fanouttopics.yaml", "subscriptions.yaml"] {
        let copy = repository()
            .join("charts/fanout-operator/files/crds")
            .join(name);
        pairs.push((repository().join("crds").join(name), copy));
    }
    let installed = documents(&read("manifests/install.yaml"));
    assert!(
        installed.iter().all(|object| object["kind"] != "Pod"),
        "Helm alone runs its test pod"
    );
    for (source, generated) in pairs {
        let [source, found] =
            [&source, &generated].map(|file| std::fs::read_to_string(file).unwrap_or_default());
        assert!(
            source == found,
            "{} is out of date: run `make generate`",
            generated.display()
        );
    }
}

#[test]
fn the_digest_wins_over_the_tag_and_workers_run_the_same_image() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (values, expected) in [
        (vec![], "fanout-operator:0.1.0".to_owned()),
        (
            vec!["image.tag=\"1.2.3\"".to_owned()],
            "fanout-operator:1.2.3".to_owned(),
        ),
        (
            vec![
                "image.registry=\"registry.example.com\"".to_owned(),
                "image.tag=\"1.2.3\"".to_owned(),
                format!("image.digest=\"{digest}\""),
            ],
            format!("registry.example.com/fanout-operator@{digest}"),
        ),
    ] {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let container = container(&documents(&template(&values).unwrap()));
        assert_eq!(container["image"], json!(expected));
        let workers = format!("--worker-image={expected}");
        assert!(
            container["args"]
                .as_array()
                .unwrap()
                .contains(&json!(workers)),
            "{container}"
        );
    }
}

#[test]
fn the_operator_understands_its_arguments() {
    let values = [
        "kafka.prefix=\"prod.\"",
        "egress.allowedCIDRs=[\"10.96.0.0/12\", \"fd00::/8\"]",
        "deletion.deadlineSeconds=86400",
        "log.format=\"text\"",
    ];
    let container = container(&documents(&template(&values).unwrap()));
    let arguments = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str);
    // What the kubelet puts in from the container's environment.
    let arguments = arguments.map(|text| {
        text.replace("$(POD_NAMESPACE)", "system")
            .replace("$(POD_NAME)", "operator-0")
    });
    let command = container["command"][0].as_str().unwrap().to_owned();
    let args =
        fanout_operator::args::Args::try_parse_from(std::iter::once(command).chain(arguments))
            .unwrap();
    assert_eq!(
        (args.namespace.as_str(), args.instance.as_str()),
        ("system", "operator-0")
    );
    assert_eq!(args.kafka_prefix, "prod.");
    assert_eq!(args.deletion_deadline_seconds, 86_400);
    assert_eq!(args.egress_allowed_cidrs.len(), 2);
    assert_eq!(args.worker_image, container["image"]);
    let port = container["ports"][0]["containerPort"].as_u64().unwrap();
    assert_eq!(u64::from(args.admin_addr.port()), port);
    assert_eq!(
        args.lease_name, "fanout-operator",
        "the one that its Role names"
    );
}

/// Decodes into `K`, and fails when `K` does not know all of it.
fn same<K: DeserializeOwned + Serialize>(object: &Value) {
    let typed: K =
        serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}\n{object}"));
    let back = serde_json::to_value(typed).unwrap();
    let mut lost = Vec::new();
    difference("", object, &back, &mut lost);
    assert!(
        lost.is_empty(),
        "{} {}: not of its kind: {lost:?}",
        object["kind"],
        object["metadata"]["name"]
    );
}

/// Paths of `object` that `typed` lacks. A CRD's bounds come back as floating point.
fn difference(path: &str, object: &Value, typed: &Value, lost: &mut Vec<String>) {
    match (object, typed) {
        (Value::Object(object), Value::Object(typed)) => {
            for (key, value) in object {
                difference(
                    &format!("{path}.{key}"),
                    value,
                    typed.get(key).unwrap_or(&Value::Null),
                    lost,
                );
            }
        }
        (Value::Array(object), Value::Array(typed)) if object.len() == typed.len() => {
            for (index, (value, typed)) in object.iter().zip(typed).enumerate() {
                difference(&format!("{path}[{index}]"), value, typed, lost);
            }
        }
        (Value::Number(_), Value::Number(_)) if object.as_f64() == typed.as_f64() => {}
        // Empty is the same as absent.
        (Value::Array(object), Value::Null) if object.is_empty() => {}
        _ if object == typed => {}
        _ => lost.push(path.to_owned()),
    }
}

fn leaf_paths(path: &str, value: &Value, leaves: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(map) if !map.is_empty() => {
            for (key, child) in map {
                let below = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                leaf_paths(&below, child, leaves);
            }
        }
        _ => {
            leaves.insert(path.to_owned());
        }
    }
}

/// Prefixes of the values below each object whose keys the schema knows.
fn object_paths(path: &str, value: &Value, places: &mut Vec<String>) {
    let Some(map) = value.as_object().filter(|_| !FREE.contains(&path)) else {
        return;
    };
    let prefix = if path.is_empty() {
        String::new()
    } else {
        format!("{path}.")
    };
    for (key, child) in map {
        object_paths(&format!("{prefix}{key}"), child, places);
    }
    places.push(prefix);
}

/// Every changed value at once, but the CRDs stay.
fn all_changed() -> Vec<String> {
    CHANGED
        .iter()
        .filter(|(path, _)| !path.starts_with("crds."))
        .map(|(path, value)| format!("{path}={value}"))
        .collect()
}

fn container(objects: &[Value]) -> Value {
    let deployments: Vec<Deployment> = of_kind(objects, "Deployment");
    serde_json::to_value(&deployments[0]).unwrap()["spec"]["template"]["spec"]["containers"][0]
        .take()
}

fn of_kind<K: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<K> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .map(|object| serde_json::from_value(object.clone()).unwrap())
        .collect()
}

/// Renders the chart with `values` (`path=JSON`).
fn template(values: &[&str]) -> anyhow::Result<String> {
    let options: Vec<&str> = values
        .iter()
        .flat_map(|value| ["--set-json", value])
        .collect();
    Helm::Current.template(&chart(), &options)
}

fn helm(arguments: &[&str]) -> anyhow::Result<String> {
    Helm::Current.run(arguments)
}

/// A version of Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Helm {
    /// The one that the project uses.
    Current,
    /// The oldest one that the chart supports.
    Old,
}

impl Helm {
    /// Renders a chart as the release `fanout-operator`.
    fn template(self, chart: &str, options: &[&str]) -> anyhow::Result<String> {
        // An old Helm takes a cluster to be as old as itself.
        let fixed = "--namespace fanout-system --kube-version 1.34.0";
        let arguments = ["template", "fanout-operator", chart];
        let fixed: Vec<&str> = fixed.split(' ').collect();
        self.run(&[&arguments[..], &fixed, options].concat())
    }

    fn run(self, arguments: &[&str]) -> anyhow::Result<String> {
        static CURRENT: LazyLock<Result<String, String>> = LazyLock::new(|| fetch(None));
        static OLD: LazyLock<Result<String, String>> = LazyLock::new(|| fetch(Some("old")));
        let program = match self {
            Self::Current => &*CURRENT,
            Self::Old => &*OLD,
        };
        let program = program
            .as_ref()
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        let home = dirs::private(&format!("helm-{self:?}"), 0o700)?;
        run(Command::new(program)
            .args(arguments)
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data")))
    }
}

/// Path of a Helm in the cache.
fn fetch(which: Option<&str>) -> Result<String, String> {
    run(Command::new("bash")
        .arg(dirs::tests_dir().join("cluster/helm.sh"))
        .args(which)
        .env("FANOUT_CACHE", dirs::cache()))
    .map(|path| path.trim().to_owned())
    .map_err(|error| error.to_string())
}

fn documents(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_yaml::from_multiple(text).expect("YAML");
    all.into_iter().filter(|object| !object.is_null()).collect()
}

fn chart() -> String {
    repository()
        .join("charts/fanout-operator")
        .display()
        .to_string()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn repository() -> &'static Path {
    dirs::tests_dir()
        .parent()
        .expect("tests lies in the repository")
}
