//! A webhook endpoint that records every request into PostgreSQL and answers as the test wants.

use crate::Sandbox;
use crate::services::receiver_address;
use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use sqlx::PgPool;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Larger requests than any a consumer may send.
const MAX_BODY: usize = 64 << 20;

/// What the endpoint sees of a request when it decides.
#[derive(Clone, Debug)]
pub struct Request {
    /// 1 for the first request, by arrival.
    pub number: u64,
    /// 1 for the first request of this event.
    pub attempt: u64,
    /// CloudEvents id; absent where the request has none.
    pub event_id: Option<String>,
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// What the endpoint answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A status without a body.
    Status(u16),
    /// A status with `Retry-After`.
    RetryAfter(u16, String),
    /// 302 to this address.
    Redirect(String),
    /// 200 and a body that never ends.
    EndlessBody,
    /// Nothing before [`Receiver::release`]; then 200.
    Hang,
}

impl Answer {
    /// 200.
    pub const OK: Self = Self::Status(200);

    fn status(&self) -> Option<u16> {
        match self {
            Self::Status(status) | Self::RetryAfter(status, _) => Some(*status),
            Self::Redirect(_) => Some(302),
            // Neither is a whole answer.
            Self::EndlessBody | Self::Hang => None,
        }
    }
}

/// Decides the answer to each request.
pub type Behaviour = Box<dyn FnMut(&Request) -> Answer + Send>;

/// Ready-made behaviours.
pub mod behave {
    use super::{Answer, Behaviour};
    use std::collections::BTreeMap;

    /// 200 to everything.
    pub fn ok() -> Behaviour {
        always(Answer::OK)
    }

    /// The same answer to everything.
    pub fn always(answer: Answer) -> Behaviour {
        Box::new(move |_| answer.clone())
    }

    /// Every `n`-th request fails with 500, by arrival.
    pub fn every_nth_fails(n: u64) -> Behaviour {
        Box::new(move |request| match request.number % n {
            0 => Answer::Status(500),
            _ => Answer::OK,
        })
    }

    /// These answers in turn to the first requests, then 200.
    pub fn sequence(answers: Vec<Answer>) -> Behaviour {
        let mut answers = answers.into_iter();
        Box::new(move |_| answers.next().unwrap_or(Answer::OK))
    }

    /// These answers in turn to the attempts of each event, then 200.
    pub fn attempts(answers: Vec<Answer>) -> Behaviour {
        Box::new(move |request| {
            usize::try_from(request.attempt - 1)
                .ok()
                .and_then(|attempt| answers.get(attempt).cloned())
                .unwrap_or(Answer::OK)
        })
    }

    /// These answers to these events, 200 to others.
    pub fn per_event(answers: BTreeMap<String, Answer>) -> Behaviour {
        Box::new(move |request| {
            let id = request.event_id.as_deref().unwrap_or_default();
            answers.get(id).cloned().unwrap_or(Answer::OK)
        })
    }
}

/// A running endpoint; it ends when dropped.
#[derive(Debug)]
pub struct Receiver {
    name: String,
    url: String,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

struct Shared {
    name: String,
    pool: PgPool,
    seen: Mutex<Seen>,
    released: watch::Sender<bool>,
}

struct Seen {
    behaviour: Behaviour,
    requests: u64,
    attempts: HashMap<String, u64>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Receiver {
    /// Starts an endpoint that records under `name` in the sandbox's database.
    pub async fn start(sandbox: &Sandbox, name: &str, behaviour: Behaviour) -> Self {
        Self::start_at(sandbox, name, behaviour, 0).await
    }

    /// Starts an endpoint at a port that nobody else takes; 0: any.
    pub async fn start_at(sandbox: &Sandbox, name: &str, behaviour: Behaviour, port: u16) -> Self {
        let address = tokio::task::spawn_blocking(receiver_address)
            .await
            .expect("the receivers' address can be used");
        let listener = TcpListener::bind((address, port))
            .await
            .expect("a free port is left");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            pool: sandbox.pool().clone(),
            seen: Mutex::new(Seen {
                behaviour,
                requests: 0,
                attempts: HashMap::new(),
            }),
            released: watch::Sender::new(false),
        });
        let router = axum::Router::new()
            .fallback(receive)
            .with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            axum::serve(listener, router)
                .await
                .expect("the listener works");
        });
        Self {
            name: name.to_owned(),
            url: format!("http://{address}:{port}/{name}"),
            shared,
            server,
        }
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Name it records under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Changes how it answers; counts go on.
    pub fn set(&self, behaviour: Behaviour) {
        self.shared.seen().behaviour = behaviour;
    }

    /// Answers all requests that hang, now and later, with 200.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.seen().requests
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, path: String, headers: HeaderMap, body: Bytes) -> (Request, Answer) {
        let event_id = event_id(&headers, &body);
        let mut seen = self.seen();
        seen.requests += 1;
        let attempt = event_id.as_ref().map_or(1, |id| {
            let attempts = seen.attempts.entry(id.clone()).or_default();
            *attempts += 1;
            *attempts
        });
        let request = Request {
            number: seen.requests,
            attempt,
            event_id,
            path,
            headers,
            body,
        };
        let answer = (seen.behaviour)(&request);
        (request, answer)
    }

    /// Recorded before it is answered: what was accepted can't be missing in the table.
    async fn record(&self, request: &Request, answer: &Answer) -> sqlx::Result<()> {
        let headers: serde_json::Map<String, serde_json::Value> = request
            .headers
            .iter()
            .map(|(name, value)| {
                let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.as_str().to_owned(), text.into())
            })
            .collect();
        sqlx::query(
            "insert into harness.received (receiver, event_id, headers, body, status)
             values ($1, $2, $3::jsonb, $4, $5)",
        )
        .bind(&self.name)
        .bind(&request.event_id)
        .bind(serde_json::Value::Object(headers).to_string())
        .bind(request.body.as_ref())
        .bind(answer.status().map(i32::from))
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

async fn receive(State(shared): State<Arc<Shared>>, request: HttpRequest) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let (request, answer) = shared.decide(parts.uri.to_string(), parts.headers, body);
    if let Err(error) = shared.record(&request, &answer).await {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    match answer {
        Answer::Status(status) => code(status).into_response(),
        Answer::RetryAfter(status, after) => {
            (code(status), [(header::RETRY_AFTER, after)]).into_response()
        }
        Answer::Redirect(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Answer::EndlessBody => {
            let chunk = Bytes::from_static(&[b'x'; 1024]);
            let endless = stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
            Body::from_stream(endless).into_response()
        }
        Answer::Hang => {
            // The receiver keeps its sender, so this ends by a release only.
            shared
                .released
                .subscribe()
                .wait_for(|released| *released)
                .await
                .ok();
            StatusCode::OK.into_response()
        }
    }
}

fn code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).expect("tests answer with legal status codes")
}

/// The CloudEvents id: a header in binary mode, a member of the body in structured mode.
fn event_id(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    if let Some(id) = headers.get("ce-id") {
        return id.to_str().ok().map(str::to_owned);
    }
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(body.get("id")?.as_str()?.to_owned())
}
