//! A listener that bounds how many connections there are and how long each may live.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Connections served at once; later ones wait in the accept queue.
const CONNECTIONS: usize = 64;
/// From accept to the last byte. A client that sends its request byte by byte gets no more than this.
const LIFETIME: Duration = Duration::from_secs(10);

/// Accepts at most [`CONNECTIONS`] at once, each for at most [`LIFETIME`].
pub(super) struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    lifetime: Duration,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::with_lifetime(listener, LIFETIME)
    }

    pub(super) fn with_lifetime(listener: TcpListener, lifetime: Duration) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(CONNECTIONS)),
            lifetime,
        }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed, so there is always a permit in the end.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        let connection = Connection {
            stream,
            deadline: Box::pin(tokio::time::sleep(self.lifetime)),
            _permit: permit,
        };
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails once its time is up.
pub(super) struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
