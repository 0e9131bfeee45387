//! The operator's binary with many objects: how long they take to be Ready, what a restart costs, memory, and writes.

use fanout_tests::objects::{Objects, Plan, name, pace};
use fanout_tests::process::{OperatorProcess, Usage};
use fanout_tests::services::api_server::Write;
use std::time::{Duration, Instant};

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_mins(10);
/// So long every depth grows.
const CHANGING: Duration = Duration::from_mins(1);
/// So long without a write is settled.
const QUIET: Duration = Duration::from_secs(8);

/// Measures `subscriptions` Subscriptions on 20 FanoutTopics, and prints a table; for the time `nothing` none changes.
pub(crate) async fn run(subscriptions: usize, nothing: Duration) {
    let plan = Plan {
        topics: 20,
        subscriptions: subscriptions.div_ceil(20),
    };
    let mut table = Table::default();
    let objects = Objects::prepare(plan).await;
    let operator = OperatorProcess::start(&objects.server, "first").await;

    let operator = created(&objects, operator, &mut table).await;
    idle(&objects, &operator, nothing, &mut table).await;
    one_changed(&objects, &operator, &mut table).await;
    let operator = restarted(&objects, operator, &mut table).await;
    let operator = all_changed(&objects, operator, &mut table).await;
    depths(&objects, &operator, &mut table).await;
    operator.terminate().await;

    println!();
    println!(
        "{} Subscriptions on {} FanoutTopics, {} workers",
        plan.all(),
        plan.topics,
        2 * plan.topics
    );
    for (what, value, goal) in table.rows {
        println!("{what:<66}{value:>22}   {goal}");
    }
}

#[derive(Default)]
struct Table {
    rows: Vec<(String, String, &'static str)>,
}

impl Table {
    fn row(&mut self, what: &str, value: String, goal: &'static str) {
        println!("{what}: {value}");
        self.rows.push((what.to_owned(), value, goal));
    }

