//! The end state of a namespace and its part of the broker, without what differs from run to run.

use super::Stage;
use crate::operator::played::volume;
use anyhow::Context as _;
use fanout_contract::names;
use fanout_crds::{FanoutTopic, Subscription};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Objects and what Kafka has, by a name that every run gives them.
pub(crate) type State = BTreeMap<String, Value>;

/// What the server, a clock or chance decides.
const OF_CHANCE: [&str; 9] = [
    "creationTimestamp",
    "depth",
    "lastTransitionTime",
    "managedFields",
    // Of a position: when it was decided is a matter of milliseconds.
    "offset",
    "oldestEventTime",
    "ratePerSecond",
    "resourceVersion",
    "uid",
];

/// Reads the state of `stage`.
pub(crate) async fn read(stage: &Stage<'_>) -> anyhow::Result<State> {
    let mut objects = State::new();
    let mut names = Names::default();
    names.add(&stage.namespace, "NAMESPACE");
    names.add(&stage.kafka.bootstrap(), "BROKER");
    let workers = names::WORKER_LABEL;
    let topics: Vec<FanoutTopic> = list(stage, &mut objects, &mut names, "").await?;
    let subscriptions: Vec<Subscription> = list(stage, &mut objects, &mut names, "").await?;
    list::<ServiceAccount>(stage, &mut objects, &mut names, workers).await?;
    let deployments: Vec<Deployment> = list(stage, &mut objects, &mut names, workers).await?;
    let config_maps: Vec<ConfigMap> = list(stage, &mut objects, &mut names, workers).await?;
    let mut secrets: Vec<Secret> = list(stage, &mut objects, &mut names, workers).await?;
    let pods: Vec<Pod> = list(stage, &mut objects, &mut names, workers).await?;

    for config_map in config_maps {
        let worker = config_map.name_any();
        let secret = secrets.iter().find(|it| it.name_any() == worker);
        let files = volume(config_map, secret.context("a Secret beside it")?.clone());
        names.add(
            &fanout_runtime::config::hash(&files),
            &format!("HASH OF {worker}"),
        );
    }
    for secret in &mut secrets {
        let key = secret
            .data
            .as_mut()
            .and_then(|data| data.remove(names::HASH_KEY_FILE));
        let length = key.map(|key| key.0.len());
        let name = format!("Secret/{}", secret.name_any());
        let data: BTreeMap<_, _> = secret.data.iter().flatten().collect();
        objects.insert(
            name,
            json!({"hash key": length, "data": data, "owners": secret.owner_references()}),
        );
    }
    // A pod has a name by chance; the address is the test's.
    objects.retain(|name, _| !name.starts_with("Pod/"));
    for pod in &pods {
        let worker = pod.labels().get(names::WORKER_LABEL);
        let told = pod.annotations().get(names::CONFIG_ANNOTATION);
        objects.insert(format!("Pod/{}", worker.context("a label")?), json!(told));
    }
    objects.insert("Deployments".to_owned(), json!(deployments.len()));
    kafka(stage, &topics, &subscriptions, &mut objects, &mut names).await?;
    Ok(objects
        .into_iter()
        .map(|(name, object)| (name, names.replace(object)))
        .collect())
}

/// Lists the objects of a kind, and adds them.
async fn list<K>(
    stage: &Stage<'_>,
    objects: &mut State,
    names: &mut Names,
    label: &str,
) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + serde::Serialize
        + Debug,
{
    let api = stage.cluster.api::<K>(&stage.namespace);
    let found = api.list(&ListParams::default().labels(label)).await?.items;
    for object in &found {
        let name = format!("{}/{}", K::kind(&()), object.name_any());
        names.add(&object.uid().unwrap_or_default(), &format!("UID OF {name}"));
        objects.insert(name, serde_json::to_value(object)?);
    }
    Ok(found)
}

