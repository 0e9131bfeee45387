//! The report: waits until the system has nothing left to do, then says what became of every committed event.

use crate::database::DatabaseArgs;
use crate::event::SUBSCRIPTIONS;
use crate::log::{self, Group, LogArgs, Reader};
use fanout_contract::names;
use fanout_tests::verdict::{self, Event, Evidence, Verdict};
use sqlx::postgres::PgPool;
use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(4);

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Longest wait for the system to drain, seconds
    #[arg(long, default_value_t = 120)]
    wait_seconds: u64,
}

/// What was committed, from the application's own tables.
#[derive(Debug)]
struct Committed {
    event: Event,
    r#type: String,
    visibility: String,
}

/// The log and how far every Subscription is through it.
#[derive(Debug, Default)]
struct Progress {
    /// Committed events that are not in the log.
    unpublished: usize,
    /// For each Subscription, in the order of [`SUBSCRIPTIONS`]: records not completed.
    depths: Vec<i64>,
    /// For each Subscription: ids of those records.
    queued: Vec<HashSet<String>>,
    /// For each Subscription: ids that were given up.
    dead_lettered: Vec<HashSet<String>>,
}

impl Progress {
    fn is_drained(&self) -> bool {
        self.unpublished == 0 && self.depths.iter().all(|depth| *depth == 0)
    }
}

