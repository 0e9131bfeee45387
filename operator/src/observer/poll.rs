//! Reads `/status` of one worker.

use super::target::{WorkerKind, WorkerTarget};
use fanout_contract::consumer::ConsumerStatus;
use fanout_contract::relay::RelayStatus;
use std::time::Duration;

/// Pods are near: what takes longer is broken.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Whole request.
const TIMEOUT: Duration = Duration::from_secs(3);
/// A hundred Subscriptions with a hundred partitions each need about a megabyte.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// What a worker reports.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerStatus {
    /// Of a relay.
    Relay(RelayStatus),
    /// Of a consumer.
    Consumer(ConsumerStatus),
}

/// Why a status could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PollError {
    #[error("the pod does not answer")]
    Unreachable,
    #[error("the pod answered with HTTP status {0}")]
    Refused(u16),
    #[error("the document is too large")]
    TooLarge,
    #[error("the document can't be read")]
    Invalid,
}

/// The client for all workers.
#[derive(Clone, Debug)]
pub(super) struct Poller(reqwest::Client);

impl Poller {
    pub(super) fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            // Pod addresses are never behind the proxy that the environment may name, and never redirect.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(1)
            .build()?;
        Ok(Self(client))
    }

    pub(super) async fn status(&self, target: &WorkerTarget) -> Result<WorkerStatus, PollError> {
        let url = format!("http://{}/status", target.addr);
        let mut response = self
            .0
            .get(url)
            .send()
            .await
            .map_err(|_| PollError::Unreachable)?;
        let code = response.status();
        if !code.is_success() {
            return Err(PollError::Refused(code.as_u16()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| PollError::Unreachable)? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(PollError::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        let status = match target.kind {
            WorkerKind::Relay => serde_json::from_slice(&body).map(WorkerStatus::Relay),
            WorkerKind::Consumer => serde_json::from_slice(&body).map(WorkerStatus::Consumer),
        };
        status.map_err(|_| PollError::Invalid)
    }
}
