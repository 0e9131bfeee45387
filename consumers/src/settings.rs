//! One subscription's settings, made ready: filter compiled, secrets read, endpoint checked.

use crate::sink::webhook::{Unusable, Webhook};
use fanout_contract::consumer::{ConsumerConfig, Egress, Sink, StopReason, SubscriptionConfig};
use fanout_contract::kafka::{Kafka, KafkaCredentials, client_properties};
use fanout_runtime::config::{ConfigError, Files, Loaded};
use fanout_runtime::filter::Filter;
use fanout_runtime::guard::{Guard, Refused};
use ipnet::IpNet;
use secrecy::ExposeSecret;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Subscriptions one worker serves at most: a hundred, and those that leave it or that the operator can't place any more.
const MAX_SUBSCRIPTIONS: usize = 200;

/// Why a configuration as a whole is refused; the one before stays in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    /// An egress range is no CIDR.
    #[error("egress: {0:?} is no CIDR")]
    Cidr(String),
    /// A file of the broker's authentication is missing.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// More subscriptions than a worker takes.
    #[error("more than {MAX_SUBSCRIPTIONS} subscriptions")]
    TooMany,
    /// Two subscriptions with one name or one group.
    #[error("subscription {0:?} is named twice or shares its group")]
    Twice(String),
}

/// How to reach the log. Equal means that no client has to be started anew.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Connection {
    /// librdkafka properties. No `Debug`: there are secrets among them.
    pub properties: Vec<(&'static str, String)>,
    /// Topic to read.
    pub topic: String,
    /// Topic for dead letters.
    pub dead_letter_topic: String,
}

/// Everything one subscription's task runs by.
pub(crate) struct Settings {
    /// As configured.
    pub config: SubscriptionConfig,
    /// Compiled filter; none lets everything pass.
    pub filter: Option<Arc<Filter>>,
    /// The endpoint, or why there is none.
    pub sink: Result<Arc<Webhook>, Fault>,
    /// Contents of the secrets and of the egress rules the sink was made from, to tell whether it changed.
    sink_inputs: (Vec<Vec<u8>>, Egress),
    /// Why nothing can be delivered.
    pub fault: Option<Fault>,
}

/// A setting that only a human can mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Reason class.
    pub reason: StopReason,
    /// What is wrong with the setting, without its value.
    pub message: String,
}

/// The whole configuration made ready.
pub(crate) struct Plan {
    /// How to reach the log.
    pub connection: Connection,
    /// Namespace of the FanoutTopic.
    pub namespace: String,
    /// Subscriptions in the order of the configuration.
    pub subscriptions: Vec<Arc<Settings>>,
}

impl Plan {
    /// Makes `loaded` ready. What did not change since `before` is taken over, connections included. Compiles
    /// filters, hence not for the async runtime's threads.
    pub(crate) fn new(
        loaded: &Loaded<ConsumerConfig>,
        before: Option<&Self>,
    ) -> Result<Self, SettingsError> {
        let config = &loaded.config;
        if config.subscriptions.len() > MAX_SUBSCRIPTIONS {
            return Err(SettingsError::TooMany);
        }
        let mut taken = BTreeSet::new();
        for subscription in &config.subscriptions {
            let name = taken.insert(("name", subscription.name.as_str()));
            let group = taken.insert(("group", subscription.group_id.as_str()));
            if !name || !group {
                return Err(SettingsError::Twice(subscription.name.clone()));
            }
        }
        let guard = Arc::new(guard(&config.egress)?);
        let subscriptions = config
            .subscriptions
            .iter()
            .map(|subscription| {
                let former = before.and_then(|plan| plan.find(&subscription.name));
                let preparation = Preparation {
                    namespace: &config.namespace,
                    egress: &config.egress,
                    guard: &guard,
                    files: &loaded.files,
                };
                Arc::new(preparation.settings(subscription, former))
            })
            .collect();
        Ok(Self {
            connection: Connection {
                properties: connection(&config.broker.cluster, &loaded.files)?,
                topic: config.broker.topic.clone(),
                dead_letter_topic: config.broker.dead_letter_topic.clone(),
            },
            namespace: config.namespace.clone(),
            subscriptions,
        })
    }

