//! What the operator watches, readable by everybody who reconciles.

use crate::controllers::deletion;
use fanout_contract::consumer::Egress;
use fanout_contract::names;
use fanout_crds::{FanoutTopic, Subscription};
use fanout_runtime::guard::Guard;
use ipnet::IpNet;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::reflector::store::WriterDropped;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// A FanoutTopic that may be undecodable.
pub(crate) type GuardedTopic = DeserializeGuard<FanoutTopic>;
/// A Subscription that may be undecodable.
pub(crate) type GuardedSubscription = DeserializeGuard<Subscription>;

/// Namespace and name.
pub(crate) type Name = (String, String);

/// The watch caches.
#[derive(Clone)]
pub(crate) struct Stores {
    /// All FanoutTopics.
    pub(crate) topics: Store<GuardedTopic>,
    /// All Subscriptions.
    pub(crate) subscriptions: Store<GuardedSubscription>,
    /// Secrets with the credentials label.
    pub(crate) secrets: Store<Secret>,
    /// Pods of workers.
    pub(crate) pods: Store<Pod>,
    /// Deployments of workers.
    pub(crate) deployments: Store<Deployment>,
    /// ConfigMaps of workers, without their contents.
    pub(crate) config_maps: Store<PartialObjectMeta<ConfigMap>>,
    /// The Service `kubernetes`.
    pub(crate) api_service: Store<Service>,
    /// The endpoints behind it.
    pub(crate) api_endpoints: Store<EndpointSlice>,
}

impl Stores {
    /// Waits until every cache holds what the API server has.
    pub(crate) async fn wait_until_ready(&self) -> Result<(), WriterDropped> {
        tokio::try_join!(
            self.topics.wait_until_ready(),
            self.subscriptions.wait_until_ready(),
            self.secrets.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.deployments.wait_until_ready(),
            self.config_maps.wait_until_ready(),
            self.api_service.wait_until_ready(),
            self.api_endpoints.wait_until_ready(),
        )?;
        Ok(())
    }

    /// The decodable FanoutTopic of that name.
    pub(crate) fn topic(&self, namespace: &str, name: &str) -> Option<FanoutTopic> {
        let found = self.topics.get(&ObjectRef::new(name).within(namespace))?;
        found.0.as_ref().ok().cloned()
    }

    /// All decodable FanoutTopics.
    pub(crate) fn topics(&self) -> Vec<Arc<GuardedTopic>> {
        self.topics.state_filter(|object| object.0.is_ok())
    }

    /// The decodable Subscriptions of a FanoutTopic that are not being deleted, sorted by name.
    pub(crate) fn subscriptions_of(
        &self,
        namespace: &str,
        topic: &str,
    ) -> Vec<Arc<GuardedSubscription>> {
        let mut found = self
            .subscriptions
            .state_filter(|object| topic_of(object) == Some((namespace, topic)));
        found.sort_by(|one, two| one.meta().name.cmp(&two.meta().name));
        found
    }

    /// The same for all FanoutTopics at once, by namespace and name.
    pub(crate) fn subscriptions_by_topic(&self) -> HashMap<Name, Vec<Arc<GuardedSubscription>>> {
        let mut all: HashMap<Name, Vec<_>> = HashMap::new();
        for object in self.subscriptions.state() {
            let Some((namespace, topic)) = topic_of(&object) else {
                continue;
            };
            all.entry((namespace.to_owned(), topic.to_owned()))
                .or_default()
                .push(object);
        }
        all
    }

    /// True when there is a FanoutTopic of that name, decodable or not.
    pub(crate) fn has_topic(&self, namespace: &str, name: &str) -> bool {
        let reference = ObjectRef::new(name).within(namespace);
        self.topics.get(&reference).is_some()
    }

    /// The Subscriptions of a FanoutTopic that are being deleted and that the operator has to clean up after, undecodable
    /// ones left out.
    pub(crate) fn cleaned_up_of(
        &self,
        namespace: &str,
        topic: &str,
    ) -> Vec<Arc<GuardedSubscription>> {
        self.subscriptions.state_filter(|object| {
            object.0.as_ref().is_ok_and(|subscription| {
                let meta = &subscription.metadata;
                subscription.spec.topic_ref.name == topic
                    && meta.namespace.as_deref() == Some(namespace)
                    && meta.deletion_timestamp.is_some()
                    && deletion::has_finalizer(meta)
            })
        })
    }

