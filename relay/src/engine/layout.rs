//! Splits and merges ranges: drains them, brings them to one position where they merge, replaces them in one transaction.

use super::{Engine, Next};
use crate::claim::Shards;
use crate::lease;
use crate::position::Position;
use crate::ranges::{Decision, Split};
use crate::rearrange::{self, Plan, Rearranged};
use crate::source::Failure;
use crate::worker::Assignment;
use fanout_contract::relay::Claim;
use fanout_runtime::clock;
use std::time::Duration;

/// The number of relays must have been the same for this long before ranges are split or merged: several come and go at
/// once, and one that is replaced is missing for a moment.
pub(super) const SETTLED: Duration = Duration::from_secs(5);
/// Ranges that could not be split or merged are left as they are for this long.
const PAUSE: Duration = Duration::from_mins(1);

/// Neighbours on their way to one range.
#[derive(Debug)]
pub(super) struct Merging {
    ids: Vec<i64>,
    /// Those whose workers have finished.
    waiting: Vec<Assignment>,
    /// They are brought to one position: what is left is the transaction.
    aligning: bool,
}

impl Engine {
    /// Starts what `decision` says about splits and merges: the workers finish what is in flight.
    pub(super) async fn begin_rearranging(&mut self, decision: &Decision) -> Result<(), Failure> {
        for Split { range, into, keep } in &decision.split {
            if self.may_rearrange(&[*range]).await? {
                let plan = Plan {
                    into: into.clone(),
                    keep: *keep,
                };
                self.finish(*range, Next::Split(plan));
            }
        }
        for ids in &decision.merge {
            // One that catches up would let the others wait.
            let ranges = self.shared.stats.ranges();
            let catches_up = ranges.iter().any(|range| {
                ids.contains(&range.fence.range)
                    && matches!(range.position, Position::Inside { .. })
            });
            if !catches_up && self.may_rearrange(ids).await? {
                let Some(&first) = ids.first() else { continue };
                self.merging.insert(
                    first,
                    Merging {
                        ids: ids.clone(),
                        waiting: Vec::new(),
                        aligning: false,
                    },
                );
                for id in ids {
                    self.finish(*id, Next::Merge(first));
                }
            }
        }
        Ok(())
    }

    /// True where this relay works on all of `ids` and has nothing else to do with them.
    async fn may_rearrange(&mut self, ids: &[i64]) -> Result<bool, Failure> {
        let now = clock::now();
        self.resting.retain(|_, until| *until > now);
        let free = |id: &i64| {
            let owned = self.owned.get(id);
            owned.is_some_and(|owned| owned.next.is_none() && !owned.stop.is_cancelled())
                && !self.resting.contains_key(id)
        };
        if !ids.iter().all(free) {
            return Ok(false);
        }
        let light = rearrange::is_light(&self.shared.source, ids).await?;
        if !light {
            tracing::warn!(ranges = ?ids, "too many rows are parked to split or merge these ranges");
            self.rest(ids);
        }
        Ok(light)
    }

    fn rest(&mut self, ids: &[i64]) {
        let until = clock::now() + PAUSE;
        self.resting.extend(ids.iter().map(|id| (*id, until)));
    }

    fn finish(&mut self, id: i64, next: Next) {
        if let Some(owned) = self.owned.get_mut(&id) {
            owned.next = Some(next);
            owned.stop.cancel();
        }
    }

    /// Replaces a drained range as `plan` says.
    pub(super) async fn split(&mut self, drained: Assignment, plan: Plan) -> Result<(), Failure> {
        self.replace(vec![drained], &plan).await
    }

