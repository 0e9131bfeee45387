//! Events that go on while something else happens, and the judgement on what became of them.

use super::{DATABASE, System};
use crate::SOON;
use fanout_tests::eventually;
use fanout_tests::verdict::{self, Event, Evidence, Verdict};
use serde_json::json;

/// FanoutTopic of the traffic; the writers name it too (manifests/writer.yaml).
pub(crate) const TOPIC: &str = "upgrades";
/// Its Subscriptions: one in a pool, one with a worker of its own.
pub(crate) const SUBSCRIPTIONS: [&str; 2] = ["audit", "alone"];
/// So many deliveries show that they go on.
const SOME: usize = 40;

impl System {
    /// Applies the FanoutTopic and its Subscriptions and starts the writers.
    pub(crate) async fn start_traffic(&self) {
        self.apply(&json!({
            "apiVersion": "fanout.dev/v1alpha1", "kind": "FanoutTopic", "metadata": {"name": TOPIC},
            "spec": {
                "source": {"postgres": {"urlSecretRef": {"name": "relay-db", "key": "url"}, "table": "public.outbox"}},
                "broker": {"kafka": {
                    "bootstrapServers": format!("kafka.{}.svc:9092", self.namespace),
                    "topic": {"partitions": 3, "replicationFactor": 1},
                }},
            },
        }));
        for (name, isolation) in SUBSCRIPTIONS.iter().zip(["Auto", "Dedicated"]) {
            self.apply(&json!({
                "apiVersion": "fanout.dev/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
                "spec": {
                    "topicRef": {"name": TOPIC},
                    "startFrom": {"position": "Earliest"},
                    "sink": {"webhook": {"url": format!("http://receiver.{}.svc:8080/hooks/{name}", self.namespace)}},
                    "isolation": isolation,
                },
            }));
        }
        self.scale_writer(1);
        self.wait_traffic().await;
    }

    fn scale_writer(&self, replicas: u32) {
        let replicas = format!("--replicas={replicas}");
        self.kubectl(&["scale", "deployment/writer", &replicas]);
    }

    fn deliveries(&self, subscription: &str) -> usize {
        let query =
            format!("select count(*) from social.receipts where subscription = '{subscription}'");
        self.sql(DATABASE, &query).trim().parse().unwrap()
    }

    /// Waits until each Subscription is Ready and has received more.
    pub(crate) async fn wait_traffic(&self) {
        let before = SUBSCRIPTIONS.map(|name| self.deliveries(name));
        for (name, before) in SUBSCRIPTIONS.iter().zip(before) {
            self.wait_ready(name, SOON).await;
            eventually(SOON, &format!("{name} goes on"), async || {
                let now = self.deliveries(name);
                if now >= before + SOME {
                    Ok(())
                } else {
                    Err(format!("{} new deliveries", now - before))
                }
            })
            .await;
        }
    }

    /// Waits until every worker of the topic runs `image` and no other one is left.
    pub(crate) async fn wait_workers_run(&self, image: &str) {
        eventually(SOON, &format!("the workers run {image}"), async || {
            let pods = self.pods(&format!("fanout.dev/topic={TOPIC}"));
            let other: Vec<_> = pods
                .iter()
                .filter(|pod| pod["spec"]["containers"][0]["image"] != image)
                .map(|pod| pod["metadata"]["name"].to_string())
                .collect();
            // Two relays, the pool and the dedicated worker.
            if pods.len() == 4 && other.is_empty() {
                Ok(())
            } else {
                Err(format!("{} pods, others: {other:?}", pods.len()))
            }
        })
        .await;
    }

    /// Stops the writers, waits until everything has arrived, and judges it.
    pub(crate) async fn judge_traffic(&self) -> Vec<(String, Verdict)> {
        self.scale_writer(0);
        eventually(SOON, "the writers have stopped", async || {
            let writers = self.pods("app=writer").len();
            if writers == 0 { Ok(()) } else { Err(writers) }
        })
        .await;
        let committed = self.events("event_id, author, sequence, digest from social.events");
        let mut verdicts = Vec::new();
        for name in SUBSCRIPTIONS {
            let verdict = eventually(SOON, &format!("{name} has everything"), async || {
                let seen = self.events(&format!(
                    "event_id, author, sequence, digest from social.receipts
                      where subscription = '{name}' and status = 200 order by arrival"
                ));
                let verdict = verdict::judge(&Evidence {
                    committed: committed.clone(),
                    seen,
                    ordered: true,
                    ..Evidence::default()
                });
                if verdict.missing == 0 {
                    Ok(verdict)
                } else {
                    Err(format!("{verdict:?}"))
                }
            })
            .await;
            verdicts.push((name.to_owned(), verdict));
        }
        verdicts
    }

    /// Events from a query for id, author, sequence and digest.
    fn events(&self, query: &str) -> Vec<Event> {
        self.sql(DATABASE, &format!("select {query}"))
            .lines()
            .map(|line| {
                let mut fields = line.split('|').map(str::to_owned);
                let mut next = || {
                    fields
                        .next()
                        .unwrap_or_else(|| panic!("four fields: {line}"))
                };
                Event {
                    id: next(),
                    key: Some(next()),
                    sequence: next().parse().unwrap(),
                    content: next().into_bytes(),
                }
            })
            .collect()
    }
}
