//! A worker's Deployment: restricted, read-only, one volume, no token, no environment but the pod's name.

use super::objects::{labels, metadata, selector, some};
use super::{Role, Worker};
use fanout_contract::names;
use fanout_crds::pod::Resources;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, ContainerPort, EnvVar, EnvVarSource,
    HTTPGetAction, LocalObjectReference, ObjectFieldSelector, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, ProjectedVolumeSource, ResourceRequirements, SeccompProfile,
    SecretProjection, SecurityContext, TopologySpreadConstraint, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;
use std::collections::BTreeMap;

/// Numeric id of the user that the images run as.
const USER: i64 = 65_532;
const PORT_NAME: &str = "admin";
const VOLUME: &str = "config";

/// How long a pod may take to drain, seconds: longer than a worker's own budget, after which it leaves by itself.
const GRACE_SECONDS: i64 = 60;

pub(super) fn deployment(worker: &Worker<'_>) -> Deployment {
    Deployment {
        metadata: metadata(worker),
        spec: Some(DeploymentSpec {
            replicas: Some(worker.replicas),
            revision_history_limit: Some(2),
            selector: LabelSelector {
                match_labels: Some(selector(worker)),
                ..LabelSelector::default()
            },
            // A new worker joins (the leases, the groups) before an old one leaves.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels(worker)),
                    annotations: some(worker.pod.annotations.clone()),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(worker)),
            },
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn pod_labels(worker: &Worker<'_>) -> BTreeMap<String, String> {
    let mut all = worker.pod.labels.clone();
    all.extend(labels(worker));
    all
}

fn pod(worker: &Worker<'_>) -> PodSpec {
    let pod = worker.pod;
    PodSpec {
        service_account_name: Some(worker.name.clone()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            // The projected files are readable by this group alone.
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(worker)],
        volumes: Some(vec![volume(worker)]),
        node_selector: some(pod.node_selector.clone()),
        tolerations: Some(pod.tolerations.clone()).filter(|list| !list.is_empty()),
        topology_spread_constraints: Some(spread(worker)).filter(|list| !list.is_empty()),
        priority_class_name: pod.priority_class_name.clone(),
        image_pull_secrets: Some(
            pod.image_pull_secrets
                .iter()
                .map(|secret| LocalObjectReference {
                    name: secret.name.clone(),
                })
                .collect::<Vec<_>>(),
        )
        .filter(|list| !list.is_empty()),
        ..PodSpec::default()
    }
}

/// The user's constraints over the pods of this Deployment, whatever selector they carry.
fn spread(worker: &Worker<'_>) -> Vec<TopologySpreadConstraint> {
    worker
        .pod
        .topology_spread_constraints
        .iter()
        .map(|constraint| TopologySpreadConstraint {
            label_selector: Some(LabelSelector {
                match_labels: Some(selector(worker)),
                ..LabelSelector::default()
            }),
            match_label_keys: None,
            ..constraint.clone()
        })
        .collect()
}

fn container(worker: &Worker<'_>) -> Container {
    Container {
        name: worker.role.application().to_owned(),
        image: Some(worker.settings.worker_image.clone()),
        image_pull_policy: worker.settings.image_pull_policy.clone(),
        // One image holds all binaries.
        command: Some(vec![format!("/{}", worker.role.application())]),
        args: Some(vec![
            format!("--config-dir={}", names::CONFIG_DIR),
            "--instance=$(POD_NAME)".to_owned(),
            format!("--admin-addr=0.0.0.0:{}", names::ADMIN_PORT),
        ]),
        // The only way to learn the pod's name; nothing secret is ever in the environment.
        env: Some(vec![EnvVar {
            name: "POD_NAME".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: "metadata.name".to_owned(),
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        ports: Some(vec![ContainerPort {
            name: Some(PORT_NAME.to_owned()),
            container_port: i32::from(names::ADMIN_PORT),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(resources(worker)),
        // Workers report broken peers on /status and stay up: liveness is about the process alone.
        liveness_probe: Some(probe("/livez", 10, 6)),
        readiness_probe: Some(probe("/readyz", 2, 2)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![VolumeMount {
            name: VOLUME.to_owned(),
            mount_path: names::CONFIG_DIR.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    }
}

/// One volume, so that one change of the link `..data` shows configuration and secrets of one generation.
fn volume(worker: &Worker<'_>) -> Volume {
    Volume {
        name: VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(vec![
                VolumeProjection {
                    config_map: Some(ConfigMapProjection {
                        name: worker.name.clone(),
                        ..ConfigMapProjection::default()
                    }),
                    ..VolumeProjection::default()
                },
                VolumeProjection {
                    secret: Some(SecretProjection {
                        name: worker.name.clone(),
                        ..SecretProjection::default()
                    }),
                    ..VolumeProjection::default()
                },
            ]),
        }),
        ..Volume::default()
    }
}

fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(PORT_NAME.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(5),
        failure_threshold: Some(failure_threshold),
        ..Probe::default()
    }
}

fn resources(worker: &Worker<'_>) -> ResourceRequirements {
    let chosen = worker
        .pod
        .resources
        .clone()
        .unwrap_or_else(|| default_resources(worker.role));
    ResourceRequirements {
        requests: some(chosen.requests),
        limits: some(chosen.limits),
        ..ResourceRequirements::default()
    }
}

/// Requests that fit a small topic. Memory is limited, so that one worker can't take a node down; CPU is not, because a
/// throttled worker looks like a slow one.
fn default_resources(role: Role) -> Resources {
    let (request, limit) = match role {
        Role::Relay => ("64Mi", "512Mi"),
        Role::Consumers => ("128Mi", "1Gi"),
    };
    let quantity = |text: &str| Quantity(text.to_owned());
    Resources {
        requests: BTreeMap::from([
            ("cpu".to_owned(), quantity("50m")),
            ("memory".to_owned(), quantity(request)),
        ]),
        limits: BTreeMap::from([("memory".to_owned(), quantity(limit))]),
    }
}
