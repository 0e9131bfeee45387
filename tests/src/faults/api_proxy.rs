//! Stands between an operator and the API server: names and counts its writes, and does to them what the rules say.

#[cfg(test)]
mod tests;

use super::gate::{Gate, Serve};
use super::{Fault, Script, Write, lock};
use anyhow::Context as _;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt as _, stream};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Largest body of a request.
const BODY_MAX: usize = 16 << 20;

/// A request that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiWrite {
    /// Number among the writes that are none of a Lease, from 1; 0 for a Lease's.
    pub number: usize,
    /// `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// `resource.group`, or `resource/subresource.group`.
    pub resource: String,
    /// Namespace.
    pub namespace: String,
    /// Object; empty where the API server makes up the name.
    pub name: String,
    /// What it says.
    pub body: Bytes,
    /// When it came.
    pub at: Instant,
    /// HTTP status that the API server answered; `None` while it has not, or was not asked.
    pub answered: Option<u16>,
}

impl ApiWrite {
    /// True for the election's own writes.
    pub fn is_lease(&self) -> bool {
        self.resource == "leases.coordination.k8s.io"
    }

    /// Says which write it is, the same in each run.
    pub fn label(&self) -> String {
        format!("{} {} {}", self.verb, self.resource, self.name)
    }
}

impl Write for ApiWrite {
    fn number(&self) -> usize {
        self.number
    }
}

struct Shared {
    upstream: Client,
    /// The only namespace that the client sees; `None`: all.
    scope: Option<String>,
    script: Script<ApiWrite>,
    reads_hang: AtomicBool,
    /// Watch events come this much later.
    delay: Mutex<Duration>,
    /// Raised to end all watches with 410.
    expiries: watch::Sender<u64>,
}

/// The proxy. Dropped, it refuses connections.
pub struct ApiProxy {
    gate: Gate,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ApiProxy {
    /// Forwards to the API server and as the user that `kubeconfig` names. With `scope`, a request for the objects of all
    /// namespaces becomes one for those of that namespace, so that operators side by side do not see each other's.
    ///
    /// # Errors
    /// The kubeconfig can't be used, or there is no free port.
    pub async fn start(kubeconfig: &Path, scope: Option<&str>) -> anyhow::Result<Self> {
        fanout_runtime::tls::install_ring_provider();
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // Whatever happens is the client's to see.
        config.default_retry = false;
        let shared = Arc::new(Shared {
            upstream: Client::try_from(config)?,
            scope: scope.map(str::to_owned),
            script: Script::default(),
            reads_hang: AtomicBool::new(false),
            delay: Mutex::default(),
            expiries: watch::Sender::new(0),
        });
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let inner = listener.local_addr()?;
        let app = axum::Router::new()
            .fallback(handle)
            .with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serves for ever");
        });
        let gate = Gate::open(pass_to(inner)).await?;
        Ok(Self {
            gate,
            shared,
            server,
        })
    }

    /// Writes a kubeconfig of this proxy to `file`.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn kubeconfig(&self, file: PathBuf) -> anyhow::Result<PathBuf> {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: tests\n\
             clusters: [{{name: tests, cluster: {{server: 'http://{}'}}}}]\n\
             users: [{{name: tests, user: {{}}}}]\n\
             contexts: [{{name: tests, context: {{cluster: tests, user: tests}}}}]\n",
            self.gate.address()
        );
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    /// Its writes, and what becomes of the next one. A Lease's have number 0.
    pub fn script(&self) -> &Script<ApiWrite> {
        &self.shared.script
    }

    /// Reads (not watches) get no answer while this is set.
    pub fn hang_reads(&self, hang: bool) {
        self.shared.reads_hang.store(hang, Ordering::Release);
    }

    /// Holds each watch event back for `delay`: the client's caches are that old.
    pub fn delay_watches(&self, delay: Duration) {
        *lock(&self.shared.delay) = delay;
    }

    /// Ends every watch with 410 Gone, as when its resource version was compacted.
    pub fn expire_watches(&self) {
        self.shared.expiries.send_modify(|count| *count += 1);
    }

    /// Refuses connections and cuts those there are.
    pub async fn down(&self) {
        self.gate.down().await;
    }

    /// Accepts connections again.
    ///
    /// # Errors
    /// Somebody else took the port.
    pub async fn up(&self) -> anyhow::Result<()> {
        Ok(self.gate.up().await?)
    }
}

