//! Publishing or dropping parked rows, between two passes.
//!
//! A page of them is handed over, acknowledged, and only then removed from `fanout.parked`, under the lease: whoever takes the
//! range over in between publishes that page again, from its first row on, so first occurrences stay in order. The keys are
//! blocked until all is done, so new rows come after.

use super::{BATCH, Ended, LINGER, Pass, Worker, halved};
use crate::claim::Kind;
use crate::encode::Encoder;
use crate::park::{self, BEFORE_ALL, Page, Releases};
use crate::produce::{Producer, Tracker};
use crate::source::classify;
use fanout_runtime::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

impl Worker {
    /// Releases and drops what is to be; [`Pass::Again`] when all of it is done.
    pub(super) async fn release(&mut self, stop: &CancellationToken) -> Pass {
        match self.try_release(stop).await {
            Ok(()) => Pass::Again,
            Err(pass) => pass,
        }
    }

    async fn try_release(&mut self, stop: &CancellationToken) -> Result<(), Pass> {
        // From here on it is this worker that remembers, until all is done.
        self.releasing = true;
        self.shared.stats.take_release(self.fence.range);
        if self.unsettled {
            let batch = self.claimer().next().await?;
            if batch.kind != Kind::Idle {
                // A pass publishes that first.
                return Ok(());
            }
            self.store(batch.after).await?;
        }
        let limit = self.shared.broker.max_message_bytes().await?;
        let encoder = self.encoder(limit);
        let mut after = BEFORE_ALL;
        loop {
            if stop.is_cancelled() {
                return Err(Pass::Ended(Ended::Stopped));
            }
            let on_parked = self.shared.on_parked;
            let limits = halved(BATCH, self.halvings);
            let page = park::page(
                &self.shared.source,
                self.fence.range,
                after,
                on_parked,
                limits,
            )
            .await?;
            if page.is_empty() {
                break;
            }
            after = self.release_page(&page, &encoder, limit).await?;
        }
        let range = self.fence.range;
        self.held = park::held_keys(&self.shared.source, range, self.shared.on_parked).await?;
        self.releasing = false;
        Ok(())
    }

    /// Publishes or drops the rows of `page`; returns the last id.
    async fn release_page(
        &mut self,
        page: &Page,
        encoder: &Encoder,
        limit: usize,
    ) -> Result<i64, Pass> {
        let mut releases = Releases::default();
        let mut last = BEFORE_ALL;
        for row in page.rows() {
            let (drop, row) = row.map_err(|error| classify(&error))?;
            last = row.id;
            let check = encoder.check(&row);
            releases.add(self.shared.on_parked, drop, row.id, row.key, check);
        }
        let done = self.publish(page, &mut releases, encoder, limit).await?;
        if !park::settle(&self.shared.source, &self.fence, &done, &releases).await? {
            return Err(Pass::Ended(Ended::Fenced));
        }
        tracing::info!(
            range = self.fence.range,
            released = done.len(),
            dropped = releases.dropped.len(),
            refused = releases.refused.len(),
            "parked rows were released or dropped"
        );
        Ok(last)
    }

    /// Publishes what `releases` says, at once, or one by one when the broker refuses a record of it; returns the ids.
    async fn publish(
        &mut self,
        page: &Page,
        releases: &mut Releases,
        encoder: &Encoder,
        limit: usize,
    ) -> Result<Vec<i64>, Pass> {
        if releases.publish.is_empty() {
            return Ok(Vec::new());
        }
        if self.is_transactional() {
            return self.transact_releases(page, releases, encoder, limit).await;
        }
        let producer = self.shared.broker.producer(limit, LINGER).await?;
        let sent = self
            .send_page(page, &releases.publish, encoder, &producer)
            .await;
        producer.stop().await;
        match sent {
            Ok(()) => Ok(std::mem::take(&mut releases.publish)),
            Err(Pass::Refused(_)) => self.publish_each(page, releases, encoder, limit).await,
            Err(pass) => Err(pass),
        }
    }

    async fn send_page(
        &self,
        page: &Page,
        publish: &[i64],
        encoder: &Encoder,
        producer: &Producer,
    ) -> Result<(), Pass> {
        self.room().await?;
        let (tracker, since) = (Tracker::new(), clock::now());
        let rows = publish.len();
        let mut publish = publish.iter().peekable();
        let mut payload = Vec::new();
        for row in page.rows() {
            let (_, row) = row.map_err(|error| classify(&error))?;
            if publish.next_if(|id| **id == row.id).is_none() {
                continue;
            }
            if let Err(code) = producer.send(&row, encoder, &tracker, &mut payload) {
                return Err(self.refused_or_failed(code));
            }
        }
        tracker.close();
        self.answered(producer, &tracker, since).await?;
        let took = clock::now().saturating_sub(since);
        self.shared.stats.published(rows, took);
        Ok(())
    }

    async fn publish_each(
        &self,
        page: &Page,
        releases: &mut Releases,
        encoder: &Encoder,
        limit: usize,
    ) -> Result<Vec<i64>, Pass> {
        let on_parked = self.shared.on_parked;
        let ids = std::mem::take(&mut releases.publish);
        let mut ids = ids.into_iter().peekable();
        let mut done = Vec::new();
        let mut producer: Option<Arc<Producer>> = None;
        for row in page.rows() {
            let (_, row) = row.map_err(|error| classify(&error))?;
            if ids.next_if_eq(&row.id).is_none() || releases.waits(row.key) {
                continue;
            }
            let ready = match producer.take() {
                Some(ready) => ready,
                None => self.shared.broker.producer(limit, Duration::ZERO).await?,
            };
            match self.send_one(&row, encoder, &ready).await {
                Ok(()) => {
                    done.push(row.id);
                    producer = Some(ready);
                }
                Err(pass) => {
                    ready.stop().await;
                    let Pass::Refused(reason) = pass else {
                        return Err(pass);
                    };
                    releases.refuse(on_parked, row.id, row.key, reason);
                }
            }
        }
        if let Some(producer) = producer {
            producer.stop().await;
        }
        Ok(done)
    }
}
