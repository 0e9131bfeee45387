//! Fault points: the operator is killed before and after each of its writes to the API server and to Kafka, once per run;
//! and runs with an API server in trouble.

use super::Stage;
use super::scenario::{change, create, delete, ends_as, settled, starts_where_first_recorded};
use super::state::State;
use super::troubles::Trouble;
use crate::operator::CANARIES;
use crate::operator::cluster::Cluster;
use fanout_tests::faults::Hook;
use futures::stream::{self, StreamExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs side by side; each has a listener of the broker.
const SIDE_BY_SIDE: usize = 8;
/// The short form takes a point in so many.
const SPREAD: usize = 10;

#[derive(Clone, Copy, Debug)]
enum Service {
    Api,
    Kafka,
}

/// The operator is killed at this write.
#[derive(Clone, Copy, Debug)]
struct Point {
    service: Service,
    number: usize,
    after: bool,
}

/// What an undisturbed run does and leaves.
struct Undisturbed {
    created: State,
    end: State,
    points: Vec<Point>,
    labels: Vec<String>,
}

async fn undisturbed(cluster: &Cluster) -> Undisturbed {
    let mut stage = Stage::new(cluster).await;
    create(&mut stage).await;
    let created = settled(&mut stage).await;
    change(&mut stage).await;
    let end = settled(&mut stage).await;
    delete(&mut stage).await;
    assert_eq!(stage.restarts, 0);
    let writes = stage.api.script().writes();
    let labels: Vec<String> = writes
        .iter()
        .filter(|write| !write.is_lease())
        .map(|write| write.label().replace(&stage.namespace, "NAMESPACE"))
        .chain(
            stage
                .kafka
                .script()
                .writes()
                .iter()
                .map(|write| write.name.to_owned()),
        )
        .collect();
    let numbers = |service, count| (1..=count).map(move |number| (service, number));
    let of_api = writes.iter().filter(|write| !write.is_lease()).count();
    let points = numbers(Service::Api, of_api)
        .chain(numbers(Service::Kafka, stage.kafka.script().writes().len()))
        .flat_map(|(service, number)| {
            [false, true].map(|after| Point {
                service,
                number,
                after,
            })
        })
        .collect();
    Undisturbed {
        created,
        end,
        points,
        labels,
    }
}

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Kill(Point),
    Trouble(Trouble),
}

/// One run; true when it was disturbed.
async fn run(cluster: &Cluster, expected: &Undisturbed, disturbance: Disturbance) -> bool {
    let mut stage = Stage::new(cluster).await;
    let reached = Arc::new(AtomicBool::new(false));
    match disturbance {
        Disturbance::Kill(point) => {
            let (kill, told) = (stage.operator.killer(), Arc::clone(&reached));
            let hook: Hook = Arc::new(move || {
                told.store(true, Ordering::Release);
                kill();
            });
            match point.service {
                Service::Api => stage.api.script().at(point.number, point.after, hook),
                Service::Kafka => stage.kafka.script().at(point.number, point.after, hook),
            }
        }
        Disturbance::Trouble(trouble) => {
            trouble.begin(&mut stage);
            reached.store(true, Ordering::Release);
        }
    }
    let what = format!("{disturbance:?}");
    create(&mut stage).await;
    ends_as(&mut stage, &expected.created, &what).await;
    starts_where_first_recorded(&stage).await;
    change(&mut stage).await;
    ends_as(&mut stage, &expected.end, &what).await;
    delete(&mut stage).await;
    let log = stage.operator.log();
    for canary in CANARIES {
        assert!(!log.contains(canary), "{canary} is in the log");
    }
    let reached = reached.load(Ordering::Acquire);
    let killed = matches!(disturbance, Disturbance::Kill(_)) && reached;
    assert_eq!(stage.restarts, usize::from(killed), "{what}");
    reached
}

async fn all_end_alike(spread: usize) {
    let cluster = Cluster::start().await;
    let expected = undisturbed(&cluster).await;
    eprintln!("{} points: {:#?}", expected.points.len(), expected.labels);
    // Every kind of write in the long run: the offset changes from run to run.
    let offset = rand::random_range(0..spread);
    let kills = expected.points.iter().skip(offset).step_by(spread);
    let troubles = Trouble::ALL.into_iter().map(Disturbance::Trouble);
    let runs: Vec<Disturbance> = troubles
        .chain(kills.copied().map(Disturbance::Kill))
        .collect();
    let reached: Vec<bool> = stream::iter(runs)
        .map(|disturbance| run(&cluster, &expected, disturbance))
        .buffer_unordered(SIDE_BY_SIDE)
        .collect()
        .await;
    let hits = reached.iter().filter(|reached| **reached).count();
    eprintln!("{hits} of {} runs disturbed", reached.len());
    // Statuses that come quickly after one another are one write in one run and two in another.
    assert!(
        hits * 10 >= reached.len() * 8,
        "{hits} of {}",
        reached.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disturbed_operator_ends_where_an_undisturbed_one_does() {
    all_end_alike(SPREAD).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long form: make soak"]
async fn soak_an_operator_killed_at_any_write_ends_where_an_undisturbed_one_does() {
    all_end_alike(1).await;
}