fn pass_to(inner: SocketAddr) -> Serve {
    Arc::new(move |mut client| {
        Box::pin(async move {
            if let Ok(mut server) = TcpStream::connect(inner).await {
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            }
        })
    })
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if let Some(scope) = &shared.scope
        && let Some(uri) = scoped(&parts.uri, scope)
    {
        parts.uri = uri;
    }
    if shared.scope.is_some() && parts.uri.path().contains("/leases") {
        // The chart grants the Lease in the operator's own namespace alone: this is the test's doing.
        parts
            .headers
            .insert(header::USER_AGENT, HeaderValue::from_static("fanout-tests"));
    }
    let watches = parts
        .uri
        .query()
        .is_some_and(|query| query.contains("watch=true"));
    let write = write(&parts.method, &parts.uri, &body);
    let forward = async || {
        for name in [
            header::HOST,
            header::CONNECTION,
            header::CONTENT_LENGTH,
            header::ACCEPT_ENCODING,
        ] {
            parts.headers.remove(name);
        }
        let mut request = axum::http::Request::new(kube::client::Body::from(body));
        *request.method_mut() = parts.method;
        *request.uri_mut() = parts.uri;
        *request.headers_mut() = parts.headers;
        forward(&shared.upstream, request).await
    };
    match write {
        Some(write) => changing(&shared, write, forward).await,
        None if watches => watching(&shared, forward().await),
        None if shared.reads_hang.load(Ordering::Acquire) => std::future::pending().await,
        None => forward().await,
    }
}

/// A write: recorded, and what the rule says.
async fn changing(
    shared: &Shared,
    mut write: ApiWrite,
    forward: impl AsyncFnOnce() -> Response,
) -> Response {
    let (index, fault) = shared.script.record(|writes| {
        if !write.is_lease() {
            write.number = writes.iter().filter(|other| !other.is_lease()).count() + 1;
        }
        write
    });
    let forward = async || {
        let response = forward().await;
        lock(&shared.script.writes)[index].answered = Some(response.status().as_u16());
        response
    };
    match fault {
        None => forward().await,
        Some(Fault::Before(hook)) => {
            hook();
            std::future::pending().await
        }
        Some(Fault::After(hook)) => {
            // Read to its end: the API server has done it.
            to_bytes(forward().await.into_body(), BODY_MAX).await.ok();
            hook();
            std::future::pending().await
        }
        Some(Fault::Swallow) => std::future::pending().await,
        Some(Fault::HoldAnswer(until)) => {
            let response = forward().await;
            until.cancelled().await;
            response
        }
        Some(Fault::Refuse {
            code,
            retry_after_seconds,
        }) => refuse(code, retry_after_seconds),
    }
}

