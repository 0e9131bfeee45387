//! A topic, its group and the replicas, second by second. What the model leaves out is said in `docs/scaling.md`.

use super::rules::Rule;
use fanout_operator::kafka::Watermarks;
use fanout_operator::scaling::lag::Progress;
use fanout_operator::scaling::{Bounds, Observed};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Seconds from the decision to a ready pod.
const POD_START: i64 = 10;
/// Seconds that nothing is delivered after members of the group have changed.
const REBALANCE: i64 = 1;
/// Records that a replica has under way at once.
const CARRIES: u32 = 64;
/// When the model's clock begins.
const BEGIN: i64 = 1_700_000_000;

/// What happens to a topic.
pub(crate) struct Scenario {
    /// Name of the plot's file.
    pub(crate) name: &'static str,
    /// What happens.
    pub(crate) title: &'static str,
    /// How long.
    pub(crate) seconds: i64,
    /// Share of each partition in what arrives.
    pub(crate) weights: Vec<f64>,
    /// Records that arrive in second `t`.
    pub(crate) arrival: fn(i64) -> f64,
    /// Records that one replica can complete per second.
    pub(crate) each: f64,
    /// Records that the sink takes per second, from all replicas.
    pub(crate) sink: fn(i64) -> f64,
    /// Partition that a record blocks in second `t`.
    pub(crate) blocked: fn(i64) -> Option<usize>,
    /// Is anything known in second `t`?
    pub(crate) is_known: fn(i64) -> bool,
    /// Seconds by which the clock is wrong in second `t`.
    pub(crate) clock: fn(i64) -> i64,
    /// What is allowed and wanted.
    pub(crate) bounds: Bounds,
}

/// What became of it.
pub(crate) struct Trace {
    /// Records that wait, each second.
    pub(crate) depth: Vec<f64>,
    /// Age of the oldest, seconds, each second.
    pub(crate) age: Vec<i64>,
    /// Replicas that are wanted, each second.
    pub(crate) replicas: Vec<u32>,
    /// Reasons of the changes: second, replicas, why.
    pub(crate) changes: Vec<(i64, u32, String)>,
}

/// What a rule sees.
pub(crate) struct View<'a> {
    /// What the operator observes.
    pub(crate) observed: Observed,
    /// What is allowed.
    pub(crate) bounds: &'a Bounds,
}

struct Topic {
    ends: Vec<f64>,
    committed: Vec<f64>,
    /// By partition: end at the end of each second that is not completed yet.
    history: Vec<VecDeque<(i64, f64)>>,
    arrived: f64,
    progress: Progress,
}

/// Lets `rule` scale the replicas of `scenario`.
pub(crate) fn run(scenario: &Scenario, rule: &mut dyn Rule) -> Trace {
    let partitions = scenario.weights.len();
    let begin = Instant::now();
    let mut topic = Topic {
        ends: vec![0.0; partitions],
        committed: vec![0.0; partitions],
        history: vec![VecDeque::new(); partitions],
        arrived: 0.0,
        progress: Progress::default(),
    };
    let first = scenario.bounds.min.max(1);
    // When each replica is ready.
    let mut pods: Vec<i64> = vec![0; first as usize];
    let mut rebalanced_at = 0;
    let mut trace = Trace {
        depth: Vec::new(),
        age: Vec::new(),
        replicas: Vec::new(),
        changes: Vec::new(),
    };
    for second in 0..scenario.seconds {
        let ready = pods.iter().filter(|at| **at <= second).count();
        if pods.iter().any(|at| *at == second && second > 0) {
            rebalanced_at = second;
        }
        topic.arrive(scenario, second);
        if second - rebalanced_at >= REBALANCE || second < REBALANCE {
            topic.complete(scenario, second, ready);
        }
        if second % rule.every() == 0 {
            let observed = topic.observe(scenario, second, &pods, ready, begin);
            let view = View {
                observed,
                bounds: &scenario.bounds,
            };
            let (wanted, why) = rule.look(&view);
            let wanted = wanted as usize;
            if wanted != pods.len() {
                let number = u32::try_from(wanted).expect("few");
                trace.changes.push((second, number, why));
                rebalanced_at = second;
            }
            while pods.len() > wanted {
                pods.pop();
            }
            while pods.len() < wanted {
                pods.push(second + POD_START);
            }
        }
        trace.depth.push(topic.depth());
        trace.age.push(topic.age(second).unwrap_or(0));
        trace.replicas.push(u32::try_from(pods.len()).expect("few"));
    }
    trace
}

