//! Which change makes whom reconcile. A change that nobody reacts to (a heartbeat, a depth in a status) causes nothing.

use super::fanout_topic::status::Identity;
use super::workers::Pods;
use super::{conditions, deletion, fanout_topic, queue::Queue, subscription};
use crate::observer::{Trigger, TriggerKind};
use crate::stores::{GuardedSubscription, GuardedTopic, Stores, is_ready};
use crate::watches::{Change, Handler};
use fanout_contract::names;
use fanout_crds::condition::{LOG_READY, POSITION_INITIALIZED, READY, reason};
use fanout_crds::{FanoutTopic, Subscription};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ManagedFieldsEntry, ObjectMeta};
use kube::{Resource, ResourceExt};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// Turns changes into requests.
pub(crate) struct Triggers {
    stores: Stores,
    topics: Queue<GuardedTopic>,
    subscriptions: Queue<GuardedSubscription>,
    /// What each consumer of an object's changes last saw, as a hash.
    seen: Mutex<HashMap<(&'static str, String), u64>>,
}

impl Triggers {
    pub(crate) fn new(
        stores: Stores,
        topics: Queue<GuardedTopic>,
        subscriptions: Queue<GuardedSubscription>,
    ) -> Self {
        Self {
            stores,
            topics,
            subscriptions,
            seen: Mutex::default(),
        }
    }

    /// True when `part` of the object differs from what `purpose` saw before; always for a deleted object.
    fn news<K: Resource>(
        &self,
        purpose: &'static str,
        object: &K,
        change: Change,
        part: impl Hash,
    ) -> bool {
        let mut hasher = DefaultHasher::new();
        (object.meta().uid.as_deref(), part).hash(&mut hasher);
        let key = format!(
            "{}/{}",
            object.namespace().unwrap_or_default(),
            object.name_any()
        );
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match change {
            Change::Deleted => {
                seen.remove(&(purpose, key));
                true
            }
            Change::Applied => {
                seen.insert((purpose, key), hasher.finish()) != Some(hasher.finish())
            }
        }
    }

    /// Asks for what the observer wants.
    pub(crate) fn observed(&self, trigger: &Trigger) {
        match trigger.kind {
            TriggerKind::FanoutTopic => self.topics.add(&trigger.namespace, &trigger.name),
            TriggerKind::Subscription => self.subscriptions.add(&trigger.namespace, &trigger.name),
        }
    }

    fn topic_of(&self, metadata: &ObjectMeta) {
        let labels = metadata.labels.as_ref();
        if let (Some(namespace), Some(topic)) = (
            &metadata.namespace,
            labels.and_then(|labels| labels.get(names::TOPIC_LABEL)),
        ) {
            self.topics.add(namespace, topic);
        }
    }

    fn subscriptions_of(&self, namespace: &str, topic: &str) {
        for object in self.stores.subscriptions_of(namespace, topic) {
            self.subscriptions.add(namespace, &object.name_any());
        }
    }

    fn topics_in(&self, namespace: &str) {
        for object in self.stores.topics.state() {
            if object.namespace().as_deref() == Some(namespace) {
                self.topics.add(namespace, &object.name_any());
            }
        }
    }

    /// Asks for a pass of everything, for example after a watch was interrupted and deletions may have been missed.
    fn all_topics(&self) {
        for object in self.stores.topics.state() {
            self.topics
                .add(&object.namespace().unwrap_or_default(), &object.name_any());
        }
    }

    /// Asks for a pass of every object of both kinds.
    pub(crate) fn everything(&self) {
        self.all_topics();
        for object in self.stores.subscriptions.state() {
            self.subscriptions
                .add(&object.namespace().unwrap_or_default(), &object.name_any());
        }
    }