    fn find(&self, name: &str) -> Option<&Settings> {
        self.subscriptions
            .iter()
            .find(|settings| settings.config.name == name)
            .map(Arc::as_ref)
    }
}

fn guard(egress: &Egress) -> Result<Guard, SettingsError> {
    let parse = |texts: &[String]| {
        texts
            .iter()
            .map(|text| text.parse().map_err(|_| SettingsError::Cidr(text.clone())))
            .collect::<Result<Vec<IpNet>, _>>()
    };
    Ok(Guard::new(
        &parse(&egress.allowed_cidrs)?,
        &parse(&egress.refused_cidrs)?,
    ))
}

fn connection(cluster: &Kafka, files: &Files) -> Result<Vec<(&'static str, String)>, ConfigError> {
    let read = |name: &Option<String>| {
        name.as_ref()
            .map(|name| files.text(name).map(|text| text.expose_secret().to_owned()))
            .transpose()
    };
    let auth = &cluster.auth;
    let credentials = KafkaCredentials {
        user: read(&auth.user_file)?,
        password: read(&auth.password_file)?,
        ca: read(&auth.ca_file)?,
        client_cert: read(&auth.client_cert_file)?,
        client_key: read(&auth.client_key_file)?,
    };
    Ok(client_properties(
        &cluster.bootstrap_servers,
        auth.mechanism,
        &credentials,
    ))
}

/// What all subscriptions of a configuration share.
struct Preparation<'c> {
    namespace: &'c str,
    egress: &'c Egress,
    guard: &'c Arc<Guard>,
    files: &'c Files,
}

impl Preparation<'_> {
    fn settings(&self, config: &SubscriptionConfig, former: Option<&Settings>) -> Settings {
        let (filter, filter_fault) = compile(config, former);
        let Sink::Webhook(webhook) = &config.sink;
        let secrets = webhook
            .signing_secret_files
            .iter()
            .map(|name| {
                self.files
                    .bytes(name)
                    .map(<[u8]>::to_vec)
                    .unwrap_or_default()
            })
            .collect();
        let sink_inputs = (secrets, self.egress.clone());
        let sink = match former {
            Some(former)
                if former.config.sink == config.sink
                    && former.sink_inputs == sink_inputs
                    && former.sink.is_ok() =>
            {
                former.sink.clone()
            }
            _ => self.webhook(config).map(Arc::new),
        };
        Settings {
            fault: filter_fault.or_else(|| sink.as_ref().err().cloned()),
            config: config.clone(),
            filter,
            sink,
            sink_inputs,
        }
    }

    fn webhook(&self, config: &SubscriptionConfig) -> Result<Webhook, Fault> {
        let Sink::Webhook(webhook) = &config.sink;
        let invalid = |message: String| Fault {
            reason: StopReason::SinkInvalid,
            message,
        };
        let secrets = webhook
            .signing_secret_files
            .iter()
            .map(|name| self.files.text(name))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| invalid(error.to_string()))?;
        let guard = Arc::clone(self.guard);
        Webhook::new(webhook, &secrets, guard, self.namespace, &config.name).map_err(|unusable| {
            let reason = match unusable {
                Unusable::Address(Refused::Always | Refused::Private | Refused::HostName) => {
                    StopReason::AddressRefused
                }
                _ => StopReason::SinkInvalid,
            };
            Fault {
                reason,
                message: unusable.to_string(),
            }
        })
    }
}

fn compile(
    config: &SubscriptionConfig,
    former: Option<&Settings>,
) -> (Option<Arc<Filter>>, Option<Fault>) {
    let Some(source) = &config.filter else {
        return (None, None);
    };
    if let Some(former) = former
        && former.config.filter == config.filter
        && let Some(filter) = &former.filter
    {
        return (Some(Arc::clone(filter)), None);
    }
    match Filter::compile(source) {
        Ok(filter) => (Some(Arc::new(filter)), None),
        Err(error) => {
            let fault = Fault {
                reason: StopReason::FilterInvalid,
                message: error.to_string(),
            };
            (None, Some(fault))
        }
    }
}

#[cfg(test)]
mod tests;
