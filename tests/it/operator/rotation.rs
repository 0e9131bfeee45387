//! Every credential changes under traffic, in both orders: nothing is lost and no worker starts anew.

use super::cluster::{ADDRESS, Cluster, LIMIT};
use super::kubelet::Kubelet;
use super::live::Live;
use super::played::files;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fanout_contract::names;
use fanout_crds::Subscription;
use fanout_crds::condition::{LOG_READY, READY, SOURCE_REACHABLE};
use fanout_tests::checker::Checker;
use fanout_tests::checker::load::{Load, Options};
use fanout_tests::produced::MARK;
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::services::kafka::Kafka;
use fanout_tests::services::{self, postgres};
use fanout_tests::{Sandbox, eventually};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use std::collections::BTreeMap;
use std::time::Duration;

const WORKERS: [&str; 2] = ["posts-relay", "posts-pool-0"];

/// A topic whose every credential is its own, and traffic through it.
struct Scene<'c> {
    cluster: &'c Cluster,
    live: Live,
    kafka: &'static Kafka,
    /// Role and SASL user.
    user: String,
    receiver: Receiver,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_credential_rotates_under_traffic_without_a_restart_or_a_loss() {
    let cluster = Cluster::start().await;
    let operator = cluster.operator("only").await;
    let scene = Scene::start(&cluster).await;
    let options = Options {
        transactions: 1_000_000,
        hold: Duration::from_millis(500),
        writers: 4,
        ..Options::default()
    };
    let load = Load::start(&scene.live.sandbox, &options).await;
    scene.settled().await;
    scene.gets_through().await;
    let before = scene.containers().await;

    scene.database_rotates().await;
    scene.kafka_rotates().await;
    scene.authority_rotates().await;
    let stages = scene.signing_secrets_rotate().await;

    load.stop();
    let journal = load.finish().await;
    let checker = Checker::new(&scene.live.sandbox, &journal).await;
    let verdict = Checker::settle(super::live::QUIET, async || {
        checker.judge_signed_deliveries(&scene.receiver).await
    })
    .await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert_eq!(scene.containers().await, before, "a worker started anew");
    scene.signatures_verify(&stages).await;
    for worker in WORKERS {
        let log = scene.live.kubelet.log(worker);
        assert!(!log.is_empty() && !log.contains(MARK), "{worker}");
    }
    operator.stop().await;
}

/// Requests up to this one in the receiver's table, and the secrets that sign them.
type Stage = (i64, i64, Vec<String>);

impl<'c> Scene<'c> {
    async fn start(cluster: &'c Cluster) -> Self {
        let sandbox = Sandbox::new("rotation").await;
        let kafka = services::kafka();
        let namespace = cluster.server.namespace("rotation").await;
        let kubelet = Kubelet::start(cluster, &namespace);
        let receiver = Receiver::start(&sandbox, "all", behave::every_nth_fails(50)).await;
        let scene = Self {
            cluster,
            live: Live {
                namespace,
                sandbox,
                kubelet,
            },
            kafka,
            user: format!("r{:06x}", rand::random::<u32>() & 0x00ff_ffff),
            receiver,
        };
        scene
            .sql(&format!(
                "create role {} login in role {} password '{}'",
                scene.user,
                postgres::RELAY_ROLE,
                password("database", 1)
            ))
            .await;
        scene.set_kafka_password(1).await;
        for (secret, key, value) in [
            ("database", "url", scene.url(1)),
            ("kafka", "user", scene.user.clone()),
            ("kafka", "password", password("kafka", 1)),
            ("kafka", "ca", kafka.old_ca()),
            ("signing", "key", signing(1)),
            ("next", "key", signing(2)),
        ] {
            scene.write(secret, key, &value).await;
        }
        let yaml = include_str!("rotation.yaml")
            .replace("BOOTSTRAP", &kafka.tls_bootstrap())
            .replace("URL", scene.receiver.url());
        cluster.apply(&scene.live.namespace, &yaml).await;
        scene
    }

    fn url(&self, number: u32) -> String {
        let url = postgres().url_as(&self.user, &self.live.sandbox.database);
        url.replace(postgres::PASSWORD, &password("database", number))
    }