/// Waits, judges, prints.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pool = args.database.pool(2)?;
    let committed = committed(&pool).await?;
    let ids: HashSet<String> = committed.iter().map(|c| c.event.id.clone()).collect();
    let (log, wait) = (args.log.clone(), Duration::from_secs(args.wait_seconds));
    let progress = tokio::task::spawn_blocking(move || drain(&log, &ids, wait)).await??;

    let mut rows = Vec::new();
    for (number, (name, _)) in SUBSCRIPTIONS.iter().enumerate() {
        let seen = receipts(&pool, name).await?;
        let evidence = evidence(&committed, seen, number, &progress);
        rows.push(((*name).to_owned(), verdict::judge(&evidence)));
    }
    print(&rows, &progress)?;
    let sound = rows.iter().all(|(_, verdict)| verdict.is_sound());
    Ok(if sound && progress.is_drained() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn evidence(
    committed: &[Committed],
    seen: Vec<Event>,
    number: usize,
    progress: &Progress,
) -> Evidence {
    let (_, wanted) = SUBSCRIPTIONS[number];
    let wanted = committed
        .iter()
        .filter(|c| wanted.matches(&c.r#type, &c.visibility))
        .map(|c| c.event.id.clone())
        .collect();
    Evidence {
        committed: committed.iter().map(|c| c.event.clone()).collect(),
        wanted: Some(wanted),
        seen,
        dead_lettered: progress.dead_lettered[number].clone(),
        queued: progress.queued[number].clone(),
        ordered: true,
    }
}

/// Looks at the log until every Subscription is through it, or the time is up. A broker that does not answer is asked
/// again; the last look must have succeeded.
fn drain(args: &LogArgs, ids: &HashSet<String>, wait: Duration) -> anyhow::Result<Progress> {
    let started = Instant::now();
    let mut clients = None;
    loop {
        let seen = look(args, ids, &mut clients);
        let time = format!(
            "{} s of at most {} s",
            started.elapsed().as_secs(),
            wait.as_secs()
        );
        let is_late = started.elapsed() >= wait;
        match seen {
            Ok(progress) => {
                let queued = describe(&progress.depths);
                tracing::info!(
                    unpublished = progress.unpublished,
                    queued,
                    "draining for {time}"
                );
                if progress.is_drained() || is_late {
                    return Ok(progress);
                }
            }
            Err(error) if is_late => return Err(error),
            Err(error) => tracing::warn!("draining for {time}: {error:#}"),
        }
        pause(LOOK);
    }
}

#[expect(clippy::disallowed_methods, reason = "on a blocking thread")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn describe(depths: &[i64]) -> String {
    let pairs: Vec<_> = SUBSCRIPTIONS
        .iter()
        .zip(depths)
        .map(|((name, _), depth)| format!("{name}={depth}"))
        .collect();
    pairs.join(" ")
}

/// Everything that asks Kafka.
struct Clients {
    events: Reader,
    dead: Reader,
    /// In the order of [`SUBSCRIPTIONS`].
    groups: Vec<Group>,
}

impl Clients {
    fn new(args: &LogArgs) -> anyhow::Result<Self> {
        let topic = args.kafka_topic();
        let group = |(name, _): &(&str, _)| {
            let id = names::group_id("", &args.namespace, name);
            Group::new(args, &id)
        };
        Ok(Self {
            events: Reader::new(args, &topic)?,
            dead: Reader::new(args, &names::dead_letter_topic(&topic))?,
            groups: SUBSCRIPTIONS.iter().map(group).collect::<Result<_, _>>()?,
        })
    }
}

fn look(
    args: &LogArgs,
    ids: &HashSet<String>,
    clients: &mut Option<Clients>,
) -> anyhow::Result<Progress> {
    let clients = match clients {
        Some(clients) => clients,
        none @ None => none.insert(Clients::new(args)?),
    };
    let ends = clients.events.catch_up()?;
    clients.dead.catch_up()?;
    let records = &clients.events.records;
    let published: HashSet<&str> = records.iter().map(|r| r.id.as_str()).collect();
    let mut progress = Progress {
        unpublished: ids
            .iter()
            .filter(|id| !published.contains(id.as_str()))
            .count(),
        ..Progress::default()
    };
    for ((name, _), group) in SUBSCRIPTIONS.iter().zip(&clients.groups) {
        let committed = group.committed(ends.keys().copied())?;
        progress.depths.push(log::depth(&ends, &committed));
        progress.queued.push(log::ahead(records, &committed));
        let subscription = format!("{}/{name}", args.namespace);
        let given_up = clients.dead.records.iter();
        let given_up = given_up.filter(|r| r.subscription == subscription);
        progress
            .dead_lettered
            .push(given_up.map(|r| r.id.clone()).collect());
    }
    Ok(progress)
}

async fn committed(pool: &PgPool) -> anyhow::Result<Vec<Committed>> {
    let rows: Vec<(String, String, i64, Vec<u8>, String, String)> = sqlx::query_as(
        "select event_id::text, author, sequence, digest, type, visibility from social.events",
    )
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(
            |(id, author, sequence, content, r#type, visibility)| Committed {
                event: Event {
                    id,
                    key: Some(author),
                    sequence,
                    content,
                },
                r#type,
                visibility,
            },
        )
        .collect())
}

/// What a Subscription's receiver accepted, in arrival order.
async fn receipts(pool: &PgPool, subscription: &str) -> anyhow::Result<Vec<Event>> {
    let rows: Vec<(String, String, i64, Vec<u8>)> = sqlx::query_as(
        "select event_id, author, sequence, digest from social.receipts
         where subscription = $1 and status = 200 order by arrival",
    )
    .bind(subscription)
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|(id, author, sequence, content)| Event {
            id,
            key: Some(author),
            sequence,
            content,
        })
        .collect())
}

fn print(rows: &[(String, Verdict)], progress: &Progress) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{}", verdict::table(rows))?;
    for (name, verdict) in rows {
        for example in &verdict.examples {
            writeln!(out, "{name}: {example}")?;
        }
        if verdict.changed + verdict.unwanted > 0 {
            writeln!(
                out,
                "{name}: {} delivered with other contents, {} delivered against the filter",
                verdict.changed, verdict.unwanted
            )?;
        }
    }
    if !progress.is_drained() {
        writeln!(
            out,
            "not drained: {} committed events are not in the log, still queued {}",
            progress.unpublished,
            describe(&progress.depths)
        )?;
    }
    out.flush()
}
