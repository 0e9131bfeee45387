//! Admin server of every binary: `/livez`, `/readyz`, `/metrics`, `/status`.

mod listener;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Content type of `/metrics`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Says whether all is well, or in a few words why not. Called per request: reads memory only, never blocks.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What the server shows.
pub struct Admin {
    /// Metrics.
    pub registry: Registry,
    /// Answers `/readyz`.
    pub ready: Check,
    /// Answers `/livez`.
    pub live: Check,
    /// Answers `/status`. Called per request: reads memory only, never blocks.
    pub status: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// Serves until `shutdown`, then finishes the requests under way. A connection carries one request and lives
/// 10 s at most; 64 are served at once. Fails when the listener does.
pub async fn serve(
    listener: tokio::net::TcpListener,
    admin: Admin,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener::Bounded::new(listener), router(admin))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route(
            "/livez",
            get(async |State(a): State<Arc<Admin>>| verdict((a.live)())),
        )
        .route(
            "/readyz",
            get(async |State(a): State<Arc<Admin>>| verdict((a.ready)())),
        )
        .route(
            "/status",
            get(async |State(a): State<Arc<Admin>>| Json((a.status)())),
        )
        .route(
            "/metrics",
            get(async |State(a): State<Arc<Admin>>| metrics(&a.registry)),
        )
        .layer(axum::middleware::map_response(one_request))
        .with_state(Arc::new(admin))
}

fn verdict(check: Result<(), String>) -> Response {
    match check {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics can't be encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Closes the connection after the answer: connections are few and short, so none needs an idle timeout.
async fn one_request(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests;