    /// One of the neighbours of `key` has finished: when all have, they are brought to one position, and merged once they
    /// have it.
    pub(super) async fn merge(&mut self, key: i64, drained: Assignment) -> Result<(), Failure> {
        let Some(mut merging) = self.merging.remove(&key) else {
            // It ended after another of them had failed.
            return self.give_back(&drained).await;
        };
        merging.waiting.push(drained);
        if merging.waiting.len() < merging.ids.len() {
            self.merging.insert(key, merging);
            return Ok(());
        }
        let waiting = merging.waiting;
        if is_same(&waiting) {
            let into = vec![whole(&waiting)];
            return self.replace(waiting, &Plan { into, keep: 1 }).await;
        }
        let catches_up = waiting
            .iter()
            .any(|range| matches!(range.position, Position::Inside { .. }));
        // Only of snapshots is one newer than the others; of another claim mode the position says nothing.
        let comparable = self.shared.source.outbox.claim == Claim::Snapshot;
        if merging.aligning || catches_up || !comparable {
            // There was more to read than expected, or a worker was not let to the end.
            return self.leave_alone(waiting).await;
        }
        // Newer than what each has read; all publish up to it and stop there.
        let goal = rearrange::snapshot(&self.shared.source).await?;
        let ids = merging.ids;
        self.merging.insert(
            key,
            Merging {
                ids,
                waiting: Vec::new(),
                aligning: true,
            },
        );
        for mut range in waiting {
            range.goal = Some(goal.clone());
            self.spawn(range, Some(Next::Merge(key)));
        }
        Ok(())
    }

    /// Gives back what waited for a neighbour that has ended otherwise.
    pub(super) async fn cancel_merge(&mut self, key: i64) -> Result<(), Failure> {
        let Some(merging) = self.merging.remove(&key) else {
            return Ok(());
        };
        for id in &merging.ids {
            if let Some(owned) = self.owned.get_mut(id) {
                owned.next = None;
                owned.stop.cancel();
            }
        }
        for range in merging.waiting {
            self.give_back(&range).await?;
        }
        Ok(())
    }

    async fn give_back(&mut self, range: &Assignment) -> Result<(), Failure> {
        self.owned.remove(&range.fence.range);
        self.shared.stats.forget_range(range.fence.range);
        lease::release(&self.shared.source, &range.fence).await
    }

    async fn replace(&mut self, old: Vec<Assignment>, plan: &Plan) -> Result<(), Failure> {
        let fences: Vec<_> = old.iter().map(|range| range.fence.clone()).collect();
        let ids: Vec<i64> = fences.iter().map(|fence| fence.range).collect();
        let source = &self.shared.source;
        match rearrange::rearrange(source, &self.member, &fences, plan).await? {
            Rearranged::Done(kept) => {
                tracing::info!(old = ?ids, new = plan.into.len(), kept = kept.len(), "replaced ranges");
                for (shards, acquired) in kept {
                    self.start(shards, acquired);
                }
                // What waits in the old ones was known until now.
                for id in ids {
                    self.owned.remove(&id);
                    self.shared.stats.forget_range(id);
                }
            }
            Rearranged::Lost => {
                tracing::info!(ranges = ?ids, "lost ranges before they were replaced");
                for range in &old {
                    self.give_back(range).await?;
                }
            }
            Rearranged::Apart => self.leave_alone(old).await?,
            Rearranged::Failed(failure) => {
                tracing::warn!(ranges = ?ids, class = ?failure.class, reason = %failure.message, "ranges could not be replaced");
                self.leave_alone(old).await?;
            }
        }
        Ok(())
    }

    /// Does not split or merge these for a while. They go on under a new term, which fences what may still be under way.
    async fn leave_alone(&mut self, ranges: Vec<Assignment>) -> Result<(), Failure> {
        let ids: Vec<i64> = ranges.iter().map(|range| range.fence.range).collect();
        self.rest(&ids);
        for range in ranges {
            self.give_back(&range).await?;
        }
        Ok(())
    }
}

fn is_same(ranges: &[Assignment]) -> bool {
    ranges
        .windows(2)
        .all(|pair| pair[0].position == pair[1].position)
}

/// The shards of all.
fn whole(ranges: &[Assignment]) -> Shards {
    let lo = ranges.iter().map(|range| range.shards.lo).min();
    let hi = ranges.iter().map(|range| range.shards.hi).max();
    Shards {
        lo: lo.unwrap_or_default(),
        hi: hi.unwrap_or_default(),
    }
}
