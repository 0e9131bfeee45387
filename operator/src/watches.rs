//! One watch per kind, shared by both controllers: fills a cache and tells the triggers.

use crate::controllers::{Addresses, Triggers};
use crate::stores::{GuardedSubscription, GuardedTopic, Stores};
use fanout_contract::names;
use fanout_runtime::backoff::Backoff;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Created, changed, or seen for the first time.
    Applied,
    /// Deleted.
    Deleted,
}

/// Is told of changes after the cache has them.
pub(crate) trait Handler<K>: Send + Sync {
    /// An object changed.
    fn changed(&self, object: &K, change: Change);
    /// The watch began anew: objects may have been deleted unseen.
    fn restarted(&self);
}

/// The watches before they run.
pub(crate) struct Watches {
    client: Client,
    topics: Writer<GuardedTopic>,
    subscriptions: Writer<GuardedSubscription>,
    secrets: Writer<Secret>,
    pods: Writer<Pod>,
    deployments: Writer<Deployment>,
    config_maps: Writer<PartialObjectMeta<ConfigMap>>,
    api_service: Writer<Service>,
    api_endpoints: Writer<EndpointSlice>,
}

impl Watches {
    /// The watches, and the caches they will fill.
    pub(crate) fn new(client: Client) -> (Self, Stores) {
        let (topics_store, topics) = store();
        let (subscriptions_store, subscriptions) = store();
        let (secrets_store, secrets) = store();
        let (pods_store, pods) = store();
        let (deployments_store, deployments) = store();
        let (config_maps_store, config_maps) = store();
        let (api_service_store, api_service) = store();
        let (api_endpoints_store, api_endpoints) = store();
        let watches = Self {
            client,
            topics,
            subscriptions,
            secrets,
            pods,
            deployments,
            config_maps,
            api_service,
            api_endpoints,
        };
        let stores = Stores {
            topics: topics_store,
            subscriptions: subscriptions_store,
            secrets: secrets_store,
            pods: pods_store,
            deployments: deployments_store,
            config_maps: config_maps_store,
            api_service: api_service_store,
            api_endpoints: api_endpoints_store,
        };
        (watches, stores)
    }

    /// Watches for ever. A watch that fails begins anew, with growing delays.
    pub(crate) async fn run(self, triggers: Arc<Triggers>) {
        let all = watcher::Config::default();
        let labelled = |selector: &str| watcher::Config::default().labels(selector);
        let credentials = labelled(&format!("{}=true", names::CREDENTIALS_LABEL));
        let workers = labelled(names::WORKER_LABEL);
        let client = &self.client;
        let (kubernetes, slices) = (
            watcher::Config::default().fields("metadata.name=kubernetes"),
            labelled("kubernetes.io/service-name=kubernetes"),
        );
        let addresses = Arc::new(Addresses(Arc::clone(&triggers)));
        tokio::join!(
            watch(
                Api::all(client.clone()),
                all.clone(),
                managers,
                self.topics,
                &*triggers
            ),
            watch(
                Api::all(client.clone()),
                all,
                managers,
                self.subscriptions,
                &*triggers
            ),
            watch(
                Api::all(client.clone()),
                credentials,
                managers,
                self.secrets,
                &*triggers
            ),
            watch(
                Api::all(client.clone()),
                workers.clone(),
                managers_and_spec,
                self.pods,
                &*triggers
            ),
            watch(
                Api::all(client.clone()),
                workers.clone(),
                // Who edited a Deployment is seen by its managed fields.
                nothing,
                self.deployments,
                &*triggers
            ),
            watch(
                Api::namespaced(client.clone(), "default"),
                kubernetes,
                managers,
                self.api_service,
                &*addresses
            ),
            watch(
                Api::namespaced(client.clone(), "default"),
                slices,
                managers,
                self.api_endpoints,
                &*addresses
            ),
            follow::<ServiceAccount>(client, workers.clone(), &*triggers),
            watch(
                Api::all(client.clone()),
                workers.clone(),
                managers,
                self.config_maps,
                &*triggers
            ),
            follow::<Secret>(client, workers, &*triggers),
        );
    }
}

/// A failed watch begins anew after these delays. kube's own grow to half a minute and more: too long after an outage.
struct Delays(Backoff);

impl Delays {
    fn new() -> Self {
        Self(Backoff::new(
            Duration::from_millis(800),
            Duration::from_secs(10),
        ))
    }
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.next_delay())
    }
}

impl kube::runtime::utils::Backoff for Delays {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// Keeps a cache, and tells of changes. `trim` takes away what nobody reads: with thousands of objects that is most of
/// the memory.
async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    trim: fn(&mut K),
    writer: Writer<K>,
    handler: &impl Handler<K>,
) where
    K: Resource<DynamicType = ()>
        + Lookup<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    tell(
        reflector(
            writer,
            watcher(api, config).backoff(Delays::new()).modify(trim),
        ),
        handler,
    )
    .await;
}

/// Who owns which field is larger than most objects.
fn managers<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// A pod's spec is its Deployment's.
fn managers_and_spec(pod: &mut Pod) {
    managers(pod);
    pod.spec = None;
}

/// Takes nothing away.
const fn nothing<K>(_: &mut K) {}

/// Tells of changes without a cache: metadata is enough to know that somebody touched an object.
async fn follow<K>(
    client: &Client,
    config: watcher::Config,
    handler: &impl Handler<PartialObjectMeta<K>>,
) where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + Debug
        + Send
        + 'static,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    tell(watcher(api, config).backoff(Delays::new()), handler).await;
}

async fn tell<K: Resource<DynamicType = ()>>(
    stream: impl futures::Stream<Item = watcher::Result<Event<K>>>,
    handler: &impl Handler<K>,
) {
    let kind = K::kind(&()).into_owned();
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                handler.changed(&object, Change::Applied);
            }
            Ok(Event::Delete(object)) => handler.changed(&object, Change::Deleted),
            Ok(Event::Init) => {}
            Ok(Event::InitDone) => handler.restarted(),
            Err(error) => tracing::warn!(kind, %error, "watch interrupted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_fails_for_long_begins_anew_soon() {
        let longest = Delays::new().take(50).max();
        assert!(longest.is_some_and(|longest| longest <= Duration::from_secs(10)));
    }
}
