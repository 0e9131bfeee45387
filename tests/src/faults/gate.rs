//! A TCP port that can be closed, with every connection on it, and opened again.

use crate::services::ports;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Serves one connection.
pub(super) type Serve = Arc<dyn Fn(TcpStream) -> ServeFuture + Send + Sync>;
pub(super) type ServeFuture = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// The port. Dropped, it closes.
pub(super) struct Gate {
    address: SocketAddr,
    serve: Serve,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Gate {
    /// Opens a port of its own.
    pub(super) async fn open(serve: Serve) -> std::io::Result<Self> {
        let port = ports::free().map_err(std::io::Error::other)?;
        Self::open_at(port, serve).await
    }

    /// Opens `port`, which this process has reserved.
    pub(super) async fn open_at(port: u16, serve: Serve) -> std::io::Result<Self> {
        let gate = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            serve,
            accepting: Mutex::default(),
        };
        gate.up().await?;
        Ok(gate)
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections again.
    pub(super) async fn up(&self) -> std::io::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        let serve = Arc::clone(&self.serve);
        let accepting = tokio::spawn(async move {
            // Dropped with this task: the connections end with the port.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        if let Ok((stream, _)) = accepted {
                            connections.spawn(serve(stream));
                        }
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        let before = self.slot().replace(accepting);
        if let Some(before) = before {
            before.abort();
        }
        Ok(())
    }

    /// Refuses connections and cuts those there are.
    pub(super) async fn down(&self) {
        let accepting = self.slot().take();
        if let Some(accepting) = accepting {
            accepting.abort();
            // Its end is the closed port.
            accepting.await.ok();
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(accepting) = self.slot().take() {
            accepting.abort();
        }
    }
}
