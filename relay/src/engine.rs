//! Owns ranges under one configuration: connects, checks, shares ranges with other relays, renews leases.

mod layout;

use self::layout::{Merging, SETTLED};
use crate::broker::Broker;
use crate::claim::Shards;
use crate::encode::Encoding;
use crate::lease::{self, Acquired, LEASE, Member, RENEWAL, View};
use crate::measure::Measure;
use crate::position::{Fence, History};
use crate::ranges::{Situation, decide};
use crate::rearrange::Plan;
use crate::source::{Failure, Source, failure};
use crate::stats::{Gauges, Stats};
use crate::worker::{Assignment, Ended, Shared, Worker};
use crate::{adopt, checks, forget, recheck, retention};
use anyhow::Context as _;
use fanout_contract::reason::SourceError;
use fanout_contract::relay::{
    Broker as BrokerConfig, Claim, Delivery, RelayConfig, Source as SourceConfig,
};
use fanout_runtime::clock::{self, Deadline};
use fanout_runtime::config::Loaded;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// How often the other relays are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The same while this relay has less than its share.
const HUNGRY: Duration = Duration::from_millis(300);
/// A range whose records the brokers did not take is left to other relays for this long.
const COOLING: Duration = Duration::from_secs(15);
/// Workers finish what is in flight within this time, or are dropped.
const DRAIN: Duration = Duration::from_secs(20);

/// What an engine runs with.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The configuration and the files it names.
    pub config: &'a Loaded<RelayConfig>,
    /// Unique name of this process.
    pub owner: &'a str,
    /// What `/status` shows.
    pub stats: &'a Arc<Stats>,
    /// What `/metrics` shows beside.
    pub gauges: &'a Gauges,
}

/// How an engine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was asked to.
    Asked,
    /// It could not go on; `/status` says why.
    Failed,
}

/// Runs until `stop` or until something fails. An error is a panic in a part of it.
pub async fn run(setting: Setting<'_>, stop: CancellationToken) -> anyhow::Result<Stopped> {
    if setting.config.config.delete_positions {
        return Ok(forget::run(setting, stop).await);
    }
    let connected = tokio::select! {
        connected = connect(setting) => connected,
        () = stop.cancelled() => return Ok(Stopped::Asked),
    };
    let Some((source, broker)) = connected else {
        return Ok(Stopped::Failed);
    };
    let outcome = serve(setting, &source, broker, stop).await;
    source.close().await;
    match outcome? {
        Ok(()) => Ok(Stopped::Asked),
        Err(failure) => {
            setting.stats.source(Err(failure));
            Ok(Stopped::Failed)
        }
    }
}

/// Reaches both sides, so that both are reported; `None` when one can't be used.
async fn connect(setting: Setting<'_>) -> Option<(Source, Arc<Broker>)> {
    let Setting { config, stats, .. } = setting;
    let BrokerConfig::Kafka(kafka) = &config.config.broker;
    let source = async {
        let source = Source::connect(&config.config, &config.files).await?;
        let checked = async {
            delivers(&source, config.config.delivery)?;
            checks::run(&source).await
        };
        match checked.await {
            Ok(()) => Ok(source),
            Err(failure) => {
                source.close().await;
                Err(failure)
            }
        }
    };
    let (source, broker) = tokio::join!(
        source,
        Broker::connect(kafka, config.config.delivery, &config.files)
    );
    if let Ok(source) = &source {
        stats.ordered(source.outbox.columns.ordered());
    }
    stats.source(source.as_ref().map(drop).map_err(Clone::clone));
    stats.broker(broker.as_ref().map(drop).map_err(Clone::clone));
    match (source, broker) {
        (Ok(source), Ok(broker)) => Some((source, broker)),
        (Ok(source), Err(_)) => {
            source.close().await;
            None
        }
        (Err(_), _) => None,
    }
}

/// Of other claim modes the rows say what is published, and they are not part of a Kafka transaction.
fn delivers(source: &Source, delivery: Delivery) -> Result<(), Failure> {
    if delivery == Delivery::Transactional && source.outbox.claim != Claim::Snapshot {
        return Err(failure(
            SourceError::SourceQueryFailed,
            "spec.relay.delivery Transactional needs spec.source.postgres.claim Snapshot",
        ));
    }
    Ok(())
}

