//! Events on their way: fetched, filtered, started.

use super::Subscription;
use super::judge::ADMISSION;
use super::session::{Ended, Session};
use crate::breaker::{Gate, PROBED};
use crate::event::Event;
use crate::key_queues::Id;
use crate::metrics::Outcome;
use crate::source::{self, Next};
use crate::verdict::{Failure, Verdict};
use fanout_contract::consumer::Ordering;
use rdkafka::error::KafkaResult;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::task::{AbortHandle, JoinSet};

/// Records taken in one turn, and of one partition at a time.
const BATCH: usize = 256;
const CHUNK: usize = 32;
/// What was read of a partition may be finished for so long before later records are read from where the log begins now.
const OUT_OF_RANGE: Duration = Duration::from_mins(1);
/// Payloads above this are judged by the filter where blocking is allowed.
const LARGE: usize = 16 << 10;

/// An event and what was tried.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) event: Arc<Event>,
    pub(super) stage: Stage,
    /// Version of the settings whose filter let it pass.
    version: u64,
    pub(super) tried: Tried,
}

/// Attempts of one event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    /// Those that count.
    pub(super) attempts: u32,
    /// All in a row, for the delay to the next.
    pub(super) tries: u32,
    /// Run of failures that the last ones belong to, and how many of `attempts` do.
    pub(super) run: (u64, u32),
    /// Successes of the subscription when it last failed.
    pub(super) successes: Option<u64>,
    /// It failed, others succeeded, and it failed again.
    pub(super) is_suspect: bool,
    pub(super) first: Option<(Instant, SystemTime)>,
    pub(super) last: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    Deliver,
    DeadLetter(Failure),
}

/// Something under way that ended.
pub(super) struct Done {
    pub(super) id: Id,
    pub(super) result: Finished,
}

pub(super) enum Finished {
    Attempt(Attempted),
    DeadLetter(KafkaResult<()>),
}

/// An attempt that ended.
pub(super) struct Attempted {
    pub(super) verdict: Verdict,
    pub(super) began: Instant,
    pub(super) took: Duration,
    /// Run of failures it began in.
    pub(super) run: u64,
}

/// What is under way.
#[derive(Default)]
pub(super) struct Deliveries {
    tasks: JoinSet<Done>,
    handles: HashMap<Id, AbortHandle>,
}

impl Deliveries {
    pub(super) fn spawn(&mut self, id: Id, task: impl Future<Output = Done> + Send + 'static) {
        let handle = self.tasks.spawn(task);
        self.handles.insert(id, handle);
    }

