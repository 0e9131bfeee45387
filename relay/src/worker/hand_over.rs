//! Setting rows aside that can't be produced, then handing the others to the producer.

use super::{Ended, Pass, Sent, Worker};
use crate::claim::Batch;
use crate::claim::row::Row;
use crate::encode::{Encoder, Unencodable};
use crate::park::{self, Parked, Plan};
use crate::produce::{Producer, Tracker};
use crate::source::classify;

impl Worker {
    /// Decides which rows of `batch` are set aside.
    pub(super) fn plan(&self, batch: &Batch, encoder: &Encoder) -> Result<Plan, Pass> {
        let mut plan = Plan::new(self.shared.on_parked);
        for row in batch.rows() {
            let row = row.map_err(|error| classify(&error))?;
            plan.add(&self.held, row.id, row.key, encoder.check(&row));
        }
        Ok(plan)
    }

    /// Commits what `plan` sets aside to `fanout.parked`; returns the ids, in order. `limit` is the size that was planned
    /// with.
    pub(super) async fn set_aside(&mut self, plan: Plan, limit: usize) -> Result<Vec<i64>, Pass> {
        let too_large = Some(Unencodable::RecordTooLarge);
        if plan.parked.iter().any(|row| row.reason == too_large)
            && self.shared.broker.max_message_bytes().await? != limit
        {
            // Perhaps it fits by now.
            return Err(Pass::Again);
        }
        let ids = plan.parked.iter().map(|row| row.id).collect();
        self.park(plan.parked).await?;
        self.held.extend(plan.keys);
        Ok(ids)
    }

    /// Commits `rows` to `fanout.parked`.
    pub(super) async fn park(&mut self, rows: Vec<Parked>) -> Result<(), Pass> {
        if rows.is_empty() {
            return Ok(());
        }
        self.unsettled = true;
        if !park::store(&self.shared.source, &self.fence, &rows).await? {
            return Err(Pass::Ended(Ended::Fenced));
        }
        for Parked { id, reason } in rows {
            if let Some(reason) = reason {
                tracing::warn!(
                    range = self.fence.range,
                    id,
                    reason = reason.name(),
                    "a row can't be published and is parked"
                );
            }
        }
        Ok(())
    }
}

/// Hands the rows of `batch` over, without those in `aside`, which are in the order of the batch.
pub(super) fn hand_over(
    batch: &Batch,
    aside: &[i64],
    producer: &Producer,
    encoder: &Encoder,
) -> Result<Sent, Pass> {
    let tracker = Tracker::new();
    let sent = Sent::new(batch, tracker.clone(), batch.len() - aside.len());
    let mut aside = aside.iter().peekable();
    let mut payload = Vec::new();
    for row in batch.rows() {
        let row: Row<'_> = row.map_err(|error| classify(&error))?;
        if aside.next_if(|id| **id == row.id).is_some() {
            continue;
        }
        if producer
            .send(&row, encoder, &tracker, &mut payload)
            .is_err()
        {
            // The producer knows why, and the pass asks it next.
            break;
        }
    }
    tracker.close();
    Ok(sent)
}
