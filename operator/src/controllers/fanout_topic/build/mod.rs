//! Builds everything a FanoutTopic's workers consist of. Pure: no client, no clock, no randomness.

mod deployment;
mod objects;

use super::members::Member;
use super::validate::ValidTopic;
use crate::controllers::error::Error;
use crate::controllers::secrets::Files;
use crate::settings::Settings;
use fanout_contract::consumer::{ConsumerConfig, Egress, KafkaSource};
use fanout_contract::names;
use fanout_contract::relay::{Broker, KafkaTarget, RelayConfig, Source};
use fanout_crds::pod::PodSettings;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Publishes the outbox.
    Relay,
    /// Serves Subscriptions.
    Consumers,
}

impl Role {
    /// Name of the binary, the container and the application label.
    pub(crate) const fn application(self) -> &'static str {
        match self {
            Self::Relay => "fanout-relay",
            Self::Consumers => "fanout-consumers",
        }
    }
}

/// One worker before it becomes objects. Has no `Debug`: it holds secret values.
pub(crate) struct Worker<'a> {
    pub(super) topic: &'a ValidTopic,
    pub(super) settings: &'a Settings,
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) replicas: i32,
    pub(super) pod: &'a PodSettings,
    /// Everything in the worker's volume, by file name.
    pub(super) files: Files,
}

/// The objects of one worker. Has no `Debug`: it holds secret values.
pub(crate) struct WorkerObjects {
    /// Name of all of them.
    pub(crate) name: String,
    /// Hash of the configuration, as the worker reports it.
    pub(crate) hash: String,
    /// Identity without a token.
    pub(crate) service_account: ServiceAccount,
    /// Copied values.
    pub(crate) secret: Secret,
    /// The configuration file.
    pub(crate) config_map: ConfigMap,
    /// The pods.
    pub(crate) deployment: Deployment,
}

/// Builds the relay and one worker for each entry of `members`, in that order.
///
/// `keys` holds the hash key of each worker's Secret.
pub(crate) fn workers(
    topic: &ValidTopic,
    members: &BTreeMap<String, Vec<&Member>>,
    egress: &Egress,
    settings: &Settings,
    keys: &dyn Fn(&str) -> Vec<u8>,
) -> Result<Vec<WorkerObjects>, Error> {
    let mut workers = vec![relay(topic, settings)?];
    for (name, members) in members {
        workers.push(consumers(topic, name, members, egress, settings)?);
    }
    Ok(workers
        .into_iter()
        .map(|mut worker| {
            worker
                .files
                .insert(names::HASH_KEY_FILE.to_owned(), keys(&worker.name));
            objects::objects(&worker)
        })
        .collect())
}

fn relay<'a>(topic: &'a ValidTopic, settings: &'a Settings) -> Result<Worker<'a>, Error> {
    let config = RelayConfig {
        namespace: topic.namespace.clone(),
        name: topic.name.clone(),
        generation: topic.generation,
        suspend: topic.suspend,
        delete_positions: false,
        accept_source: topic.accept_source.clone(),
        on_parked: topic.on_parked,
        format: topic.format,
        null_payload: topic.null_payload,
        delivery: topic.delivery,
        source: Source::Postgres(topic.source.clone()),
        broker: Broker::Kafka(KafkaTarget {
            cluster: topic.producer.kafka.clone(),
            topic: topic.log.topic.clone(),
        }),
    };
    let mut files = topic.source_files.clone();
    files.extend(topic.producer.files.clone());
    files.insert(names::CONFIG_FILE.to_owned(), render(&config)?);
    Ok(Worker {
        topic,
        settings,
        name: names::relay_deployment(&topic.name),
        role: Role::Relay,
        replicas: topic.relay_replicas,
        pod: &topic.relay_pod,
        files,
    })
}

fn consumers<'a>(
    topic: &'a ValidTopic,
    name: &str,
    members: &[&Member],
    egress: &Egress,
    settings: &'a Settings,
) -> Result<Worker<'a>, Error> {
    let mut subscriptions: Vec<_> = members.iter().map(|member| member.config.clone()).collect();
    subscriptions.sort_by(|one, other| one.name.cmp(&other.name));
    let config = ConsumerConfig {
        namespace: topic.namespace.clone(),
        topic_name: topic.name.clone(),
        broker: KafkaSource {
            cluster: topic.consumer.kafka.clone(),
            topic: topic.log.topic.clone(),
            dead_letter_topic: topic.log.dead_letter_topic.clone(),
        },
        egress: egress.clone(),
        subscriptions,
    };
    let mut files = topic.consumer.files.clone();
    files.extend(members.iter().flat_map(|member| member.files.clone()));
    files.insert(names::CONFIG_FILE.to_owned(), render(&config)?);
    Ok(Worker {
        topic,
        settings,
        name: name.to_owned(),
        role: Role::Consumers,
        // A pool is one process by design: only a worker of one Subscription's own has more.
        replicas: members
            .iter()
            .filter(|member| member.placement == name)
            .map(|member| member.replicas)
            .max()
            .unwrap_or(1),
        pod: &topic.consumer_pod,
        files,
    })
}

fn render<C: Serialize>(config: &C) -> Result<Vec<u8>, Error> {
    serde_yaml::to_string(config)
        .map(String::into_bytes)
        .map_err(|error| Error::Render(error.to_string()))
}
