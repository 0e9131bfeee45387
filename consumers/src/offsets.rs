//! What is finished of one partition: the prefix that is committed, and what finished beyond it.
//!
//! A group's committed offset says "everything before". Events finish in another order, so an event that finishes
//! behind an unfinished one is remembered in the commit's metadata and not delivered again after a restart.
//! Offsets may have holes (transaction markers, compaction): what was never seen is never waited for.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::collections::{BTreeMap, BTreeSet};

/// Offsets beyond the prefix that the metadata can describe: 2 KiB as bits, below 4,096 bytes in base64.
pub(crate) const SPAN: i64 = 16_384;
/// Form of the metadata. Anything else (another tool's text) is read as nothing finished.
const FORM: &str = "f1:";

/// A position to be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Everything before is finished.
    pub offset: i64,
    /// What is finished at or after it.
    pub metadata: String,
    revision: u64,
}

impl Commit {
    /// A position without a word on what is finished beyond it.
    pub(crate) const fn plain(offset: i64) -> Self {
        Self {
            offset,
            metadata: String::new(),
            revision: 0,
        }
    }
}

/// Progress of one partition.
#[derive(Debug)]
pub(crate) struct Offsets {
    /// One past the last offset seen.
    position: i64,
    /// Seen and not finished, with the record's timestamp in milliseconds.
    open: BTreeMap<i64, Option<i64>>,
    /// Finished at or beyond the prefix.
    finished: BTreeSet<i64>,
    /// Counts changes; a commit carries the count it covers.
    revision: u64,
    committed: Option<(i64, u64)>,
}

impl Offsets {
    /// Continues behind a commit.
    pub(crate) fn resume(offset: i64, metadata: &str) -> Self {
        Self {
            committed: Some((offset, 0)),
            finished: decode(offset, metadata),
            ..Self::start(offset)
        }
    }

    /// Starts a partition that has no commit; the start itself has to be committed.
    pub(crate) const fn start(offset: i64) -> Self {
        Self {
            position: offset,
            open: BTreeMap::new(),
            finished: BTreeSet::new(),
            revision: 0,
            committed: None,
        }
    }

    /// Takes note of the next record of the log. False: it is finished already, or was seen before.
    pub(crate) fn see(&mut self, offset: i64, timestamp: Option<i64>) -> bool {
        if offset < self.position {
            return false;
        }
        let before = self.prefix();
        self.position = offset + 1;
        let new = !self.finished.contains(&offset);
        if new {
            self.open.insert(offset, timestamp);
        }
        self.advance(before);
        new
    }

    /// The log holds nothing before `end` that was not seen: the rest are transaction markers.
    pub(crate) fn reach(&mut self, end: i64) {
        if end > self.position {
            let before = self.prefix();
            self.position = end;
            self.advance(before);
        }
    }

    /// Retention has removed everything before `start`. Returns how many offsets of it were not finished.
    pub(crate) fn expire(&mut self, start: i64) -> i64 {
        let from = self.position;
        if start <= from {
            return 0;
        }
        let finished = self.finished.range(from..start).count();
        self.reach(start);
        start - from - i64::try_from(finished).unwrap_or(i64::MAX)
    }

    /// Is everything that was seen finished?
    pub(crate) fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// An event that was seen is delivered, filtered out or dead-lettered.
    pub(crate) fn finish(&mut self, offset: i64) {
        let before = self.prefix();
        if self.open.remove(&offset).is_some() {
            self.finished.insert(offset);
            self.revision += 1;
            self.advance(before);
        }
    }

    fn advance(&mut self, before: i64) {
        let prefix = self.prefix();
        if prefix != before {
            self.revision += 1;
        }
        while self.finished.first().is_some_and(|first| *first < prefix) {
            self.finished.pop_first();
        }
    }

    /// Everything before it is finished. Never goes back.
    pub(crate) fn prefix(&self) -> i64 {
        self.open
            .first_key_value()
            .map_or(self.position, |(first, _)| *first)
    }

    /// May another record be seen? Not when its end could no longer be described.
    pub(crate) fn has_room(&self) -> bool {
        self.position - self.prefix() < SPAN
    }

    /// Offset of the last acknowledged commit.
    pub(crate) fn committed(&self) -> Option<i64> {
        self.committed.map(|(offset, _)| offset)
    }

    /// Timestamp of the first record that is not finished, milliseconds.
    pub(crate) fn oldest(&self) -> Option<i64> {
        self.open
            .first_key_value()
            .and_then(|(_, timestamp)| *timestamp)
    }

    /// The commit that is due, unless the last acknowledged one says the same.
    pub(crate) fn due(&self) -> Option<Commit> {
        if self
            .committed
            .is_some_and(|(_, revision)| revision == self.revision)
        {
            return None;
        }
        let offset = self.prefix();
        Some(Commit {
            offset,
            metadata: encode(offset, &self.finished),
            revision: self.revision,
        })
    }

    /// The broker has stored `commit`.
    pub(crate) fn acknowledge(&mut self, commit: &Commit) {
        self.committed = Some((commit.offset, commit.revision));
    }
}

/// `f1:` and a bitmap in base64, bit `i` standing for `offset + i`; empty when nothing is finished.
fn encode(offset: i64, finished: &BTreeSet<i64>) -> String {
    let mut bits = Vec::new();
    for distance in finished
        .iter()
        .map(|at| at - offset)
        .filter(|d| (0..SPAN).contains(d))
    {
        let Ok(distance) = usize::try_from(distance) else {
            continue;
        };
        let byte = distance / 8;
        if bits.len() <= byte {
            bits.resize(byte + 1, 0u8);
        }
        bits[byte] |= 1 << (distance % 8);
    }
    if bits.is_empty() {
        return String::new();
    }
    format!("{FORM}{}", STANDARD_NO_PAD.encode(bits))
}

fn decode(offset: i64, metadata: &str) -> BTreeSet<i64> {
    let bits = metadata
        .strip_prefix(FORM)
        .and_then(|text| STANDARD_NO_PAD.decode(text).ok())
        .unwrap_or_default();
    let set = |index: &i64| {
        usize::try_from(*index)
            .ok()
            .and_then(|index| Some(bits.get(index / 8)? >> (index % 8) & 1 == 1))
            .unwrap_or_default()
    };
    (0..SPAN).filter(set).map(|index| offset + index).collect()
}

#[cfg(test)]
mod tests;
