//! Counts, from a watch, which objects of a kind are Ready, and how long that took.

use fanout_crds::{FanoutTopic, Subscription};
use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// An object of the two kinds.
pub(super) trait Shown {
    /// Its conditions.
    fn conditions(&self) -> &[Condition];
    /// True when its status shows how much waits.
    fn is_counted(&self) -> bool;
}

impl Shown for Subscription {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |it| &it.conditions)
    }

    fn is_counted(&self) -> bool {
        self.status.as_ref().is_some_and(|it| it.depth.is_some())
    }
}

impl Shown for FanoutTopic {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |it| &it.conditions)
    }

    fn is_counted(&self) -> bool {
        let outbox = self.status.as_ref().and_then(|it| it.outbox.as_ref());
        outbox.is_some_and(|outbox| outbox.pending.is_some())
    }
}

/// What a watch shows of a namespace's objects of one kind. Dropped, the watch ends.
pub(super) struct Tally {
    seen: Arc<Mutex<Seen>>,
    _watch: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    objects: HashMap<String, Object>,
    changed: Option<Instant>,
}

struct Object {
    generation: Option<i64>,
    /// When this generation was first seen.
    began: Instant,
    /// How long it took to be Ready, if it is.
    ready: Option<Duration>,
    counted: bool,
}

impl Tally {
    pub(super) fn start<K>(client: &Client, namespace: &str) -> Self
    where
        K: Shown
            + Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
    {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let api: Api<K> = Api::namespaced(client.clone(), namespace);
        let shared = Arc::clone(&seen);
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            let stream = watcher(api, watcher::Config::default()).default_backoff();
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => seen.apply(&object),
                    Ok(Event::Delete(object)) => {
                        seen.objects.remove(&object.name_any());
                    }
                    _ => {}
                }
            }
        });
        Self {
            seen,
            _watch: watch,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects that are Ready at their present generation.
    pub(super) fn ready(&self) -> usize {
        let seen = self.seen();
        seen.objects
            .values()
            .filter(|it| it.ready.is_some())
            .count()
    }

    /// True when the object is Ready at this generation.
    pub(super) fn is_ready_at(&self, name: &str, generation: i64) -> bool {
        let seen = self.seen();
        let object = seen.objects.get(name);
        object.is_some_and(|it| it.generation == Some(generation) && it.ready.is_some())
    }

    /// Objects that show how much waits.
    pub(super) fn counted(&self) -> usize {
        self.seen().objects.values().filter(|it| it.counted).count()
    }

    /// Since when nothing has changed.
    pub(super) fn quiet(&self) -> Duration {
        self.seen()
            .changed
            .map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// From the first sight of the present generation to Ready, shortest first.
    pub(super) fn times_to_ready(&self) -> Vec<Duration> {
        let seen = self.seen();
        let mut times: Vec<Duration> = seen.objects.values().filter_map(|it| it.ready).collect();
        times.sort_unstable();
        times
    }
}

impl Seen {
    fn apply<K: Shown + Resource<DynamicType = ()>>(&mut self, object: &K) {
        let now = Instant::now();
        self.changed = Some(now);
        let generation = object.meta().generation;
        let ready = object.conditions().iter().any(|condition| {
            condition.type_ == "Ready"
                && condition.status == "True"
                && condition.observed_generation == generation
        });
        let before = self.objects.remove(&object.name_any());
        let began = before
            .as_ref()
            .filter(|before| before.generation == generation)
            .map_or(now, |before| before.began);
        let earlier = before.filter(|before| before.began == began);
        let object_is = Object {
            generation,
            began,
            ready: ready.then(|| {
                let taken = earlier.and_then(|before| before.ready);
                taken.unwrap_or_else(|| now.duration_since(began))
            }),
            counted: object.is_counted(),
        };
        self.objects.insert(object.name_any(), object_is);
    }
}
