//! The one place that writes to the API server: server-side apply of typed objects, prune, and status.

mod compare;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Owner of every field the operator applies.
pub(crate) const FIELD_MANAGER: &str = "fanout-operator";
/// Owner of the status of both kinds.
pub(crate) const STATUS_MANAGER: &str = "fanout-operator/status";

/// Owner of what had to be recorded although the status as a whole could not be written.
const RECORD_MANAGER: &str = "fanout-operator/record";

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The API server refused, or can't be reached.
    #[error("{action} {kind} {name}")]
    Api {
        /// Verb.
        action: &'static str,
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// An object of that name exists and belongs to somebody else.
    #[error("{kind} {name} exists and does not belong to this FanoutTopic")]
    NameTaken {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
    },
    /// An object that can't be represented as JSON.
    #[error("encode {kind}")]
    Encode {
        /// Kind of the object.
        kind: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
}

/// A namespaced object that the operator creates.
pub(crate) trait Child:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
{
}

impl<K> Child for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug
{
}

fn failed<K: Resource<DynamicType = ()>>(
    action: &'static str,
    name: &str,
) -> impl FnOnce(kube::Error) -> ApplyError {
    move |source| ApplyError::Api {
        action,
        kind: K::kind(&()).into_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    }
}

fn encode<K: Resource<DynamicType = ()> + Serialize>(
    object: &K,
) -> Result<serde_json::Value, ApplyError> {
    serde_json::to_value(object).map_err(|source| ApplyError::Encode {
        kind: K::kind(&()).into_owned(),
        source,
    })
}

/// Makes the live object what `desired` says; writes only where they differ. `live` are the objects that carry our
/// labels. Returns true when it wrote.
pub(crate) async fn apply<K: Child>(
    client: &Client,
    desired: &K,
    live: &[K],
) -> Result<bool, ApplyError> {
    let name = desired.name_any();
    let api = api::<K>(client, desired);
    let found = match live.iter().find(|object| object.name_any() == name) {
        Some(object) => Some(object.clone()),
        // Not labelled as ours: it may still exist, and forcing our fields onto it would take it over.
        None => api
            .get_opt(&name)
            .await
            .map_err(failed::<K>("get", &name))?,
    };
    if let Some(found) = &found {
        if !same_owner(desired, found) {
            return Err(ApplyError::NameTaken {
                kind: K::kind(&()).into_owned(),
                name,
            });
        }
        if compare::converged(&encode(desired)?, &encode(found)?, FIELD_MANAGER) {
            return Ok(false);
        }
    }
    api.patch(
        &name,
        &PatchParams::apply(FIELD_MANAGER).force(),
        &Patch::Apply(desired),
    )
    .await
    .map_err(failed::<K>("apply", &name))?;
    tracing::info!(kind = %K::kind(&()), %name, created = found.is_none(), "object applied");
    Ok(true)
}

fn api<K: Child>(client: &Client, object: &K) -> Api<K> {
    Api::namespaced(client.clone(), &object.namespace().unwrap_or_default())
}

fn same_owner<K: Child>(desired: &K, found: &K) -> bool {
    desired.owner_references().iter().all(|owner| {
        found
            .owner_references()
            .iter()
            .any(|other| other.uid == owner.uid)
    })
}

/// Deletes those of `live` (all objects of one kind with our labels) that are not in `desired`.
pub(crate) async fn prune<K: Child>(
    client: &Client,
    desired: &[&K],
    live: &[K],
) -> Result<bool, ApplyError> {
    let mut wrote = false;
    for object in live {
        let name = object.name_any();
        if object.meta().deletion_timestamp.is_some()
            || desired.iter().any(|kept| kept.name_any() == name)
        {
            continue;
        }
        let parameters = DeleteParams {
            // Never a namesake that was created since we looked.
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        match api::<K>(client, object).delete(&name, &parameters).await {
            Ok(_) => {
                tracing::info!(kind = %K::kind(&()), %name, "object deleted");
                wrote = true;
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(failed::<K>("delete", &name)(error)),
        }
    }
    Ok(wrote)
}

/// Sets one annotation on an object that somebody else applies (a pod of a Deployment).
pub(crate) async fn annotate<K: Child>(
    client: &Client,
    object: &K,
    annotation: &str,
    value: &str,
) -> Result<(), ApplyError> {
    let name = object.name_any();
    let patch = serde_json::json!({"metadata": {
        // The patch is for this pod, not for one that took its name.
        "uid": object.uid(),
        "annotations": {annotation: value},
    }});
    match api::<K>(client, object)
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
    {
        Ok(_) => Ok(()),
        // Gone, or replaced by another of its name: nothing to tell it.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(failed::<K>("annotate", &name)(error)),
    }
}

/// Gives an object that somebody else applies (a worker's ConfigMap, while its FanoutTopic is being deleted) another file
/// and the hash that belongs to it. Creates nothing. False when the object is gone.
pub(crate) async fn configure(
    client: &Client,
    config_map: &ConfigMap,
    (file, text): (&str, &str),
    (annotation, hash): (&str, &str),
) -> Result<bool, ApplyError> {
    let patch = serde_json::json!({
        "metadata": {"annotations": {annotation: hash}},
        "data": {file: text},
    });
    merge(
        &api::<ConfigMap>(client, config_map),
        config_map.meta(),
        patch,
    )
    .await
    .map(|stored| stored.is_some())
}

/// Puts a finalizer on an object, or takes it off; writes only where that changes something. The metadata as it is stored
/// now, `None` when the object is gone.
pub(crate) async fn finalizer<K>(
    client: &Client,
    meta: &ObjectMeta,
    finalizer: &str,
    wanted: bool,
) -> Result<Option<ObjectMeta>, ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug,
{
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|found| found == finalizer) == wanted {
        return Ok(Some(meta.clone()));
    }
    finalizers.retain(|found| found != finalizer);
    if wanted {
        finalizers.push(finalizer.to_owned());
    }
    // The list is replaced as a whole, so it must be the one that was read.
    let patch = serde_json::json!({"metadata": {
        "resourceVersion": meta.resource_version,
        "finalizers": finalizers,
    }});
    let api: Api<K> = Api::namespaced(
        client.clone(),
        meta.namespace.as_deref().unwrap_or_default(),
    );
    merge(&api, meta, patch).await
}

/// Merges `patch` into the object that `meta` is of, and no namesake of it. The metadata as it is stored now, `None` when
/// the object is gone.
async fn merge<K>(
    api: &Api<K>,
    meta: &ObjectMeta,
    mut patch: serde_json::Value,
) -> Result<Option<ObjectMeta>, ApplyError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let name = meta.name.clone().unwrap_or_default();
    patch["metadata"]["uid"] = serde_json::json!(meta.uid);
    // The answer is metadata alone: an object that this version can't decode can be patched too.
    match api
        .patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
    {
        Ok(stored) => Ok(Some(stored.metadata)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(failed::<K>("patch", &name)(error)),
    }
}

/// Applies the whole status of an object that is no `K`, although it is called one.
pub(crate) async fn raw_status<K>(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    status: &serde_json::Value,
) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = ()>,
{
    let name = object.name_any();
    api.patch_status(
        &name,
        &PatchParams::apply(STATUS_MANAGER).force(),
        &Patch::Apply(status_patch::<K>(&name, object.meta(), status)),
    )
    .await
    .map_err(failed::<K>("write status of", &name))?;
    Ok(())
}

fn status_patch<K: Resource<DynamicType = ()>>(
    name: &str,
    meta: &ObjectMeta,
    status: &impl Serialize,
) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        // With the uid a namesake created in the meantime is refused instead of given this status.
        "metadata": {"name": name, "uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": status,
    })
}

