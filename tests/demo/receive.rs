//! Webhook receiver: records each delivery in PostgreSQL, then answers as its behaviour says.

mod decode;
mod planted;

use crate::database::DatabaseArgs;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use decode::Delivery;
use planted::{Fault, Planted};
use sqlx::postgres::PgPool;
use standardwebhooks::Webhook;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// Largest accepted body, bytes.
const MAX_BODY: usize = 1 << 20;

/// Arguments of `receive`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// How deliveries are answered
    #[arg(long, value_enum, default_value_t = Behaviour::Fast)]
    behaviour: Behaviour,
    /// What `slow` waits before it answers, milliseconds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    delay_milliseconds: u64,
    /// File with the Standard Webhooks secret (whsec_…): unsigned deliveries are then refused
    #[arg(long, value_name = "PATH")]
    signing_secret_file: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
}

/// How deliveries are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Behaviour {
    /// At once.
    Fast,
    /// Every third with 503.
    EveryThirdFails,
    /// After a pause.
    Slow,
}

impl Behaviour {
    /// Status of delivery number `number`, counted from 1.
    const fn status(self, number: u64) -> StatusCode {
        match self {
            Self::EveryThirdFails if number.is_multiple_of(3) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Fast | Self::EveryThirdFails | Self::Slow => StatusCode::OK,
        }
    }
}

struct Receiver {
    pool: PgPool,
    behaviour: Behaviour,
    delay: Duration,
    signature: Option<Webhook>,
    deliveries: AtomicU64,
    planted: Mutex<Planted>,
}

/// Serves until `shutdown`.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let signature = match &args.signing_secret_file {
        None => None,
        Some(path) => Some(
            // The error might repeat the secret.
            Webhook::new(std::fs::read_to_string(path)?.trim())
                .map_err(|_| anyhow::anyhow!("{} holds no webhook secret", path.display()))?,
        ),
    };
    let receiver = Receiver {
        pool: args.database.pool(16)?,
        behaviour: args.behaviour,
        delay: Duration::from_millis(args.delay_milliseconds),
        signature,
        deliveries: AtomicU64::new(0),
        planted: Mutex::default(),
    };
    let listener = tokio::net::TcpListener::bind(args.listen).await?;
    tracing::info!(address = %listener.local_addr()?, "receiving");
    axum::serve(listener, router(receiver))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await?;
    Ok(())
}

fn router(receiver: Receiver) -> Router {
    Router::new()
        .route("/hooks/{subscription}", post(receive))
        .route("/faults/{fault}", post(plant))
        .route("/livez", get(|| async { "ok\n" }))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::new(receiver))
}

/// One delivery.
async fn receive(
    State(receiver): State<Arc<Receiver>>,
    Path(subscription): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    if let Some(signature) = &receiver.signature
        && signature.verify(&body, &headers).is_err()
    {
        return StatusCode::UNAUTHORIZED;
    }
    let Some(delivery) = decode::decode(subscription, &headers, &body) else {
        return StatusCode::BAD_REQUEST;
    };
    let number = receiver.deliveries.fetch_add(1, Ordering::Relaxed) + 1;
    if receiver.behaviour == Behaviour::Slow {
        tokio::time::sleep(receiver.delay).await;
    }
    let status = receiver.behaviour.status(number);
    let mut planted = receiver.planted.lock().await;
    let records = if status == StatusCode::OK {
        planted.filter(delivery)
    } else {
        vec![delivery]
    };
    // What a fault held back is recorded before anything later can be.
    let _planted = (records.len() > 1).then_some(planted);
    for delivery in &records {
        if let Err(error) = record(&receiver.pool, delivery, status).await {
            // Not recorded means not received: the sender has to come again.
            tracing::warn!(error = error.to_string(), "can't record a delivery");
            return StatusCode::SERVICE_UNAVAILABLE;
        }
    }
    status
}

async fn record(pool: &PgPool, delivery: &Delivery, status: StatusCode) -> sqlx::Result<()> {
    sqlx::query(
        "insert into social.receipts (subscription, event_id, author, sequence, digest, status)
         values ($1, $2, $3, $4, $5, $6)",
    )
    .bind(&delivery.subscription)
    .bind(&delivery.event_id)
    .bind(&delivery.author)
    .bind(delivery.sequence)
    .bind(&delivery.digest)
    .bind(i16::try_from(status.as_u16()).unwrap_or(i16::MAX))
    .execute(pool)
    .await?;
    Ok(())
}

/// Plants a fault: the next fitting delivery suffers it.
async fn plant(State(receiver): State<Arc<Receiver>>, Path(fault): Path<String>) -> StatusCode {
    let Ok(fault) = Fault::from_str(&fault) else {
        return StatusCode::NOT_FOUND;
    };
    tracing::warn!(?fault, "a fault was planted");
    receiver.planted.lock().await.plant(fault);
    StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_delivery_fails() {
        let statuses: Vec<u16> = (1..=6)
            .map(|n| Behaviour::EveryThirdFails.status(n).as_u16())
            .collect();
        assert_eq!(statuses, [200, 200, 503, 200, 200, 503]);
        assert_eq!(Behaviour::Fast.status(3), StatusCode::OK);
    }
}
