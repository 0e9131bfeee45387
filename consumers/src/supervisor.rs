//! Keeps the running subscriptions equal to the configuration: adds, changes and removes them one by one.

use crate::dead_letter::DeadLetters;
use crate::metrics::Metrics;
use crate::settings::{Connection, Plan, Settings};
use crate::subscription::{Shared, Subscription, Versioned, Worker};
use anyhow::{Context, bail};
use fanout_contract::consumer::{ConsumerConfig, ConsumerStatus};
use fanout_runtime::config::Loaded;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A subscription that has taken no turn for this long hangs.
const HANGS: Duration = Duration::from_mins(1);

/// What the admin server shows; written by the supervisor and the subscriptions.
#[derive(Default)]
pub(crate) struct Board {
    inner: Mutex<Posted>,
}

#[derive(Default)]
struct Posted {
    hash: String,
    subscriptions: BTreeMap<String, Arc<Shared>>,
}

impl Board {
    /// The `/status` document.
    pub(crate) fn status(&self) -> ConsumerStatus {
        let posted = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        ConsumerStatus {
            config_hash: posted.hash.clone(),
            subscriptions: posted
                .subscriptions
                .values()
                .map(|shared| shared.status())
                .collect(),
        }
    }

    /// Has every subscription taken a turn lately?
    pub(crate) fn live(&self) -> Result<(), String> {
        let posted = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let hangs = posted
            .subscriptions
            .iter()
            .find(|(_, shared)| shared.idle() > HANGS);
        hangs.map_or(Ok(()), |(name, _)| {
            Err(format!("subscription {name} hangs"))
        })
    }

    /// Is a configuration in force?
    pub(crate) fn ready(&self) -> Result<(), String> {
        let posted = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if posted.hash.is_empty() {
            return Err("no configuration is in force yet".to_owned());
        }
        Ok(())
    }

