//! The batch after the last committed position, a transaction for each record: finds the one that the broker refuses.

use crate::claim::row::Row;
use crate::claim::{Batch, Completion};
use crate::encode::Encoder;
use crate::park::Parked;
use crate::position::Position;
use crate::produce::{Producer, Tracker};
use crate::source::classify;
use crate::worker::{Ended, Pass, Worker};
use fanout_contract::relay::OnParked;
use fanout_runtime::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

impl Worker {
    /// Publishes the rest of `batch`, one by one, without the rows `aside`. `ready` is the producer of before, if it is
    /// still of use.
    pub(in crate::worker) async fn transact_each(
        &mut self,
        batch: &Batch,
        aside: &[i64],
        encoder: &Encoder,
        ready: &mut Option<Arc<Producer>>,
        stop: &CancellationToken,
    ) -> Result<(), Pass> {
        let limit = self.shared.broker.max_message_bytes().await?;
        let difference = self.stored.clone();
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
            let producer = match ready.take() {
                Some(producer) => producer,
                None => self.open(limit, Duration::ZERO).await?,
            };
            let position = inside(&difference, &batch.after, row.id);
            match self
                .transact_one(&row, encoder, &producer, position, Vec::new())
                .await
            {
                Ok(()) => *ready = Some(producer),
                Err(pass) => {
                    producer.abort().await;
                    producer.stop().await;
                    let Pass::Refused(reason) = pass else {
                        return Err(pass);
                    };
                    // The database must have everything before a parked row.
                    *ready = Some(self.open(limit, Duration::ZERO).await?);
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

    /// Publishes one record with the position behind it.
    pub(super) async fn transact_one(
        &mut self,
        row: &Row<'_>,
        encoder: &Encoder,
        producer: &Arc<Producer>,
        position: Position,
        released: Vec<i64>,
    ) -> Result<(), Pass> {
        self.room().await?;
        let (tracker, since) = (Tracker::new(), clock::now());
        let handed = producer.send(row, encoder, &tracker, &mut Vec::new());
        tracker.close();
        if let Err(code) = handed {
            return Err(self.refused_or_failed(code));
        }
        self.commit_now(producer, position, released).await?;
        let took = clock::now().saturating_sub(since);
        self.shared.stats.published(1, took);
        Ok(())
    }
}

/// The position behind row `id` of the difference that begins at `from` and leads to `after`.
fn inside(from: &Position, after: &Completion, id: i64) -> Position {
    let old = from.old().clone();
    match after {
        Completion::Position(Position::At(new) | Position::Inside { new, .. }) => {
            Position::Inside {
                old,
                new: new.clone(),
                last_id: id,
            }
        }
        Completion::Rows(_) => from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::snapshot::Snapshot;

    #[test]
    fn a_row_of_a_small_difference_has_a_position_of_its_own() {
        let at = |text| Position::At(Snapshot::new(text));
        let within = |last_id| Position::Inside {
            old: Snapshot::new("1:1:"),
            new: Snapshot::new("5:5:"),
            last_id,
        };
        let small = Completion::Position(at("5:5:"));
        assert_eq!(inside(&at("1:1:"), &small, 3), within(3));
        let page = Completion::Position(within(9));
        assert_eq!(inside(&within(2), &page, 7), within(7));
    }
}