async fn serve(
    setting: Setting<'_>,
    source: &Source,
    broker: Arc<Broker>,
    stop: CancellationToken,
) -> anyhow::Result<Result<(), Failure>> {
    let Setting { config, stats, .. } = setting;
    let SourceConfig::Postgres(postgres) = &config.config.source;
    let registered = async {
        let topic =
            lease::register(source, &broker.cluster, &broker.topic, postgres.start_from).await?;
        adopt::check_history(source, topic, config.config.accept_source.as_deref()).await?;
        Ok(topic)
    };
    let topic = match registered.await {
        Ok(topic) => topic,
        Err(failure) => return Ok(Err(failure)),
    };
    let beside = stop.child_token();
    let mut tasks = JoinSet::new();
    let measure = Measure::new(source.clone(), topic, stats.clone(), setting.gauges.clone());
    tasks.spawn(measure.run(beside.clone()));
    let (found, rechecked) = mpsc::channel(1);
    tasks.spawn(recheck::run(
        source.clone(),
        stats.clone(),
        found,
        beside.clone(),
    ));
    if !config.config.suspend {
        let seconds = postgres.retention_seconds;
        tasks.spawn(retention::run(
            source.clone(),
            seconds,
            stats.clone(),
            beside.clone(),
        ));
    }
    let mut engine = Engine {
        member: Member {
            topic,
            owner: setting.owner.to_owned(),
        },
        shared: Shared {
            source: source.clone(),
            broker,
            encoding: Encoding::new(&config.config),
            suspended: config.config.suspend,
            on_parked: config.config.on_parked,
            delivery: config.config.delivery,
            stats: stats.clone(),
        },
        history: None,
        workers: JoinSet::new(),
        owned: HashMap::new(),
        cooling: HashMap::new(),
        merging: HashMap::new(),
        resting: HashMap::new(),
        relays: (0, Duration::ZERO),
        leaving: false,
        renewed: Duration::ZERO,
        rechecked,
    };
    let outcome = engine.run(&stop).await;
    beside.cancel();
    let drained = engine.drain().await;
    while let Some(task) = tasks.join_next().await {
        task.context("a part of the relay panicked")?;
    }
    drained?;
    outcome
}

/// A range this process holds the lease of.
#[derive(Debug)]
struct Owned {
    fence: Fence,
    deadline: Arc<Deadline>,
    stop: CancellationToken,
    /// What becomes of the range once its worker has finished; `None`: it is given back.
    next: Option<Next>,
}

/// What becomes of a range whose worker has finished.
#[derive(Debug)]
enum Next {
    /// It is replaced.
    Split(Plan),
    /// It is replaced together with its neighbours; the number is that of the first of them.
    Merge(i64),
}

#[derive(Debug)]
struct Engine {
    member: Member,
    shared: Shared,
    /// History of the server, as first seen.
    history: Option<History>,
    workers: JoinSet<(Ended, Assignment)>,
    owned: HashMap<i64, Owned>,
    /// Ranges left to others, until when.
    cooling: HashMap<i64, Duration>,
    /// Ranges on their way to one, by the first of them.
    merging: HashMap<i64, Merging>,
    /// Ranges that are not split or merged, until when.
    resting: HashMap<i64, Duration>,
    /// How many relays there are, and since when.
    relays: (usize, Duration),
    /// Ranges are only given back any more.
    leaving: bool,
    /// When leases were last renewed.
    renewed: Duration,
    /// What is not true of the database any more.
    rechecked: mpsc::Receiver<Failure>,
}

