//! Partitions a subscription owns: taking them over, giving them back, committing their positions.

use super::begin::{Rules, begin};
use super::session::{DRAIN, Ended, SETTLE, Session};
use crate::offsets::{Commit, Offsets};
use crate::source::{self, Position, Queue, Signal, Source};
use fanout_contract::consumer::StartOffset;
use fanout_runtime::backoff::Backoff;
use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Time between commits.
const COMMIT: Duration = Duration::from_secs(1);
/// Wait after a commit that failed.
const COMMIT_RETRY: Duration = Duration::from_millis(500);
/// A commit without an answer by then never gets one: a client that lost its coordinator may wait for ever.
const COMMIT_ANSWER: Duration = Duration::from_mins(1);
/// Wait between questions where partitions begin.
const ASK: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// A client that has not learned by then where its partitions begin is started anew.
const ASKED_LONG: Duration = Duration::from_mins(2);

/// One partition that is read.
pub(super) struct Partition {
    pub(super) offsets: Offsets,
    pub(super) queue: Queue,
    /// Everything up to some end of the log was handed out since it was assigned.
    pub(super) ended: bool,
    /// An end that was signalled before the queue is found empty.
    pub(super) end: Option<i64>,
    /// The log does not have the next offset. What was read before may still be finished until then.
    pub(super) out_of_range: Option<Instant>,
}

/// Partitions being given back.
struct Draining {
    partitions: BTreeSet<i32>,
    /// Another member may have them already: commit nothing.
    lost: bool,
    deadline: Instant,
}

/// What the group has assigned.
pub(super) struct Assignment {
    pub(super) partitions: BTreeMap<i32, Partition>,
    /// Assigned and not read: nobody says where to begin.
    pub(super) missing: BTreeSet<i32>,
    /// The group has answered at least once.
    pub(super) joined: bool,
    /// Rebalances not looked at yet.
    pub(super) waiting: VecDeque<Signal>,
    /// The rebalance being worked on.
    current: Option<Signal>,
    draining: Option<Draining>,
    /// The commit under way and when it was begun.
    committing: Option<(BTreeMap<i32, Commit>, Instant)>,
    next_commit: Instant,
    not_before: Instant,
}

/// A rebalance operation that came to its end.
pub(super) enum Step {
    /// Partitions were taken over, or the client refuses to.
    Assigned(KafkaResult<Vec<Taken>>),
    /// Where partitions begin could not be found out.
    Unknown,
    /// Partitions were given back.
    Unassigned(KafkaResult<()>),
}

/// A partition that was taken over; without offsets it is not read.
pub(super) struct Taken {
    partition: i32,
    read: Option<(Offsets, Queue)>,
    expired: i64,
}

impl Assignment {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            partitions: BTreeMap::new(),
            missing: BTreeSet::new(),
            joined: false,
            waiting: VecDeque::new(),
            current: None,
            draining: None,
            committing: None,
            next_commit: now,
            not_before: now,
        }
    }

    pub(super) fn ends(&mut self, ends: &[(i32, i64)]) {
        for (partition, end) in ends {
            if let Some(partition) = self.partitions.get_mut(partition) {
                partition.end = Some(*end);
            }
        }
    }

    /// Is `partition` being given back?
    pub(super) fn is_draining(&self, partition: i32) -> bool {
        self.draining
            .as_ref()
            .is_some_and(|draining| draining.partitions.contains(&partition))
    }

    /// Would `starts`, or beginning `anew`, let a partition be read that is not?
    pub(super) fn waits_for(&self, starts: &[StartOffset], anew: &BTreeSet<i32>) -> bool {
        let mut starts = starts.iter().map(|start| &start.partition).chain(anew);
        starts.any(|partition| self.missing.contains(partition))
    }

    /// Nothing to commit, and no commit under way, for the partitions that `of` names.
    pub(super) fn is_settled(&self, of: impl Fn(i32) -> bool) -> bool {
        self.committing.is_none()
            && self
                .partitions
                .iter()
                .all(|(number, partition)| !of(*number) || partition.offsets.due().is_none())
    }

    /// The rebalance that the client still waits for. Lets go of all queues.
    pub(super) fn into_unanswered(self) -> Option<Signal> {
        self.current.or_else(|| self.waiting.into_iter().next())
    }
}

