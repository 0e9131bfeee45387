//! Configurations of workers that fit a sandbox; tests change what they are about.

use crate::process::Files;
use crate::produced::MARK;
use crate::services::RECEIVER_RANGE;
use crate::{PARTITIONS, Sandbox};
use fanout_contract::consumer::{
    ConsumerConfig, Delivery, Egress, KafkaSource, OnExhausted, Ordering, Retry, Sink, StartOffset,
    SubscriptionConfig, WebhookConfig,
};
use fanout_contract::kafka::{Kafka, KafkaAuth};
use fanout_contract::relay::{
    Broker, Claim, ColumnMatch, Delivery as RelayDelivery, Format, KafkaTarget, NullPayload,
    OnParked, PostgresSource, RelayConfig, RelayStart, Source,
};

/// File with the outbox URL among [`Sandbox::secret_files`].
pub const URL_FILE: &str = "topic-uid.url";

impl Sandbox {
    /// Secret files for every configuration below.
    pub fn secret_files(&self) -> Files {
        Files::from([
            (URL_FILE.to_owned(), self.relay_url.clone().into_bytes()),
            (
                fanout_contract::names::HASH_KEY_FILE.to_owned(),
                format!("{MARK} hash key of {}", self.name).into_bytes(),
            ),
        ])
    }

    /// The relay of the sandbox's outbox and topic, from the first row on.
    pub fn relay_config(&self) -> RelayConfig {
        RelayConfig {
            namespace: self.namespace.clone(),
            name: self.topic_name.clone(),
            generation: 1,
            suspend: false,
            delete_positions: false,
            accept_source: None,
            on_parked: OnParked::default(),
            format: Format::default(),
            null_payload: NullPayload::default(),
            delivery: RelayDelivery::default(),
            source: Source::Postgres(PostgresSource {
                url_file: URL_FILE.to_owned(),
                ca_file: None,
                table: "public.outbox".to_owned(),
                r#match: vec![ColumnMatch {
                    column: "topic".to_owned(),
                    value: self.topic_name.clone(),
                }],
                claim: Claim::Snapshot,
                columns: None,
                start_from: RelayStart::Earliest,
                retention_seconds: 86_400,
            }),
            broker: Broker::Kafka(KafkaTarget {
                cluster: self.kafka_cluster(),
                topic: self.kafka_topic.clone(),
            }),
        }
    }

    /// A consumer that may reach [`crate::receiver::Receiver`]s.
    pub fn consumer_config(&self, subscriptions: Vec<SubscriptionConfig>) -> ConsumerConfig {
        ConsumerConfig {
            namespace: self.namespace.clone(),
            topic_name: self.topic_name.clone(),
            broker: KafkaSource {
                cluster: self.kafka_cluster(),
                topic: self.kafka_topic.clone(),
                dead_letter_topic: self.dead_letter_topic.clone(),
            },
            egress: Egress {
                allowed_cidrs: vec![RECEIVER_RANGE.to_owned()],
                refused_cidrs: Vec::new(),
            },
            subscriptions,
        }
    }

    /// A subscription in key order to an unsigned webhook, from the first record on, that is patient with failures.
    pub fn webhook(&self, name: &str, url: &str) -> SubscriptionConfig {
        SubscriptionConfig {
            name: name.to_owned(),
            uid: format!("{name}-uid"),
            generation: 1,
            group_id: self.group_id(name),
            suspend: false,
            filter: None,
            sink: Sink::Webhook(WebhookConfig {
                url: url.to_owned(),
                signing_secret_files: Vec::new(),
                timeout_seconds: 5,
            }),
            delivery: Delivery {
                ordering: Ordering::PerKey,
                max_in_flight: 32,
                retry: Retry {
                    max_attempts: 100,
                    initial_backoff_milliseconds: 50,
                    max_backoff_seconds: 1,
                    max_age_seconds: 600,
                },
                non_retryable: Vec::new(),
                on_exhausted: OnExhausted::DeadLetter,
            },
            start_offsets: (0..PARTITIONS)
                .map(|partition| StartOffset {
                    partition,
                    offset: 0,
                })
                .collect(),
            resume: None,
        }
    }

    fn kafka_cluster(&self) -> Kafka {
        Kafka {
            bootstrap_servers: self.bootstrap.clone(),
            auth: KafkaAuth::default(),
        }
    }
}
