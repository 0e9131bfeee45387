//! Deliveries to endpoints on this machine, which a guard for tests admits.

use super::*;
use crate::verdict::Failure;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{any, post};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Documentation address that the machine does not have: only the guard can be asked about it.
const PRIVATE: &str = "http://192.0.2.1/hook";

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn event() -> (Event, Attributes) {
    let attributes = Attributes {
        id: "e".into(),
        source: "/s/t".into(),
        r#type: "t".into(),
        time: None,
        subject: None,
        content_type: Some("application/json".into()),
        extensions: Vec::new(),
    };
    let event = Event {
        partition: 0,
        offset: 0,
        timestamp: None,
        key: None,
        value: Some(b"{}".to_vec()),
        headers: None,
        attributes: Ok(attributes.clone()),
    };
    (event, attributes)
}

/// A webhook that was admitted under `public` and connects to `address`, which the guard would refuse: what the
/// tests below look at is everything behind the guard.
fn webhook(address: SocketAddr, path: &str) -> Webhook {
    fanout_runtime::tls::install_ring_provider();
    let config = WebhookConfig {
        url: "http://198.51.100.1/".to_owned(),
        signing_secret_files: Vec::new(),
        timeout_seconds: 2,
    };
    let guard = Arc::new(Guard::new(&["198.51.100.0/24".parse().unwrap()], &[]));
    let mut webhook = Webhook::new(&config, &[], guard, "n", "s").unwrap();
    webhook.url = format!("http://{address}{path}").parse().unwrap();
    webhook
}

async fn deliver(webhook: &Webhook) -> Verdict {
    let (event, attributes) = event();
    webhook.deliver(&event, &attributes, &[]).await
}

fn retry(reason: Failure) -> Verdict {
    Verdict::Retry {
        reason,
        at_most: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_event_is_delivered() {
    let address = serve(Router::new().route("/", post(async || StatusCode::ACCEPTED))).await;
    assert_eq!(deliver(&webhook(address, "/")).await, Verdict::Delivered);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let followed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&followed);
    let router = Router::new()
        .route(
            "/",
            any(async || {
                (
                    StatusCode::TEMPORARY_REDIRECT,
                    [(header::LOCATION, "/other")],
                )
            }),
        )
        .route(
            "/other",
            any(async move || {
                count.fetch_add(1, Ordering::Relaxed);
            }),
        );
    let address = serve(router).await;
    assert_eq!(
        deliver(&webhook(address, "/")).await,
        retry(Failure::Status(307))
    );
    assert_eq!(followed.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_cut_off_and_its_status_counts() {
    let endless = || async {
        let chunk =
            || std::future::ready(Some((Ok::<_, std::io::Error>(vec![b'x'; 16 << 10]), ())));
        Body::from_stream(futures::stream::unfold((), move |()| chunk())).into_response()
    };
    let address = serve(Router::new().route("/", post(endless))).await;
    let begin = std::time::Instant::now();
    assert_eq!(deliver(&webhook(address, "/")).await, Verdict::Delivered);
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "the timeout was not needed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_says_nothing_times_out() {
    let hang = || std::future::pending::<StatusCode>();
    let address = serve(Router::new().route("/", post(hang))).await;
    assert_eq!(
        deliver(&webhook(address, "/")).await,
        retry(Failure::Timeout)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_and_a_broken_connection_are_told_apart() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    assert_eq!(
        deliver(&webhook(address, "/")).await,
        retry(Failure::Connect)
    );
    let rude = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = rude.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((connection, _)) = rude.accept().await {
            let mut first = [0; 1];
            if connection.readable().await.is_ok() && connection.try_read(&mut first).is_ok() {
                drop(connection);
            }
        }
    });
    assert_eq!(
        deliver(&webhook(address, "/")).await,
        retry(Failure::Broken)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_read_from_the_answer() {
    let busy = async || (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "9")]);
    let address = serve(Router::new().route("/", post(busy))).await;
    let expected = Verdict::Pause {
        reason: Failure::Status(429),
        after: Duration::from_secs(9),
    };
    assert_eq!(deliver(&webhook(address, "/")).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_resolves_to_the_machine_is_refused_without_a_connection() {
    let hits = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hits);
    let address = serve(Router::new().route(
        "/",
        post(async move |_: HeaderMap| {
            count.fetch_add(1, Ordering::Relaxed);
        }),
    ))
    .await;
    let mut webhook = webhook(address, "/");
    webhook.url = format!("http://localhost:{}/", address.port())
        .parse()
        .unwrap();
    assert_eq!(deliver(&webhook).await, Verdict::Refused);
    assert!(!webhook.is_admitted().await);
    assert_eq!(hits.load(Ordering::Relaxed), 0);
}

#[test]
fn an_address_or_secret_that_cannot_be_used_is_found_before_the_first_event() {
    fanout_runtime::tls::install_ring_provider();
    let config = |url: &str| WebhookConfig {
        url: url.to_owned(),
        signing_secret_files: Vec::new(),
        timeout_seconds: 1,
    };
    let guard = Arc::new(Guard::new(&[], &[]));
    let new = |url, secrets: &[SecretString]| {
        Webhook::new(&config(url), secrets, Arc::clone(&guard), "n", "s").err()
    };
    assert_eq!(new(PRIVATE, &[]), Some(Unusable::Address(Refused::Private)));
    assert_eq!(
        new("ftp://x/", &[]),
        Some(Unusable::Address(Refused::Scheme))
    );
    let secret = Some(Unusable::Secret(SecretError::Encoding));
    assert_eq!(
        new("https://hooks.example/", &["whsec_?".to_owned().into()]),
        secret
    );
    assert_eq!(new("https://hooks.example/", &[]), None);
}
