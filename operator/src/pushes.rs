//! How long workers have been running another configuration than the one that was written for them.

use crate::controllers::workers::Report;
use fanout_contract::consumer::ConsumerStatus;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Without the push by annotation a kubelet takes up to two minutes.
const OVERDUE: Duration = Duration::from_mins(3);

/// When each worker's current configuration was first seen to be pending.
///
/// A pool's configuration changes whenever one of its Subscriptions does. The others run what they should all the time, so
/// a short lag is no news to them; a long one is, because a rotated secret or a new broker address is not in force.
#[derive(Debug, Default)]
pub(crate) struct Pushes(Mutex<HashMap<String, (String, Instant)>>);

impl Pushes {
    /// True when `worker` (its namespaced name) has not run the configuration with `hash` for too long. Unknown reports
    /// count as nothing.
    pub(crate) fn overdue(
        &self,
        worker: &str,
        hash: Option<&str>,
        reports: &[Report<ConsumerStatus>],
    ) -> bool {
        let pending = hash.filter(|hash| {
            reports
                .iter()
                .filter_map(|report| report.status.as_ref())
                .any(|status| status.config_hash != *hash)
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(hash) = pending else {
            all.remove(worker);
            return false;
        };
        let entry = all
            .entry(worker.to_owned())
            .and_modify(|entry| {
                if entry.0 != hash {
                    *entry = (hash.to_owned(), Instant::now());
                }
            })
            .or_insert_with(|| (hash.to_owned(), Instant::now()));
        entry.1.elapsed() > OVERDUE
    }
}
