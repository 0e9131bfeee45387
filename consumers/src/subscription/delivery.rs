//! Events on their way: filtered, delivered, retried, dead-lettered.

use super::session::{Ended, Session};
use super::{Subscription, report};
use crate::dead_letter::History;
use crate::event::Event;
use crate::key_queues::Id;
use crate::metrics::{Attempt, Outcome};
use crate::retry;
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
/// Wait before a dead letter that the broker refused is sent again.
const DEAD_LETTER_RETRY: Duration = Duration::from_secs(5);
/// Wait before the guard is asked again about an endpoint it refused.
const ADMISSION: Duration = Duration::from_secs(30);
/// What was read of a partition may be finished for so long before later records are read from where the log begins now.
const OUT_OF_RANGE: Duration = Duration::from_mins(1);
/// Payloads above this are judged by the filter where blocking is allowed.
const LARGE: usize = 16 << 10;

/// An event and what was tried.
#[derive(Debug)]
pub(super) struct Held {
    event: Arc<Event>,
    stage: Stage,
    /// Version of the settings whose filter let it pass.
    version: u64,
    attempts: u32,
    first: Option<(Instant, SystemTime)>,
    last: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Deliver,
    DeadLetter(Failure),
}

/// Something under way that ended.
pub(super) struct Done {
    id: Id,
    result: Finished,
}

enum Finished {
    Attempt(Verdict, Duration),
    DeadLetter(KafkaResult<()>),
}

/// What is under way.
#[derive(Default)]
pub(super) struct Deliveries {
    tasks: JoinSet<Done>,
    handles: HashMap<Id, AbortHandle>,
}

impl Deliveries {
    fn spawn(&mut self, id: Id, task: impl Future<Output = Done> + Send + 'static) {
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
        let key = match self.subscription.settings.config.delivery.ordering {
            Ordering::PerKey => event.key.clone(),
            Ordering::None => None,
        };
        let held = Held {
            stage,
            version: self.subscription.version,
            attempts: 0,
            first: None,
            last: None,
            event: Arc::new(event),
        };
        let (number, bytes) = (held.event.partition, held.event.bytes());
        self.queues.push(number, key.as_deref(), bytes, held);
    }

    /// Starts everything that may start.
    pub(super) fn start(&mut self, now: Instant) {
        let endpoint = &mut self.subscription.endpoint;
        if endpoint.paused.is_some_and(|until| now < until) {
            return;
        }
        endpoint.paused = None;
        while let Some(id) = self.queues.start(now) {
            self.launch(id, now);
        }
    }

    fn launch(&mut self, id: Id, now: Instant) {
        let Some(held) = self.queues.get_mut(id) else {
            return;
        };
        if let Stage::DeadLetter(reason) = held.stage {
            return self.dead_letter(id, reason);
        }
        if held.version != self.subscription.version {
            held.version = self.subscription.version;
            // Settings changed while it waited: the new filter decides.
            if held.attempts == 0
                && let Some(outcome) = self.subscription.mismatch(&held.event)
            {
                return self.complete(id, outcome);
            }
        }
        let Ok(sink) = &self.subscription.settings.sink else {
            return self.queues.put_back(id);
        };
        held.first.get_or_insert_with(|| (now, SystemTime::now()));
        held.last = Some(SystemTime::now());
        let (sink, event) = (Arc::clone(sink), Arc::clone(&held.event));
        self.deliveries.spawn(id, async move {
            let begin = Instant::now();
            let verdict = match &event.attributes {
                Ok(attributes) => sink.deliver(&event, attributes).await,
                Err(_) => Verdict::Reject(Failure::Undecodable),
            };
            Done {
                id,
                result: Finished::Attempt(verdict, begin.elapsed()),
            }
        });
    }

    /// Something under way ended.
    pub(super) fn done(&mut self, done: Done, now: Instant) {
        match done.result {
            Finished::Attempt(verdict, took) => self.judge(done.id, &verdict, took, now),
            Finished::DeadLetter(Ok(())) => {
                self.subscription.endpoint.dead_letters_refused = false;
                self.complete(done.id, Outcome::DeadLettered);
            }
            Finished::DeadLetter(Err(error)) => {
                let name = &self.subscription.settings.config.name;
                tracing::error!(subscription = name, %error, "the dead letter topic does not take an event");
                self.subscription.endpoint.dead_letters_refused = true;
                self.queues.retry(done.id, now + DEAD_LETTER_RETRY);
            }
        }
    }

