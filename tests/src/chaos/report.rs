//! What happened, as a table, and whether it is what was promised.

use super::Point;
use crate::verdict::Verdict;
use std::fmt::Write as _;

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Kills, by where the relay was.
    pub kills: Vec<(Point, u32)>,
    /// Faults beside them.
    pub faults: Vec<(&'static str, u32)>,
    /// The checker's.
    pub verdict: Verdict,
    /// Rows that were perhaps published and not stored when a fault struck: the bound of the duplicates.
    pub unconfirmed: u64,
    /// Time it took.
    pub seconds: u64,
}

impl Report {
    /// What is not as promised; `None` when all is.
    pub fn broken_promise(&self) -> Option<String> {
        if !self.verdict.is_sound() {
            return Some(format!("{:#?}", self.verdict));
        }
        if self.verdict.duplicates as u64 > self.unconfirmed {
            return Some(format!(
                "{} duplicates, but only {} rows were unconfirmed",
                self.verdict.duplicates, self.unconfirmed
            ));
        }
        None
    }

    /// Kills in all.
    pub fn killed(&self) -> u32 {
        self.kills.iter().map(|(_, count)| count).sum()
    }

    /// As text.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let kills = self
            .kills
            .iter()
            .map(|(point, count)| (point.name(), count));
        let faults = self.faults.iter().map(|(name, count)| (*name, count));
        let _infallible = writeln!(text, "{:<28}{:>10}", "FAULT", "TIMES");
        for (name, count) in kills.chain(faults) {
            let _infallible = writeln!(text, "{name:<28}{count:>10}");
        }
        let verdict = &self.verdict;
        let _infallible = writeln!(text, "\n{:<28}{:>10}", "OUTCOME", "EVENTS");
        for (name, count) in [
            ("committed", verdict.committed),
            ("lost", verdict.missing),
            ("aborted, but read", verdict.rolled_back),
            ("out of order", verdict.order_breaks),
            ("changed", verdict.changed),
            ("duplicates", verdict.duplicates),
        ] {
            let _infallible = writeln!(text, "{name:<28}{count:>10}");
        }
        let _infallible = writeln!(text, "{:<28}{:>10}", "duplicates allowed", self.unconfirmed);
        let _infallible = writeln!(text, "\n{} s", self.seconds);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_which_promise_is_broken() {
        let mut report = Report {
            unconfirmed: 10,
            ..Report::default()
        };
        report.verdict.duplicates = 10;
        assert_eq!(report.broken_promise(), None);
        report.verdict.duplicates = 11;
        assert!(report.broken_promise().unwrap().contains("11 duplicates"));
        report.verdict.duplicates = 0;
        for plant in [
            |verdict: &mut Verdict| verdict.missing = 1,
            |verdict: &mut Verdict| verdict.rolled_back = 1,
            |verdict: &mut Verdict| verdict.order_breaks = 1,
            |verdict: &mut Verdict| verdict.changed = 1,
        ] {
            let mut broken = report.clone();
            plant(&mut broken.verdict);
            assert!(broken.broken_promise().is_some());
        }
        assert!(report.table().contains("out of order"));
    }
}