impl Session<'_> {
    /// Carries the rebalance on, one step at a time.
    pub(super) fn rebalance(&mut self, now: Instant) {
        if self.operation.is_some() {
            return;
        }
        if self.assignment.draining.is_some() {
            return self.drain(now);
        }
        if self.is_ending() {
            return;
        }
        let Some(signal) = self.assignment.waiting.pop_front() else {
            return;
        };
        self.subscription.series.rebalance();
        match &signal {
            Signal::Revoke { partitions, lost } => {
                let partitions: BTreeSet<_> = partitions.iter().copied().collect();
                self.queues
                    .drop_idle(|partition| partitions.contains(&partition));
                self.assignment.draining = Some(Draining {
                    partitions,
                    lost: *lost,
                    deadline: if *lost { now } else { now + DRAIN },
                });
            }
            Signal::Assign(partitions) => {
                let settings = &self.subscription.settings.config;
                let rules = Rules {
                    starts: settings.start_offsets.clone(),
                    out_of_range: self.subscription.out_of_range.clone(),
                    anew: self.subscription.anew.clone(),
                };
                self.operation = Some(Box::pin(take_over(
                    self.source.clone(),
                    partitions.clone(),
                    rules,
                    settings.name.clone(),
                )));
            }
            _ => {}
        }
        self.assignment.current = Some(signal);
    }

    /// Waits for what is under way, then for its commit, then gives the partitions back. Other partitions go on.
    fn drain(&mut self, now: Instant) {
        let Some(draining) = &self.assignment.draining else {
            return;
        };
        let lost = |partition| draining.partitions.contains(&partition);
        if now < draining.deadline && !self.queues.under_way_of(lost).is_empty() {
            return;
        }
        let given_up = self.queues.drop_all(lost);
        self.deliveries.abort(&given_up);
        let late = now >= draining.deadline + SETTLE;
        let settled = if draining.lost {
            // A commit under way must not be sent with the next membership.
            self.assignment.committing.is_none()
        } else {
            self.assignment.is_settled(lost)
        };
        if !settled && !late {
            if !draining.lost {
                self.commit(now, true);
            }
            return;
        }
        let partitions = draining.partitions.iter().copied().collect();
        self.operation = Some({
            let unassign = self.source.unassign(partitions);
            Box::pin(async move { Step::Unassigned(unassign.await) })
        });
    }

    /// A rebalance operation ended.
    pub(super) fn stepped(&mut self, step: Step) {
        let name = self.subscription.settings.config.name.clone();
        self.assignment.current = None;
        match step {
            Step::Assigned(Err(error)) => {
                tracing::warn!(subscription = name, %error, "taking partitions over failed, starting anew");
                self.end(Ended::Restart, Instant::now());
            }
            Step::Assigned(Ok(taken)) => {
                self.assignment.joined = true;
                self.subscription.broker.refusal = None;
                for Taken {
                    partition,
                    read,
                    expired,
                } in taken
                {
                    if expired > 0 {
                        tracing::error!(
                            subscription = name,
                            partition,
                            expired,
                            "retention removed unread events"
                        );
                        self.subscription
                            .expired(partition, expired, Instant::now());
                    }
                    let Some((offsets, queue)) = read else {
                        tracing::error!(
                            subscription = name,
                            partition,
                            "no position, the partition is not read"
                        );
                        self.assignment.missing.insert(partition);
                        continue;
                    };
                    tracing::info!(
                        subscription = name,
                        partition,
                        offset = offsets.prefix(),
                        "partition assigned"
                    );
                    self.subscription.out_of_range.remove(&partition);
                    self.subscription.anew.remove(&partition);
                    let partition_state = Partition {
                        offsets,
                        queue,
                        ended: false,
                        end: None,
                        out_of_range: None,
                    };
                    self.assignment
                        .partitions
                        .insert(partition, partition_state);
                }
            }
            Step::Unknown => {
                tracing::warn!(
                    subscription = name,
                    "positions can't be read, starting anew"
                );
                self.fail(Instant::now());
            }
            Step::Unassigned(result) => {
                if let Some(draining) = self.assignment.draining.take() {
                    for partition in &draining.partitions {
                        self.assignment.partitions.remove(partition);
                        self.assignment.missing.remove(partition);
                        // Whoever has it next finds out anew.
                        self.subscription.out_of_range.remove(partition);
                        self.subscription.anew.remove(partition);
                    }
                    let partitions = draining.partitions;
                    tracing::info!(subscription = name, ?partitions, "partitions given back");
                }
                if let Err(error) = result {
                    tracing::warn!(subscription = name, %error, "giving partitions back failed, starting anew");
                    self.end(Ended::Restart, Instant::now());
                }
            }
        }
    }

    /// Commits what is due, once a second or, when `urgent`, at once. One commit is under way at a time.
    pub(super) fn commit(&mut self, now: Instant, urgent: bool) {
        let name = &self.subscription.settings.config.name;
        let assignment = &mut self.assignment;
        if let Some((_, begun)) = &assignment.committing {
            if now < *begun + COMMIT_ANSWER {
                return;
            }
            tracing::warn!(
                subscription = name,
                "a commit is never answered, starting anew"
            );
            self.subscription.series.commit_failure();
            assignment.committing = None;
            return self.fail(now);
        }
        if now < assignment.not_before || (now < assignment.next_commit && !urgent) {
            return;
        }
        let lost = assignment
            .draining
            .as_ref()
            .filter(|draining| draining.lost);
        let lost = |partition| lost.is_some_and(|lost| lost.partitions.contains(&partition));
        let due: Vec<_> = assignment
            .partitions
            .iter()
            .filter(|(number, _)| !lost(**number))
            .filter_map(|(number, partition)| Some((*number, partition.offsets.due()?)))
            .collect();
        assignment.next_commit = now + COMMIT;
        if due.is_empty() {
            return;
        }
        self.source.commit(&due);
        assignment.committing = Some((due.into_iter().collect(), now));
    }

    /// The answer to a commit. What was refused stays due.
    pub(super) fn committed(
        &mut self,
        answers: &[(i32, i64, Result<(), RDKafkaErrorCode>)],
        now: Instant,
    ) {
        let Some((commits, _)) = self.assignment.committing.take() else {
            return;
        };
        for (number, offset, answer) in answers {
            let commit = commits
                .get(number)
                .filter(|commit| commit.offset == *offset);
            let (Some(commit), Some(partition)) =
                (commit, self.assignment.partitions.get_mut(number))
            else {
                continue;
            };
            match answer {
                Ok(()) => {
                    partition.offsets.acknowledge(commit);
                    self.subscription.broker.refusal = None;
                }
                Err(code) => {
                    let name = &self.subscription.settings.config.name;
                    tracing::warn!(subscription = name, partition = number, %code, "commit refused");
                    if let Some(trouble) = source::refusal(*code) {
                        self.subscription.broker.refused(trouble);
                    }
                    self.subscription.series.commit_failure();
                    self.assignment.not_before = now + COMMIT_RETRY;
                }
            }
        }
    }
}