    fn usage(&mut self, when: &str, usage: Usage) {
        self.row(
            &format!("memory {when}: now, highest"),
            format!("{} MiB, {} MiB", usage.resident >> 20, usage.peak >> 20),
            "below 256 MiB",
        );
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// All objects are created at once.
async fn created(
    objects: &Objects,
    operator: OperatorProcess,
    table: &mut Table,
) -> OperatorProcess {
    let began = Instant::now();
    let creating = objects.create_all().await;
    let times = objects.ready(LIMIT).await;
    let taken = began.elapsed();
    table.row("creating the objects", seconds(creating), "");
    table.row("from the first created to all Ready", seconds(taken), "");
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    let each = format!("{}, {}", seconds(at(50)), seconds(at(99)));
    table.row("one Subscription from created to Ready: p50, p99", each, "");
    objects.settled(QUIET, LIMIT).await;
    let writes = objects.writes(0);
    table.row(
        "writes until settled: status, events, others",
        kinds(&writes),
        "",
    );
    let usage = operator.usage().unwrap();
    table.row("processor time until settled", seconds(usage.processor), "");
    table.usage("when settled", usage);
    operator
}

/// Nothing changes.
async fn idle(objects: &Objects, operator: &OperatorProcess, time: Duration, table: &mut Table) {
    let (mark, before) = (objects.server.mark(), operator.usage().unwrap());
    tokio::time::sleep(time).await;
    let after = operator.usage().unwrap();
    let writes = objects.writes(mark);
    let (lease, others): (Vec<Write>, Vec<Write>) = writes
        .into_iter()
        .partition(|write| write.resource == "leases.coordination.k8s.io");
    table.row(
        &format!("writes in {} idle: Lease, others", seconds(time)),
        format!("{}, {}", lease.len(), others.len()),
        "none but the Lease",
    );
    for write in &others {
        println!("  {write:?}");
    }
    let share = after
        .processor
        .saturating_sub(before.processor)
        .as_secs_f64()
        / time.as_secs_f64();
    table.row(
        "processor while idle",
        format!("{:.1} % of a core", share * 100.0),
        "",
    );
    table.usage("after being idle", after);
    let files = format!("{}, {}", after.files, after.threads);
    table.row("open files, threads", files, "");
}

/// One filter is changed.
async fn one_changed(objects: &Objects, operator: &OperatorProcess, table: &mut Table) {
    let mark = objects.server.mark();
    let before = operator.passes(None).await.unwrap();
    let began = Instant::now();
    objects.change(7).await.unwrap();
    // The change arrives with the watch before it can be Ready.
    objects.ready_at(7, 2, LIMIT).await;
    let taken = began.elapsed();
    objects.settled(QUIET, LIMIT).await;
    let passes = operator.passes(None).await.unwrap() - before;
    let writes: Vec<Write> = objects
        .writes(mark)
        .into_iter()
        .filter(|write| write.resource != "leases.coordination.k8s.io")
        .collect();
    let others = writes
        .iter()
        .filter(|write| write.resource.starts_with("subscriptions") && write.name != name(7))
        .count();
    table.row("a changed filter: Ready after", seconds(taken), "");
    table.row(
        "  passes, writes, writes to other Subscriptions",
        format!("{passes:.0}, {}, {others}", writes.len()),
        "",
    );
}

/// The operator stops and starts again; nothing has changed meanwhile.
async fn restarted(
    objects: &Objects,
    operator: OperatorProcess,
    table: &mut Table,
) -> OperatorProcess {
    operator.terminate().await;
    let mark = objects.server.mark();
    let began = Instant::now();
    let operator = OperatorProcess::start(&objects.server, "second").await;
    let passes = objects.resynchronised(&operator, LIMIT).await;
    let taken = began.elapsed();
    table.row(
        "restart, nothing changed: every object looked at after",
        seconds(taken),
        "below 60 s",
    );
    objects.settled(QUIET, LIMIT).await;
    let writes: Vec<Write> = objects
        .writes(mark)
        .into_iter()
        .filter(|write| write.resource != "leases.coordination.k8s.io")
        .collect();
    table.row(
        "  passes until then; writes but the Lease",
        format!("{passes:.0}; {}", writes.len()),
        "no write",
    );
    table.usage("after the restart", operator.usage().unwrap());
    operator
}

/// The operator stops; every Subscription is changed and every worker loses its configuration; it starts again.
async fn all_changed(
    objects: &Objects,
    operator: OperatorProcess,
    table: &mut Table,
) -> OperatorProcess {
    operator.terminate().await;
    objects.change_all().await;
    objects.delete_configurations().await;
    let mark = objects.server.mark();
    let began = Instant::now();
    let operator = OperatorProcess::start(&objects.server, "third").await;
    objects.ready(LIMIT).await;
    table.row(
        "restart, every spec changed, every ConfigMap gone: all Ready after",
        seconds(began.elapsed()),
        "below 60 s",
    );
    objects.settled(QUIET, LIMIT).await;
    let writes = objects.writes(mark);
    table.row("  writes: status, events, others", kinds(&writes), "");
    table.usage("after that", operator.usage().unwrap());
    operator
}

/// Every depth grows all the time.
async fn depths(objects: &Objects, operator: &OperatorProcess, table: &mut Table) {
    let mark = objects.server.mark();
    objects.publish_for(CHANGING).await;
    let writes: Vec<Write> = objects
        .writes(mark)
        .into_iter()
        .filter(|write| write.resource.contains("/status"))
        .collect();
    let (most, rate) = pace(&writes).unwrap();
    table.row(
        "status writes a second under changing depths: mean, most",
        format!("{rate:.1}, {most}"),
        "at most five",
    );
    table.usage("at the end", operator.usage().unwrap());
}

fn kinds(writes: &[Write]) -> String {
    let count = |part: &str| {
        let of_kind = writes.iter().filter(|write| write.resource.contains(part));
        of_kind.count()
    };
    let (status, events) = (count("/status"), count("events"));
    let lease = count("leases");
    format!(
        "{status}, {events}, {}",
        writes.len() - status - events - lease
    )
}
