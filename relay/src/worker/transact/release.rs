//! Parked rows that are released: a page of them is a transaction, whose position says which they are, so that whoever comes
//! after a crash removes them from `fanout.parked` instead of publishing them again.

use crate::encode::Encoder;
use crate::park::{Page, Releases};
use crate::produce::{Producer, Tracker};
use crate::source::classify;
use crate::worker::{LINGER, Pass, Worker};
use fanout_runtime::clock;
use std::sync::Arc;
use std::time::Duration;

impl Worker {
    /// Publishes what `releases` says, at once, or one by one when the broker refuses a record of it; returns the ids.
    pub(in crate::worker) async fn transact_releases(
        &mut self,
        page: &Page,
        releases: &mut Releases,
        encoder: &Encoder,
        limit: usize,
    ) -> Result<Vec<i64>, Pass> {
        let producer = self.open(limit, LINGER).await?;
        let sent = self
            .transact_page(page, &releases.publish, encoder, &producer)
            .await;
        if sent.is_err() {
            producer.abort().await;
        }
        producer.stop().await;
        match sent {
            Ok(()) => Ok(std::mem::take(&mut releases.publish)),
            Err(Pass::Refused(_)) => {
                self.transact_each_release(page, releases, encoder, limit)
                    .await
            }
            Err(pass) => Err(pass),
        }
    }

    async fn transact_page(
        &mut self,
        page: &Page,
        publish: &[i64],
        encoder: &Encoder,
        producer: &Arc<Producer>,
    ) -> Result<(), Pass> {
        self.room().await?;
        let (tracker, since) = (Tracker::new(), clock::now());
        let mut ids = publish.iter().peekable();
        let mut payload = Vec::new();
        for row in page.rows() {
            let (_, row) = row.map_err(|error| classify(&error))?;
            if ids.next_if(|id| **id == row.id).is_none() {
                continue;
            }
            if let Err(code) = producer.send(&row, encoder, &tracker, &mut payload) {
                return Err(self.refused_or_failed(code));
            }
        }
        tracker.close();
        let unsettled = self.unsettled;
        self.commit_now(producer, self.stored.clone(), publish.to_vec())
            .await?;
        // The position has not moved.
        self.unsettled = unsettled;
        let took = clock::now().saturating_sub(since);
        self.shared.stats.published(publish.len(), took);
        Ok(())
    }

    async fn transact_each_release(
        &mut self,
        page: &Page,
        releases: &mut Releases,
        encoder: &Encoder,
        limit: usize,
    ) -> Result<Vec<i64>, Pass> {
        let on_parked = self.shared.on_parked;
        let unsettled = self.unsettled;
        let ids = std::mem::take(&mut releases.publish);
        let mut ids = ids.into_iter().peekable();
        let mut done = Vec::new();
        let mut ready: Option<Arc<Producer>> = None;
        for row in page.rows() {
            let (_, row) = row.map_err(|error| classify(&error))?;
            if ids.next_if_eq(&row.id).is_none() || releases.waits(row.key) {
                continue;
            }
            let producer = match ready.take() {
                Some(producer) => producer,
                None => self.open(limit, Duration::ZERO).await?,
            };
            // All of the page so far: who comes after a crash reads the last position alone.
            let mut published = done.clone();
            published.push(row.id);
            let position = self.stored.clone();
            let sent = self
                .transact_one(&row, encoder, &producer, position, published)
                .await;
            self.unsettled = unsettled;
            match sent {
                Ok(()) => {
                    done.push(row.id);
                    ready = Some(producer);
                }
                Err(pass) => {
                    producer.abort().await;
                    producer.stop().await;
                    let Pass::Refused(reason) = pass else {
                        return Err(pass);
                    };
                    releases.refuse(on_parked, row.id, row.key, reason);
                }
            }
        }
        if let Some(producer) = ready {
            producer.stop().await;
        }
        Ok(done)
    }
}
