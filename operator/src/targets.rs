//! Tells the observer what there is to look at, from the watch caches.

use crate::controllers::conditions;
use crate::controllers::fanout_topic::status::Identity;
use crate::controllers::fanout_topic::validate::validate;
use crate::controllers::subscription::position;
use crate::observer::{
    Log, ScalingTarget, Shown, SubscriptionTarget, Targets, TopicTarget, WorkerKind, WorkerTarget,
};
use crate::scaling::Bounds;
use crate::settings::Settings;
use crate::stores::{GuardedSubscription, Stores, is_live, is_ready};
use fanout_contract::names;
use fanout_crds::condition::WORKERS_AVAILABLE;
use fanout_crds::{FanoutTopic, Scaling, ScalingStatus, Subscription};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Finds the address of a pod's admin server; tests put workers elsewhere.
pub type Addresses = Arc<dyn Fn(&Pod) -> Option<SocketAddr> + Send + Sync>;

/// The pod's own address.
pub fn pod_addresses() -> Addresses {
    Arc::new(|pod| {
        let address: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some(SocketAddr::new(address, names::ADMIN_PORT))
    })
}

/// Targets from the watch caches.
pub(crate) struct Watched {
    pub(crate) stores: Stores,
    pub(crate) settings: Settings,
    pub(crate) addresses: Addresses,
}

impl Targets for Watched {
    fn workers(&self) -> Vec<WorkerTarget> {
        let pods = self.stores.pods.state();
        pods.iter()
            .filter(|pod| is_live(pod) && is_ready(pod))
            .filter_map(|pod| self.worker(pod))
            .collect()
    }

    fn topics(&self) -> Vec<TopicTarget> {
        let mut subscriptions = self.stores.subscriptions_by_topic();
        let mut of = |topic: &FanoutTopic| {
            let namespace = topic.namespace().unwrap_or_default();
            let name = topic.name_any();
            subscriptions.remove(&(namespace, name)).unwrap_or_default()
        };
        self.stores
            .topics()
            .iter()
            .filter_map(|object| object.0.as_ref().ok())
            // Its Kafka topic may go at any moment.
            .filter(|topic| topic.metadata.deletion_timestamp.is_none())
            .map(|topic| self.topic(topic, &of(topic)))
            .collect()
    }
}

impl Watched {
    fn worker(&self, pod: &Pod) -> Option<WorkerTarget> {
        let labels = pod.labels();
        let topic = labels.get(names::TOPIC_LABEL)?;
        let worker = labels.get(names::WORKER_LABEL)?;
        Some(WorkerTarget {
            kind: if *worker == names::relay_deployment(topic) {
                WorkerKind::Relay
            } else {
                WorkerKind::Consumer
            },
            namespace: pod.namespace()?,
            topic: topic.clone(),
            worker: worker.clone(),
            pod: pod.name_any(),
            pod_uid: pod.uid()?,
            addr: (self.addresses)(pod)?,
        })
    }

    fn topic(&self, topic: &FanoutTopic, members: &[Arc<GuardedSubscription>]) -> TopicTarget {
        let namespace = topic.namespace().unwrap_or_default();
        let name = topic.name_any();
        let secrets = |secret: &str| self.stores.secret(&namespace, secret);
        let valid = validate(topic, &secrets, &self.settings.kafka_prefix).ok();
        let outbox = topic
            .status
            .as_ref()
            .and_then(|status| status.outbox.as_ref());
        TopicTarget {
            uid: topic.uid().unwrap_or_default(),
            relay: names::relay_deployment(&name),
            log: valid
                .filter(|_| Identity::recorded(topic).is_complete())
                .map(|valid| Log {
                    params: valid.producer.params,
                    consumer: valid.consumer.params,
                    topic: valid.log.topic,
                    settings: valid.log.config.into_keys().collect(),
                }),
            shown: Shown {
                count: outbox.and_then(|outbox| outbox.pending),
                oldest: outbox.and_then(|outbox| time(outbox.oldest_event_time.as_ref())),
                ..Shown::default()
            },
            subscriptions: members
                .iter()
                .filter_map(|object| subscription(object.0.as_ref().ok()?))
                .collect(),
            namespace,
            name,
        }
    }
}

fn subscription(subscription: &Subscription) -> Option<SubscriptionTarget> {
    let status = subscription.status.as_ref()?;
    Some(SubscriptionTarget {
        uid: subscription.uid()?,
        name: subscription.name_any(),
        group_id: status.group_id.clone()?,
        shown: Shown {
            count: status.depth,
            oldest: time(status.oldest_event_time.as_ref()),
            rate_per_second: status.rate_per_second,
            positions: position::offsets(&status.positions),
        },
        topic_id: status.topic_id.clone(),
        scaling: subscription
            .spec
            .scaling
            .as_ref()
            .map(|spec| scaling(spec, status.scaling.as_ref(), subscription)),
        worker: status.placement.clone(),
        is_served: !subscription.spec.suspend
            && conditions::holds(&status.conditions, WORKERS_AVAILABLE),
    })
}

fn scaling(
    spec: &Scaling,
    status: Option<&ScalingStatus>,
    subscription: &Subscription,
) -> ScalingTarget {
    let number = |number: i32| u32::try_from(number).unwrap_or_default();
    let rate = status.and_then(|status| u64::try_from(status.rate_per_replica?).ok());
    ScalingTarget {
        bounds: Bounds {
            min: number(spec.min_replicas),
            max: number(spec.max_replicas),
            target_age_seconds: number(spec.target_age_seconds),
            target_depth_per_replica: number(spec.target_depth_per_replica),
        },
        carries: number(subscription.spec.delivery.max_in_flight),
        replicas: status.map(|status| number(status.replicas)),
        reason: status.map(|status| status.reason.clone()),
        changed_at: status.and_then(|status| Some(status.change_time.as_ref()?.0.as_second())),
        capacity_milli: rate.map(|rate| rate.saturating_mul(1000)),
    }
}

fn time(time: Option<&Time>) -> Option<k8s_openapi::jiff::Timestamp> {
    time.map(|time| time.0)
}
