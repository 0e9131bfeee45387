//! The one judgement of what reached a receiver: pure, over what was committed and what was seen.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// At most this many examples are kept for each kind of fault.
const EXAMPLES: usize = 5;

/// One event, as it was committed or as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Event id.
    pub id: String,
    /// Ordering key; an event without one is ordered with nothing.
    pub key: Option<String>,
    /// Position among the events of its key, in commit order.
    pub sequence: i64,
    /// What must arrive unchanged: the payload, or a digest of it and of the attributes that count.
    pub content: Vec<u8>,
}

/// Everything a judgement rests on.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Every committed event, whoever wants it.
    pub committed: Vec<Event>,
    /// Ids the receiver should get; `None`: all committed ones.
    pub wanted: Option<HashSet<String>>,
    /// What the receiver accepted, in arrival order.
    pub seen: Vec<Event>,
    /// Ids in the dead letter topic.
    pub dead_lettered: HashSet<String>,
    /// Ids that still wait in the log or in the outbox.
    pub queued: HashSet<String>,
    /// False where no order was promised.
    pub ordered: bool,
}

/// What became of the events. Counts of events, except `duplicates` and `changed`, which count deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Committed.
    pub committed: usize,
    /// Committed and wanted.
    pub matching: usize,
    /// Wanted and seen at least once.
    pub delivered: usize,
    /// Deliveries after the first of an event. Allowed, bounded by what was in flight at a crash.
    pub duplicates: usize,
    /// First deliveries that came after a later event of their key.
    pub order_breaks: usize,
    /// Wanted, but neither seen nor dead-lettered nor queued.
    pub missing: usize,
    /// Seen, but never committed.
    pub rolled_back: usize,
    /// Deliveries, repeats included, with other contents or under another key than committed.
    pub changed: usize,
    /// Committed and seen, but not wanted.
    pub unwanted: usize,
    /// Wanted, not seen, in the dead letter topic.
    pub dead_lettered: usize,
    /// Wanted, not seen, still on its way.
    pub queued: usize,
    /// A few lines about each kind of fault, for whoever looks for the cause.
    pub examples: Vec<String>,
}

impl Verdict {
    /// True when nothing is wrong: no event missing, none delivered that should not be, order and contents kept.
    /// Duplicates, dead letters and queued events are no fault by themselves.
    pub const fn is_sound(&self) -> bool {
        self.missing == 0
            && self.order_breaks == 0
            && self.rolled_back == 0
            && self.changed == 0
            && self.unwanted == 0
    }
}

/// Judges `evidence`. Order is that of first deliveries: a repeat may be older than what was seen before it.
pub fn judge(evidence: &Evidence) -> Verdict {
    let committed: HashMap<&str, &Event> = evidence
        .committed
        .iter()
        .map(|event| (event.id.as_str(), event))
        .collect();
    let wanted = |id: &str| evidence.wanted.as_ref().is_none_or(|ids| ids.contains(id));
    let mut verdict = Verdict {
        committed: committed.len(),
        ..Verdict::default()
    };
    let mut faults = Examples::default();
    let seen = judge_seen(evidence, &committed, &wanted, &mut verdict, &mut faults);
    for event in committed.values().filter(|event| wanted(&event.id)) {
        verdict.matching += 1;
        if seen.contains(event.id.as_str()) {
            verdict.delivered += 1;
        } else if evidence.dead_lettered.contains(&event.id) {
            verdict.dead_lettered += 1;
        } else if evidence.queued.contains(&event.id) {
            verdict.queued += 1;
        } else {
            verdict.missing += 1;
            faults.add("missing", event);
        }
    }
    verdict.examples = faults.lines;
    verdict
}

/// Everything that follows from the deliveries alone; returns the ids that were seen.
fn judge_seen<'a>(
    evidence: &'a Evidence,
    committed: &HashMap<&str, &Event>,
    wanted: &dyn Fn(&str) -> bool,
    verdict: &mut Verdict,
    faults: &mut Examples,
) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    let mut latest: HashMap<&str, i64> = HashMap::new();
    for event in &evidence.seen {
        let truth = committed.get(event.id.as_str());
        let intact = truth.is_none_or(|t| t.content == event.content && t.key == event.key);
        if !intact {
            verdict.changed += 1;
            faults.add("changed", event);
        }
        if !seen.insert(event.id.as_str()) {
            verdict.duplicates += 1;
            continue;
        }
        let Some(truth) = truth else {
            verdict.rolled_back += 1;
            faults.add("delivered, but never committed", event);
            continue;
        };
        if !wanted(&event.id) {
            verdict.unwanted += 1;
            faults.add("delivered, but not wanted", event);
            continue;
        }
        if let Some(key) = truth.key.as_deref().filter(|_| evidence.ordered) {
            let latest = latest.entry(key).or_insert(i64::MIN);
            if truth.sequence < *latest {
                verdict.order_breaks += 1;
                faults.add("after a later event of its key", event);
            }
            *latest = truth.sequence.max(*latest);
        }
    }
    seen
}

/// The first few faults of each kind.
#[derive(Default)]
struct Examples {
    lines: Vec<String>,
    counts: HashMap<&'static str, usize>,
}

impl Examples {
    fn add(&mut self, fault: &'static str, event: &Event) {
        let count = self.counts.entry(fault).or_default();
        *count += 1;
        if *count <= EXAMPLES {
            let key = event.key.as_deref().unwrap_or("-");
            self.lines.push(format!(
                "{fault}: {} (key {key}, number {})",
                event.id, event.sequence
            ));
        }
    }
}