    /// Those that another FanoutTopic keeps from their Kafka topic, and those that `changed` may keep from theirs, now that
    /// it is known which one it has.
    fn rivals(&self, changed: &GuardedTopic) {
        let name_of = |topic: &FanoutTopic| Identity::recorded(topic).topic_name;
        let changed_name = changed.0.as_ref().ok().and_then(name_of);
        let all = self.stores.topics();
        for topic in all.iter().filter_map(|object| object.0.as_ref().ok()) {
            let status = topic.status.as_ref();
            let ready = status.and_then(|status| conditions::get(&status.conditions, READY));
            let kept = ready.is_some_and(|ready| ready.reason == reason::NAME_CONFLICT);
            let other = topic.metadata.uid != changed.meta().uid;
            if kept || (other && changed_name.is_some() && name_of(topic) == changed_name) {
                self.topics
                    .add(&topic.namespace().unwrap_or_default(), &topic.name_any());
            }
        }
    }
}

/// What a human, or another program, may change of an object.
fn wanted<K: Resource>(object: &K) -> impl Hash + use<K> {
    let meta = object.meta();
    (
        meta.generation,
        meta.annotations.clone(),
        meta.deletion_timestamp.is_some(),
        deletion::has_finalizer(meta),
    )
}

/// What a status says, whoever wrote it. A pass that looked at an object from before the last write of its status may have
/// found nothing to write although that write is out of date by now: once it is seen here, another pass looks.
fn said(conditions: Option<&Vec<Condition>>) -> impl Hash + use<> {
    let said = |it: &Condition| {
        (
            it.type_.clone(),
            it.status.clone(),
            it.reason.clone(),
            it.message.clone(),
            it.observed_generation,
        )
    };
    conditions.map(|conditions| conditions.iter().map(said).collect::<Vec<_>>())
}

impl Handler<GuardedTopic> for Triggers {
    fn changed(&self, object: &GuardedTopic, change: Change) {
        let namespace = object.namespace().unwrap_or_default();
        let name = object.name_any();
        let status = object.0.as_ref().ok().and_then(|it| it.status.as_ref());
        let part = (wanted(object), said(status.map(|it| &it.conditions)));
        if self.news("topic", object, change, part) {
            self.topics.add(&namespace, &name);
        }
        let known = object.0.as_ref().ok().map(known_to_subscriptions);
        if self.news("topic's subscriptions", object, change, known) {
            self.subscriptions_of(&namespace, &name);
            self.rivals(object);
        }
    }

    fn restarted(&self) {
        self.all_topics();
    }
}

fn known_to_subscriptions(topic: &FanoutTopic) -> impl Hash + use<> {
    let identity = Identity::recorded(topic);
    let conditions = topic.status.as_ref().map(|status| &status.conditions);
    let log = conditions.map(|conditions| {
        conditions
            .iter()
            .filter(|condition| condition.type_ == LOG_READY)
            .map(|condition| (condition.status.clone(), condition.observed_generation))
            .collect::<Vec<_>>()
    });
    (
        identity.cluster_id,
        identity.topic_id,
        identity.dead_letter_topic_id,
        log,
        topic.status.as_ref().and_then(|status| status.ordered),
        topic.metadata.deletion_timestamp.is_some(),
    )
}

impl Handler<GuardedSubscription> for Triggers {
    fn changed(&self, object: &GuardedSubscription, change: Change) {
        let namespace = object.namespace().unwrap_or_default();
        let status = object.0.as_ref().ok().and_then(|it| it.status.as_ref());
        let part = (wanted(object), said(status.map(|it| &it.conditions)));
        if self.news("subscription", object, change, part) {
            self.subscriptions.add(&namespace, &object.name_any());
        }
        match &object.0 {
            Ok(subscription) => {
                let known = known_to_topic(subscription);
                if self.news("subscription's topic", object, change, known) {
                    self.topics
                        .add(&namespace, &subscription.spec.topic_ref.name);
                }
            }
            // Whose it is can't be read. While it is there nothing changes for its topic.
            Err(_) if change == Change::Deleted || object.meta().deletion_timestamp.is_some() => {
                self.news("subscription's topic", object, change, ());
                self.topics_in(&namespace);
            }
            Err(_) => {}
        }
    }

