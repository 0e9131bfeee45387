//! Who decides: the operator, KEDA's rule, Numaflow's rule. The latter two follow their documentation.

use super::model::View;
use fanout_operator::scaling::{History, scale};
use std::collections::VecDeque;

/// Decides how many replicas there are.
pub(crate) trait Rule {
    /// Seconds between two looks.
    fn every(&self) -> i64;
    /// Replicas, and why.
    fn look(&mut self, view: &View<'_>) -> (u32, String);
}

/// The operator's own decision.
#[derive(Default)]
pub(crate) struct Operator {
    history: History,
}

impl Rule for Operator {
    fn every(&self) -> i64 {
        5
    }

    fn look(&mut self, view: &View<'_>) -> (u32, String) {
        let decision = scale(&view.observed, view.bounds, &self.history);
        self.history = decision.history;
        (
            decision.replicas,
            format!("{}: {}", decision.reason.as_str(), decision.message),
        )
    }
}

/// KEDA's Kafka scaler and the HorizontalPodAutoscaler that it feeds, at their defaults, but with the lag threshold of the
/// scenario: lag over threshold, rounded up, no more than partitions; tolerance 10 %; up at most twice as many or four more
/// in 15 s; down to the highest recommendation of the last 300 s; to none 300 s after the last lag.
#[derive(Default)]
pub(crate) struct Keda {
    recommended: VecDeque<(i64, u32)>,
    active_at: Option<i64>,
}

impl Rule for Keda {
    fn every(&self) -> i64 {
        15
    }

    fn look(&mut self, view: &View<'_>) -> (u32, String) {
        let (observed, bounds) = (&view.observed, view.bounds);
        let (now, current) = (observed.now, observed.replicas);
        let Some(lag) = observed.depth else {
            return (current, "no metric".to_owned());
        };
        let threshold = u64::from(bounds.target_depth_per_replica);
        let most = observed.partitions.unwrap_or(u32::MAX).min(bounds.max);
        let active_at = *self.active_at.get_or_insert(now);
        if lag > 0 {
            self.active_at = Some(now);
        } else if bounds.min == 0 && now - active_at >= 300 {
            return (0, "no lag".to_owned());
        }
        if current == 0 {
            return (u32::from(lag > 0), "lag".to_owned());
        }
        let wanted = u32::try_from(lag.div_ceil(threshold)).unwrap_or(u32::MAX);
        let ratio = lag as f64 / (threshold as f64 * f64::from(current));
        let wanted = if (ratio - 1.0).abs() <= 0.1 {
            current
        } else {
            wanted
        };
        let wanted = wanted.clamp(bounds.min.max(1), most);
        self.recommended.push_back((now, wanted));
        self.recommended.retain(|(at, _)| now - at <= 300);
        let highest = self.recommended.iter().map(|(_, wanted)| *wanted).max();
        let next = if wanted > current {
            wanted.min((2 * current).max(current + 4))
        } else {
            highest.unwrap_or(wanted).min(current)
        };
        (next, format!("lag {lag}"))
    }
}

/// Numaflow's rule for sources, at its defaults, but with the scenario's target age as time to process: replicas × pending /
/// (target × rate), over the last 120 s; two at most at once, 90 s apart; to none when nothing is pending or processed, and
/// back to one to have a look after 120 s.
#[derive(Default)]
pub(crate) struct Numaflow {
    seen: VecDeque<(i64, f64, f64)>,
    scaled_at: Option<i64>,
}

impl Rule for Numaflow {
    fn every(&self) -> i64 {
        15
    }

    fn look(&mut self, view: &View<'_>) -> (u32, String) {
        let (observed, bounds) = (&view.observed, view.bounds);
        let (now, current) = (observed.now, observed.replicas);
        let since = now - self.scaled_at.unwrap_or(i64::MIN / 2);
        let (Some(pending), Some(rate)) = (observed.depth, observed.drain) else {
            return (current, "no metric".to_owned());
        };
        self.seen.push_back((now, pending as f64, rate));
        self.seen.retain(|(at, ..)| now - at <= 120);
        if current == 0 {
            if since < 120 {
                return (0, "asleep".to_owned());
            }
            self.scaled_at = Some(now);
            return (1, "to have a look".to_owned());
        }
        if since < 90 || observed.ready != current {
            return (current, "cooling down".to_owned());
        }
        let count = self.seen.len() as f64;
        let pending = self.seen.iter().map(|(_, pending, _)| pending).sum::<f64>() / count;
        let rate = self.seen.iter().map(|(.., rate)| rate).sum::<f64>() / count;
        let wanted = if pending <= 0.0 && rate <= 0.0 {
            0
        } else if pending <= 0.0 || rate <= 0.0 {
            1
        } else {
            let target = f64::from(bounds.target_age_seconds);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "`as` saturates"
            )]
            let wanted = (pending / rate / target * f64::from(current)).round() as u32;
            wanted.max(1)
        };
        let most = observed.partitions.unwrap_or(u32::MAX).min(bounds.max);
        let wanted = wanted.clamp(bounds.min, most);
        let next = wanted.clamp(current.saturating_sub(2), current + 2);
        if next != current {
            self.scaled_at = Some(now);
        }
        (next, format!("pending {pending:.0}, rate {rate:.0}"))
    }
}
