//! Access control lists of a broker: two requests that the Kafka client does not offer, written out by hand.

use anyhow::Context as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Kafka's number of the request.
const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
/// The last version without tagged fields.
const VERSION: i16 = 1;
const LITERAL: u8 = 3;

/// One entry: whether `user` may do `operation` on something.
#[derive(Clone, Debug)]
pub struct Acl {
    /// SASL user.
    pub user: String,
    /// On what.
    pub resource: Resource,
    /// What.
    pub operation: Operation,
    /// Allow or deny; a denial wins.
    pub allowed: bool,
}

/// What an entry is about, by name.
#[derive(Clone, Debug)]
pub enum Resource {
    /// A topic.
    Topic(String),
    /// A consumer group.
    Group(String),
    /// The cluster.
    Cluster,
}

/// What may be done, with Kafka's numbers.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Everything.
    All = 2,
    /// Read; implies Describe.
    Read = 3,
    /// Create.
    Create = 5,
    /// Describe.
    Describe = 8,
}

impl Acl {
    fn write(&self, body: &mut Vec<u8>) {
        let (kind, name) = match &self.resource {
            Resource::Topic(name) => (2, name.as_str()),
            Resource::Group(name) => (3, name.as_str()),
            Resource::Cluster => (4, "kafka-cluster"),
        };
        body.push(kind);
        string(body, name);
        body.push(LITERAL);
        string(body, &format!("User:{}", self.user));
        string(body, "*");
        body.push(self.operation as u8);
        body.push(if self.allowed { 3 } else { 2 });
    }
}

/// Adds an entry on the broker at `address`, whose listener must let everybody do everything.
pub(super) fn create(address: &str, acl: &Acl) -> anyhow::Result<()> {
    request(address, CREATE_ACLS, acl)
}

/// Removes it.
pub(super) fn delete(address: &str, acl: &Acl) -> anyhow::Result<()> {
    // A filter of every part reads like the entry.
    request(address, DELETE_ACLS, acl)
}

fn request(address: &str, key: i16, acl: &Acl) -> anyhow::Result<()> {
    let mut message = Vec::new();
    message.extend(key.to_be_bytes());
    message.extend(VERSION.to_be_bytes());
    message.extend(1_i32.to_be_bytes());
    string(&mut message, "fanout-tests");
    message.extend(1_i32.to_be_bytes());
    acl.write(&mut message);

    let mut stream = TcpStream::connect(address).context("connect to the broker")?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(&i32::try_from(message.len())?.to_be_bytes())?;
    stream.write_all(&message)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).context("no answer")?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length))?];
    stream.read_exact(&mut answer)?;
    // Correlation id, throttle time, number of results, error of the first.
    let error = answer.get(12..14).context("a short answer")?;
    let error = i16::from_be_bytes([error[0], error[1]]);
    anyhow::ensure!(error == 0, "Kafka error {error} for {acl:?}");
    Ok(())
}

fn string(body: &mut Vec<u8>, text: &str) {
    let length = i16::try_from(text.len()).expect("names are short");
    body.extend(length.to_be_bytes());
    body.extend(text.as_bytes());
}