    fn restarted(&self) {
        self.all_topics();
    }
}

/// What goes into a worker's configuration.
fn known_to_topic(subscription: &Subscription) -> impl Hash + use<> {
    let status = subscription.status.clone().unwrap_or_default();
    let position = conditions::get(&status.conditions, POSITION_INITIALIZED)
        .map(|finding| (finding.holds(), finding.reason));
    let configured = position
        .as_ref()
        .is_some_and(|(_, reason)| reason == reason::START_OFFSETS_CONFIGURED);
    let offsets: Vec<_> = status
        .positions
        .iter()
        .filter(|_| configured)
        .map(|position| (position.partition, position.offset))
        .collect();
    (
        wanted(subscription),
        status.group_id,
        status.topic_id,
        status.placement,
        status.scaling.map(|scaling| scaling.replicas),
        position,
        offsets,
    )
}

/// A labelled Secret: whoever refers to it, or might.
impl Handler<Secret> for Triggers {
    fn changed(&self, secret: &Secret, change: Change) {
        let data: Option<Vec<_>> = secret.data.as_ref().map(|data| {
            data.iter()
                .map(|(key, value)| (key.clone(), value.0.clone()))
                .collect()
        });
        if !self.news("secret", secret, change, data) {
            return;
        }
        let namespace = secret.namespace().unwrap_or_default();
        let name = secret.name_any();
        let all = self.stores.topics();
        for topic in all.iter().filter_map(|object| object.0.as_ref().ok()) {
            if topic.namespace().as_deref() == Some(&namespace)
                && fanout_topic::secret_names(topic).contains(&&*name)
            {
                self.topics.add(&namespace, &topic.name_any());
                self.subscriptions_of(&namespace, &topic.name_any());
            }
        }
        for object in self.stores.subscriptions.state() {
            let Ok(subscription) = &object.0 else {
                continue;
            };
            if subscription.namespace().as_deref() == Some(&namespace)
                && subscription::secret_names(subscription).contains(&&*name)
            {
                self.subscriptions.add(&namespace, &subscription.name_any());
                self.topics
                    .add(&namespace, &subscription.spec.topic_ref.name);
            }
        }
    }

    fn restarted(&self) {
        self.all_topics();
    }
}

impl Handler<Pod> for Triggers {
    fn changed(&self, pod: &Pod, change: Change) {
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let part = (
            is_ready(pod),
            address,
            pod.metadata.deletion_timestamp.is_some(),
        );
        if self.news("pod", pod, change, part) {
            self.topic_of(&pod.metadata);
        }
    }

    fn restarted(&self) {}
}

impl Handler<Deployment> for Triggers {
    fn changed(&self, deployment: &Deployment, change: Change) {
        let pods = Pods::of(Some(deployment));
        let part = (pods.wanted, pods.ready, pods.rolled_out);
        if self.news("deployment's subscriptions", deployment, change, part) {
            let namespace = deployment.namespace().unwrap_or_default();
            let worker = deployment.name_any();
            if let Some(topic) = deployment.labels().get(names::TOPIC_LABEL) {
                for object in self.stores.subscriptions_of(&namespace, topic) {
                    let placed = object
                        .0
                        .as_ref()
                        .ok()
                        .and_then(|it| it.status.as_ref()?.placement.as_ref());
                    if placed == Some(&worker) {
                        self.subscriptions.add(&namespace, &object.name_any());
                    }
                }
            }
        }
        let part = (
            part,
            deployment.metadata.generation,
            deployment.metadata.managed_fields.as_deref().map(fields),
        );
        if self.news("deployment", deployment, change, part) {
            self.topic_of(&deployment.metadata);
        }
    }

    fn restarted(&self) {}
}

/// Who owns which fields, without the times: changes when somebody edits the object, not with its status.
fn fields(entries: &[ManagedFieldsEntry]) -> Vec<String> {
    entries
        .iter()
        .filter(|entry| entry.subresource.is_none())
        .filter_map(|entry| serde_json::to_string(&(&entry.manager, &entry.fields_v1)).ok())
        .collect()
}

/// Objects of a worker that have no status: any change is somebody's edit.
impl<K> Handler<kube::core::PartialObjectMeta<K>> for Triggers
where
    K: Resource<DynamicType = ()>,
{
    fn changed(&self, object: &kube::core::PartialObjectMeta<K>, _: Change) {
        self.topic_of(&object.metadata);
    }

    fn restarted(&self) {}
}

/// The API server's own addresses: part of every consumer's configuration.
pub(crate) struct Addresses(pub(crate) std::sync::Arc<Triggers>);

impl<K: Resource> Handler<K> for Addresses {
    fn changed(&self, object: &K, change: Change) {
        let addresses = self.0.stores.api_server_addresses();
        if self.0.news("addresses", object, change, addresses) {
            self.0.all_topics();
        }
    }

    fn restarted(&self) {}
}