/// Adds `part` to the status of `object`, whatever was written since. Never replaces what is recorded already: then the API
/// server refuses with a conflict. Nothing happens when the object is gone.
pub(crate) async fn record<K, S>(api: &Api<K>, object: &K, part: &S) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    S: Serialize,
{
    let name = object.name_any();
    let mut patch = status_patch::<K>(&name, object.meta(), part);
    if let Some(metadata) = patch["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    // Not by force, and as somebody else: a value that the status' owner has set otherwise is a conflict.
    match api
        .patch_status(
            &name,
            &PatchParams::apply(RECORD_MANAGER),
            &Patch::Apply(patch),
        )
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(failed::<K>("write status of", &name)(error)),
    }
}

/// Applies the whole status of `object`, whose API is `api`, and returns the object as it is stored now.
///
/// A status is made from the one before. Made from an older one (the cache is behind, or somebody else leads by now) it
/// would undo what was recorded since, so the API server is told which one it was made from, and refuses with a conflict.
pub(crate) async fn status<K, S>(api: &Api<K>, object: &K, status: &S) -> Result<K, ApplyError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    S: Serialize,
{
    let name = object.name_any();
    api.patch_status(
        &name,
        &PatchParams::apply(STATUS_MANAGER).force(),
        &Patch::Apply(status_patch::<K>(&name, object.meta(), status)),
    )
    .await
    .map_err(failed::<K>("write status of", &name))
}
