//! One client per cluster and principal, shared by everything that asks for it and dropped when idle.

use super::cluster::Cluster;
use super::error::{ErrorClass, KafkaError};
use fanout_contract::kafka::{KafkaCredentials, Mechanism, client_properties};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How to reach a cluster, and as whom. Equality and hash are over the values, so a rotated password is another
/// client. Has no `Debug`: it holds secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClusterParams {
    /// Comma-separated `host:port` list.
    pub bootstrap_servers: String,
    /// SASL mechanism.
    pub mechanism: Mechanism,
    /// Values of the referenced Secrets.
    pub credentials: KafkaCredentials,
}

impl ClusterParams {
    /// librdkafka's connection properties.
    pub(super) fn properties(&self) -> Vec<(&'static str, String)> {
        client_properties(&self.bootstrap_servers, self.mechanism, &self.credentials)
    }

    pub(super) const fn uses_tls(&self) -> bool {
        self.credentials.ca.is_some() || self.credentials.client_cert.is_some()
    }
}

/// Clients kept at most; beyond, the least recently used one is given up (who holds it may finish).
const MAX_CLUSTERS: usize = 64;
/// A client that nobody asked for during this time is dropped: its password may have been rotated.
const IDLE_AFTER: Duration = Duration::from_mins(10);

struct Entry {
    cluster: Arc<Cluster>,
    last_used: Instant,
}

/// Asked before each change of a cluster: may it be sent now?
pub type Permit = Arc<dyn Fn() -> bool + Send + Sync>;

/// The clients of all clusters in use.
pub struct Clusters {
    entries: Mutex<HashMap<ClusterParams, Entry>>,
    permit: Permit,
}

impl Default for Clusters {
    fn default() -> Self {
        Self::permitted(Arc::new(|| true))
    }
}

impl Clusters {
    /// Without clients.
    pub fn new() -> Self {
        Self::default()
    }

    /// Without clients; their changes are sent while `permit` allows it, else they fail with [`ErrorClass::NotReady`].
    pub fn permitted(permit: Permit) -> Self {
        Self {
            entries: Mutex::default(),
            permit,
        }
    }

    /// The client for `params`, made on first use. Does not connect by itself: what is wrong with the cluster shows
    /// in the first call; an error here means that the settings can't be used at all.
    pub async fn get(&self, params: &ClusterParams) -> Result<Arc<Cluster>, KafkaError> {
        if let Some(cluster) = self.lookup(params) {
            return Ok(cluster);
        }
        // Loading certificates and starting threads takes milliseconds: not on an async worker.
        let (wanted, permit) = (params.clone(), Arc::clone(&self.permit));
        let made = tokio::task::spawn_blocking(move || Cluster::new(&wanted, permit))
            .await
            .unwrap_or(Err(KafkaError {
                class: ErrorClass::Other,
                operation: Cluster::CONNECT,
                code: 0,
            }))?;
        Ok(self.insert(params, Arc::new(made)))
    }

    /// Clients kept now.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// True without any client.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ClusterParams, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lookup(&self, params: &ClusterParams) -> Option<Arc<Cluster>> {
        let now = Instant::now();
        let mut entries = self.lock();
        entries.retain(|_, entry| !entry.cluster.is_misled());
        let found = entries.get_mut(params).map(|entry| {
            entry.last_used = now;
            Arc::clone(&entry.cluster)
        });
        entries.retain(|_, entry| now.duration_since(entry.last_used) < IDLE_AFTER);
        found
    }

    /// Keeps `made`, unless somebody was faster: then theirs is used and `made` dropped.
    fn insert(&self, params: &ClusterParams, made: Arc<Cluster>) -> Arc<Cluster> {
        let mut entries = self.lock();
        if !entries.contains_key(params) && entries.len() >= MAX_CLUSTERS {
            let oldest = entries
                .iter()
                .min_by_key(|(_, entry)| entry.last_used)
                .map(|(params, _)| params.clone());
            if let Some(oldest) = oldest {
                entries.remove(&oldest);
            }
        }
        let entry = entries.entry(params.clone()).or_insert_with(|| Entry {
            cluster: made,
            last_used: Instant::now(),
        });
        Arc::clone(&entry.cluster)
    }
}
