//! Where requests to reconcile come together. Changes arrive in bursts (a status and its pods, a hundred Subscriptions): one
//! pass serves all of them, and it comes also when the burst does not end.

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::{Stream, StreamExt, stream};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A request waits until nobody has repeated it for this long...
const QUIET: Duration = Duration::from_millis(300);
/// ...but never longer than this. kube's own debouncing has no such end: an object that changes all the time would
/// never be reconciled.
const LONGEST: Duration = Duration::from_secs(2);

/// Sender of requests for one kind.
pub(crate) struct Queue<K: Resource>(UnboundedSender<ObjectRef<K>>);

impl<K: Resource<DynamicType = ()> + 'static> Queue<K> {
    /// The sender, and the stream the controller reads.
    pub(crate) fn new() -> (Self, impl Stream<Item = ObjectRef<K>>) {
        let (sender, receiver) = unbounded();
        (Self(sender), folded(receiver))
    }

    /// Asks for a pass of one object.
    pub(crate) fn add(&self, namespace: &str, name: &str) {
        // Only a controller that has ended does not listen.
        let _ended = self
            .0
            .unbounded_send(ObjectRef::new(name).within(namespace));
    }
}

/// The requests, each when it is due.
fn folded<T: Clone + Eq + Hash>(requests: UnboundedReceiver<T>) -> impl Stream<Item = T> {
    let state = (requests, Fold::default());
    stream::unfold(state, |(mut requests, mut fold)| async move {
        loop {
            if let Some(item) = fold.take(Instant::now()) {
                return Some((item, (requests, fold)));
            }
            let next = fold.next();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = requests.next() => fold.add(request?, Instant::now()),
                () = due => {}
            }
        }
    })
}

/// Requests that wait. Pure: the clock is the caller's.
struct Fold<T> {
    waiting: HashMap<T, Waiting>,
    /// By the time when they are due, and by number where that is the same.
    due: BTreeMap<Key, T>,
    count: u64,
}

type Key = (Instant, u64);

struct Waiting {
    first: Instant,
    key: Key,
}

impl<T> Default for Fold<T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            due: BTreeMap::new(),
            count: 0,
        }
    }
}

impl<T: Clone + Eq + Hash> Fold<T> {
    fn add(&mut self, item: T, now: Instant) {
        let before = self.waiting.get(&item);
        let first = before.map_or(now, |before| before.first);
        if let Some(before) = before {
            self.due.remove(&before.key);
        }
        let key = ((now + QUIET).min(first + LONGEST), self.count);
        self.count += 1;
        self.due.insert(key, item.clone());
        self.waiting.insert(item, Waiting { first, key });
    }

    /// When the next one is due.
    fn next(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// One that is due.
    fn take(&mut self, now: Instant) -> Option<T> {
        self.next().filter(|at| *at <= now)?;
        let (_, item) = self.due.pop_first()?;
        self.waiting.remove(&item);
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_one_request_after_it_has_ended() {
        let start = Instant::now();
        let mut fold = Fold::default();
        let last = start + QUIET / 2;
        fold.add("a", start);
        fold.add("b", start);
        fold.add("a", last);
        assert_eq!(fold.take(start + QUIET), Some("b"));
        assert_eq!(fold.take(start + QUIET), None);
        assert_eq!(fold.next(), Some(last + QUIET));
        assert_eq!(fold.take(last + QUIET), Some("a"));
        assert_eq!((fold.next(), fold.waiting.len()), (None, 0));
    }

    #[test]
    fn a_burst_without_an_end_is_served_all_the_same() {
        let start = Instant::now();
        let mut fold = Fold::default();
        let mut served = Vec::new();
        for step in 0..100 {
            let now = start + QUIET / 3 * step;
            fold.add("a", now);
            if fold.take(now).is_some() {
                served.push(now.duration_since(start));
            }
        }
        assert!(served.len() >= 4, "{served:?}");
        assert!(served[0] <= LONGEST + QUIET, "{served:?}");
    }

    #[tokio::test]
    async fn the_stream_ends_with_its_senders() {
        let (sender, receiver) = unbounded();
        let mut stream = std::pin::pin!(folded(receiver));
        sender.unbounded_send("a").unwrap();
        sender.unbounded_send("a").unwrap();
        assert_eq!(stream.next().await, Some("a"));
        drop(sender);
        assert_eq!(stream.next().await, None);
    }
}
