//! The checker: writes events in every way an application may, looks at what came out, and judges.
//!
//! [`load`] writes through real transactions and keeps a journal; [`outbox`] reads what was committed; [`log`] and
//! [`received`] read what arrived; [`crate::verdict`] compares them. [`Checker`] puts these together.

pub mod load;
pub mod log;
pub mod outbox;
pub mod received;
pub mod writer;

mod content;

use crate::receiver::Receiver;
use crate::verdict::{self, Event, Evidence, Verdict};
use crate::{Deadline, Sandbox};
use content::Form;
use fanout_contract::consumer::SubscriptionConfig;
use load::Journal;
use log::Log;
use outbox::Row;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Time between two whole judgements while something is still missing.
const PAUSE: Duration = Duration::from_secs(1);

/// Knows what was committed in a sandbox and judges what arrived of it. Made after the writers stopped.
#[derive(Debug)]
pub struct Checker<'a> {
    sandbox: &'a Sandbox,
    rows: Vec<Row>,
}

impl<'a> Checker<'a> {
    /// Reads the outbox. What the journal says must agree with it, except where the writer could not know.
    pub async fn new(sandbox: &'a Sandbox, journal: &Journal) -> Self {
        let rows = outbox::read(sandbox.pool(), &sandbox.topic_name).await;
        let ids: HashSet<&str> = rows.iter().map(|row| row.event_id.as_str()).collect();
        let contradictions = journal.contradictions(&ids);
        assert!(
            contradictions.is_empty(),
            "the outbox is not what was written: {contradictions:?}"
        );
        Self { sandbox, rows }
    }

    /// For writers of the caller's own, whose journals were looked at before.
    pub async fn of_outbox(sandbox: &'a Sandbox) -> Self {
        let rows = outbox::read(sandbox.pool(), &sandbox.topic_name).await;
        Self { sandbox, rows }
    }

    /// What was committed.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Judges the Kafka topic as it is.
    pub async fn judge_log(&self) -> Verdict {
        let log = Log::read(&self.sandbox.bootstrap, &self.sandbox.kafka_topic).await;
        let mut verdict = verdict::judge(&Evidence {
            committed: self.committed(Form::Exact),
            seen: log.records.iter().map(log::Record::event).collect(),
            ordered: true,
            ..Evidence::default()
        });
        // Between partitions there is no order at all.
        let scattered = log.scattered_keys();
        verdict.order_breaks += scattered.len();
        verdict.examples.extend(
            scattered
                .iter()
                .take(5)
                .map(|key| format!("in two partitions: key {key}")),
        );
        verdict
    }

    /// Judges what `receiver` accepted for `subscription`; `wants` says which rows its filter selects.
    pub async fn judge_receiver(
        &self,
        receiver: &Receiver,
        subscription: &SubscriptionConfig,
        wants: impl Fn(&Row) -> bool,
    ) -> Verdict {
        let fanout_contract::consumer::Sink::Webhook(webhook) = &subscription.sink;
        let form = if webhook.signing_secret_files.is_empty() {
            Form::Exact
        } else {
            Form::Json
        };
        let keys = self.keys();
        // What is delivered while this reads must not look lost: positions first, deliveries last.
        let committed_offsets = self.committed_offsets(&subscription.group_id).await;
        let log = Log::read(&self.sandbox.bootstrap, &self.sandbox.kafka_topic).await;
        let dead = Log::read(&self.sandbox.bootstrap, &self.sandbox.dead_letter_topic).await;
        let accepted = received::accepted(self.sandbox.pool(), receiver.name()).await;
        let seen = accepted.into_iter().map(|request| {
            // A request does not carry the key; the identity of the event does.
            let key = keys.get(request.id.as_str()).copied().flatten();
            request.event(key, form)
        });
        let name = format!("{}/{}", self.sandbox.namespace, subscription.name);
        verdict::judge(&Evidence {
            committed: self.committed(form),
            wanted: Some(
                self.rows
                    .iter()
                    .filter(|row| wants(row))
                    .map(|row| row.event_id.clone())
                    .collect(),
            ),
            seen: seen.collect(),
            dead_lettered: dead.dead_lettered_by(&name),
            queued: log.from(&committed_offsets),
            ordered: subscription.delivery.ordering != fanout_contract::consumer::Ordering::None,
        })
    }

    /// Judges what `receiver` accepted against everything committed, of one topic whose records nobody looks at.
    pub async fn judge_deliveries(&self, receiver: &Receiver) -> Verdict {
        self.judge_deliveries_in(receiver, Form::Exact).await
    }

    /// The same for signed deliveries: their JSON data is part of a larger document.
    pub async fn judge_signed_deliveries(&self, receiver: &Receiver) -> Verdict {
        self.judge_deliveries_in(receiver, Form::Json).await
    }

    async fn judge_deliveries_in(&self, receiver: &Receiver, form: Form) -> Verdict {
        let keys = self.keys();
        let accepted = received::accepted(self.sandbox.pool(), receiver.name()).await;
        let seen = accepted.into_iter().map(|request| {
            let key = keys.get(request.id.as_str()).copied().flatten();
            request.event(key, form)
        });
        verdict::judge(&Evidence {
            committed: self.committed(form),
            seen: seen.collect(),
            ordered: true,
            ..Evidence::default()
        })
    }

    /// Judges again and again until nothing is missing or queued, or nothing more arrived for `limit`; returns the
    /// last verdict. Slow is no fault, standing still is.
    pub async fn settle(limit: Duration, mut judge: impl AsyncFnMut() -> Verdict) -> Verdict {
        let mut deadline = Deadline::after(limit);
        let mut least_open = usize::MAX;
        loop {
            let verdict = judge().await;
            let open = verdict.missing + verdict.queued;
            if open < least_open {
                least_open = open;
                deadline = Deadline::after(limit);
            }
            if open == 0 || deadline.passed() {
                return verdict;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn committed_offsets(&self, group: &str) -> HashMap<i32, i64> {
        log::committed(&self.sandbox.bootstrap, group, &self.sandbox.kafka_topic).await
    }

    fn keys(&self) -> HashMap<&str, Option<&str>> {
        let rows = self.rows.iter();
        rows.map(|row| (row.event_id.as_str(), row.key.as_deref()))
            .collect()
    }

    fn committed(&self, form: Form) -> Vec<Event> {
        self.rows.iter().map(|row| row.event(form)).collect()
    }
}
