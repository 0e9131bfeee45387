//! How far the CRDs that the cluster serves lie behind those that this operator was built with.
//!
//! An operator may be newer than the CRDs: somebody else upgrades them, or an upgrade was rolled back. It works all the same.
//! A status with a field that the CRD lacks would be refused whole, so such fields are left out; and what is missing is said
//! in the log, in an event on the CRD, on `/status`, in a metric, and by `fanout-operator check`.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;

/// The API server's description of our group, which every authenticated client may read.
const SCHEMAS: &str = "/openapi/v3/apis/fanout.dev/v1alpha1";
/// Longest wait for it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(30);
/// An item of a list, or a value of a map, in a path.
const ITEMS: &str = "[]";

/// Paths of fields that the served CRDs lack, by kind; kinds without such a field are absent.
pub(crate) type Missing = BTreeMap<String, Vec<String>>;

/// What the last look found.
#[derive(Debug, Default)]
pub(crate) struct Served {
    missing: RwLock<Arc<Missing>>,
    changed: Notify,
    lacks: Family<Labels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: String,
}

impl Served {
    /// Nothing known yet; the metric is registered in `registry`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let served = Self::default();
        registry.register(
            "fanout_operator_crd_missing_fields",
            "Fields that the CRD of a kind lacks of those this operator knows",
            served.lacks.clone(),
        );
        served
    }

    /// What is missing.
    pub(crate) fn missing(&self) -> Arc<Missing> {
        Arc::clone(&self.missing.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `status` without the fields that the CRD of `kind` lacks.
    pub(crate) fn fit<S>(&self, kind: &str, status: S) -> S
    where
        S: Serialize + DeserializeOwned,
    {
        let missing = self.missing();
        let Some(paths) = missing.get(kind) else {
            return status;
        };
        let fitted = serde_json::to_value(&status).and_then(|mut value| {
            for path in paths {
                if let Some(path) = path.strip_prefix("status.") {
                    remove(&mut value, &path.split('.').collect::<Vec<_>>());
                }
            }
            serde_json::from_value(value)
        });
        // What can't do without a missing field is for the API server to refuse.
        fitted.unwrap_or(status)
    }

    /// Looks once. A description that can't be read is no news.
    pub(crate) async fn look(&self, client: &Client, recorder: &Recorder) {
        let found = match tokio::time::timeout(TIMEOUT, missing(client)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                return tracing::debug!(%error, "the served CRDs are not known");
            }
            Err(_) => return tracing::debug!("the served CRDs are not known: no answer"),
        };
        self.count(&found);
        if found == *self.missing() {
            return;
        }
        if found.is_empty() {
            tracing::info!("the CRDs have every field of this version");
        }
        for (kind, paths) in &found {
            let fields = paths.join(", ");
            tracing::warn!(
                kind,
                fields,
                "the CRD is older than this operator: these fields have no effect and are not shown; \
                 install the CRDs of this version"
            );
            publish(recorder, kind, &fields).await;
        }
        *self.missing.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
        self.changed.notify_one();
    }

    fn count(&self, missing: &Missing) {
        for crd in fanout_crds::crds() {
            let kind = crd.spec.names.kind;
            let fields = missing.get(&kind).map_or(0, Vec::len);
            let gauge = self.lacks.get_or_create(&Labels { kind });
            gauge.set(i64::try_from(fields).unwrap_or(i64::MAX));
        }
    }

    /// One series of each kind.
    pub(crate) fn sample(&self) {
        self.count(&Missing::new());
    }

    /// Until a look finds something else than the one before: statuses may have to be written anew.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Looks again and again.
    pub(crate) async fn follow(&self, client: &Client, recorder: &Recorder) {
        loop {
            tokio::time::sleep(INTERVAL.mul_f64(rand::random_range(0.9..1.1))).await;
            self.look(client, recorder).await;
        }
    }
}

/// An event on the CRD; a failure is logged and nothing else.
async fn publish(recorder: &Recorder, kind: &str, fields: &str) {
    let reference = ObjectReference {
        api_version: Some("apiextensions.k8s.io/v1".to_owned()),
        kind: Some("CustomResourceDefinition".to_owned()),
        name: Some(format!(
            "{}s.{}",
            kind.to_ascii_lowercase(),
            fanout_crds::GROUP
        )),
        ..ObjectReference::default()
    };
    let mut note = format!("older than fanout-operator {}", env!("CARGO_PKG_VERSION"));
    note.push_str("; these fields have no effect and are not shown: ");
    note.extend(fields.chars().take(700));
    let event = Event {
        type_: EventType::Warning,
        reason: "CrdOutdated".to_owned(),
        note: Some(note),
        action: "Serve".to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, &reference).await {
        tracing::warn!(%error, kind, "event not published");
    }
}

/// Asks the API server what the served CRDs lack.
///
/// # Errors
/// It does not answer, refuses, or does not serve the group: the CRDs are not installed.
pub(crate) async fn missing(client: &Client) -> kube::Result<Missing> {
    let request = http::Request::get(SCHEMAS)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    let served: Value = client.request(request).await?;
    Ok(compare(&served))
}

