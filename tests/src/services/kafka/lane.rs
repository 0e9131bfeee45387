//! Listeners of a broker for proxies: a broker tells its clients where it is, so whoever asks at one of these is sent to the
//! proxy's port.

use crate::services::ports;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// Listeners of a broker.
const LANES: usize = 8;

/// A listener whose clients are sent to another port, where a proxy stands. Dropped, it is free for the next.
#[derive(Debug)]
pub struct Lane {
    /// Where the broker listens.
    pub port: u16,
    /// Where it says that it listens.
    pub advertised: u16,
    free: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    ports: Mutex<Vec<(u16, u16)>>,
    permits: Semaphore,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.free
            .ports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((self.port, self.advertised));
        self.free.permits.add_permits(1);
    }
}

/// Those that are free.
#[derive(Debug)]
pub(super) struct Lanes(Arc<Queue>);

impl Lanes {
    pub(super) fn new(ports: &[(u16, u16)]) -> Self {
        Self(Arc::new(Queue {
            ports: Mutex::new(ports.to_vec()),
            permits: Semaphore::new(ports.len()),
        }))
    }

    pub(super) async fn take(&self) -> Lane {
        let permit = self.0.permits.acquire().await;
        permit.expect("never closed").forget();
        let ports = self.0.ports.lock();
        let (port, advertised) = ports
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .expect("as many as there are permits");
        Lane {
            port,
            advertised,
            free: Arc::clone(&self.0),
        }
    }
}

/// Port and advertised port of each.
pub(super) fn ports() -> anyhow::Result<Vec<(u16, u16)>> {
    (0..LANES)
        .map(|_| Ok((ports::free()?, ports::free()?)))
        .collect()
}

/// What follows in the broker's settings `listeners`, `advertised.listeners` and `listener.security.protocol.map`.
pub(super) fn properties(lanes: &[(u16, u16)]) -> [String; 3] {
    let all = |entry: &dyn Fn(usize, u16, u16) -> String| {
        lanes
            .iter()
            .enumerate()
            .map(|(lane, (port, advertised))| entry(lane, *port, *advertised))
            .collect::<String>()
    };
    [
        all(&|lane, port, _| format!(",LANE{lane}://127.0.0.1:{port}")),
        all(&|lane, _, proxy| format!(",LANE{lane}://127.0.0.1:{proxy}")),
        all(&|lane, _, _| format!(",LANE{lane}:PLAINTEXT")),
    ]
}
