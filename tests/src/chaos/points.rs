//! Where a relay is killed.

use super::{PATIENCE, Scene, Target};
use crate::faults::postgres_proxy::{APPEND, TAKEOVER};
use crate::faults::{Fault, Hook};
use crate::process::Relay;
use rand::RngExt as _;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A moment of a relay's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Any.
    Anywhere,
    /// Rows are read, and no broker has got them.
    AfterClaim,
    /// The broker has the records, the relay has no answer.
    AfterProduce,
    /// The broker has answered, the database has not got the position.
    AfterAck,
    /// The database has the position, the relay has no answer.
    InAppend,
    /// The relay takes a range: the lease is asked for, or given and the position not yet read.
    Takeover,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Anywhere,
        Self::AfterClaim,
        Self::AfterProduce,
        Self::AfterAck,
        Self::InAppend,
        Self::Takeover,
    ];

    /// As a table shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anywhere => "killed anywhere",
            Self::AfterClaim => "killed after the claim",
            Self::AfterProduce => "killed after the produce",
            Self::AfterAck => "killed after the ack",
            Self::InAppend => "killed inside the append",
            Self::Takeover => "killed inside a takeover",
        }
    }
}

/// Kills `relay` at `point`, or where it is when it does not get there; returns where it was.
pub(super) async fn strike(
    point: Point,
    scene: &Scene,
    target: &Target,
    relay: &Relay,
    rng: &mut StdRng,
) -> Point {
    let struck = Arc::new(AtomicBool::new(false));
    let hook = killer(relay.pid(), &struck);
    let after = rng.random_ratio(1, 2);
    match point {
        Point::Anywhere => {
            let pause = Duration::from_millis(rng.random_range(0..300));
            tokio::time::sleep(pause).await;
        }
        Point::AfterClaim => produce(target, &struck, Fault::Before(hook)),
        Point::AfterProduce => produce(target, &struck, Fault::After(hook)),
        Point::AfterAck => statement(target, APPEND, &struck, Fault::Before(hook)),
        Point::InAppend => statement(target, APPEND, &struck, Fault::After(hook)),
        Point::Takeover => {
            let fault = if after {
                Fault::After(hook)
            } else {
                Fault::Before(hook)
            };
            statement(target, TAKEOVER, &struck, fault);
            // There is nothing to take unless somebody gives a range up.
            scene.release_one().await;
        }
    }
    if point != Point::Anywhere {
        let ended = async {
            while relay.ended().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.ok();
    }
    target.kafka.script().rule(|_| None);
    target.postgres.script().rule(|_| None);
    relay.kill();
    if struck.load(Ordering::Relaxed) {
        point
    } else {
        Point::Anywhere
    }
}

impl Scene {
    /// Makes a lease expire whose owner lives: it is fenced, and others take the range.
    async fn release_one(&self) {
        sqlx::raw_sql(
            "update fanout.leases set expires_at = clock_timestamp() where range_id = (
               select range_id from fanout.leases where owner is not null order by random() limit 1)",
        )
        .execute(self.sandbox.pool())
        .await
        .expect("the superuser writes");
        self.account().await;
    }
}

/// Kills the process `pid` at once, and once. It is a child that nobody has waited for, so the id is still its own.
fn killer(pid: u32, struck: &Arc<AtomicBool>) -> Hook {
    let struck = Arc::clone(struck);
    Arc::new(move || {
        let pid = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid.filter(|_| !struck.swap(true, Ordering::Relaxed)) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
    })
}

fn produce(target: &Target, struck: &Arc<AtomicBool>, fault: Fault) {
    let struck = Arc::clone(struck);
    target.kafka.script().rule(move |write| {
        let now = write.name == "Produce" && !struck.load(Ordering::Relaxed);
        now.then(|| fault.clone())
    });
}

fn statement(target: &Target, name: &'static str, struck: &Arc<AtomicBool>, fault: Fault) {
    let struck = Arc::clone(struck);
    target.postgres.script().rule(move |write| {
        let now = write.name == name && !struck.load(Ordering::Relaxed);
        now.then(|| fault.clone())
    });
}