    /// The Subscriptions that a FanoutTopic's workers have to do with, in one look: the decodable ones of `topic`, and all of
    /// the namespace that can't be decoded, because whose they are can't be read either. Sorted by name, without those
    /// that are being deleted.
    pub(crate) fn subscriptions_for(
        &self,
        namespace: &str,
        topic: &str,
    ) -> Vec<Arc<GuardedSubscription>> {
        let mut found = self.subscriptions.state_filter(|object| {
            let wanted = object.0.as_ref().map_or(true, |subscription| {
                subscription.spec.topic_ref.name == topic
            });
            wanted
                && object.meta().namespace.as_deref() == Some(namespace)
                && object.meta().deletion_timestamp.is_none()
        });
        found.sort_by_key(|object| object.name_any());
        found
    }

    /// A Secret that may be referred to.
    pub(crate) fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        self.secrets.get(&ObjectRef::new(name).within(namespace))
    }

    /// The Deployment of a worker.
    pub(crate) fn deployment(&self, namespace: &str, name: &str) -> Option<Arc<Deployment>> {
        self.deployments
            .get(&ObjectRef::new(name).within(namespace))
    }

    /// Hash of the configuration that was written for a worker.
    pub(crate) fn config_hash(&self, namespace: &str, worker: &str) -> Option<String> {
        let config_map = self
            .config_maps
            .get(&ObjectRef::new(worker).within(namespace))?;
        config_map
            .annotations()
            .get(names::CONFIG_ANNOTATION)
            .cloned()
    }

    /// The pods of one worker that are neither ended nor ending.
    pub(crate) fn pods_of(&self, namespace: &str, worker: &str) -> Vec<Arc<Pod>> {
        self.pods.state_filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.labels().get(names::WORKER_LABEL).map(String::as_str) == Some(worker)
                && is_live(pod)
        })
    }

    /// The pods of all workers of a FanoutTopic that have not ended, those that are ending included.
    pub(crate) fn pods_of_topic(&self, namespace: &str, topic: &str) -> Vec<Arc<Pod>> {
        self.pods.state_filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.labels().get(names::TOPIC_LABEL).map(String::as_str) == Some(topic)
                && !has_ended(pod)
        })
    }

    /// Addresses of the API server: its Service and what is behind it.
    pub(crate) fn api_server_addresses(&self) -> BTreeSet<IpAddr> {
        let service = self.api_service.state();
        let cluster_ips = service
            .iter()
            .filter_map(|service| service.spec.as_ref())
            .flat_map(|spec| spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
        let slices = self.api_endpoints.state();
        let endpoints = slices
            .iter()
            .flat_map(|slice| &slice.endpoints)
            .flat_map(|endpoint| &endpoint.addresses);
        cluster_ips
            .chain(endpoints)
            .filter_map(|text| text.parse().ok())
            .collect()
    }

    /// What workers are told about addresses.
    pub(crate) fn egress(&self, allowed: &[IpNet]) -> Egress {
        Egress {
            allowed_cidrs: allowed.iter().map(ToString::to_string).collect(),
            refused_cidrs: self
                .api_server_addresses()
                .into_iter()
                .map(|address| IpNet::from(address).to_string())
                .collect(),
        }
    }

    /// The same judgement for the operator's own check of URLs.
    pub(crate) fn guard(&self, allowed: &[IpNet]) -> Guard {
        let refused: Vec<IpNet> = self
            .api_server_addresses()
            .into_iter()
            .map(IpNet::from)
            .collect();
        Guard::new(allowed, &refused)
    }
}

/// The FanoutTopic of a decodable Subscription that is not being deleted.
fn topic_of(object: &GuardedSubscription) -> Option<(&str, &str)> {
    let subscription = object.0.as_ref().ok()?;
    let meta = &subscription.metadata;
    let namespace = meta.namespace.as_deref()?;
    let is_here = meta.deletion_timestamp.is_none();
    is_here.then_some((namespace, subscription.spec.topic_ref.name.as_str()))
}

pub(crate) fn is_live(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Succeeded" | "Failed"))
}

/// True when a container of the pod may have run.
pub(crate) fn has_begun(pod: &Pod) -> bool {
    phase(pod).is_some_and(|phase| phase != "Pending")
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// True when the pod's condition `Ready` holds.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
