//! Conditions as the API conventions want them: `lastTransitionTime` moves with `status` alone.

use fanout_crds::condition::{READY, RECONCILING, STALLED, reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// Value of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    /// Holds.
    True,
    /// Does not hold.
    False,
    /// Not observed.
    Unknown,
}

impl Truth {
    const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// Value, reason and message of a condition, without its type and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Value.
    pub(crate) truth: Truth,
    /// CamelCase reason.
    pub(crate) reason: String,
    /// Sentence for a human; may be empty.
    pub(crate) message: String,
}

impl Finding {
    /// A finding.
    pub(crate) fn new(truth: Truth, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            truth,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// `True`.
    pub(crate) fn yes(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Truth::True, reason, message)
    }

    /// `False`.
    pub(crate) fn no(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Truth::False, reason, message)
    }

    /// `Unknown`.
    pub(crate) fn unknown(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Truth::Unknown, reason, message)
    }

    /// True when it holds.
    pub(crate) fn holds(&self) -> bool {
        self.truth == Truth::True
    }
}

/// The finding that a condition states now, if it is there.
pub(crate) fn get(conditions: &[Condition], kind: &str) -> Option<Finding> {
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    let truth = match condition.status.as_str() {
        "True" => Truth::True,
        "False" => Truth::False,
        _ => Truth::Unknown,
    };
    Some(Finding::new(truth, &condition.reason, &condition.message))
}

/// True when the condition is there and holds.
pub(crate) fn holds(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|finding| finding.holds())
}

/// Conditions of the given findings, in their order, with the transition times of `old` where the value is the same.
pub(crate) fn merge(
    old: &[Condition],
    generation: i64,
    now: Timestamp,
    findings: Vec<(&'static str, Finding)>,
) -> Vec<Condition> {
    // Stored with seconds only: a finer time would differ from what is read back.
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    findings
        .into_iter()
        .map(|(kind, finding)| Condition {
            type_: kind.to_owned(),
            status: finding.truth.as_str().to_owned(),
            last_transition_time: old
                .iter()
                .find(|condition| {
                    condition.type_ == kind && condition.status == finding.truth.as_str()
                })
                .map_or_else(
                    || now.clone(),
                    |condition| condition.last_transition_time.clone(),
                ),
            reason: finding.reason,
            message: finding.message,
            observed_generation: Some(generation),
        })
        .collect()
}

/// `conditions`, all of whose reasons the reference documentation has: tests fail here when one is missing there.
pub(crate) fn documented(conditions: Vec<Condition>) -> Vec<Condition> {
    debug_assert!(
        conditions.iter().all(is_documented),
        "fanout_crds::condition::reason does not have a reason, or not on this condition: {conditions:?}"
    );
    conditions
}

fn is_documented(condition: &Condition) -> bool {
    reason::find(&condition.reason)
        .is_some_and(|reason| reason.conditions.contains(&condition.type_.as_str()))
}

/// The conditions of an object that is being deleted and waits for `why`; the others stay as they were.
pub(crate) fn deleting(
    old: &[Condition],
    generation: i64,
    now: Timestamp,
    why: Finding,
) -> Vec<Condition> {
    let progress = Finding::yes(reason::DELETING, &why.message);
    let summary = vec![
        (READY, why),
        (RECONCILING, progress),
        (STALLED, Finding::no(reason::SUCCEEDED, "")),
    ];
    let mut all = documented(merge(old, generation, now, summary));
    for condition in old {
        if all.iter().all(|other| other.type_ != condition.type_) {
            all.push(condition.clone());
        }
    }
    all
}

/// The conditions of `new` whose value differs from `old`, or that are new and not `Unknown`.
pub(crate) fn transitions<'a>(old: &[Condition], new: &'a [Condition]) -> Vec<&'a Condition> {
    new.iter()
        .filter(|condition| {
            old.iter()
                .find(|before| before.type_ == condition.type_)
                .map_or_else(
                    || condition.status != Truth::Unknown.as_str(),
                    |before| before.status != condition.status,
                )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_with_the_value_only() {
        let first = merge(&[], 1, at(10), vec![("Ready", Finding::no("Starting", ""))]);
        let second = merge(
            &first,
            2,
            at(20),
            vec![("Ready", Finding::no("Waiting", "for pods"))],
        );
        assert_eq!(second[0].last_transition_time, Time(at(10)));
        assert_eq!(second[0].reason, "Waiting");
        assert_eq!(second[0].observed_generation, Some(2));
        let third = merge(
            &second,
            2,
            at(30),
            vec![("Ready", Finding::yes("Available", ""))],
        );
        assert_eq!(third[0].last_transition_time, Time(at(30)));
    }

    #[test]
    fn the_same_findings_give_the_same_conditions() {
        let findings = || {
            vec![
                ("Ready", Finding::yes("Available", "")),
                ("Stalled", Finding::no("Fine", "")),
            ]
        };
        let first = merge(&[], 1, at(10), findings());
        assert_eq!(merge(&first, 1, at(99), findings()), first);
    }

    #[test]
    fn only_changed_values_are_transitions() {
        let old = merge(
            &[],
            1,
            at(1),
            vec![
                ("Ready", Finding::no("A", "")),
                ("Stalled", Finding::no("A", "")),
            ],
        );
        let new = merge(
            &old,
            1,
            at(2),
            vec![
                ("Ready", Finding::yes("B", "")),
                ("Stalled", Finding::no("B", "")),
                ("Delivering", Finding::unknown("C", "")),
            ],
        );
        let changed: Vec<&str> = transitions(&old, &new)
            .iter()
            .map(|c| c.type_.as_str())
            .collect();
        assert_eq!(changed, ["Ready"]);
    }
}