    fn judge(&mut self, id: Id, verdict: &Verdict, took: Duration, now: Instant) {
        let Some(held) = self.queues.get_mut(id) else {
            return;
        };
        let releasing = self.assignment.is_draining(held.event.partition) || self.is_ending();
        self.subscription.attempted(verdict, took);
        if *verdict == Verdict::Delivered {
            return self.complete(id, Outcome::Delivered);
        }
        if releasing {
            // Whoever reads it next begins anew: giving partitions up costs no event an attempt.
            return drop(self.queues.finish(id));
        }
        let Some(held) = self.queues.get_mut(id) else {
            return;
        };
        let age = held
            .first
            .map_or(Duration::ZERO, |(first, _)| now.duration_since(first));
        let policy = &self.subscription.settings.config.delivery.retry;
        match *verdict {
            Verdict::Delivered => {}
            Verdict::Retry { reason, at_most } => {
                held.attempts += 1;
                let failure = retry::Failure {
                    attempts: held.attempts,
                    at_most,
                    age,
                };
                match retry::next(policy, failure, rand::random()) {
                    retry::Next::After(delay) => self.queues.retry(id, now + delay),
                    retry::Next::Exhausted => self.dead_letter(id, reason),
                }
            }
            Verdict::Pause { reason, after } => {
                let paused = &mut self.subscription.endpoint.paused;
                *paused = Some(now + after).max(*paused);
                if age >= Duration::from_secs(policy.max_age_seconds.into()) {
                    held.attempts += 1;
                    return self.dead_letter(id, reason);
                }
                self.queues.put_back(id);
            }
            Verdict::Gone => {
                self.subscription.endpoint.gone = true;
                self.queues.put_back(id);
            }
            Verdict::Refused => {
                self.subscription.endpoint.refused = Some(now + ADMISSION);
                self.queues.put_back(id);
            }
            Verdict::Reject(reason) => {
                held.attempts += 1;
                self.dead_letter(id, reason);
            }
        }
    }

    /// Sends an event under way to the dead letter topic. It blocks its key until the broker has it.
    fn dead_letter(&mut self, id: Id, reason: Failure) {
        let Some(held) = self.queues.get_mut(id) else {
            return;
        };
        held.stage = Stage::DeadLetter(reason);
        let history = History {
            reason,
            attempts: held.attempts,
            first: held.first.map(|(_, time)| time),
            last: held.last,
        };
        let (worker, event) = (
            Arc::clone(&self.subscription.worker),
            Arc::clone(&held.event),
        );
        let name = self.subscription.settings.config.name.clone();
        self.deliveries.spawn(id, async move {
            let sent = worker.dead_letters.send(&event, &name, history).await;
            Done {
                id,
                result: Finished::DeadLetter(sent),
            }
        });
    }

    /// An event is over: its offset may be passed.
    fn complete(&mut self, id: Id, outcome: Outcome) {
        let Some(held) = self.queues.finish(id) else {
            return;
        };
        if let Some(partition) = self.assignment.partitions.get_mut(&held.event.partition) {
            partition.offsets.finish(held.event.offset);
        }
        self.subscription.finished(outcome);
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

    fn finished(&mut self, outcome: Outcome) {
        self.series.event(outcome);
        self.rate.count();
        let totals = &mut self.totals;
        let counter = match outcome {
            Outcome::Delivered => &mut totals.delivered,
            Outcome::Filtered => &mut totals.filtered,
            Outcome::FilterError => &mut totals.filter_errors,
            Outcome::DeadLettered => &mut totals.dead_lettered,
        };
        *counter += 1;
    }

    fn attempted(&mut self, verdict: &Verdict, took: Duration) {
        let (outcome, failure) = match verdict {
            Verdict::Delivered => (Attempt::Delivered, None),
            Verdict::Retry { reason, .. } | Verdict::Reject(reason) => {
                (Attempt::Failed, Some(reason.to_string()))
            }
            Verdict::Pause { reason, .. } => (Attempt::Paused, Some(reason.to_string())),
            Verdict::Gone => (Attempt::Gone, Some(Failure::Status(410).to_string())),
            Verdict::Refused => (Attempt::Refused, Some(report::REFUSED.to_owned())),
        };
        self.series.attempt(outcome, took);
        self.totals.failed_attempts += u64::from(failure.is_some());
        self.endpoint.delivering = Some(failure.is_none());
        self.endpoint.failure = failure;
    }
}