/// What the served description lacks of our own CRDs.
fn compare(served: &Value) -> Missing {
    let schemas = served["components"]["schemas"].as_object();
    let mut missing = Missing::new();
    for crd in fanout_crds::crds() {
        let kind = crd.spec.names.kind;
        let own = crd
            .spec
            .versions
            .into_iter()
            .next()
            .and_then(|version| serde_json::to_value(version.schema?.open_api_v3_schema?).ok())
            .unwrap_or_default();
        let served = schemas
            .into_iter()
            .flatten()
            .map(|(_, schema)| schema)
            .find(|schema| {
                let kinds = schema["x-kubernetes-group-version-kind"].as_array();
                kinds.into_iter().flatten().any(|of| of["kind"] == *kind)
            });
        let Some(served) = served else { continue };
        let mut paths = Vec::new();
        for part in ["spec", "status"] {
            lacking(
                part,
                &own["properties"][part],
                &served["properties"][part],
                &mut paths,
            );
        }
        if !paths.is_empty() {
            missing.insert(kind, paths);
        }
    }
    missing
}

/// Adds the fields of `own` that `served` lacks to `paths`; of a missing object only itself.
fn lacking(path: &str, own: &Value, served: &Value, paths: &mut Vec<String>) {
    if served["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, own) in own["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match served["properties"].get(name) {
            Some(served) => lacking(&path, own, served, paths),
            None => paths.push(path),
        }
    }
    for below in ["items", "additionalProperties"] {
        if own[below].is_object() && served[below].is_object() {
            lacking(
                &format!("{path}.{ITEMS}"),
                &own[below],
                &served[below],
                paths,
            );
        }
    }
}

/// Removes what lies at `path`.
fn remove(value: &mut Value, path: &[&str]) {
    match path {
        [] => {}
        [last] => {
            if let Some(map) = value.as_object_mut() {
                map.remove(*last);
            }
        }
        [first, below @ ..] if *first == ITEMS => match value {
            Value::Array(items) => items.iter_mut().for_each(|item| remove(item, below)),
            Value::Object(map) => map.values_mut().for_each(|item| remove(item, below)),
            _ => {}
        },
        [first, below @ ..] => {
            if let Some(child) = value.get_mut(*first) {
                remove(child, below);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_crds::SubscriptionStatus;
    use fanout_crds::subscription::Position;
    use serde_json::json;

    /// The description of CRDs as this version has them, changed.
    fn description(change: impl Fn(&mut Value)) -> Value {
        let mut schemas = serde_json::Map::new();
        for crd in fanout_crds::crds() {
            let kind = crd.spec.names.kind.clone();
            let schema = crd.spec.versions[0].schema.clone().unwrap();
            let mut schema = serde_json::to_value(schema.open_api_v3_schema).unwrap();
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": "fanout.dev", "kind": kind, "version": "v1alpha1"}]);
            schemas.insert(format!("dev.fanout.v1alpha1.{kind}"), schema);
        }
        let mut all = json!({"components": {"schemas": schemas}});
        change(&mut all["components"]["schemas"]["dev.fanout.v1alpha1.Subscription"]["properties"]);
        all
    }

    fn without(properties: &mut Value, name: &str) {
        properties["properties"]
            .as_object_mut()
            .unwrap()
            .remove(name);
    }

    #[test]
    fn the_same_crds_lack_nothing() {
        assert_eq!(compare(&description(|_| {})), Missing::new());
    }

    #[test]
    fn older_crds_lack_what_came_later_wherever_it_lies() {
        let missing = compare(&description(|properties| {
            without(&mut properties["spec"], "isolation");
            without(&mut properties["spec"]["properties"]["delivery"], "retry");
            without(&mut properties["status"], "depth");
            without(
                &mut properties["status"]["properties"]["positions"]["items"],
                "offset",
            );
        }));
        let paths = [
            "spec.delivery.retry",
            "spec.isolation",
            "status.depth",
            "status.positions.[].offset",
        ];
        assert_eq!(
            missing,
            Missing::from([("Subscription".to_owned(), paths.map(str::to_owned).to_vec())])
        );
    }

    #[test]
    fn a_schema_that_keeps_unknown_fields_lacks_none() {
        let missing = compare(&description(|properties| {
            properties["spec"] = json!({"x-kubernetes-preserve-unknown-fields": true});
        }));
        assert_eq!(missing, Missing::new());
    }

    fn served(paths: &[&str]) -> Served {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let missing = Missing::from([("Subscription".to_owned(), paths)]);
        Served {
            missing: RwLock::new(Arc::new(missing)),
            ..Served::default()
        }
    }

    #[test]
    fn a_status_is_fitted_to_what_the_crd_has() {
        let paths = ["spec.isolation", "status.depth", "status.nothing.[].here"];
        let served = served(&paths);
        let position = Position {
            partition: 0,
            offset: 7,
        };
        let status = SubscriptionStatus {
            depth: Some(3),
            positions: vec![position],
            ..SubscriptionStatus::default()
        };
        let fitted = served.fit("Subscription", status.clone());
        assert_eq!(
            fitted,
            SubscriptionStatus {
                depth: None,
                ..status.clone()
            }
        );
        assert_eq!(served.fit("FanoutTopic", status.clone()), status);
    }

    #[test]
    fn a_field_that_can_not_be_missed_stays() {
        let served = served(&["status.positions.[].offset"]);
        let position = Position {
            partition: 0,
            offset: 7,
        };
        let status = SubscriptionStatus {
            positions: vec![position],
            ..SubscriptionStatus::default()
        };
        assert_eq!(served.fit("Subscription", status.clone()), status);
    }
}
