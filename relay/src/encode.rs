//! A row as a record: headers, size, and whether it can be produced at all. Pure.

use crate::claim::row::Row;
use fanout_contract::envelope::{ATTRIBUTE_PREFIX, CONTENT_TYPE, SPEC_VERSION, header};
use fanout_contract::envelope::{SEQUENCE, TRACEPARENT, sequence};
use fanout_contract::relay::{Format, NullPayload, RelayConfig};
use serde_json::{Map, Value};

/// Why a row can never be produced as it is. The names are stored and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unencodable {
    /// The record is larger than the topic's `max.message.bytes`.
    RecordTooLarge,
    /// `type` is empty.
    TypeEmpty,
    /// `created_at` is no time that RFC 3339 can write.
    TimeInvalid,
    /// `headers` is no object of texts, numbers and booleans, or names an attribute that a column sets.
    HeadersInvalid,
    /// The broker refused the record although nothing is wrong with it here.
    RecordRefused,
}

impl Unencodable {
    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RecordTooLarge => "RecordTooLarge",
            Self::TypeEmpty => "TypeEmpty",
            Self::TimeInvalid => "TimeInvalid",
            Self::HeadersInvalid => "HeadersInvalid",
            Self::RecordRefused => "RecordRefused",
        }
    }
}

/// Attributes that columns set; `headers` may not.
const RESERVED: [&str; 8] = [
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "subject",
    SEQUENCE,
    TRACEPARENT,
];
/// The one header of a record of Debezium's outbox event router.
const DEBEZIUM_ID: &str = "id";
/// Bytes of a record batch before its first record (magic 2).
const BATCH_OVERHEAD: usize = 61;

/// How the rows of one topic become records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Attribute `source`.
    source: String,
    format: Format,
    null_payload: NullPayload,
}

impl Encoding {
    /// What the configuration of a FanoutTopic says.
    pub fn new(config: &RelayConfig) -> Self {
        Self {
            source: format!("/{}/{}", config.namespace, config.name),
            format: config.format,
            null_payload: config.null_payload,
        }
    }
}

/// Turns rows of one topic into records.
#[derive(Clone, Debug)]
pub struct Encoder {
    encoding: Encoding,
    /// Largest record batch the topic takes, bytes, before compression.
    pub max_message_bytes: usize,
}

impl Encoder {
    /// Encoder for a Kafka topic that takes `max_message_bytes`.
    pub const fn new(encoding: Encoding, max_message_bytes: usize) -> Self {
        Self {
            encoding,
            max_message_bytes,
        }
    }

    /// The record's value in hex; `None` for none.
    pub fn value<'a>(&self, row: &Row<'a>) -> Option<&'a str> {
        let empty = self.encoding.format == Format::CloudEvents
            && self.encoding.null_payload == NullPayload::Empty;
        row.payload.or_else(|| empty.then_some(""))
    }

    /// Says whether `row` can be produced, before anything is handed to the producer: one oversize record fails the batch
    /// it shares with others, and later batches land before it.
    pub fn check(&self, row: &Row<'_>) -> Result<(), Unencodable> {
        let mut count: usize = 0;
        let mut bytes = 0;
        self.each_header(row, |name, value| {
            count += 1;
            bytes += field(name.len()) + field(value.len());
        })?;
        let body = 3 // attributes, and the two deltas, which are 0 in a batch of one
            + row.key.map_or(1, |key| field(key.len()))
            + self.value(row).map_or(1, |hex| field(hex.len() / 2))
            + varint(count)
            + bytes;
        if BATCH_OVERHEAD + field(body) > self.max_message_bytes {
            return Err(Unencodable::RecordTooLarge);
        }
        Ok(())
    }

    /// Calls `each` with the headers of `row`, in a fixed order.
    pub fn each_header(
        &self,
        row: &Row<'_>,
        mut each: impl FnMut(&str, &str),
    ) -> Result<(), Unencodable> {
        match self.encoding.format {
            Format::CloudEvents => self.each_cloud_event_header(row, each),
            Format::Debezium => {
                each(DEBEZIUM_ID, row.event_id);
                Ok(())
            }
        }
    }

    fn each_cloud_event_header(
        &self,
        row: &Row<'_>,
        mut each: impl FnMut(&str, &str),
    ) -> Result<(), Unencodable> {
        if row.r#type.is_empty() {
            return Err(Unencodable::TypeEmpty);
        }
        let time = rfc3339(row.created_at).ok_or(Unencodable::TimeInvalid)?;
        each(header::SPEC_VERSION, SPEC_VERSION);
        each(header::ID, row.event_id);
        each(header::SOURCE, &self.encoding.source);
        each(header::TYPE, row.r#type);
        each(header::TIME, &time);
        if let Some(subject) = row.subject.filter(|text| !text.is_empty()) {
            each(header::SUBJECT, subject);
        }
        if row.identity.is_none() {
            each(header::SEQUENCE, &sequence(row.id));
        }
        if let Some(traceparent) = row.traceparent.filter(|text| !text.is_empty()) {
            each(header::TRACEPARENT, traceparent);
        }
        if !row.content_type.is_empty() {
            each(CONTENT_TYPE, row.content_type);
        }
        let Some(json) = row.headers else {
            return Ok(());
        };
        for (name, value) in &application_headers(json)? {
            each(name, value);
        }
        Ok(())
    }
}

/// `"2026-01-02T03:04:05.678"` (JSON, UTC) as RFC 3339; `None` for infinity and for years it can't write.
fn rfc3339(json: &str) -> Option<String> {
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    let digits = |range| {
        text.get(range)
            .is_some_and(|part: &str| part.bytes().all(|b| b.is_ascii_digit()))
    };
    let legal = digits(0..4)
        && text.get(4..5) == Some("-")
        && text.get(10..11) == Some("T")
        && text.ends_with(|last: char| last.is_ascii_digit());
    legal.then(|| format!("{text}Z"))
}

/// Headers that the application sets. A name that begins with `ce_` is an extension attribute: lower-case letters and
/// digits, and none that a column sets.
fn application_headers(json: &str) -> Result<Vec<(String, String)>, Unencodable> {
    let invalid = Unencodable::HeadersInvalid;
    let object = match serde_json::from_str::<Option<Map<String, Value>>>(json) {
        Ok(object) => object.unwrap_or_default(),
        Err(_) => return Err(invalid),
    };
    let mut headers = Vec::with_capacity(object.len());
    for (name, value) in object {
        if !legal_name(&name) {
            return Err(invalid);
        }
        let value = match value {
            Value::Null => continue,
            Value::String(text) => text,
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Array(_) | Value::Object(_) => return Err(invalid),
        };
        headers.push((name, value));
    }
    Ok(headers)
}

fn legal_name(name: &str) -> bool {
    if name.is_empty() || name.eq_ignore_ascii_case(CONTENT_TYPE) {
        return false;
    }
    let Some(attribute) = name.strip_prefix(ATTRIBUTE_PREFIX) else {
        return true;
    };
    !attribute.is_empty()
        && !RESERVED.contains(&attribute)
        && attribute
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Bytes of a field of `length` bytes with its length before it.
const fn field(length: usize) -> usize {
    varint(length) + length
}

/// Bytes of the zigzag varint of `value`.
const fn varint(value: usize) -> usize {
    let bits = usize::BITS as usize + 1 - value.leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
pub(crate) mod tests;
