//! Reads what a FanoutTopic's reconcile needs. I/O only, no decisions.

use crate::context::Context;
use crate::controllers::error::Error;
use crate::controllers::fanout_topic::members::{self, Held, Member};
use crate::controllers::secrets::Files;
use fanout_contract::consumer::ConsumerConfig;
use fanout_contract::names;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};

/// The objects that carry a topic's labels. Has no `Debug`: it holds secret values.
#[derive(Default)]
pub(crate) struct Live {
    /// Identities.
    pub(crate) service_accounts: Vec<ServiceAccount>,
    /// Copied values.
    pub(crate) secrets: Vec<Secret>,
    /// Configurations.
    pub(crate) config_maps: Vec<ConfigMap>,
    /// Pods.
    pub(crate) deployments: Vec<Deployment>,
}

impl Live {
    /// Lists them: the answer is newer than any cache, so that what was written is not written again.
    pub(crate) async fn list(ctx: &Context, namespace: &str, topic: &str) -> Result<Self, Error> {
        let selector = format!("{}={topic},{}", names::TOPIC_LABEL, names::WORKER_LABEL);
        let parameters = ListParams::default().labels(&selector);
        let (service_accounts, secrets, config_maps, deployments) = tokio::try_join!(
            list(&ctx.client, namespace, &parameters, "ServiceAccounts"),
            list(&ctx.client, namespace, &parameters, "Secrets"),
            list(&ctx.client, namespace, &parameters, "ConfigMaps"),
            list(&ctx.client, namespace, &parameters, "Deployments"),
        )?;
        Ok(Self {
            service_accounts,
            secrets,
            config_maps,
            deployments,
        })
    }

    /// The hash key of a worker's Secret, if it has one.
    pub(crate) fn hash_key(&self, worker: &str) -> Option<Vec<u8>> {
        let secret = self
            .secrets
            .iter()
            .find(|secret| secret.name_any() == worker)?;
        let key = secret.data.as_ref()?.get(names::HASH_KEY_FILE)?;
        Some(key.0.clone()).filter(|key| !key.is_empty())
    }

    /// The Subscriptions in each worker's configuration.
    pub(crate) fn held(&self) -> Held {
        self.config_maps
            .iter()
            .filter_map(|config_map| {
                let text = config_map.data.as_ref()?.get(names::CONFIG_FILE)?;
                Some((config_map.name_any(), members::held(text)))
            })
            .collect()
    }

    /// All but those of one worker.
    pub(crate) fn except(mut self, worker: &str) -> Self {
        self.service_accounts.retain(|it| it.name_any() != worker);
        self.secrets.retain(|it| it.name_any() != worker);
        self.config_maps.retain(|it| it.name_any() != worker);
        self.deployments.retain(|it| it.name_any() != worker);
        self
    }

    /// What workers have of the Subscriptions `uids`, with their files: it goes on when these can't be decoded any more.
    pub(crate) fn kept(&self, uids: &BTreeSet<String>) -> Vec<Member> {
        let mut kept = BTreeMap::new();
        for config_map in &self.config_maps {
            let text = config_map
                .data
                .as_ref()
                .and_then(|data| data.get(names::CONFIG_FILE));
            let config = text.and_then(|text| serde_yaml::from_str::<ConsumerConfig>(text).ok());
            let worker = config_map.name_any();
            let entries = config.into_iter().flat_map(|config| config.subscriptions);
            for entry in entries.filter(|entry| uids.contains(&entry.uid)) {
                // On the way from one worker to another it is in both.
                kept.entry(entry.uid.clone()).or_insert_with(|| Member {
                    files: self.files_of(&worker, &entry.uid),
                    placement: worker.clone(),
                    config: entry,
                    replicas: self
                        .deployment(&worker)
                        .and_then(|deployment| deployment.spec.as_ref()?.replicas)
                        .unwrap_or(1),
                });
            }
        }
        kept.into_values().collect()
    }

    fn files_of(&self, worker: &str, uid: &str) -> Files {
        let prefix = names::secret_file(uid, "");
        self.secrets
            .iter()
            .filter(|secret| secret.name_any() == worker)
            .flat_map(|secret| secret.data.iter().flatten())
            .filter(|(file, _)| file.starts_with(&prefix))
            .map(|(file, value)| (file.clone(), value.0.clone()))
            .collect()
    }

    /// A worker's Deployment.
    pub(crate) fn deployment(&self, worker: &str) -> Option<&Deployment> {
        self.deployments
            .iter()
            .find(|deployment| deployment.name_any() == worker)
    }
}

async fn list<K>(
    client: &Client,
    namespace: &str,
    parameters: &ListParams,
    what: &'static str,
) -> Result<Vec<K>, Error>
where
    K: crate::apply::Child,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let list = api.list(parameters).await.map_err(Error::reading(what))?;
    Ok(list.items)
}
