//! Which event may be delivered next: order per key, a budget for what is under way, a bound on what is held.
//!
//! A plain state machine: no clock, no I/O. An event is *queued* behind an earlier one of its key, *ready*, *under
//! way*, or *waiting* for a retry. Waiting events keep their key blocked and cost no budget. Keys take turns: what
//! becomes ready goes behind everything that is, so a key with a long queue or one that fails gets no more than others.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Bounds of a [`KeyQueues`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Events under way at once.
    pub in_flight: usize,
    /// Bytes of events under way at once; a single larger event still goes, alone.
    pub in_flight_bytes: usize,
    /// Events held at all, beyond which no more should be pushed.
    pub held: usize,
    /// Bytes held at all, beyond which no more should be pushed.
    pub held_bytes: usize,
}

/// Names an event; later events have larger ids.
pub(crate) type Id = u64;

/// Events of one key in one partition.
type Lane = (i32, Arc<[u8]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    /// With its place in the line.
    Ready(u64),
    UnderWay,
    Waiting(Instant),
}

#[derive(Debug)]
struct Entry<T> {
    item: T,
    partition: i32,
    lane: Option<Lane>,
    bytes: usize,
    state: State,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct KeyQueues<T> {
    limits: Limits,
    next_id: Id,
    entries: HashMap<Id, Entry<T>>,
    /// Ids of each key in log order; the first is the one that may move.
    lanes: HashMap<Lane, VecDeque<Id>>,
    /// What may go, in the order in which it became ready.
    ready: BTreeSet<(u64, Id)>,
    next_place: u64,
    waiting: BTreeSet<(Instant, Id)>,
    held_bytes: usize,
    under_way: usize,
    under_way_bytes: usize,
}

impl<T> KeyQueues<T> {
    /// Empty queues.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            next_id: 0,
            entries: HashMap::new(),
            lanes: HashMap::new(),
            ready: BTreeSet::new(),
            next_place: 0,
            waiting: BTreeSet::new(),
            held_bytes: 0,
            under_way: 0,
            under_way_bytes: 0,
        }
    }

    /// New bounds; what is under way beyond them finishes first.
    pub(crate) const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Should another event be fetched?
    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() < self.limits.held && self.held_bytes < self.limits.held_bytes
    }

    /// Takes an event. With a `key` it waits for every earlier event of that key in `partition`.
    pub(crate) fn push(&mut self, partition: i32, key: Option<&[u8]>, bytes: usize, item: T) -> Id {
        let id = self.next_id;
        self.next_id += 1;
        let lane = key.map(|key| (partition, Arc::from(key)));
        let is_first = lane.as_ref().is_none_or(|lane| {
            let queue = self.lanes.entry(lane.clone()).or_default();
            queue.push_back(id);
            queue.len() == 1
        });
        self.held_bytes += bytes;
        self.entries.insert(
            id,
            Entry {
                item,
                partition,
                lane,
                bytes,
                state: State::Queued,
            },
        );
        if is_first {
            self.line_up(id);
        }
        id
    }

    /// Makes an event ready, behind all that are.
    fn line_up(&mut self, id: Id) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = State::Ready(self.next_place);
            self.ready.insert((self.next_place, id));
            self.next_place += 1;
        }
    }

    /// Puts the event that has been ready for longest under way, if the budget allows it.
    pub(crate) fn start(&mut self, now: Instant) -> Option<Id> {
        self.start_preferred(now, |_| true)
    }

    /// The same, but an event that `preferred` names goes before all others.
    pub(crate) fn start_preferred(
        &mut self,
        now: Instant,
        preferred: impl Fn(&T) -> bool,
    ) -> Option<Id> {
        self.wake(now);
        if self.under_way >= self.limits.in_flight {
            return None;
        }
        let entries = &self.entries;
        let mut chosen = self
            .ready
            .iter()
            .filter(|(_, id)| entries.get(id).is_some_and(|entry| preferred(&entry.item)));
        let (place, id) = *chosen.next().or_else(|| self.ready.first())?;
        let entry = self.entries.get_mut(&id)?;
        let fits = self.under_way_bytes + entry.bytes <= self.limits.in_flight_bytes;
        if !fits && self.under_way > 0 {
            return None;
        }
        entry.state = State::UnderWay;
        self.ready.remove(&(place, id));
        self.under_way += 1;
        self.under_way_bytes += entry.bytes;
        Some(id)
    }

    /// Moves events whose time has come from waiting to ready.
    pub(crate) fn wake(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.waiting.first()
            && at <= now
        {
            self.waiting.pop_first();
            self.line_up(id);
        }
    }

    /// Moves waiting events that `chosen` names to ready before their time.
    pub(crate) fn wake_early(&mut self, chosen: impl Fn(&T) -> bool) {
        let entries = &self.entries;
        let early: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, id)| entries.get(id).is_some_and(|entry| chosen(&entry.item)))
            .copied()
            .collect();
        for (at, id) in early {
            self.waiting.remove(&(at, id));
            self.line_up(id);
        }
    }

    /// All events held.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut().map(|entry| &mut entry.item)
    }

    /// Events held.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Is the event `id` held and under way?
    pub(crate) fn is_under_way(&self, id: Id) -> bool {
        self.entries
            .get(&id)
            .is_some_and(|entry| entry.state == State::UnderWay)
    }

    /// The event `id`, as long as it is held.
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.entries.get_mut(&id).map(|entry| &mut entry.item)
    }

    /// An event under way is over; the next of its key becomes ready.
    pub(crate) fn finish(&mut self, id: Id) -> Option<T> {
        let entry = self.entries.remove(&id)?;
        self.forget(id, &entry);
        if let Some(lane) = &entry.lane
            && let Some(queue) = self.lanes.get_mut(lane)
        {
            if queue.front() == Some(&id) {
                queue.pop_front();
            } else {
                queue.retain(|other| *other != id);
            }
            match queue.front() {
                Some(&next) => self.promote(next),
                None => drop(self.lanes.remove(lane)),
            }
        }
        Some(entry.item)
    }

    fn promote(&mut self, id: Id) {
        let is_queued = |entry: &Entry<T>| entry.state == State::Queued;
        if self.entries.get(&id).is_some_and(is_queued) {
            self.line_up(id);
        }
    }

    /// Takes an entry that left `entries` out of every sum and index but its lane.
    fn forget(&mut self, id: Id, entry: &Entry<T>) {
        self.held_bytes -= entry.bytes;
        match entry.state {
            State::Queued => {}
            State::Ready(place) => drop(self.ready.remove(&(place, id))),
            State::Waiting(at) => drop(self.waiting.remove(&(at, id))),
            State::UnderWay => {
                self.under_way -= 1;
                self.under_way_bytes -= entry.bytes;
            }
        }
    }

    /// An event under way has to be tried again at `at`; it blocks its key and no budget until then.
    pub(crate) fn retry(&mut self, id: Id, at: Instant) {
        if self.halt(id, State::Waiting(at)) {
            self.waiting.insert((at, id));
        }
    }

    /// An event under way goes back, as if it had not been tried: still the first of its key, behind other keys.
    pub(crate) fn put_back(&mut self, id: Id) {
        if self.halt(id, State::Queued) {
            self.line_up(id);
        }
    }

    fn halt(&mut self, id: Id, state: State) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        if entry.state != State::UnderWay {
            return false;
        }
        entry.state = state;
        self.under_way -= 1;
        self.under_way_bytes -= entry.bytes;
        true
    }

    /// Drops what is not under way of the partitions that `lost` names.
    pub(crate) fn drop_idle(&mut self, lost: impl Fn(i32) -> bool) {
        self.drop_where(|entry| lost(entry.partition) && entry.state != State::UnderWay);
        self.lanes.retain(|(partition, _), _| !lost(*partition));
    }

    /// Drops all events of the partitions that `lost` names; returns those that were under way.
    pub(crate) fn drop_all(&mut self, lost: impl Fn(i32) -> bool) -> Vec<Id> {
        let under_way = self.under_way_of(&lost);
        self.drop_where(|entry| lost(entry.partition));
        self.lanes.retain(|(partition, _), _| !lost(*partition));
        under_way
    }

    fn drop_where(&mut self, dropped: impl Fn(&Entry<T>) -> bool) {
        let ids: Vec<Id> = self
            .entries
            .iter()
            .filter(|(_, entry)| dropped(entry))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(entry) = self.entries.remove(&id) {
                self.forget(id, &entry);
            }
        }
    }

    /// Events under way of the partitions that `of` names.
    pub(crate) fn under_way_of(&self, of: impl Fn(i32) -> bool) -> Vec<Id> {
        self.entries
            .iter()
            .filter(|(_, entry)| entry.state == State::UnderWay && of(entry.partition))
            .map(|(id, _)| *id)
            .collect()
    }

    /// When the first waiting event may be tried again.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.waiting.first().map(|(at, _)| *at)
    }

    /// Events under way.
    pub(crate) const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Events waiting for a retry.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests;