fn refuse(code: u16, retry_after_seconds: Option<u32>) -> Response {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "a planted fault", "reason": reason, "code": code,
    });
    let mut response = (
        StatusCode::from_u16(code).expect("an HTTP status"),
        axum::Json(status),
    )
        .into_response();
    if let Some(seconds) = retry_after_seconds {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn forward(upstream: &Client, request: axum::http::Request<kube::client::Body>) -> Response {
    match upstream.send(request).await {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            remove_framing(&mut parts.headers);
            Response::from_parts(parts, Body::new(body))
        }
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

fn remove_framing(headers: &mut HeaderMap) {
    for name in [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
    ] {
        headers.remove(name);
    }
}

/// A watch: its events later, and its end when watches expire.
fn watching(shared: &Shared, response: Response) -> Response {
    let (parts, body) = response.into_parts();
    if !parts.status.is_success() {
        return Response::from_parts(parts, body);
    }
    let delay = *lock(&shared.delay);
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<(Instant, Bytes)>();
    // Read at once, given out later: the events keep their distances.
    let reader = tokio::spawn(async move {
        let mut lines = std::pin::pin!(lines(body));
        while let Some(line) = lines.next().await {
            if sender.send((Instant::now() + delay, line)).is_err() {
                return;
            }
        }
    });
    let reader = tokio_util::task::AbortOnDropHandle::new(reader);
    let expiries = shared.expiries.subscribe();
    let events = stream::unfold(
        (receiver, expiries, Some(reader)),
        |(mut receiver, mut expiries, reader)| async move {
            // Without a reader the watch has expired.
            reader.as_ref()?;
            tokio::select! {
                changed = expiries.changed() => {
                    changed.ok()?;
                    let gone = json!({"type": "ERROR", "object": {
                        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": "too old resource version", "reason": "Expired", "code": 410,
                    }});
                    Some((Bytes::from(format!("{gone}\n")), (receiver, expiries, None)))
                }
                next = later(&mut receiver) => Some((next?, (receiver, expiries, reader))),
            }
        },
    );
    Response::from_parts(
        parts,
        Body::from_stream(events.map(Ok::<_, std::convert::Infallible>)),
    )
}

async fn later(
    receiver: &mut tokio::sync::mpsc::UnboundedReceiver<(Instant, Bytes)>,
) -> Option<Bytes> {
    let (due, line) = receiver.recv().await?;
    tokio::time::sleep_until(due.into()).await;
    Some(line)
}

/// The lines of a body, each with its end: one watch event each.
fn lines(body: Body) -> impl Stream<Item = Bytes> {
    let chunks = body.into_data_stream();
    stream::unfold((chunks, Vec::new()), |(mut chunks, mut rest)| async move {
        loop {
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                return Some((Bytes::from(line), (chunks, rest)));
            }
            rest.extend_from_slice(&chunks.next().await?.ok()?);
        }
    })
}

/// The write that a request is; `None` for a read.
fn write(method: &Method, uri: &Uri, body: &Bytes) -> Option<ApiWrite> {
    let verb = match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => return None,
    };
    let segments: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let (group, rest) = match segments.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let mut resource = (*rest.first()?).to_owned();
    if let Some(subresource) = rest.get(2) {
        resource = format!("{resource}/{subresource}");
    }
    if !group.is_empty() {
        resource = format!("{resource}.{group}");
    }
    let named = || -> Option<String> {
        let object: serde_json::Value = serde_json::from_slice(body).ok()?;
        Some(object.pointer("/metadata/name")?.as_str()?.to_owned())
    };
    let name = rest
        .get(1)
        .map(|name| (*name).to_owned())
        .or_else(named)
        .unwrap_or_default();
    Some(ApiWrite {
        number: 0,
        verb,
        resource,
        namespace: namespace.to_owned(),
        name,
        body: body.clone(),
        at: Instant::now(),
        answered: None,
    })
}

/// The address of the same objects in `scope` alone, where `uri` is one of all namespaces' objects.
fn scoped(uri: &Uri, scope: &str) -> Option<Uri> {
    const ALL: [&str; 3] = ["/api/v1/", "/apis/apps/v1/", "/apis/fanout.dev/v1alpha1/"];
    let (prefix, resource) = ALL
        .iter()
        .find_map(|prefix| Some((prefix, uri.path().strip_prefix(prefix)?)))?;
    if resource.contains('/') || resource == "namespaces" {
        return None;
    }
    let query = uri
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    format!("{prefix}namespaces/{scope}/{resource}{query}")
        .parse()
        .ok()
}