    /// Puts a value into a labelled Secret.
    async fn write(&self, secret: &str, key: &str, value: &str) {
        let secret: Secret = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": secret, "labels": {names::CREDENTIALS_LABEL: "true"}},
            "stringData": {key: value},
        }))
        .unwrap();
        let parameters = PatchParams::apply(&format!("tests-{key}")).force();
        self.cluster
            .api::<Secret>(&self.live.namespace)
            .patch(&secret.name_any(), &parameters, &Patch::Apply(&secret))
            .await
            .unwrap();
    }

    async fn sql(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(self.live.sandbox.pool())
            .await
            .unwrap();
    }

    async fn set_database_password(&self, number: u32) {
        let password = password("database", number);
        self.sql(&format!("alter role {} password '{password}'", self.user))
            .await;
    }

    async fn set_kafka_password(&self, number: u32) {
        let (kafka, user) = (self.kafka, self.user.clone());
        let password = password("kafka", number);
        tokio::task::spawn_blocking(move || kafka.set_password(&user, &password))
            .await
            .unwrap()
            .unwrap();
    }

    async fn database_rotates(&self) {
        // The role first: connections go on, new ones are refused until the Secret follows.
        self.set_database_password(2).await;
        self.gets_through().await;
        self.sql(&format!(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = '{}'",
            self.user
        ))
        .await;
        self.topic(SOURCE_REACHABLE, "False/SourceAuthenticationFailed")
            .await;
        self.write("database", "url", &self.url(2)).await;
        self.settled().await;
        self.gets_through().await;

        // The Secret first.
        self.write("database", "url", &self.url(3)).await;
        self.topic(SOURCE_REACHABLE, "False/SourceAuthenticationFailed")
            .await;
        self.set_database_password(3).await;
        self.settled().await;
        self.gets_through().await;
    }

    async fn kafka_rotates(&self) {
        self.set_kafka_password(2).await;
        self.gets_through().await;
        self.write("kafka", "password", &password("kafka", 2)).await;
        self.in_force(&password("kafka", 2)).await;
        self.settled().await;
        self.gets_through().await;

        // The workers keep what works until the operator could use the new one.
        self.write("kafka", "password", &password("kafka", 3)).await;
        self.topic(LOG_READY, "False/BrokerAuthenticationFailed")
            .await;
        self.gets_through().await;
        self.set_kafka_password(3).await;
        self.in_force(&password("kafka", 3)).await;
        self.settled().await;
        self.gets_through().await;
    }

    async fn authority_rotates(&self) {
        self.write("kafka", "ca", &self.kafka.ca()).await;
        self.in_force(&self.kafka.ca()).await;
        let kafka = self.kafka;
        tokio::task::spawn_blocking(move || kafka.renew_certificate())
            .await
            .unwrap()
            .unwrap();
        self.gets_through().await;
        self.write("kafka", "ca", &self.kafka.new_ca()).await;
        self.in_force(&self.kafka.new_ca()).await;
        self.settled().await;
        self.gets_through().await;
    }

    /// Both sign for a while; returns what must verify with what.
    async fn signing_secrets_rotate(&self) -> Vec<Stage> {
        let mut stages = Vec::new();
        let mut begin = 0;
        for (references, next) in [
            (vec!["signing"], Some(vec!["next", "signing"])),
            (vec!["next", "signing"], Some(vec!["next"])),
            (vec!["next"], None),
        ] {
            self.gets_through().await;
            let keys = references.iter().map(|name| match *name {
                "signing" => signing(1),
                _ => signing(2),
            });
            stages.push((begin, self.received().await, keys.collect()));
            let Some(next) = next else {
                break;
            };
            let refs: Vec<Value> = next
                .iter()
                .map(|name| json!({"name": name, "key": "key"}))
                .collect();
            let patch = json!({"spec": {"sink": {"webhook": {"signing": {"secretRefs": refs}}}}});
            self.cluster
                .api::<Subscription>(&self.live.namespace)
                .patch("all", &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .unwrap();
            self.settled().await;
            begin = self.received().await;
        }
        // A new value under the same name.
        self.write("next", "key", &signing(3)).await;
        self.in_force(&signing(3)).await;
        let begin = self.received().await;
        self.gets_through().await;
        stages.push((begin, self.received().await, vec![signing(3)]));
        stages
    }

    /// Number of the last request.
    async fn received(&self) -> i64 {
        sqlx::query_scalar("select coalesce(max(seq), 0) from harness.received")
            .fetch_one(self.live.sandbox.pool())
            .await
            .unwrap()
    }

    async fn signatures_verify(&self, stages: &[Stage]) {
        for (begin, end, secrets) in stages {
            let requests: Vec<(String, Vec<u8>)> = sqlx::query_as(
                "select headers::text, body from harness.received where seq > $1 and seq <= $2 order by seq desc limit 50",
            )
            .bind(begin)
            .bind(end)
            .fetch_all(self.live.sandbox.pool())
            .await
            .unwrap();
            assert!(
                !requests.is_empty(),
                "nothing was sent with {} secrets",
                secrets.len()
            );
            for (headers, body) in &requests {
                let sent: BTreeMap<String, String> = serde_json::from_str(headers).unwrap();
                let signatures = sent["webhook-signature"].split(' ').count();
                assert_eq!(signatures, secrets.len());
                let timestamp = sent["webhook-timestamp"].parse().unwrap();
                for secret in secrets {
                    let webhook = standardwebhooks::Webhook::new(secret).unwrap();
                    let signature = webhook.sign(&sent["webhook-id"], timestamp, body).unwrap();
                    assert!(sent["webhook-signature"].contains(&signature));
                }
            }
        }
    }

    async fn topic(&self, condition: &str, expected: &str) {
        self.cluster
            .topic(&self.live.namespace, "posts", condition, expected)
            .await;
    }

    /// Both objects are Ready.
    async fn settled(&self) {
        self.topic(READY, "True/Succeeded").await;
        self.cluster
            .subscription(&self.live.namespace, "all", READY, "True/Succeeded")
            .await;
    }

    /// An event that is committed from now on arrives.
    async fn gets_through(&self) {
        let last: i64 = self.newest_row().await;
        let newer = eventually(LIMIT, "something is committed", async || {
            let newest = self.newest_row().await;
            if newest > last {
                Ok(newest)
            } else {
                Err(newest)
            }
        })
        .await;
        eventually(LIMIT, "what is committed now arrives", async || {
            let arrived: bool = sqlx::query_scalar(
                "select exists (select from public.outbox o join harness.received r on r.event_id = o.event_id::text
                  where o.id >= $1 and r.status = 200)",
            )
            .bind(newer)
            .fetch_one(self.live.sandbox.pool())
            .await?;
            anyhow::ensure!(arrived, "not yet");
            anyhow::Ok(())
        })
        .await;
    }

    async fn newest_row(&self) -> i64 {
        sqlx::query_scalar("select coalesce(max(id), 0) from public.outbox")
            .fetch_one(self.live.sandbox.pool())
            .await
            .unwrap()
    }

    /// A worker that has `secret` among its files says that it runs by it; all that have one like it do.
    async fn in_force(&self, secret: &str) {
        let http = reqwest::Client::new();
        let of_signing = secret.starts_with(names::SIGNING_SECRET_PREFIX);
        for worker in WORKERS.iter().skip(usize::from(of_signing)) {
            eventually(
                LIMIT,
                &format!("{worker} runs by a new Secret"),
                async || {
                    let files = files(self.cluster, &self.live.namespace, worker).await?;
                    let has_it = files.values().any(|value| value == secret.as_bytes());
                    anyhow::ensure!(has_it, "the operator has not copied it");
                    let selector = format!("{}={worker}", names::WORKER_LABEL);
                    let pods = self.cluster.api::<Pod>(&self.live.namespace);
                    let pods = pods.list(&ListParams::default().labels(&selector)).await?;
                    for pod in &pods.items {
                        let address = pod.annotations().get(ADDRESS).cloned().unwrap_or_default();
                        let status = http.get(format!("http://{address}/status")).send().await?;
                        let status: Value = serde_json::from_str(&status.text().await?)?;
                        let hash = fanout_runtime::config::hash(&files);
                        anyhow::ensure!(status["configHash"] == hash.as_str(), "not in force");
                    }
                    anyhow::ensure!(!pods.items.is_empty(), "no pod");
                    anyhow::Ok(())
                },
            )
            .await;
        }
    }

    /// UIDs of all pods, with process ids and restarts of their containers.
    async fn containers(&self) -> Vec<(String, Option<(u32, i32)>)> {
        let pods = self.cluster.api::<Pod>(&self.live.namespace);
        let containers: BTreeMap<String, (u32, i32)> = WORKERS
            .iter()
            .flat_map(|worker| self.live.kubelet.containers(worker))
            .collect();
        let pods = pods.list(&ListParams::default()).await.unwrap();
        let describe = |pod: Pod| {
            (
                pod.uid().unwrap_or_default(),
                containers.get(&pod.name_any()).copied(),
            )
        };
        pods.into_iter().map(describe).collect()
    }
}

/// Needs percent-encoding nowhere, because a URL takes it as it is.
fn password(of: &str, number: u32) -> String {
    format!("{MARK}-{of}-{number}")
}

fn signing(number: u8) -> String {
    let key = format!("{MARK} signs, number {number}");
    format!("{}{}", names::SIGNING_SECRET_PREFIX, STANDARD.encode(key))
}
