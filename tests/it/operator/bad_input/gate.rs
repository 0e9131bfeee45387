//! An address on loopback that leads to a service only while it is open.

use fanout_tests::services::ports;
use std::sync::{Mutex, PoisonError};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A door to a service. Closed, nobody listens, and connections that stood are gone.
pub(super) struct Gate {
    port: u16,
    target: u16,
    open: Mutex<Option<JoinHandle<()>>>,
}

impl Gate {
    /// A closed gate to `target` on 127.0.0.1.
    pub(super) fn closed(target: u16) -> Self {
        Self {
            port: ports::free().unwrap(),
            target,
            open: Mutex::default(),
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) async fn open(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        let target = self.target;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", target)).await {
                        tokio::io::copy_bidirectional(&mut near, &mut far)
                            .await
                            .ok();
                    }
                });
            }
        });
        self.replace(Some(task));
    }

    pub(super) fn close(&self) {
        self.replace(None);
    }

    fn replace(&self, task: Option<JoinHandle<()>>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *open, task) {
            before.abort();
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close();
    }
}