    /// The next that ends; waits for ever while there is none.
    pub(super) async fn next(&mut self) -> anyhow::Result<Done> {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(done)) => {
                    self.handles.remove(&done.id);
                    return Ok(done);
                }
                Some(Err(error)) if error.is_cancelled() => {}
                Some(Err(error)) => return Err(error.into()),
                None => std::future::pending().await,
            }
        }
    }

    /// The next that has ended already.
    pub(super) fn try_next(&mut self) -> anyhow::Result<Option<Done>> {
        while let Some(joined) = self.tasks.try_join_next() {
            match joined {
                Ok(done) => {
                    self.handles.remove(&done.id);
                    return Ok(Some(done));
                }
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Gives up `ids`: their requests are cut off and will be repeated by whoever reads them next.
    pub(super) fn abort(&mut self, ids: &[Id]) {
        for handle in ids.iter().filter_map(|id| self.handles.remove(id)) {
            handle.abort();
        }
    }
}

impl Session<'_> {
    /// Takes records from all partitions in turn while there is room.
    pub(super) fn fetch(&mut self, now: Instant) {
        let numbers: Vec<i32> = self.assignment.partitions.keys().copied().collect();
        let mut taken = 0;
        let mut again = true;
        while again {
            again = false;
            for &number in &numbers {
                if taken >= BATCH {
                    self.more = true;
                    return;
                }
                if !self.queues.has_room() {
                    return;
                }
                let chunk = self.fetch_partition(number, now);
                taken += chunk;
                again |= chunk == CHUNK;
            }
        }
    }

    /// Takes at most a chunk of one partition; returns how many.
    fn fetch_partition(&mut self, number: i32, now: Instant) -> usize {
        for taken in 0..CHUNK {
            if self.assignment.is_draining(number) || !self.queues.has_room() {
                return taken;
            }
            let Some(partition) = self.assignment.partitions.get_mut(&number) else {
                return taken;
            };
            if !partition.offsets.has_room() || partition.out_of_range.is_some() {
                return taken;
            }
            match source::next(&partition.queue) {
                Next::Event(event) => self.accept(*event),
                Next::End => {
                    partition.ended = true;
                    self.subscription.broker.refusal = None;
                }
                Next::Empty => {
                    if let Some(end) = partition.end.take()
                        && partition.ended
                    {
                        partition.offsets.reach(end);
                    }
                    return taken;
                }
                Next::OutOfRange => {
                    let name = &self.subscription.settings.config.name;
                    tracing::error!(
                        subscription = name,
                        partition = number,
                        "position is not in the log"
                    );
                    partition.out_of_range = Some(now + OUT_OF_RANGE);
                    self.subscription.out_of_range.insert(number);
                    return taken;
                }
                Next::Refused(fault) => {
                    self.subscription.broker.refused(fault);
                    return taken;
                }
            }
        }
        CHUNK
    }

    /// Starts anew where the log no longer has a partition's position, once what was read of it is finished: it can't be
    /// read again.
    pub(super) fn reposition(&mut self, now: Instant) {
        let open = self.subscription.is_open();
        let due = self.assignment.partitions.values().any(|partition| {
            partition
                .out_of_range
                .is_some_and(|until| partition.offsets.is_done() || (open && now >= until))
        });
        if due {
            self.end(Ended::Restart, now);
        }
    }

    /// Takes one record in.
    fn accept(&mut self, event: Event) {
        let Some(partition) = self.assignment.partitions.get_mut(&event.partition) else {
            return;
        };
        if !partition.offsets.see(event.offset, event.timestamp) {
            return;
        }
        let stage = if event.attributes.is_err() {
            Stage::DeadLetter(Failure::Undecodable)
        } else if let Some(outcome) = self.subscription.mismatch(&event) {
            partition.offsets.finish(event.offset);
            return self.subscription.finished(outcome);
        } else {
            Stage::Deliver
        };
        let ordering = self.subscription.settings.config.delivery.ordering;
        let key = lane(ordering, event.key.as_deref()).map(<[u8]>::to_vec);
        let held = Held {
            stage,
            version: self.subscription.version,
            tried: Tried::default(),
            event: Arc::new(event),
        };
        let (number, bytes) = (held.event.partition, held.event.bytes());
        self.queues.push(number, key.as_deref(), bytes, held);
    }

    /// Should records be taken? While the endpoint is down a few are held to ask it with, and the rest stays in the log.
    pub(super) fn wants_more(&self) -> bool {
        self.subscription.endpoint.breaker.is_open().is_none() || self.queues.len() < PROBED
    }

    /// Starts everything that may start.
    pub(super) fn start(&mut self, now: Instant) {
        self.queues.wake(now);
        let endpoint = &mut self.subscription.endpoint;
        if endpoint.paused.is_some_and(|until| now < until) {
            return;
        }
        endpoint.paused = None;
        if let Some(probe) = endpoint.breaker.probe()
            && !self.queues.is_under_way(probe)
        {
            // Its partition was given back.
            endpoint.breaker.forget_probe();
        }
        let gate = endpoint.breaker.gate(now);
        self.queues.set_limits(self.subscription.limits(gate));
        match gate {
            Gate::Shut => {}
            Gate::Probe => self.probe(now),
            Gate::Open | Gate::Ramp(_) => {
                while let Some(id) = self.queues.start(now) {
                    self.launch(id, now);
                    if !self.subscription.is_open() {
                        return;
                    }
                }
            }
        }
    }

    /// Starts one delivery, and what does not go to the endpoint. An event that was never tried says more than one that
    /// failed before, perhaps by itself.
    fn probe(&mut self, now: Instant) {
        let untried = |held: &Held| held.tried.first.is_none();
        while let Some(id) = self.queues.start_preferred(now, untried) {
            if self.launch(id, now) {
                return self.subscription.endpoint.breaker.probing(id);
            }
            if !self.subscription.is_open() {
                return;
            }
        }
    }

    /// True when a request is on its way.
    fn launch(&mut self, id: Id, now: Instant) -> bool {
        let Some(held) = self.queues.get_mut(id) else {
            return false;
        };
        if let Stage::DeadLetter(reason) = held.stage {
            self.give_up(id, reason);
            return false;
        }
        if held.version != self.subscription.version {
            held.version = self.subscription.version;
            // Settings changed while it waited: the new filter decides.
            if held.tried.attempts == 0
                && let Some(outcome) = self.subscription.mismatch(&held.event)
            {
                self.complete(id, outcome);
                return false;
            }
        }
        let Ok(sink) = &self.subscription.settings.sink else {
            self.queues.put_back(id);
            return false;
        };
        let time = SystemTime::now();
        held.tried.first.get_or_insert((now, time));
        held.tried.last = Some(time);
        let run = self.subscription.endpoint.breaker.number();
        let (sink, event) = (Arc::clone(sink), Arc::clone(&held.event));
        let settings = Arc::clone(&self.subscription.settings);
        self.deliveries.spawn(id, async move {
            let began = Instant::now();
            let verdict = match &event.attributes {
                Ok(attributes) => {
                    let final_statuses = &settings.config.delivery.non_retryable;
                    sink.deliver(&event, attributes, final_statuses).await
                }
                Err(_) => Verdict::Reject(Failure::Undecodable),
            };
            let took = began.elapsed();
            Done {
                id,
                result: Finished::Attempt(Attempted {
                    verdict,
                    began,
                    took,
                    run,
                }),
            }
        });
        true
    }

    /// Asks the guard again about an endpoint it refused.
    pub(super) fn ask(&mut self, now: Instant) {
        let due = self
            .subscription
            .endpoint
            .refused
            .is_some_and(|at| now >= at);
        if due
            && self.admission.is_none()
            && let Ok(sink) = &self.subscription.settings.sink
        {
            let sink = Arc::clone(sink);
            self.admission = Some(Box::pin(async move { sink.is_admitted().await }));
        }
    }

    /// The guard's answer.
    pub(super) fn asked(&mut self, admitted: bool, now: Instant) {
        if let Some(refused) = &mut self.subscription.endpoint.refused {
            *refused = now + ADMISSION;
        }
        if admitted {
            self.subscription.endpoint.refused = None;
        }
    }
}

/// What an event waits behind: earlier events of the same value in its partition. None waits for nothing.
const fn lane(ordering: Ordering, key: Option<&[u8]>) -> Option<&[u8]> {
    match ordering {
        Ordering::PerKey => key,
        Ordering::None => None,
        Ordering::Strict => Some(b""),
    }
}

impl Subscription {
    /// Why the filter keeps `event` from being delivered, if it does.
    fn mismatch(&self, event: &Event) -> Option<Outcome> {
        let (Some(filter), Ok(attributes)) = (&self.settings.filter, &event.attributes) else {
            return None;
        };
        let data = event.value.as_deref();
        let judge = || filter.matches(attributes, data);
        let matches = if data.is_some_and(|data| data.len() > LARGE) {
            tokio::task::block_in_place(judge)
        } else {
            judge()
        };
        match matches {
            Ok(true) => None,
            Ok(false) => Some(Outcome::Filtered),
            Err(_) => Some(Outcome::FilterError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_is_one_queue_whatever_the_key() {
        for key in [None, Some(&b"a"[..]), Some(b"")] {
            assert_eq!(lane(Ordering::Strict, key), Some(&b""[..]));
            assert_eq!(lane(Ordering::PerKey, key), key);
            assert_eq!(lane(Ordering::None, key), None);
        }
    }
}