impl Topic {
    fn arrive(&mut self, scenario: &Scenario, second: i64) {
        let arrival = (scenario.arrival)(second);
        self.arrived = arrival;
        let shares = scenario.weights.iter().zip(&mut self.ends);
        for ((share, end), history) in shares.zip(&mut self.history) {
            if arrival * share > 0.0 {
                *end += arrival * share;
                history.push_back((second, *end));
            }
        }
    }

    /// Partitions go round the ready replicas; each shares its rate evenly among its partitions that have work.
    fn complete(&mut self, scenario: &Scenario, second: i64, ready: usize) {
        if ready == 0 {
            return;
        }
        let blocked = (scenario.blocked)(second);
        let mut done = vec![0.0; self.ends.len()];
        for replica in 0..ready {
            let mut own: Vec<usize> = (replica..self.ends.len())
                .step_by(ready)
                .filter(|partition| Some(*partition) != blocked)
                .collect();
            own.sort_by(|a, b| self.lag(*a).total_cmp(&self.lag(*b)));
            let mut rate = scenario.each;
            let mut left = own.len();
            for partition in own {
                #[expect(clippy::cast_precision_loss, reason = "few")]
                let share = rate / left as f64;
                done[partition] = share.min(self.lag(partition));
                rate -= done[partition];
                left -= 1;
            }
        }
        let all: f64 = done.iter().sum();
        let takes = (scenario.sink)(second);
        let share = if all > takes { takes / all } else { 1.0 };
        for (committed, done) in self.committed.iter_mut().zip(done) {
            *committed += done * share;
        }
        for (history, committed) in self.history.iter_mut().zip(&self.committed) {
            while history
                .front()
                .is_some_and(|(_, end)| *end <= committed + 1e-6)
            {
                history.pop_front();
            }
        }
    }

    fn lag(&self, partition: usize) -> f64 {
        self.ends[partition] - self.committed[partition]
    }

    fn depth(&self) -> f64 {
        (0..self.ends.len())
            .map(|partition| self.lag(partition))
            .sum()
    }

    fn age(&self, second: i64) -> Option<i64> {
        let first = self.history.iter().filter_map(|history| history.front());
        first.map(|(since, _)| second - since).max()
    }

    /// What the operator would observe. Whole records, as Kafka has them.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "model"
    )]
    fn observe(
        &mut self,
        scenario: &Scenario,
        second: i64,
        pods: &[i64],
        ready: usize,
        begin: Instant,
    ) -> Observed {
        let now = BEGIN + second + (scenario.clock)(second);
        let number = |count: usize| u32::try_from(count).expect("few");
        let mut observed = Observed {
            now,
            replicas: number(pods.len()),
            ready: number(ready),
            partitions: Some(number(self.ends.len())),
            carries: CARRIES,
            ..Observed::default()
        };
        if !(scenario.is_known)(second) {
            return observed;
        }
        let at = begin + Duration::from_secs(second as u64);
        let (mut marks, mut committed) = (BTreeMap::new(), BTreeMap::new());
        for (number, (end, done)) in (0..).zip(self.ends.iter().zip(&self.committed)) {
            let end = (end + 1e-6).floor() as i64;
            marks.insert(number, Watermarks { start: 0, end });
            committed.insert(number, (done + 1e-6).floor() as i64);
        }
        self.progress.add(at, &marks, &committed);
        let waiting = self.progress.waiting(at);
        let depth = waiting.depth as u64;
        let is_blocked = (scenario.blocked)(second).is_some() || (scenario.sink)(second) <= 0.0;
        observed.depth = Some(depth);
        observed.stuck = waiting.stuck as u64;
        observed.largest = Some(waiting.largest as u64);
        observed.age_seconds = (depth > 0)
            .then(|| self.age(second).map(|age| age as u64))
            .flatten();
        observed.arrival = self.progress.arrival_per_second();
        observed.drain = self.progress.rate_per_second();
        observed.in_flight = Some(depth.min(u64::from(CARRIES) * ready as u64));
        observed.retrying = Some(u64::from(is_blocked && depth > 0 && ready > 0));
        observed
    }
}
