//! A worker's objects: ServiceAccount, Secret and ConfigMap; the Deployment is in its own file.

use super::{Worker, WorkerObjects, deployment};
use fanout_contract::names;
use fanout_runtime::config;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::ObjectMeta;
use std::collections::BTreeMap;

pub(super) fn objects(worker: &Worker<'_>) -> WorkerObjects {
    let hash = config::hash(&worker.files);
    let (config_file, secret_files): (BTreeMap<_, _>, BTreeMap<_, _>) = worker
        .files
        .clone()
        .into_iter()
        .partition(|(name, _)| name == names::CONFIG_FILE);
    WorkerObjects {
        name: worker.name.clone(),
        service_account: ServiceAccount {
            metadata: ObjectMeta {
                annotations: some(worker.pod.service_account_annotations.clone()),
                ..metadata(worker)
            },
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        },
        secret: Secret {
            metadata: metadata(worker),
            data: Some(
                secret_files
                    .into_iter()
                    .map(|(name, value)| (name, ByteString(value)))
                    .collect(),
            ),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        },
        config_map: ConfigMap {
            metadata: ObjectMeta {
                // What the pods must report. Not on the Deployment, whose generation counts annotations too.
                annotations: Some(BTreeMap::from([(
                    names::CONFIG_ANNOTATION.to_owned(),
                    hash.clone(),
                )])),
                ..metadata(worker)
            },
            data: Some(
                config_file
                    .into_iter()
                    .map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned()))
                    .collect(),
            ),
            ..ConfigMap::default()
        },
        deployment: deployment::deployment(worker),
        hash,
    }
}

pub(super) fn metadata(worker: &Worker<'_>) -> ObjectMeta {
    ObjectMeta {
        name: Some(worker.name.clone()),
        namespace: Some(worker.topic.namespace.clone()),
        labels: Some(labels(worker)),
        owner_references: Some(vec![worker.topic.owner.clone()]),
        ..ObjectMeta::default()
    }
}

pub(super) fn labels(worker: &Worker<'_>) -> BTreeMap<String, String> {
    let mut labels = selector(worker);
    labels.insert(
        "app.kubernetes.io/name".to_owned(),
        worker.role.application().to_owned(),
    );
    labels.insert(
        "app.kubernetes.io/managed-by".to_owned(),
        "fanout-operator".to_owned(),
    );
    labels
}

/// Never changes for a worker: a Deployment's selector is immutable.
pub(super) fn selector(worker: &Worker<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::TOPIC_LABEL.to_owned(), worker.topic.name.clone()),
        (names::WORKER_LABEL.to_owned(), worker.name.clone()),
    ])
}

/// Empty maps are left out: the server does not store them.
pub(super) fn some<K: Ord, V>(map: BTreeMap<K, V>) -> Option<BTreeMap<K, V>> {
    Some(map).filter(|map| !map.is_empty())
}