impl Engine {
    async fn run(&mut self, stop: &CancellationToken) -> anyhow::Result<Result<(), Failure>> {
        loop {
            self.shared.stats.turn();
            let hungry = match self.look().await {
                Ok(hungry) => hungry,
                Err(failure) => return Ok(Err(failure)),
            };
            let pause = if hungry { HUNGRY } else { LOOK };
            let renewal = (self.renewed + RENEWAL).saturating_sub(clock::now());
            let pause = pause.min(renewal);
            tokio::select! {
                () = stop.cancelled() => return Ok(Ok(())),
                Some(failure) = self.rechecked.recv() => return Ok(Err(failure)),
                Some(ended) = self.workers.join_next() => {
                    if let Err(failure) = self.ended(ended).await? {
                        return Ok(Err(failure));
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Renews leases when it is time, then gives or takes ranges. True while this relay has less than its share.
    async fn look(&mut self) -> Result<bool, Failure> {
        let now = clock::now();
        let source = &self.shared.source;
        let due = now.saturating_sub(self.renewed) >= RENEWAL;
        let view = if due {
            let fences: Vec<Fence> = self
                .owned
                .values()
                .map(|owned| owned.fence.clone())
                .collect();
            let view = lease::look(source, &self.member, &fences).await?;
            self.renewed = now;
            self.renew(&view, now);
            view
        } else {
            lease::observe(source, &self.member).await?
        };
        if *self.history.get_or_insert_with(|| view.history.clone()) != view.history {
            return Err(failure(
                SourceError::SourceUnreachable,
                "the database failed over or crashed: resuming from the stored position",
            ));
        }
        self.cooling.retain(|_, until| *until > now);
        // A range that cools counts as one this relay works on: it takes no other for it either.
        let busy: Vec<i64> = self
            .owned
            .keys()
            .chain(self.cooling.keys())
            .copied()
            .collect();
        let relays = view.members.len();
        if self.relays.0 != relays {
            self.relays = (relays, now);
        }
        let decision = decide(Situation {
            view: &view,
            me: &self.member.owner,
            working: &busy,
            // What is suspended must not move, and ranges that merge do.
            settled: now.saturating_sub(self.relays.1) >= SETTLED && !self.shared.suspended,
        });
        for id in &decision.release {
            if let Some(owned) = self.owned.get(id)
                && owned.next.is_none()
                && !owned.stop.is_cancelled()
            {
                tracing::info!(range = id, "giving a range to another relay");
                owned.stop.cancel();
            }
        }
        for id in &decision.acquire {
            let range = view.ranges.iter().find(|range| range.id == *id);
            if let Some(range) = range {
                self.acquire(range.id, range.shards).await?;
            }
        }
        self.begin_rearranging(&decision).await?;
        Ok(decision.hungry)
    }

    /// Moves the ends of the leases that were renewed; the others are lost.
    fn renew(&self, view: &View, asked: Duration) {
        for (id, owned) in &self.owned {
            let renewed = view.ranges.iter().any(|range| {
                range.id == *id
                    && range.term == owned.fence.term
                    && range.holder.as_ref() == Some(&owned.fence.owner)
            });
            owned.deadline.set(if renewed {
                asked + LEASE
            } else {
                Duration::ZERO
            });
        }
    }

    async fn acquire(&mut self, id: i64, shards: Shards) -> Result<(), Failure> {
        let delivery = self.shared.delivery;
        let taken = lease::take(&self.shared.source, &self.member, id, delivery);
        let Some(acquired) = taken.await? else {
            return Ok(());
        };
        tracing::info!(range = id, term = acquired.fence.term, "took a range");
        self.start(shards, acquired);
        Ok(())
    }

    /// Begins to work on a range whose lease was just taken.
    fn start(&mut self, shards: Shards, acquired: Acquired) {
        let assignment = Assignment {
            shards,
            fence: acquired.fence,
            seq: 0,
            position: acquired.position,
            history: acquired.history,
            deadline: Arc::new(Deadline::new(acquired.ends)),
            goal: None,
        };
        self.spawn(assignment, None);
    }

    /// Works on a range; `next` is what becomes of it afterwards.
    fn spawn(&mut self, assignment: Assignment, next: Option<Next>) {
        let stop = CancellationToken::new();
        self.owned.insert(
            assignment.fence.range,
            Owned {
                fence: assignment.fence.clone(),
                deadline: assignment.deadline.clone(),
                stop: stop.clone(),
                next,
            },
        );
        let mut worker = Worker::new(self.shared.clone(), assignment);
        self.workers
            .spawn(async move { (worker.run(stop).await, worker.into_assignment()) });
    }

    /// A worker ended: its range is given back, or takes part in a split or a merge.
    async fn ended(
        &mut self,
        ended: Result<(Ended, Assignment), JoinError>,
    ) -> anyhow::Result<Result<(), Failure>> {
        let (ended, drained) = ended.context("a worker panicked")?;
        let id = drained.fence.range;
        let next = self.owned.get_mut(&id).and_then(|owned| owned.next.take());
        match (&ended, next) {
            (Ended::Stopped, Some(Next::Split(plan))) if !self.leaving => {
                return Ok(self.split(drained, plan).await);
            }
            (Ended::Stopped, Some(Next::Merge(key))) if !self.leaving => {
                return Ok(self.merge(key, drained).await);
            }
            (_, Some(Next::Merge(key))) => {
                if let Err(failure) = self.cancel_merge(key).await {
                    return Ok(Err(failure));
                }
            }
            _ => {}
        }
        if let Ended::Broker(_) = ended {
            // What waits there stays known.
            self.cooling.insert(id, clock::now() + COOLING);
        } else {
            self.shared.stats.forget_range(id);
        }
        let Some(owned) = self.owned.remove(&id) else {
            return Ok(Ok(()));
        };
        if let Ended::Source(failure) = ended {
            tracing::info!(
                range = id,
                term = owned.fence.term,
                "lost a range: the outbox can't be used"
            );
            return Ok(Err(failure));
        }
        tracing::info!(range = id, term = owned.fence.term, ended = ?ended, "gave a range back");
        Ok(lease::release(&self.shared.source, &owned.fence).await)
    }

    /// Lets every worker finish, gives the leases back, and leaves.
    async fn drain(&mut self) -> anyhow::Result<()> {
        self.leaving = true;
        for owned in self.owned.values() {
            owned.stop.cancel();
        }
        let merging: Vec<i64> = self.merging.keys().copied().collect();
        let finished = tokio::time::timeout(DRAIN, async {
            for key in merging {
                if let Err(failure) = self.cancel_merge(key).await {
                    tracing::debug!(class = ?failure.class, "a lease could not be given back");
                }
            }
            while let Some(ended) = self.workers.join_next().await {
                if let Err(failure) = self.ended(ended).await? {
                    tracing::debug!(class = ?failure.class, "a lease could not be given back");
                }
            }
            anyhow::Ok(())
        });
        if let Ok(finished) = finished.await {
            finished?;
        } else {
            tracing::warn!("records were still unanswered when the relay stopped");
        }
        self.workers.abort_all();
        for id in self.owned.keys().chain(self.cooling.keys()) {
            self.shared.stats.forget_range(*id);
        }
        if let Err(failure) = lease::leave(&self.shared.source, &self.member).await {
            tracing::debug!(class = ?failure.class, "leaving was not recorded");
        }
        Ok(())
    }
}
