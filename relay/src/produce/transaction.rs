//! Transactions of a producer: everything it hands over between two commits becomes visible at once, or never.
//!
//! The client's calls block, so they run on threads made for that. A transaction is always begun: one that nothing was handed
//! over in costs the brokers nothing.

use super::{Producer, Tracker};
use crate::lease::LEASE;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The first answer of a transaction coordinator takes at most this long; one that has to end another's transaction takes
/// its time.
const INIT: Duration = Duration::from_secs(8);
/// Giving a transaction up takes at most this long; who does not succeed leaves it to the next owner or the coordinator.
const ABORT: Duration = Duration::from_secs(1);

/// Why a transaction did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Another has initialised the same `transactional.id`, or the coordinator has given the transaction up.
    Fenced,
    /// Anything else.
    Failed(Option<RDKafkaErrorCode>),
}

/// Makes `config` that of a transactional producer.
pub(super) fn configure(config: &mut ClientConfig, id: &str) {
    config.set("transactional.id", id);
    // An open transaction holds back every key of its partitions: no longer than until another may have the range.
    config.set("transaction.timeout.ms", LEASE.as_millis().to_string());
}

impl Producer {
    /// Ends what others did under this `transactional.id`, for ever, and begins a transaction.
    pub async fn init(self: &Arc<Self>) -> Result<(), Trouble> {
        self.call(|producer| {
            producer.inner.init_transactions(INIT)?;
            producer.inner.begin_transaction()
        })
        .await
    }

    /// Waits until all that was handed over is answered.
    pub async fn flush(self: &Arc<Self>, within: Duration) -> Result<(), Trouble> {
        self.call(move |producer| producer.inner.flush(within))
            .await
    }

    /// Makes what was handed over visible, and begins the next transaction. After an error it is not known whether it is
    /// visible, and the producer is of no use.
    pub async fn commit(self: &Arc<Self>, within: Duration) -> Result<(), Trouble> {
        self.call(move |producer| {
            producer.inner.commit_transaction(within)?;
            producer.inner.begin_transaction()
        })
        .await
    }

    /// Gives up what was handed over, as far as that is possible at once.
    pub async fn abort(self: &Arc<Self>) {
        self.purge();
        let aborted = self.call(|producer| producer.inner.abort_transaction(ABORT));
        if let Err(trouble) = aborted.await {
            tracing::debug!(?trouble, "a transaction is left to its timeout");
        }
    }

    async fn call(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> KafkaResult<()> + Send + 'static,
    ) -> Result<(), Trouble> {
        let producer = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            work(&producer).map_err(|error| producer.trouble(&error))
        });
        done.await.unwrap_or(Err(Trouble::Failed(None)))
    }

    /// Hands a record over that is not of the outbox.
    pub fn send_to(
        &self,
        (topic, partition): (&str, i32),
        key: &str,
        payload: &[u8],
        tracker: &Arc<Tracker>,
    ) -> Result<(), RDKafkaErrorCode> {
        let record = BaseRecord::<str, [u8], _>::with_opaque_to(topic, tracker.clone())
            .partition(partition)
            .key(key)
            .payload(payload);
        self.hand_over(record, tracker).inspect_err(|code| {
            tracker.failed.store(true, Ordering::Release);
            self.answers.fail(*code);
        })
    }

    /// True where another producer has taken this one's place.
    pub fn is_fenced(&self) -> bool {
        let fatal = self.inner.client().fatal_error().map(|(code, _)| code);
        fatal.or_else(|| self.failure()).is_some_and(is_fence)
    }

    fn trouble(&self, error: &KafkaError) -> Trouble {
        let code = match error {
            KafkaError::Transaction(error) => Some(error.code()),
            error => error.rdkafka_error_code(),
        };
        if self.is_fenced() || code.is_some_and(is_fence) {
            return Trouble::Fenced;
        }
        Trouble::Failed(self.failure().or(code))
    }
}

const fn is_fence(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::Fenced
            | RDKafkaErrorCode::ProducerFenced
            | RDKafkaErrorCode::InvalidProducerEpoch
    )
}
