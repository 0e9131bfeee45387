//! The batch after the stored position, record by record: finds the one that the broker refuses.

use super::{Ended, HAND_OVER_MARGIN, PURGE_MARGIN, Pass, STALLED, TICK, Worker};
use crate::claim::Batch;
use crate::claim::row::Row;
use crate::encode::Encoder;
use crate::kafka_error;
use crate::park::Parked;
use crate::produce::{Producer, Tracker};
use crate::source::classify;
use fanout_contract::relay::OnParked;
use fanout_runtime::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

impl Worker {
    /// Publishes the next batch with rows, one by one; [`Pass::Again`] when it is stored.
    pub(super) async fn one_by_one(&mut self, stop: &CancellationToken) -> Pass {
        match self.try_one_by_one(stop).await {
            Ok(()) => Pass::Again,
            Err(pass) => pass,
        }
    }

    async fn try_one_by_one(&mut self, stop: &CancellationToken) -> Result<(), Pass> {
        let max_message_bytes = self.shared.broker.max_message_bytes().await?;
        let encoder = self.encoder(max_message_bytes);
        let mut producer = if self.is_transactional() {
            // Finds out where to go on.
            Some(self.open(max_message_bytes, Duration::ZERO).await?)
        } else {
            None
        };
        let done = self.publish_next(&encoder, &mut producer, stop).await;
        if let Some(producer) = producer.take() {
            producer.stop().await;
        }
        done
    }

    async fn publish_next(
        &mut self,
        encoder: &Encoder,
        producer: &mut Option<Arc<Producer>>,
        stop: &CancellationToken,
    ) -> Result<(), Pass> {
        let mut claimer = self.claimer();
        let batch = loop {
            let batch = claimer.next().await?;
            if !batch.is_empty() {
                break batch;
            }
            self.store(batch.after).await?;
            if stop.is_cancelled() {
                return Err(Pass::Ended(Ended::Stopped));
            }
            if matches!(batch.kind, crate::claim::Kind::Idle) || self.has_arrived() {
                return Ok(());
            }
        };
        let plan = self.plan(&batch, encoder)?;
        let aside = self.set_aside(plan, encoder.max_message_bytes).await?;
        if self.is_transactional() {
            self.transact_each(&batch, &aside, encoder, producer, stop)
                .await?;
        } else {
            self.send_each(&batch, &aside, encoder, producer, stop)
                .await?;
        }
        self.store(batch.after).await
    }

    async fn send_each(
        &mut self,
        batch: &Batch,
        aside: &[i64],
        encoder: &Encoder,
        producer: &mut Option<Arc<Producer>>,
        stop: &CancellationToken,
    ) -> Result<(), Pass> {
        let limit = self.shared.broker.max_message_bytes().await?;
        let mut aside = aside.iter().peekable();
        for row in batch.rows() {
            let row = row.map_err(|error| classify(&error))?;
            if aside.next_if(|id| **id == row.id).is_some() {
                continue;
            }
            if self.held.contains(row.key, row.id) {
                // Behind one that was refused a moment ago.
                let (id, reason) = (row.id, None);
                self.park(vec![Parked { id, reason }]).await?;
                continue;
            }
            if stop.is_cancelled() {
                return Err(Pass::Ended(Ended::Stopped));
            }
            let ready = match producer.take() {
                Some(ready) => ready,
                None => self.shared.broker.producer(limit, Duration::ZERO).await?,
            };
            match self.send_one(&row, encoder, &ready).await {
                Ok(()) => *producer = Some(ready),
                Err(pass) => {
                    // It is of no use after a failure.
                    ready.stop().await;
                    let Pass::Refused(reason) = pass else {
                        return Err(pass);
                    };
                    let (id, reason) = (row.id, Some(reason));
                    self.park(vec![Parked { id, reason }]).await?;
                    if let (OnParked::Block, Some(key)) = (self.shared.on_parked, row.key) {
                        self.held.add(key, row.id);
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends one record and waits for its answer.
    pub(super) async fn send_one(
        &self,
        row: &Row<'_>,
        encoder: &Encoder,
        producer: &Producer,
    ) -> Result<(), Pass> {
        self.room().await?;
        let tracker = Tracker::new();
        let since = clock::now();
        let handed = producer.send(row, encoder, &tracker, &mut Vec::new());
        tracker.close();
        if let Err(code) = handed {
            return Err(self.refused_or_failed(code));
        }
        self.answered(producer, &tracker, since).await?;
        self.shared
            .stats
            .published(1, clock::now().saturating_sub(since));
        Ok(())
    }

    /// Waits until enough of the lease is left to hand something over.
    pub(super) async fn room(&self) -> Result<(), Pass> {
        while self.left() < HAND_OVER_MARGIN {
            if self.left() < PURGE_MARGIN {
                return Err(Pass::Ended(Ended::Fenced));
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    /// Waits until everything of `tracker`, handed over at `since`, is answered.
    pub(super) async fn answered(
        &self,
        producer: &Producer,
        tracker: &Tracker,
        since: Duration,
    ) -> Result<(), Pass> {
        loop {
            if let Some(code) = producer.failure() {
                return Err(self.refused_or_failed(code));
            }
            if tracker.is_done() {
                self.shared.stats.broker(Ok(()));
                return Ok(());
            }
            if self.left() < PURGE_MARGIN {
                return Err(Pass::Ended(Ended::Fenced));
            }
            if clock::now().saturating_sub(since) > STALLED {
                let code = producer.connection_error();
                return Err(Pass::Failed(kafka_error::explain(
                    code,
                    &self.shared.broker.topic,
                )));
            }
            tokio::select! {
                () = producer.changed() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    pub(super) fn refused_or_failed(&self, code: rdkafka::types::RDKafkaErrorCode) -> Pass {
        match kafka_error::refusal(code) {
            Some(reason) => Pass::Refused(reason),
            None => Pass::Failed(kafka_error::explain(Some(code), &self.shared.broker.topic)),
        }
    }
}