/// One line for each receiver, under a header; columns are as wide as their contents.
pub fn table(rows: &[(String, Verdict)]) -> String {
    let header = [
        "SUBSCRIPTION",
        "COMMITTED",
        "MATCHING",
        "DELIVERED",
        "DUPLICATES",
        "ORDER BREAKS",
        "MISSING",
        "ROLLED BACK BUT DELIVERED",
        "DEAD-LETTERED",
        "STILL QUEUED",
    ];
    let mut lines = vec![header.map(ToOwned::to_owned)];
    lines.extend(rows.iter().map(|(name, v)| {
        [
            name.clone(),
            v.committed.to_string(),
            v.matching.to_string(),
            v.delivered.to_string(),
            v.duplicates.to_string(),
            v.order_breaks.to_string(),
            v.missing.to_string(),
            v.rolled_back.to_string(),
            v.dead_lettered.to_string(),
            v.queued.to_string(),
        ]
    }));
    let width = |column: usize| lines.iter().map(|l| l[column].len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = width(column) + 3;
            let _infallible = write!(row, "{cell:width$}");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, sequence: i64) -> Event {
        Event {
            id: format!("{key}{sequence}"),
            key: Some(key.to_owned()),
            sequence,
            content: vec![u8::try_from(sequence).unwrap()],
        }
    }

    /// Two keys, three events each, all delivered in order.
    fn sound() -> Evidence {
        let events: Vec<_> = (1..=3)
            .flat_map(|n| [event("a", n), event("b", n)])
            .collect();
        Evidence {
            committed: events.clone(),
            seen: events,
            ordered: true,
            ..Evidence::default()
        }
    }

    #[test]
    fn a_faultless_run_is_sound() {
        let verdict = judge(&sound());
        assert!(verdict.is_sound());
        assert_eq!(
            verdict,
            Verdict {
                committed: 6,
                matching: 6,
                delivered: 6,
                ..Verdict::default()
            }
        );
    }

    #[test]
    fn a_dropped_event_is_missing_unless_it_waits_or_was_given_up() {
        let mut evidence = sound();
        evidence.seen.retain(|event| event.id != "a2");
        let verdict = judge(&evidence);
        assert_eq!((verdict.missing, verdict.order_breaks), (1, 0));
        assert_eq!(verdict.examples, ["missing: a2 (key a, number 2)"]);
        evidence.queued = ["a2".to_owned()].into();
        let verdict = judge(&evidence);
        assert_eq!((verdict.missing, verdict.queued), (0, 1));
        evidence.dead_lettered = ["a2".to_owned()].into();
        let verdict = judge(&evidence);
        assert_eq!((verdict.missing, verdict.dead_lettered), (0, 1));
    }

    #[test]
    fn a_swap_within_a_key_breaks_order_and_between_keys_does_not() {
        let mut evidence = sound();
        evidence.seen.swap(0, 1);
        assert!(judge(&evidence).is_sound());
        evidence.seen.swap(0, 3);
        assert_eq!(judge(&evidence).order_breaks, 1);
        evidence.ordered = false;
        assert!(judge(&evidence).is_sound());
    }

    #[test]
    fn an_event_delivered_late_breaks_order_once() {
        let mut evidence = sound();
        let first = evidence.seen.remove(0);
        evidence.seen.push(first);
        assert_eq!(judge(&evidence).order_breaks, 1);
    }

    #[test]
    fn a_repeat_is_counted_and_may_be_older() {
        let mut evidence = sound();
        evidence.seen.push(event("a", 1));
        evidence.seen.push(event("a", 1));
        let verdict = judge(&evidence);
        assert_eq!((verdict.duplicates, verdict.delivered), (2, 6));
        assert!(verdict.is_sound());
    }

    #[test]
    fn an_event_that_was_never_committed_is_found() {
        let mut evidence = sound();
        evidence.committed.retain(|event| event.id != "b3");
        let verdict = judge(&evidence);
        assert_eq!(verdict.rolled_back, 1);
        assert!(!verdict.is_sound());
    }

    #[test]
    fn changed_contents_and_keys_are_found() {
        let mut evidence = sound();
        evidence.seen[0].content.push(0);
        evidence.seen[1].key = Some("a".to_owned());
        assert_eq!(judge(&evidence).changed, 2);
        // A repeat is no less bound to what was committed.
        let mut repeat = event("b", 3);
        repeat.content.clear();
        evidence.seen.push(repeat);
        assert_eq!(judge(&evidence).changed, 3);
    }

    #[test]
    fn a_filter_narrows_what_is_wanted() {
        let mut evidence = sound();
        evidence.wanted = Some(["a1".to_owned(), "a2".to_owned()].into());
        evidence.seen = vec![event("a", 1), event("a", 2)];
        let verdict = judge(&evidence);
        assert_eq!((verdict.matching, verdict.delivered), (2, 2));
        assert!(verdict.is_sound());
        evidence.seen.push(event("b", 1));
        let verdict = judge(&evidence);
        assert_eq!((verdict.unwanted, verdict.is_sound()), (1, false));
    }

    #[test]
    fn the_table_has_a_line_for_each_receiver() {
        let text = table(&[("search-index".to_owned(), judge(&sound()))]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["search-index", "6", "6", "6", "0", "0", "0", "0", "0", "0"]
        );
    }
}
