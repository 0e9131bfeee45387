//! What every reconcile shares.

use crate::accesses::Accesses;
use crate::kafka::Clusters;
use crate::metrics::Metrics;
use crate::observer::Observer;
use crate::placement::Recent;
use crate::pushes::Pushes;
use crate::served::Served;
use crate::settings::Settings;
use crate::stores::Stores;
use fanout_runtime::backoff::Backoff;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject};
use kube::runtime::controller::Action;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Shared by both controllers.
pub(crate) struct Context {
    /// The API server.
    pub(crate) client: Client,
    /// Publishes events; shared, because it folds repeats.
    pub(crate) recorder: Recorder,
    /// This installation's settings.
    pub(crate) settings: Settings,
    /// Watch caches.
    pub(crate) stores: Stores,
    /// Kafka clients.
    pub(crate) clusters: Arc<Clusters>,
    /// What workers and logs say.
    pub(crate) observer: Arc<Observer>,
    /// How Kafka was last reached for each FanoutTopic.
    pub(crate) accesses: Accesses,
    /// Placements that the watch cache does not show yet.
    pub(crate) placements: Recent,
    /// Configurations that workers have not taken over yet.
    pub(crate) pushes: Pushes,
    /// Counts of what was done.
    pub(crate) metrics: Metrics,
    /// Delays of what failed.
    pub(crate) retries: Retries,
    /// Fields that the cluster's CRDs lack.
    pub(crate) served: Arc<Served>,
}

impl Context {
    /// True when the namespace is being deleted (or gone): nothing may be created in it, not even an event.
    pub(crate) async fn is_terminating(&self, namespace: &str) -> kube::Result<bool> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        Ok(namespaces
            .get_opt(namespace)
            .await?
            .is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()))
    }
}

/// Converged objects are looked at again after this time, in case an event was missed.
const SAFETY_INTERVAL: Duration = Duration::from_mins(15);
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Nobody tells when Kafka, its ACLs or the API server are mended: recovery waits no longer than this.
const RETRY_LONGEST: Duration = Duration::from_secs(30);

/// Delays per object that grow with each failure in a row.
#[derive(Debug, Default)]
pub(crate) struct Retries(Mutex<HashMap<String, Backoff>>);

impl Retries {
    fn key<K: Resource<DynamicType = ()>>(object: &K) -> String {
        key(
            &K::kind(&()),
            &object.namespace().unwrap_or_default(),
            &object.name_any(),
        )
    }

    /// After one more failure of `object`.
    pub(crate) fn next<K: Resource<DynamicType = ()>>(&self, object: &K) -> Action {
        Action::requeue(self.delay(object, RETRY_LONGEST))
    }

    /// The delay that [`Self::next`] waits, but not more than `longest`.
    pub(crate) fn delay<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        longest: Duration,
    ) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let backoff = all
            .entry(Self::key(object))
            .or_insert_with(|| Backoff::new(RETRY_FIRST, RETRY_LONGEST));
        let spread = longest.mul_f64(rand::random_range(0.5..1.0));
        backoff.next_delay().min(spread)
    }

    /// After a success: the next failure starts with the shortest delay.
    pub(crate) fn forget<K: Resource<DynamicType = ()>>(&self, object: &K) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&Self::key(object));
    }

    /// For an object that no longer exists.
    pub(crate) fn forget_deleted(&self, object: &ObjectRef<DynamicObject>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = object.namespace.as_deref().unwrap_or_default();
        all.remove(&key(&object.dyntype.kind, namespace, &object.name));
    }
}

fn key(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind}/{namespace}/{name}")
}

/// For a converged object: a long interval, spread so that a restart does not align all objects for ever.
pub(crate) fn safety_net() -> Action {
    Action::requeue(SAFETY_INTERVAL.mul_f64(rand::random_range(0.7..1.3)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    #[test]
    fn a_delay_grows_but_not_beyond_what_is_asked_for() {
        let retries = Retries::default();
        let object = ConfigMap::default();
        let longest = Duration::from_secs(20);
        let delays: Vec<Duration> = (0..20).map(|_| retries.delay(&object, longest)).collect();
        assert!(delays[0] <= RETRY_FIRST, "{delays:?}");
        assert!(delays.iter().all(|delay| *delay <= longest), "{delays:?}");
        assert!(delays[19] >= longest / 2, "{delays:?}");
    }
}