/// Topics, and the committed offsets of every group.
async fn kafka(
    stage: &Stage<'_>,
    topics: &[FanoutTopic],
    subscriptions: &[Subscription],
    objects: &mut State,
    names: &mut Names,
) -> anyhow::Result<()> {
    let kafka = &stage.broker;
    names.add(&kafka.cluster_id().await?, "CLUSTER");
    for topic in topics {
        let name = format!("{}.{}", stage.namespace, topic.name_any());
        for topic in [names::dead_letter_topic(&name), name.clone()] {
            let Some(found) = kafka.describe_topic(&topic).await? else {
                continue;
            };
            let config = kafka.topic_config(&topic).await?;
            let shown = ["retention.ms", "max.message.bytes"].map(|name| config.get(name));
            let topic = topic.replace(&stage.namespace, "NAMESPACE");
            names.add(&found.id, &format!("ID OF {topic}"));
            objects.insert(
                format!("Kafka topic {topic}"),
                json!([found.partitions, found.replication_factor, shown]),
            );
        }
        for subscription in subscriptions {
            let group = format!("{}.{}", stage.namespace, subscription.name_any());
            let committed = kafka.committed(&group, &name).await?;
            let partitions: Vec<_> = committed.keys().collect();
            objects.insert(
                format!("Kafka group of {}", subscription.name_any()),
                json!(partitions),
            );
        }
    }
    Ok(())
}

/// Texts that differ from run to run, and what stands for them.
#[derive(Default)]
struct Names(Vec<(String, String)>);

impl Names {
    fn add(&mut self, text: &str, name: &str) {
        if !text.is_empty() {
            self.0.push((text.to_owned(), name.to_owned()));
        }
    }

    fn replace(&self, object: Value) -> Value {
        match object {
            Value::String(text) => {
                let replaced = self.0.iter();
                Value::String(replaced.fold(text, |text, (from, to)| text.replace(from, to)))
            }
            Value::Array(items) => {
                Value::Array(items.into_iter().map(|item| self.replace(item)).collect())
            }
            Value::Object(members) => Value::Object(
                members
                    .into_iter()
                    .filter(|(name, value)| {
                        !OF_CHANCE.contains(&name.as_str()) || value.is_object()
                    })
                    .map(|(name, value)| {
                        let name = self.replace(Value::String(name));
                        (
                            name.as_str().unwrap_or_default().to_owned(),
                            self.replace(value),
                        )
                    })
                    .collect(),
            ),
            other => other,
        }
    }
}

/// Where two states differ, one line each.
pub(crate) fn differences(expected: &State, found: &State) -> Vec<String> {
    let mut lines = Vec::new();
    let names: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    for name in names {
        compare(name, expected.get(name), found.get(name), &mut lines);
    }
    lines
}

fn compare(path: &str, expected: Option<&Value>, found: Option<&Value>, lines: &mut Vec<String>) {
    match (expected, found) {
        (Some(Value::Object(expected)), Some(Value::Object(found))) => {
            let names: std::collections::BTreeSet<_> =
                expected.keys().chain(found.keys()).collect();
            for name in names {
                compare(
                    &format!("{path}.{name}"),
                    expected.get(name),
                    found.get(name),
                    lines,
                );
            }
        }
        (expected, found) if expected != found => {
            let text = |value: Option<&Value>| {
                value.map_or_else(|| "nothing".to_owned(), Value::to_string)
            };
            lines.push(format!(
                "{path}: {} instead of {}",
                text(found),
                text(expected)
            ));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_and_what_differs_by_chance_is_not() {
        let mut names = Names::default();
        names.add("stage-1", "NAMESPACE");
        let object =
            json!({"metadata": {"namespace": "stage-1", "uid": "a", "labels": {"stage-1.x": "y"}}});
        let state = |object: Value| State::from([("it".to_owned(), names.replace(object))]);
        let one = state(object.clone());
        let mut other = object;
        other["metadata"]["uid"] = json!("b");
        assert_eq!(
            differences(&one, &state(other.clone())),
            Vec::<String>::new()
        );
        other["metadata"]["labels"]["stage-1.x"] = json!("z");
        assert_eq!(
            differences(&one, &state(other)),
            [r#"it.metadata.labels.NAMESPACE.x: "z" instead of "y""#]
        );
        assert_eq!(differences(&one, &State::new()).len(), 1);
    }
}
