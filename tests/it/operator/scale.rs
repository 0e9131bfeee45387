//! The operator's binary with a few hundred Subscriptions: it writes nothing when nothing changes, little when depths do,
//! and neither its memory nor its files grow. `make bench` measures the same with many more.

use super::cluster::LIMIT;
use fanout_tests::eventually;
use fanout_tests::objects::{Objects, Plan, name};
use fanout_tests::process::OperatorProcess;
use fanout_tests::services::api_server::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Several rounds of everything the operator does by itself but its safety net.
const IDLE: Duration = Duration::from_secs(15);
/// So long every depth grows.
const CHANGING: Duration = Duration::from_secs(10);
/// So long without a write is settled.
const QUIET: Duration = Duration::from_secs(5);
/// Memory the operator may take.
const MEMORY: u64 = 256 << 20;

const LEASE: &str = "leases.coordination.k8s.io";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_subscriptions_are_ready_and_cost_no_write_while_nothing_changes() {
    let objects = Objects::prepare(Plan {
        topics: 4,
        subscriptions: 50,
    })
    .await;
    let operator = OperatorProcess::start(&objects.server, "only").await;
    objects.create_all().await;
    objects.ready(LIMIT).await;
    objects.settled(QUIET, LIMIT).await;

    idle_costs_the_lease_alone(&objects).await;
    a_change_concerns_its_own_objects_even_while_its_siblings_change(&objects).await;
    changing_depths_cost_five_writes_a_second(&objects).await;
    let peak = operator.usage().unwrap().peak;
    assert!(peak < MEMORY, "{} MiB", peak >> 20);
    operator.terminate().await;
}

async fn idle_costs_the_lease_alone(objects: &Objects) {
    let mark = objects.server.mark();
    let began = Instant::now();
    eventually(LIMIT, "the time is over", async || {
        (began.elapsed() >= IDLE).then_some(()).ok_or("it runs")
    })
    .await;
    let (lease, others): (Vec<Write>, Vec<Write>) = objects
        .writes(mark)
        .into_iter()
        .partition(|write| write.resource == LEASE);
    assert_eq!(others, []);
    assert!(!lease.is_empty(), "the audit log shows what is written");
}

/// Somebody edits other Subscriptions of the topic without a pause; the pass that serves the change comes nevertheless,
/// and touches nothing of the others.
async fn a_change_concerns_its_own_objects_even_while_its_siblings_change(objects: &Objects) {
    const CHANGED: usize = 7;
    const SIBLINGS: [usize; 3] = [11, 15, 19];
    let mark = objects.server.mark();
    let is_ready = AtomicBool::new(false);
    let touch = async {
        let mut siblings = SIBLINGS.iter().cycle();
        while !is_ready.load(Ordering::Relaxed) {
            let sibling = *siblings.next().expect("a cycle has no end");
            assert_eq!(objects.topic_of(sibling), objects.topic_of(CHANGED));
            objects.touch(sibling).await.unwrap();
        }
    };
    let change = async {
        objects.change(CHANGED).await.unwrap();
        objects.ready_at(CHANGED, 2, LIMIT).await;
        is_ready.store(true, Ordering::Relaxed);
    };
    tokio::join!(touch, change);
    objects.settled(QUIET, LIMIT).await;
    let worker = format!("{}-pool-0", objects.topic_of(CHANGED));
    let others: Vec<Write> = objects
        .writes(mark)
        .into_iter()
        .filter(|write| write.resource != LEASE)
        .filter(|write| {
            write.name != name(CHANGED)
                && !write.name.starts_with(&worker)
                && !write.resource.starts_with("events")
        })
        .collect();
    assert_eq!(others, []);
}

async fn changing_depths_cost_five_writes_a_second(objects: &Objects) {
    let mark = objects.server.mark();
    objects.publish_for(CHANGING).await;
    let writes = objects.writes(mark);
    let status = writes
        .iter()
        .filter(|write| write.resource.contains("/status"))
        .count();
    assert!(status > 0, "depths are shown");
    // What was granted before the first and is written after the last second comes on top.
    let most = 5 * (usize::try_from(CHANGING.as_secs()).unwrap() + 2);
    assert!(status <= most, "{status} writes");
}

/// Ten thousand passes over changing objects leave neither memory nor files behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long form: make soak"]
async fn soak_ten_thousand_passes_leave_memory_and_files_as_they_were() {
    const PASSES: f64 = 10_000.0;
    const FEW_FILES: usize = 8;
    const LITTLE_MEMORY: u64 = 24 << 20;
    let limit = Duration::from_mins(20);
    let plan = Plan {
        topics: 4,
        subscriptions: 50,
    };
    let objects = Objects::prepare(plan).await;
    let operator = OperatorProcess::start(&objects.server, "only").await;
    objects.create_all().await;
    objects.ready(LIMIT).await;
    let work_until = async |end: f64| {
        let mut next = (0..plan.all()).cycle();
        eventually(limit, "so many passes", async || {
            for index in next.by_ref().take(50) {
                // Every tenth change reaches a worker's configuration.
                if index % 10 == 0 {
                    objects.change(index).await?;
                } else {
                    objects.touch(index).await?;
                }
            }
            let passes = operator.passes(None).await?;
            anyhow::ensure!(passes >= end, "{passes} passes");
            anyhow::Ok(())
        })
        .await;
        objects.ready(LIMIT).await;
        objects.settled(QUIET, LIMIT).await;
        operator.usage().unwrap()
    };
    let first = work_until(PASSES / 5.0).await;
    let last = work_until(operator.passes(None).await.unwrap() + PASSES).await;
    println!("after {} passes: {first:?}; then: {last:?}", PASSES / 5.0);
    assert!(
        last.files <= first.files + FEW_FILES && last.threads <= first.threads + 4,
        "{first:?} became {last:?}"
    );
    assert!(
        last.resident <= first.resident + LITTLE_MEMORY,
        "{first:?} became {last:?}"
    );
    operator.terminate().await;
}
