//! Pod settings that a namespace's user may choose: an allow-list, never image, volumes, service account or host settings.

use k8s_openapi::api::core::v1::{Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Settings of the worker pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Resources of the worker's container. Absent: the operator's defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Labels a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tolerations")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub tolerations: Vec<Toleration>,
    /// How the pods of one Deployment spread over nodes and zones. The operator adds the label selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "spread_constraints")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["topologyKey".into(), "whenUnsatisfiable".into()]))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// PriorityClass of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Labels added to the pods. Keys under `fanout.dev/` and `app.kubernetes.io/` belong to the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('fanout.dev/') && !key.startsWith('app.kubernetes.io/'))").message("labels must not use the prefixes fanout.dev/ and app.kubernetes.io/"))]
    pub labels: BTreeMap<String, String>,
    /// Annotations added to the pods. Keys under `fanout.dev/` belong to the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotation_map")]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('fanout.dev/'))").message("annotations must not use the prefix fanout.dev/"))]
    pub annotations: BTreeMap<String, String>,
    /// Secrets with registry credentials, in the same namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub image_pull_secrets: Vec<PullSecretRef>,
    /// Annotations of the workers' ServiceAccount, for example those of a cloud's workload identity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotation_map")]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('fanout.dev/'))").message("serviceAccountAnnotations must not use the prefix fanout.dev/"))]
    pub service_account_annotations: BTreeMap<String, String>,
}

/// Resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What the scheduler reserves, for example `{cpu: 100m, memory: 128Mi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, Quantity>,
    /// What the container may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, Quantity>,
}

/// A Secret of type `kubernetes.io/dockerconfigjson` in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullSecretRef {
    /// Name of the Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub name: String,
}

/// Entries of a map, at most.
const MAP_MAX: usize = 32;

fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {
            "description": "A quantity, for example 100m, 1 or 128Mi.",
            "x-kubernetes-int-or-string": true,
            "maxLength": 32,
            "pattern": r"^[+]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$",
        },
    })
}

fn string_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAP_MAX,
        "additionalProperties": {
            "description": "A label value.",
            "type": "string",
            "maxLength": 63,
            "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
        },
    })
}

fn annotation_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAP_MAX,
        "additionalProperties": {
            "description": "An annotation value.",
            "type": "string",
            "maxLength": 4096,
        },
    })
}

fn tolerations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": {
            "description": "A taint the pods tolerate.",
            "type": "object",
            "properties": {
                "key": {
                    "description": "Key of the taint. Absent: every key, with operator Exists.",
                    "type": "string", "minLength": 1, "maxLength": 317,
                },
                "operator": {
                    "description": "Equal compares the value, Exists does not. Absent: Equal.",
                    "type": "string", "enum": ["Equal", "Exists"],
                },
                "value": {
                    "description": "Value of the taint, with operator Equal.",
                    "type": "string", "maxLength": 63,
                },
                "effect": {
                    "description": "Effect of the taint. Absent: every effect.",
                    "type": "string", "enum": ["NoExecute", "NoSchedule", "PreferNoSchedule"],
                },
                "tolerationSeconds": {
                    "description": "How long a NoExecute taint is tolerated, seconds. Absent: for ever.",
                    "type": "integer", "format": "int64", "minimum": 0, "maximum": 31_536_000,
                },
            },
            "x-kubernetes-validations": [{
                "rule": "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
                "message": "operator must be Exists when key is absent",
            }],
        },
    })
}

fn spread_constraints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 8,
        "items": {
            "description": "One constraint.",
            "type": "object",
            "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"],
            "properties": {
                "maxSkew": {
                    "description": "Largest allowed difference in the number of pods between two domains.",
                    "type": "integer", "format": "int32", "minimum": 1, "maximum": 100,
                },
                "topologyKey": {
                    "description": "Node label whose values are the domains, for example topology.kubernetes.io/zone.",
                    "type": "string", "minLength": 1, "maxLength": 317,
                },
                "whenUnsatisfiable": {
                    "description": "DoNotSchedule leaves a pod pending, ScheduleAnyway places it all the same.",
                    "type": "string", "enum": ["DoNotSchedule", "ScheduleAnyway"],
                },
                "minDomains": {
                    "description": "Fewer domains than this count as unbalanced; with DoNotSchedule only.",
                    "type": "integer", "format": "int32", "minimum": 1, "maximum": 100,
                },
                "nodeAffinityPolicy": {
                    "description": "Whether nodes that nodeSelector excludes are left out of the count. Absent: Honor.",
                    "type": "string", "enum": ["Honor", "Ignore"],
                },
                "nodeTaintsPolicy": {
                    "description": "Whether nodes with taints the pods do not tolerate are left out of the count. Absent: Ignore.",
                    "type": "string", "enum": ["Honor", "Ignore"],
                },
            },
        },
    })
}
