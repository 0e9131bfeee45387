//! Tests over a real socket.

use super::*;
use prometheus_client::metrics::counter::Counter;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

struct Server {
    address: SocketAddr,
    ready: Arc<AtomicBool>,
    shutdown: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

async fn start() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut registry = Registry::default();
    let counter = Counter::<u64>::default();
    registry.register("rows", "Rows published", counter.clone());
    counter.inc_by(3);
    let ready = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ready);
    let admin = Admin {
        registry,
        ready: Arc::new(move || {
            if flag.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err("the database does not answer".to_owned())
            }
        }),
        live: Arc::new(|| Ok(())),
        status: Arc::new(|| serde_json::json!({"configHash": "ab"})),
    };
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve(listener, admin, shutdown.clone()));
    Server {
        address,
        ready,
        shutdown,
        task,
    }
}

impl Server {
    /// Sends `request` and reads until the server closes the connection.
    async fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(30), stream.read_to_string(&mut answer))
            .await
            .expect("the connection stayed open")
            .unwrap();
        answer
    }

    async fn get(&self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await
    }
}

#[tokio::test]
async fn probes_say_why_they_fail() {
    let server = start().await;
    let answer = server.get("/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.ends_with("the database does not answer\n"),
        "{answer}"
    );
    server.ready.store(true, Ordering::Relaxed);
    assert!(server.get("/readyz").await.starts_with("HTTP/1.1 200 "));
    assert!(server.get("/livez").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn status_is_json_and_metrics_are_open_metrics() {
    let server = start().await;
    let status = server.get("/status").await;
    assert!(
        status.contains("content-type: application/json"),
        "{status}"
    );
    assert!(status.ends_with(r#"{"configHash":"ab"}"#), "{status}");
    let metrics = server.get("/metrics").await;
    assert!(
        metrics.contains(&format!("content-type: {OPEN_METRICS}")),
        "{metrics}"
    );
    assert!(
        metrics.contains("rows_total 3\n") && metrics.ends_with("# EOF\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn only_get_and_only_known_paths() {
    let server = start().await;
    let answer = server
        .send("POST /status HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(server.get("/").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn a_client_that_says_nothing_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = listener::Bounded::with_lifetime(listener, Duration::from_millis(100));
    tokio::spawn(async move { axum::serve(listener, Router::new()).await });
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HT").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer))
        .await
        .expect("the connection stayed open")
        .ok();
}

#[tokio::test]
async fn shutdown_ends_the_server() {
    let server = start().await;
    server.shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(30), server.task)
        .await
        .expect("the server did not end")
        .unwrap()
        .unwrap();
}
