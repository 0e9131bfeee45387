//! Stands between a program and a broker: counts the requests that change something, and does to them what the rules say.
//!
//! A broker tells its clients where it is, so a proxy needs a listener of its own there: a [`Lane`].

use super::gate::{Gate, Serve};
use super::{Fault, Script, Write, lock};
use crate::services::kafka::{Kafka, Lane};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Largest message of the protocol that is taken for one.
const MESSAGE_MAX: usize = 64 << 20;

/// Requests that change something, by their key in the protocol.
const CHANGES: [(i16, &str); 10] = [
    (0, "Produce"),
    (8, "OffsetCommit"),
    (19, "CreateTopics"),
    (20, "DeleteTopics"),
    (21, "DeleteRecords"),
    (33, "AlterConfigs"),
    (37, "CreatePartitions"),
    (42, "DeleteGroups"),
    (44, "IncrementalAlterConfigs"),
    (47, "OffsetDelete"),
];

/// A request that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KafkaWrite {
    /// Number among them, from 1.
    pub number: usize,
    /// Name of the request in the protocol.
    pub name: &'static str,
}

impl Write for KafkaWrite {
    fn number(&self) -> usize {
        self.number
    }
}

/// The proxy. Dropped, it refuses connections.
pub struct KafkaProxy {
    gate: Gate,
    script: Arc<Script<KafkaWrite>>,
    _lane: Lane,
}

impl KafkaProxy {
    /// Before `broker`, at a port that the broker gives to who asks here. Waits for a lane when all are taken.
    ///
    /// # Errors
    /// Somebody else took the port.
    pub async fn start(broker: &Kafka) -> anyhow::Result<Self> {
        let lane = broker.lane().await;
        let script = Arc::new(Script::default());
        let gate = Gate::open_at(lane.advertised, pass(Arc::clone(&script), lane.port)).await?;
        Ok(Self {
            gate,
            script,
            _lane: lane,
        })
    }

    /// `host:port`.
    pub fn bootstrap(&self) -> String {
        self.gate.address().to_string()
    }

    /// Its changes, and what becomes of the next one.
    pub fn script(&self) -> &Script<KafkaWrite> {
        &self.script
    }

    /// Refuses connections and cuts those there are.
    pub async fn down(&self) {
        self.gate.down().await;
    }

    /// Cuts the connections there are, and from then on each new one at once.
    ///
    /// # Errors
    /// Somebody else took the port.
    pub async fn turn_away(&self) -> anyhow::Result<()> {
        Ok(self.gate.turn_away().await?)
    }

    /// Connections that [`Self::turn_away`] has cut.
    pub fn turned_away(&self) -> u64 {
        self.gate.turned_away()
    }

    /// Accepts connections again.
    ///
    /// # Errors
    /// Somebody else took the port.
    pub async fn up(&self) -> anyhow::Result<()> {
        Ok(self.gate.up().await?)
    }
}

/// What becomes of an answer, by the correlation id of its request.
type Answers = Mutex<HashMap<i32, Fault>>;

fn pass(script: Arc<Script<KafkaWrite>>, broker: u16) -> Serve {
    Arc::new(move |client| {
        let script = Arc::clone(&script);
        Box::pin(async move {
            let Ok(broker) = TcpStream::connect(("127.0.0.1", broker)).await else {
                return;
            };
            let (from_client, to_client) = client.into_split();
            let (from_broker, to_broker) = broker.into_split();
            let answers = Answers::default();
            // The first end of either direction ends both.
            tokio::select! {
                _ = requests(&script, &answers, from_client, to_broker) => {}
                _ = responses(&answers, from_broker, to_client) => {}
            }
        })
    })
}

/// One message with its length.
async fn message(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let size = usize::try_from(i32::from_be_bytes(length))
        .ok()
        .filter(|size| *size <= MESSAGE_MAX)
        .ok_or_else(|| std::io::Error::other("not a message"))?;
    let mut message = vec![0; size + 4];
    message[..4].copy_from_slice(&length);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

async fn requests(
    script: &Script<KafkaWrite>,
    answers: &Answers,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    loop {
        let message = message(&mut from).await?;
        // Header: api_key i16, api_version i16, correlation_id i32.
        let fault = match message.get(4..12) {
            Some(header) => {
                let key = i16::from_be_bytes([header[0], header[1]]);
                let id = i32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                fault(script, key).map(|fault| (id, fault))
            }
            None => None,
        };
        match fault {
            None => {}
            Some((_, Fault::Before(hook))) => {
                hook();
                continue;
            }
            Some((_, Fault::Swallow | Fault::Refuse { .. })) => continue,
            Some((id, fault @ (Fault::After(_) | Fault::HoldAnswer(_)))) => {
                lock(answers).insert(id, fault);
            }
        }
        to.write_all(&message).await?;
    }
}

/// Records a request with this key, if it changes something, and says what becomes of it.
fn fault(script: &Script<KafkaWrite>, key: i16) -> Option<Fault> {
    let (_, name) = CHANGES.iter().find(|(change, _)| *change == key)?;
    let (_, fault) = script.record(|writes| KafkaWrite {
        number: writes.len() + 1,
        name,
    });
    fault
}

async fn responses(
    answers: &Answers,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    loop {
        let message = message(&mut from).await?;
        let id = message
            .get(4..8)
            .map(|id| i32::from_be_bytes([id[0], id[1], id[2], id[3]]));
        let fault = id.and_then(|id| lock(answers).remove(&id));
        match fault {
            Some(Fault::After(hook)) => {
                hook();
                continue;
            }
            Some(Fault::HoldAnswer(until)) => until.cancelled().await,
            _ => {}
        }
        to.write_all(&message).await?;
    }
}
