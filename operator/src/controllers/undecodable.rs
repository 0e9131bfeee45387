//! Objects that this version can't decode: says so on their status, and leaves everything else as it is.
//!
//! What was made from such an object before goes on: nobody asked for its end. Its position in Kafka is kept by that, and
//! what its status holds is written back unread.

use super::conditions::{self, Finding};
use super::error::Error;
use super::events;
use crate::apply;
use crate::context::{Context, safety_net};
use fanout_crds::condition::{READY, RECONCILING, STALLED, reason};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta};
use kube::runtime::controller::Action;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Says on the status of the object with `metadata` that it is no `K`.
pub(crate) async fn tell<K>(ctx: &Context, metadata: &ObjectMeta) -> Result<Action, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned,
{
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let terminating = ctx.is_terminating(namespace).await;
    if metadata.deletion_timestamp.is_some()
        || terminating.map_err(Error::reading("the namespace"))?
    {
        return Ok(Action::await_change());
    }
    let api: Api<DynamicObject> =
        Api::namespaced_with(ctx.client.clone(), namespace, &ApiResource::erase::<K>(&()));
    let name = metadata.name.as_deref().unwrap_or_default();
    let found = api
        .get_opt(name)
        .await
        .map_err(Error::reading("the object"))?;
    // Gone, or mended since: the watch brings it.
    let Some((object, message)) = found.and_then(|object| {
        let message = complaint::<K>(&object)?;
        Some((object, message))
    }) else {
        return Ok(Action::await_change());
    };
    let before = object.data.get("status").cloned().unwrap_or_default();
    let (old, status) = next(before.clone(), object.metadata.generation, &message);
    if Value::Object(status.clone()) != before {
        apply::raw_status::<K>(&api, &object, &Value::Object(status.clone())).await?;
        events::publish_about::<K>(ctx, &object, &old, &conditions_of(&status)).await;
    }
    Ok(safety_net())
}

/// What is wrong with the object, with the field; `None` where it is a `K`. Field names only: values may be anything.
fn complaint<K: DeserializeOwned>(object: &DynamicObject) -> Option<String> {
    let whole = serde_json::to_value(object).ok()?;
    let field = match serde_path_to_error::deserialize::<_, K>(whole) {
        Ok(_) => return None,
        Err(error) => error.path().to_string(),
    };
    let field = if field == "." { "spec" } else { &field };
    let field: String = field.chars().take(256).collect();
    Some(format!(
        "{field}: this version of the operator can't decode the value; correct it, or install the version it was written for; what was configured before goes on unchanged"
    ))
}

/// The conditions before, and the status with those that change.
fn next(
    before: Value,
    generation: Option<i64>,
    message: &str,
) -> (Vec<Condition>, Map<String, Value>) {
    let mut status = match before {
        Value::Object(status) => status,
        _ => Map::new(),
    };
    let old = conditions_of(&status);
    let generation = generation.unwrap_or_default();
    let mut all = conditions::merge(
        &old,
        generation,
        Timestamp::now(),
        vec![
            (READY, Finding::no(reason::SPEC_INVALID, message)),
            (RECONCILING, Finding::no(reason::SUCCEEDED, "")),
            (STALLED, Finding::yes(reason::SPEC_INVALID, message)),
        ],
    );
    let others = old
        .iter()
        .filter(|condition| ![READY, RECONCILING, STALLED].contains(&&*condition.type_));
    all.extend(others.cloned());
    status.insert("observedGeneration".to_owned(), generation.into());
    if let Ok(all) = serde_json::to_value(all) {
        status.insert("conditions".to_owned(), all);
    }
    (old, status)
}

fn conditions_of(status: &Map<String, Value>) -> Vec<Condition> {
    let conditions = status.get("conditions").cloned().unwrap_or_default();
    serde_json::from_value(conditions).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_crds::Subscription;
    use serde_json::json;

    fn object(isolation: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "fanout.dev/v1alpha1",
            "kind": "Subscription",
            "metadata": {"name": "search", "namespace": "social", "generation": 2},
            "spec": {
                "topicRef": {"name": "posts"},
                "sink": {"webhook": {"url": "https://search.example"}},
                "isolation": isolation,
            },
            "status": {"groupId": "social.search", "positions": [{"partition": 0, "offset": 7}], "conditions": [{
                "type": "SinkAccepted", "status": "True", "reason": "Succeeded", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn the_field_is_named_and_no_value() {
        assert_eq!(complaint::<Subscription>(&object("Auto")), None);
        let message = complaint::<Subscription>(&object("s3cret")).unwrap();
        assert!(message.starts_with("spec.isolation: "), "{message}");
        assert!(!message.contains("s3cret"), "{message}");
    }

    #[test]
    fn what_the_status_holds_is_kept() {
        let before = object("Newer").data["status"].clone();
        let (_, status) = next(before, Some(2), "spec.isolation: …");
        assert_eq!(status["groupId"], "social.search");
        assert_eq!(status["positions"][0]["offset"], 7);
        let all = conditions_of(&status);
        let found: Vec<(&str, &str, &str)> = all
            .iter()
            .map(|it| (&*it.type_, &*it.status, &*it.reason))
            .collect();
        assert_eq!(
            found,
            [
                (READY, "False", reason::SPEC_INVALID),
                (RECONCILING, "False", reason::SUCCEEDED),
                (STALLED, "True", reason::SPEC_INVALID),
                ("SinkAccepted", "True", "Succeeded"),
            ]
        );
        // A second look changes nothing.
        let again = next(Value::Object(status.clone()), Some(2), "spec.isolation: …").1;
        assert_eq!(again, status);
    }
}
