//! Every deletion ends: the order in which things go, whether Kafka can be reached, whether an operator runs, and what the
//! policy says, in all combinations; and what is left then.

mod at_once;
mod limits;
mod place;

use super::cluster::Cluster;
use fanout_tests::services::child::Process;
use fanout_tests::services::kafka::Kafka;
use futures::future::join_all;
use place::{Place, Seen};

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    TopicFirst,
    SubscriptionFirst,
    SecretFirst,
    Both,
    Namespace,
}

/// How Kafka is when things go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broker {
    Up,
    Down,
    /// It is up, and refuses the password.
    Refusing,
}

/// What the objects say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Retain,
    Delete,
}

/// Whether an operator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Installed {
    Yes,
    No,
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    order: Order,
    broker: Broker,
    installed: Installed,
    policy: Policy,
}

impl Case {
    /// The operator can do what `Delete` says.
    fn is_cleaned_up(self) -> bool {
        self.policy == Policy::Delete
            && self.installed == Installed::Yes
            && self.broker == Broker::Up
    }
}

const ORDERS: [Order; 5] = [
    Order::TopicFirst,
    Order::SubscriptionFirst,
    Order::SecretFirst,
    Order::Both,
    Order::Namespace,
];

fn all_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for order in ORDERS {
        for broker in [Broker::Up, Broker::Down, Broker::Refusing] {
            for installed in [Installed::Yes, Installed::No] {
                for policy in [Policy::Retain, Policy::Delete] {
                    cases.push(Case {
                        order,
                        broker,
                        installed,
                        policy,
                    });
                }
            }
        }
    }
    cases
}

/// Every order with what differs in kind: everything can be cleaned up, nothing can, nobody is there to do it, and nothing
/// is to be done.
fn is_of_its_own_kind(case: Case) -> bool {
    use {Broker as B, Installed as I, Order as O, Policy as P};
    match (case.policy, case.installed, case.broker) {
        (P::Delete, I::Yes, B::Up) => true,
        (P::Delete, I::Yes, B::Down) => {
            matches!(case.order, O::TopicFirst | O::Both | O::Namespace)
        }
        (P::Delete, I::Yes, B::Refusing) => {
            matches!(case.order, O::SubscriptionFirst | O::SecretFirst)
        }
        (P::Delete, I::No, B::Up) => matches!(case.order, O::Both | O::Namespace),
        (P::Retain, I::Yes, B::Down) | (P::Retain, I::No, B::Up) => {
            matches!(case.order, O::Both | O::Namespace)
        }
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_deletion_ends() {
    let mut cases = all_cases();
    cases.retain(|case| is_of_its_own_kind(*case));
    assert_eq!(cases.len(), 16);
    run(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long form: make soak"]
async fn soak_every_deletion_ends_in_all_combinations() {
    let cases = all_cases();
    assert_eq!(cases.len(), 60);
    run(cases).await;
}

/// A cluster with the controllers that end what is deleted, and a broker that can be stopped.
struct World {
    cluster: Cluster,
    mortal: Option<Kafka>,
    _controllers: Process,
}

impl World {
    async fn start() -> Self {
        let mortal = tokio::task::spawn_blocking(Kafka::start);
        let world = Self::start_without_mortal().await;
        Self {
            mortal: Some(mortal.await.unwrap().unwrap()),
            ..world
        }
    }

    async fn start_without_mortal() -> Self {
        let cluster = Cluster::start().await;
        let controllers = cluster.server.start_ending_controllers().unwrap();
        Self {
            cluster,
            mortal: None,
            _controllers: controllers,
        }
    }

    /// The broker that can be stopped.
    fn mortal(&self) -> &Kafka {
        self.mortal.as_ref().unwrap()
    }
}

/// The deadline in the phase in which what is to be deleted can't be, seconds.
const SHORT: u64 = 15;

async fn run(cases: Vec<Case>) {
    let world = World::start().await;
    let operator = world.cluster.operator("first").await;
    let places = join_all(cases.iter().map(|case| Place::make(&world, *case))).await;
    let of = |wanted: &dyn Fn(Case) -> bool| -> Vec<&Place> {
        places.iter().filter(|place| wanted(place.case)).collect()
    };

    // Long before its deadline everything that can go is gone.
    let can = of(&|case| case.installed == Installed::Yes && case.broker == Broker::Up);
    delete_all(&world, &can).await;
    operator.stop().await;

    // What can't be deleted holds its object until the deadline, and stays.
    let seconds = format!("--deletion-deadline-seconds={SHORT}");
    let operator = world.cluster.operator_with("second", &[&seconds]).await;
    let cannot = of(&|case| case.installed == Installed::Yes && case.broker != Broker::Up);
    join_all(cannot.iter().map(|place| place.refuse(&world))).await;
    world.mortal().kill();
    delete_all(&world, &cannot).await;
    operator.stop().await;

    // Without an operator: at once, or as documented.
    let alone = of(&|case| case.installed == Installed::No);
    delete_all(&world, &alone).await;
}

/// Deletes all places side by side, waits until each is gone, and looks at what is left.
async fn delete_all(world: &World, places: &[&Place]) {
    let seen: Vec<Seen> = join_all(places.iter().map(|place| place.delete(world))).await;
    for (place, seen) in places.iter().zip(&seen) {
        place.check(world, seen).await;
        let created: Vec<_> = world
            .cluster
            .operator_writes(seen.mark, &place.namespace)
            .into_iter()
            .filter(|write| {
                let event = write.resource == "events.events.k8s.io";
                write.status == 201 && (!event || place.case.order == Order::Namespace)
            })
            .collect();
        assert!(created.is_empty(), "{:?}: {created:?}", place.case);
    }
}
