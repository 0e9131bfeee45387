//! Claims one batch after the other, in whatever way the topic claims, and hands them on.

use super::batch::{Batch, Kind};
use super::queue::Queue;
use super::reader::Reader;
use crate::source::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// First pause after a poll that found nothing; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// A process that is idle polls at most four times a second: each of its ranges pauses this long times their number.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A position that moved without a row is worth storing this often.
const REFRESH: Duration = Duration::from_mins(1);

/// Numbers a claimer shares with the rest of the process.
#[derive(Clone, Debug, Default)]
pub struct Polls {
    /// Polls made.
    pub count: Arc<AtomicU64>,
    /// Ranges that are read at the moment.
    pub readers: Arc<AtomicUsize>,
}

/// Claims the rows of one range.
#[derive(Debug)]
pub enum Claimer {
    /// Claim mode `Snapshot`.
    Snapshot(Reader),
    /// Claim modes `Lease` and `Delete`.
    Queue(Queue),
}

impl Claimer {
    /// The next batch. May be empty.
    pub async fn next(&mut self) -> Result<Batch, Failure> {
        match self {
            Self::Snapshot(reader) => reader.next().await,
            Self::Queue(queue) => queue.next().await,
        }
    }

    /// True where nothing more is to be claimed.
    fn has_arrived(&self) -> bool {
        match self {
            Self::Snapshot(reader) => reader.has_arrived(),
            Self::Queue(_) => false,
        }
    }

    /// Sends batches until the receiver is gone; ends after an error, which it sends. Pauses after polls that find
    /// nothing, and sends what they found only now and then.
    pub async fn run(mut self, batches: mpsc::Sender<Result<Batch, Failure>>, polls: Polls) {
        let mut pause = FIRST_PAUSE;
        let mut refreshed = Instant::now();
        loop {
            if self.has_arrived() {
                return batches.closed().await;
            }
            let next = self.next().await;
            polls.count.fetch_add(1, Ordering::Relaxed);
            let failed = next.is_err();
            let idle = next.as_ref().is_ok_and(|batch| batch.kind == Kind::Idle);
            if !idle || refreshed.elapsed() > REFRESH {
                refreshed = Instant::now();
                if batches.send(next).await.is_err() || failed {
                    return;
                }
            }
            if idle {
                let readers = polls.readers.load(Ordering::Relaxed).max(1);
                let longest = LONGEST_PAUSE * u32::try_from(readers).unwrap_or(u32::MAX);
                pause = (pause * 2).min(longest);
                // Upwards only: the rate is a promise.
                let pause = pause.mul_f64(1.0 + rand::random::<f64>() / 4.0);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = batches.closed() => return,
                }
            } else {
                pause = FIRST_PAUSE;
            }
        }
    }
}