    fn post(&self, change: impl FnOnce(&mut Posted)) {
        change(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

struct Running {
    settings: watch::Sender<Versioned>,
    stop: CancellationToken,
    shared: Arc<Shared>,
    /// Another uid or group is another subscription.
    identity: (String, String),
}

/// All subscriptions of the process.
pub(crate) struct Supervisor {
    instance: String,
    metrics: Arc<Metrics>,
    board: Arc<Board>,
    worker: Option<Arc<Worker>>,
    plan: Option<Arc<Plan>>,
    version: u64,
    running: BTreeMap<String, Running>,
    tasks: JoinSet<(String, anyhow::Result<()>)>,
}

impl Supervisor {
    pub(crate) fn new(instance: String, metrics: Arc<Metrics>, board: Arc<Board>) -> Self {
        Self {
            instance,
            metrics,
            board,
            worker: None,
            plan: None,
            version: 0,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Follows the configuration until `shutdown`, then stops every subscription in order.
    ///
    /// # Errors
    /// The first configuration can't be used, or a subscription's task ended by itself.
    pub(crate) async fn run(
        mut self,
        mut configs: watch::Receiver<Arc<Loaded<ConsumerConfig>>>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let first = configs.borrow_and_update().clone();
        self.apply(first).await?;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(ended) = self.tasks.join_next() => return Err(unexpected(ended)),
                Ok(()) = configs.changed() => {
                    let new = configs.borrow_and_update().clone();
                    let applied = tokio::select! {
                        applied = self.apply(new) => applied,
                        () = shutdown.cancelled() => break,
                    };
                    if let Err(error) = applied {
                        if error.is::<Died>() {
                            return Err(error);
                        }
                        tracing::error!(error = format!("{error:#}"), "configuration refused, the former stays in force");
                    }
                }
            }
        }
        for running in self.running.values() {
            running.stop.cancel();
        }
        while let Some(ended) = self.tasks.join_next().await {
            let (name, result) = ended?;
            result.with_context(|| format!("subscription {name}"))?;
        }
        Ok(())
    }

    /// Puts `loaded` in force; its hash is posted once every subscription runs by it.
    async fn apply(&mut self, loaded: Arc<Loaded<ConsumerConfig>>) -> anyhow::Result<()> {
        let hash = loaded.hash.clone();
        let former = self.plan.clone();
        let plan =
            tokio::task::spawn_blocking(move || Plan::new(&loaded, former.as_deref())).await??;
        let plan = Arc::new(plan);
        let worker = self.worker_for(&plan.connection, &plan.namespace)?;
        let moved = self
            .worker
            .replace(Arc::clone(&worker))
            .is_some_and(|former| !Arc::ptr_eq(&former, &worker));
        self.plan = Some(Arc::clone(&plan));
        self.version += 1;
        let wanted: BTreeMap<_, _> = plan
            .subscriptions
            .iter()
            .map(|settings| (settings.config.name.as_str(), settings))
            .collect();
        let mut leaving: BTreeSet<String> = self
            .running
            .iter()
            .filter(|(name, running)| {
                let same = wanted
                    .get(name.as_str())
                    .is_some_and(|settings| identity(settings) == running.identity);
                moved || !same
            })
            .map(|(name, running)| {
                running.stop.cancel();
                name.clone()
            })
            .collect();
        // What is not concerned goes on at once; what takes another's place waits until that has left its group.
        let (later, now): (Vec<_>, Vec<_>) = plan
            .subscriptions
            .iter()
            .partition(|settings| leaving.contains(&settings.config.name));
        for settings in now {
            self.update_or_start(settings, &worker);
        }
        while !leaving.is_empty() {
            let Some(ended) = self.tasks.join_next().await else {
                break;
            };
            match ended {
                Ok((name, Ok(()))) if leaving.remove(&name) => {
                    self.running.remove(&name);
                    self.board
                        .post(|posted| drop(posted.subscriptions.remove(&name)));
                }
                ended => return Err(unexpected(ended)),
            }
        }
        for settings in later {
            self.update_or_start(settings, &worker);
        }
        for (name, running) in &self.running {
            let mut applied = running.shared.applied.subscribe();
            if applied
                .wait_for(|version| *version >= self.version)
                .await
                .is_err()
            {
                bail!(Died(name.clone()));
            }
        }
        tracing::info!(
            hash,
            subscriptions = self.running.len(),
            "configuration in force"
        );
        self.board.post(|posted| posted.hash = hash);
        Ok(())
    }

    /// The worker as it is, or a new one where the log is reached in another way.
    fn worker_for(&self, connection: &Connection, namespace: &str) -> anyhow::Result<Arc<Worker>> {
        if let Some(worker) = &self.worker
            && worker.connection == *connection
        {
            return Ok(Arc::clone(worker));
        }
        let dead_letters =
            DeadLetters::new(connection, namespace).context("dead letter producer")?;
        Ok(Arc::new(Worker {
            instance: self.instance.clone(),
            connection: connection.clone(),
            dead_letters,
        }))
    }

    fn update_or_start(&mut self, settings: &Arc<Settings>, worker: &Arc<Worker>) {
        let versioned = (self.version, Arc::clone(settings));
        let name = settings.config.name.clone();
        if let Some(running) = self.running.get(&name) {
            running.settings.send_replace(versioned);
            return;
        }
        let shared = Arc::new(Shared::new(settings));
        let subscription = Subscription::new(
            Arc::clone(worker),
            Arc::clone(&shared),
            self.metrics.subscription(&name),
            versioned.clone(),
        );
        let (sender, receiver) = watch::channel(versioned);
        let stop = CancellationToken::new();
        let (task_name, task_stop) = (name.clone(), stop.clone());
        self.tasks
            .spawn(async move { (task_name, subscription.run(receiver, task_stop).await) });
        self.board.post(|posted| {
            posted
                .subscriptions
                .insert(name.clone(), Arc::clone(&shared));
        });
        let running = Running {
            settings: sender,
            stop,
            shared,
            identity: identity(settings),
        };
        self.running.insert(name, running);
    }
}

fn identity(settings: &Settings) -> (String, String) {
    (
        settings.config.uid.clone(),
        settings.config.group_id.clone(),
    )
}

/// A subscription's task ended although nobody stopped it.
#[derive(Debug, thiserror::Error)]
#[error("subscription {0} ended by itself")]
struct Died(String);

fn unexpected(
    ended: Result<(String, anyhow::Result<()>), tokio::task::JoinError>,
) -> anyhow::Error {
    match ended {
        Ok((name, Ok(()))) => Died(name).into(),
        Ok((name, Err(error))) => error.context(Died(name)),
        Err(error) => anyhow::Error::new(error).context(Died("task".to_owned())),
    }
}
