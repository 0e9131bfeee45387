//! What one test has for itself: a database, topics, groups, a folder.

use crate::services::kafka::Kafka;
use crate::services::postgres::{APP_ROLE, Postgres, RELAY_ROLE, TEMPLATE, url_at};
use crate::services::{self, dirs};
use fanout_contract::names;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Partitions of a sandbox's Kafka topic.
pub const PARTITIONS: i32 = 6;

/// A test's own part of the shared services. Nothing in it is shared with another test; it is removed with the
/// run's folder, so that a failed test can be looked at.
#[derive(Debug)]
pub struct Sandbox {
    /// Unique: the test's name and a random suffix; legal in every name below.
    pub name: String,
    /// Namespace for configurations.
    pub namespace: String,
    /// Name of the FanoutTopic; the default `match` of a relay selects outbox rows with it.
    pub topic_name: String,
    /// Kafka topic, created.
    pub kafka_topic: String,
    /// Dead letter topic, created.
    pub dead_letter_topic: String,
    /// Database name.
    pub database: String,
    /// URL of the database for the superuser.
    pub url: String,
    /// URL for the application's role.
    pub app_url: String,
    /// URL for the relay's role.
    pub relay_url: String,
    /// Kafka bootstrap servers.
    pub bootstrap: String,
    dir: PathBuf,
    pool: PgPool,
}

impl Sandbox {
    /// A sandbox for the test `test` (letters, digits, `_` and `-`), with the services it needs started.
    pub async fn new(test: &str) -> Self {
        // Their first start blocks for seconds; Kafka and PostgreSQL start side by side.
        let kafka = tokio::task::spawn_blocking(services::kafka);
        let postgres = tokio::task::spawn_blocking(services::postgres)
            .await
            .expect("PostgreSQL starts");
        let kafka = kafka.await.expect("Kafka starts");
        Self::with(test, postgres, kafka).await
    }

    /// A sandbox on servers of the caller's own, for tests that stop them.
    pub async fn with(test: &str, postgres: &Postgres, kafka: &Kafka) -> Self {
        Self::through(test, postgres, kafka, postgres.port()).await
    }

    /// The same where everybody reaches `postgres` at `port`, where a proxy of the caller's stands.
    pub async fn through(test: &str, postgres: &Postgres, kafka: &Kafka, port: u16) -> Self {
        let short: String = test.chars().take(30).collect();
        let name = format!(
            "{}-{:08x}",
            short.replace('_', "-").to_lowercase(),
            rand::random::<u32>()
        );
        let database = name.replace('-', "_");
        let mut admin = PgConnection::connect(&postgres.url("postgres"))
            .await
            .expect("the superuser connects");
        sqlx::raw_sql(AssertSqlSafe(format!(
            "create database {database} template {TEMPLATE}"
        )))
        .execute(&mut admin)
        .await
        .expect("a database can be cloned");
        admin.close().await.expect("the connection closes");

        let namespace = name.clone();
        let topic_name = "posts".to_owned();
        let kafka_topic = names::kafka_topic("", &namespace, &topic_name);
        let dead_letter_topic = names::dead_letter_topic(&kafka_topic);
        kafka.create_topic(&kafka_topic, PARTITIONS, &[]).await;
        kafka.create_topic(&dead_letter_topic, 1, &[]).await;

        let url = url_at(port, "postgres", &database);
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .acquire_timeout(Duration::from_secs(30))
            .connect(&url)
            .await
            .expect("the superuser connects");
        Self {
            app_url: url_at(port, APP_ROLE, &database),
            relay_url: url_at(port, RELAY_ROLE, &database),
            bootstrap: kafka.bootstrap(),
            dir: dirs::private(&name, 0o755).expect("a folder can be made"),
            name,
            namespace,
            topic_name,
            kafka_topic,
            dead_letter_topic,
            database,
            url,
            pool,
        }
    }

    /// Superuser connections to the database.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The test's own folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Consumer group of the subscription `subscription`.
    pub fn group_id(&self, subscription: &str) -> String {
        names::group_id("", &self.namespace, subscription)
    }

    /// Creates the topic of the positions that relays with `delivery: Transactional` need.
    pub async fn create_positions_topic(&self, kafka: &Kafka) {
        let name = names::positions_topic(&self.kafka_topic);
        let compacted = [("cleanup.policy", "compact")];
        kafka
            .create_topic(&name, names::POSITIONS_PARTITIONS, &compacted)
            .await;
    }

    /// URL of the database for the relay's role through PgBouncer.
    pub async fn pooled_relay_url(&self) -> String {
        let pooler = tokio::task::spawn_blocking(services::pgbouncer)
            .await
            .expect("PgBouncer starts");
        pooler.url_as(RELAY_ROLE, &self.database)
    }
}
