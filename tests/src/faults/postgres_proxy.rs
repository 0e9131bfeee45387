//! Stands between a relay (or anybody) and a PostgreSQL server: leads connections to another server, cuts them, and does to
//! chosen statements what the rules say. Blind behind TLS, which the harness does not use.

use super::gate::{Gate, Serve};
use super::{Fault, Script, Write, lock};
use crate::services::postgres::Postgres;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Statements of a relay that move something, by what their text has.
const CHANGES: [(&str, &str); 5] = [
    ("set owner = '", TAKEOVER),
    ("insert into fanout.positions", APPEND),
    // Claim modes Lease and Delete.
    (
        "u as (update \"public\".\"outbox\" set status = 'done'",
        APPEND,
    ),
    ("u as (delete from \"public\".", APPEND),
    ("insert into fanout.parked", "park"),
];
/// Takes a range.
pub const TAKEOVER: &str = "takeover";
/// Stores what is published: a position, or that rows are done.
pub const APPEND: &str = "append";

/// A statement that moves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Number among them, from 1.
    pub number: usize,
    /// What it does.
    pub name: &'static str,
}

impl Write for Statement {
    fn number(&self) -> usize {
        self.number
    }
}

/// The proxy. Dropped, it refuses connections.
pub struct PostgresProxy {
    gate: Gate,
    script: Arc<Script<Statement>>,
    target: Arc<AtomicU16>,
}

impl PostgresProxy {
    /// Before `server`.
    ///
    /// # Errors
    /// Somebody else took the port.
    pub async fn start(server: &Postgres) -> anyhow::Result<Self> {
        let script = Arc::new(Script::default());
        let target = Arc::new(AtomicU16::new(server.port()));
        let gate = Gate::open(pass(Arc::clone(&script), Arc::clone(&target))).await?;
        Ok(Self {
            gate,
            script,
            target,
        })
    }

    /// TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.gate.address().port()
    }

    /// Its statements, and what becomes of the next one.
    pub fn script(&self) -> &Script<Statement> {
        &self.script
    }

    /// Leads connections made from now on to `server`.
    pub fn lead_to(&self, server: &Postgres) {
        self.target.store(server.port(), Ordering::Relaxed);
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

/// What becomes of the answer that is waited for.
type Answer = Mutex<Option<Fault>>;

fn pass(script: Arc<Script<Statement>>, target: Arc<AtomicU16>) -> Serve {
    Arc::new(move |client| {
        let script = Arc::clone(&script);
        let port = target.load(Ordering::Relaxed);
        Box::pin(async move {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                return;
            };
            for stream in [&client, &server] {
                stream.set_nodelay(true).ok();
            }
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let answer = Answer::default();
            // The first end of either direction ends both.
            tokio::select! {
                _ = statements(&script, &answer, from_client, to_server) => {}
                _ = answers(&answer, from_server, to_client) => {}
            }
        })
    })
}

async fn statements(
    script: &Script<Statement>,
    answer: &Answer,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let read = &buffer[..length];
        // A relay's statement comes in one piece; one that does not is passed on.
        match name(read).and_then(|name| fault(script, name)) {
            None => {}
            Some(Fault::Before(hook)) => {
                hook();
                continue;
            }
            Some(Fault::Swallow | Fault::Refuse { .. }) => continue,
            Some(fault @ (Fault::After(_) | Fault::HoldAnswer(_))) => {
                *lock(answer) = Some(fault);
            }
        }
        to.write_all(read).await?;
    }
}

fn name(read: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(read);
    let found = CHANGES.iter().find(|(part, _)| text.contains(part));
    found.map(|(_, name)| *name)
}

fn fault(script: &Script<Statement>, name: &'static str) -> Option<Fault> {
    let (_, fault) = script.record(|writes| Statement {
        number: writes.len() + 1,
        name,
    });
    fault
}

async fn answers(
    answer: &Answer,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let fault = lock(answer).take();
        match fault {
            Some(Fault::After(hook)) => {
                hook();
                continue;
            }
            Some(Fault::HoldAnswer(until)) => until.cancelled().await,
            _ => {}
        }
        to.write_all(&buffer[..length]).await?;
    }
}
