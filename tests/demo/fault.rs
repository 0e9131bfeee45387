//! Plants a fault that the report must find; each one is a real misbehaviour somewhere on the events' way.

use crate::database::DatabaseArgs;
use crate::event::{self, Event};
use crate::log::LogArgs;
use crate::write;
use anyhow::{Context, ensure};
use fanout_contract::envelope::{self, Attributes};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::Connection;
use std::time::Duration;

/// Limit of a request to a receiver and of a produce.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of `fault`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which fault
    #[arg(value_enum)]
    fault: Fault,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Receiver that shall misbehave
    #[arg(long, default_value = "http://localhost:8080")]
    receiver: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Fault {
    /// A receiver accepts an event and forgets it.
    Lose,
    /// A receiver records two events of one author the wrong way round.
    Swap,
    /// An event whose transaction rolled back is in the log.
    Rollback,
}

/// Plants the fault.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.fault {
        Fault::Lose => misbehave(&args.receiver, "lose").await,
        Fault::Swap => misbehave(&args.receiver, "swap").await,
        Fault::Rollback => forge(&args).await,
    }
}

async fn misbehave(receiver: &str, fault: &str) -> anyhow::Result<()> {
    let client = reqwest::Client::builder()
        .timeout(TIMEOUT)
        // Plain HTTP; an image of this program holds no certificates.
        .tls_certs_only([])
        .build()?;
    let answer = client
        .post(format!("{receiver}/faults/{fault}"))
        .send()
        .await?;
    ensure!(
        answer.status().is_success(),
        "the receiver answered {}",
        answer.status()
    );
    Ok(())
}

/// Produces an event of a transaction that rolled back, as a relay that reads uncommitted rows would.
async fn forge(args: &Args) -> anyhow::Result<()> {
    let event = Event {
        r#type: event::POST,
        author: "author-0".to_owned(),
        visibility: "public",
        detail: "never said".to_owned(),
    };
    let pool = args.database.pool(1)?;
    let mut connection = pool.acquire().await?;
    let mut tx = connection.begin().await?;
    let sequence = write::lock_author(&mut tx, &event.author).await? + 1;
    let id = write::store(&mut tx, &args.log.topic, &event, sequence).await?;
    tx.rollback().await?;

    let attributes = Attributes {
        id,
        source: format!("/{}/{}", args.log.namespace, args.log.topic),
        r#type: event.r#type.to_owned(),
        time: None,
        subject: Some(event.author.clone()),
        content_type: Some("application/json".to_owned()),
        extensions: vec![(envelope::SEQUENCE.to_owned(), envelope::sequence(0))],
    };
    let headers =
        attributes
            .to_headers()
            .into_iter()
            .fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header {
                    key: &key,
                    value: Some(value),
                })
            });
    let payload = event.payload(sequence).to_string();
    let producer: FutureProducer = args.log.client().create()?;
    producer
        .send(
            FutureRecord::to(&args.log.kafka_topic())
                .key(&event.author)
                .payload(&payload)
                .headers(headers),
            TIMEOUT,
        )
        .await
        .map_err(|(error, _)| error)
        .context("the log takes no record")?;
    Ok(())
}