/// Finds out where `partitions` begin and takes them. Asks for long: a partition must not be read from a guessed
/// position, and the client waits meanwhile.
async fn take_over(
    source: Source,
    partitions: Vec<i32>,
    rules: Rules,
    subscription: String,
) -> Step {
    let mut backoff = Backoff::new(ASK.0, ASK.1);
    let asked = Instant::now();
    let positions = loop {
        match positions(&source, &partitions).await {
            Ok(positions) => break positions,
            Err(error) => {
                tracing::warn!(subscription, %error, "positions can't be read yet");
                if asked.elapsed() > ASKED_LONG {
                    return Step::Unknown;
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
        }
    };
    Step::Assigned(take(&source, &positions, &rules).await)
}

async fn positions(source: &Source, partitions: &[i32]) -> KafkaResult<Vec<Position>> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    source.positions(partitions.to_vec()).await
}

async fn take(source: &Source, positions: &[Position], rules: &Rules) -> KafkaResult<Vec<Taken>> {
    let begun: Vec<_> = positions
        .iter()
        .map(|position| (position.partition, begin(position, rules)))
        .collect();
    let offsets = |begun: &Option<(Offsets, i64)>| begun.as_ref().map(|(at, _)| at.prefix());
    let assigned = begun
        .iter()
        .map(|(partition, begun)| (*partition, offsets(begun)))
        .collect();
    let mut queues: BTreeMap<i32, Queue> = source.assign(assigned).await?.into_iter().collect();
    let taken = begun.into_iter().map(|(partition, begun)| {
        let queue = queues.remove(&partition);
        let (offsets, expired) = begun.unzip();
        Taken {
            partition,
            read: offsets.zip(queue),
            expired: expired.unwrap_or_default(),
        }
    });
    Ok(taken.collect())
}
