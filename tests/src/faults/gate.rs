//! A TCP port that can be closed, with every connection on it, and opened again.

use crate::services::ports;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
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
    turned_away: Arc<AtomicU64>,
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
            turned_away: Arc::default(),
        };
        gate.up().await?;
        Ok(gate)
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections again.
    pub(super) async fn up(&self) -> std::io::Result<()> {
        self.accept(Arc::clone(&self.serve)).await
    }

    /// Cuts the connections there are, and from then on each new one at once.
    pub(super) async fn turn_away(&self) -> std::io::Result<()> {
        let turned_away = Arc::clone(&self.turned_away);
        let cut: Serve = Arc::new(move |stream| {
            drop(stream);
            turned_away.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(()))
        });
        self.accept(cut).await
    }

    /// Connections that [`Self::turn_away`] has cut.
    pub(super) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    async fn accept(&self, serve: Serve) -> std::io::Result<()> {
        self.down().await;
        let listener = TcpListener::bind(self.address).await?;
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
        *self.slot() = Some(accepting);
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
