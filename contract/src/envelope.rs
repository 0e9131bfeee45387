//! The record that travels through the log: a CloudEvent 1.0 in Kafka binary mode.
//!
//! The relay encodes, consumers decode; both use the names below. The value is the payload's bytes, unchanged.
//! Source: CloudEvents Kafka protocol binding 1.0.2, section 3.2; `sequence` and `traceparent` are extensions.

use std::fmt;

/// Prefix of attribute headers.
pub const ATTRIBUTE_PREFIX: &str = "ce_";
/// Header that carries `datacontenttype`.
pub const CONTENT_TYPE: &str = "content-type";
/// The only spec version written and accepted.
pub const SPEC_VERSION: &str = "1.0";
/// Digits of `sequence`, so that it sorts as text: enough for every 64-bit id.
pub const SEQUENCE_DIGITS: usize = 20;

/// Names of the headers the relay writes, spelled out: it writes millions.
pub mod header {
    /// `specversion`.
    pub const SPEC_VERSION: &str = "ce_specversion";
    /// `id`.
    pub const ID: &str = "ce_id";
    /// `source`.
    pub const SOURCE: &str = "ce_source";
    /// `type`.
    pub const TYPE: &str = "ce_type";
    /// `time`.
    pub const TIME: &str = "ce_time";
    /// `subject`.
    pub const SUBJECT: &str = "ce_subject";
    /// [`SEQUENCE`](super::SEQUENCE).
    pub const SEQUENCE: &str = "ce_sequence";
    /// [`TRACEPARENT`](super::TRACEPARENT).
    pub const TRACEPARENT: &str = "ce_traceparent";
}

/// Headers of a dead-lettered record, beside the unchanged headers of the event.
pub mod dead_letter {
    /// `<namespace>/<name>` of the Subscription that gave up.
    pub const SUBSCRIPTION: &str = "fanout_subscription";
    /// Reason class, CamelCase.
    pub const REASON: &str = "fanout_reason";
    /// Number of attempts made.
    pub const ATTEMPTS: &str = "fanout_attempts";
    /// Time of the first attempt, RFC 3339.
    pub const FIRST_ATTEMPT_TIME: &str = "fanout_first_attempt_time";
    /// Time of the last attempt, RFC 3339.
    pub const LAST_ATTEMPT_TIME: &str = "fanout_last_attempt_time";
    /// `<topic>/<partition>/<offset>` of the original record.
    pub const ORIGIN: &str = "fanout_origin";
}

/// Context attributes of one event; the data stays outside because it is never copied or re-encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `id`: the outbox `event_id`; the same on every repeat.
    pub id: String,
    /// `source`: `/<namespace>/<FanoutTopic>` unless mapped.
    pub source: String,
    /// `type`.
    pub r#type: String,
    /// `time`: commit-side creation time, RFC 3339.
    pub time: Option<String>,
    /// `subject`; absent when NULL.
    pub subject: Option<String>,
    /// `datacontenttype`.
    pub content_type: Option<String>,
    /// Further attributes by name (`sequence`, `traceparent`, unknown ones), passed through unchanged.
    pub extensions: Vec<(String, String)>,
}

/// Name of the extension that carries the outbox id.
pub const SEQUENCE: &str = "sequence";
/// Name of the extension that carries the starting trace context.
pub const TRACEPARENT: &str = "traceparent";

impl Attributes {
    /// Value of the extension `name`.
    pub fn extension(&self, name: &str) -> Option<&str> {
        self.extensions
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Record headers in binary mode, in a fixed order.
    pub fn to_headers(&self) -> Vec<(String, &str)> {
        let mut headers = vec![
            attribute("specversion", SPEC_VERSION),
            attribute("id", &self.id),
            attribute("source", &self.source),
            attribute("type", &self.r#type),
        ];
        headers.extend(self.time.iter().map(|value| attribute("time", value)));
        headers.extend(self.subject.iter().map(|value| attribute("subject", value)));
        headers.extend(
            self.extensions
                .iter()
                .map(|(name, value)| attribute(name, value)),
        );
        headers.extend(
            self.content_type
                .iter()
                .map(|v| (CONTENT_TYPE.to_owned(), v.as_str())),
        );
        headers
    }

    /// Reads the headers of a record in binary mode.
    ///
    /// # Errors
    /// A required attribute is missing, empty or not UTF-8, or the spec version is another one.
    pub fn from_headers<'a>(
        headers: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) -> Result<Self, DecodeError> {
        let mut required: [Option<String>; 4] = [None, None, None, None];
        let mut decoded = Self {
            id: String::new(),
            source: String::new(),
            r#type: String::new(),
            time: None,
            subject: None,
            content_type: None,
            extensions: Vec::new(),
        };
        for (header, value) in headers {
            let name = header.strip_prefix(ATTRIBUTE_PREFIX);
            if name.is_none() && header != CONTENT_TYPE {
                continue;
            }
            let value = std::str::from_utf8(value.unwrap_or_default())
                .map_err(|_| DecodeError::NotUtf8(header.to_owned()))?
                .to_owned();
            match name {
                None => decoded.content_type = Some(value),
                Some("specversion") => required[0] = Some(value),
                Some("id") => required[1] = Some(value),
                Some("source") => required[2] = Some(value),
                Some("type") => required[3] = Some(value),
                Some("time") => decoded.time = Some(value),
                Some("subject") => decoded.subject = Some(value),
                Some(extension) => decoded.extensions.push((extension.to_owned(), value)),
            }
        }
        let [version, id, source, r#type] = required;
        let present = |value: Option<String>, name| {
            value
                .filter(|v| !v.is_empty())
                .ok_or(DecodeError::Missing(name))
        };
        let version = present(version, "specversion")?;
        if version != SPEC_VERSION {
            return Err(DecodeError::SpecVersion(version));
        }
        decoded.id = present(id, "id")?;
        decoded.source = present(source, "source")?;
        decoded.r#type = present(r#type, "type")?;
        Ok(decoded)
    }
}

/// `sequence` of an outbox id: zero-padded decimal.
pub fn sequence(id: i64) -> String {
    format!("{id:0SEQUENCE_DIGITS$}")
}

fn attribute<'a>(name: &str, value: &'a str) -> (String, &'a str) {
    (format!("{ATTRIBUTE_PREFIX}{name}"), value)
}

/// Why a record is no CloudEvent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A required attribute is missing or empty.
    Missing(&'static str),
    /// A header's value is not UTF-8.
    NotUtf8(String),
    /// A spec version other than [`SPEC_VERSION`].
    SpecVersion(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "attribute {name} is missing"),
            Self::NotUtf8(header) => write!(f, "header {header} is not UTF-8"),
            Self::SpecVersion(_) => write!(f, "specversion is not {SPEC_VERSION}"),
        }
    }
}

impl std::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Attributes {
        Attributes {
            id: "6f1c".into(),
            source: "/social/posts".into(),
            r#type: "post.created".into(),
            time: Some("2026-01-02T03:04:05.678Z".into()),
            subject: None,
            content_type: Some("application/json".into()),
            extensions: vec![
                (SEQUENCE.into(), sequence(42)),
                ("custom".into(), "ü".into()),
            ],
        }
    }

    fn decode(headers: &[(String, &str)]) -> Result<Attributes, DecodeError> {
        Attributes::from_headers(
            headers
                .iter()
                .map(|(n, v)| (n.as_str(), Some(v.as_bytes()))),
        )
    }

    #[test]
    fn headers_round_trip() {
        let event = event();
        assert_eq!(decode(&event.to_headers()), Ok(event));
    }

    #[test]
    fn header_names_are_the_prefixed_attributes() {
        let mut event = event();
        event.subject = Some("s".into());
        event.extensions = vec![
            (SEQUENCE.into(), sequence(1)),
            (TRACEPARENT.into(), "00".into()),
        ];
        let names: Vec<_> = event
            .to_headers()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            names,
            [
                header::SPEC_VERSION,
                header::ID,
                header::SOURCE,
                header::TYPE,
                header::TIME,
                header::SUBJECT,
                header::SEQUENCE,
                header::TRACEPARENT,
                CONTENT_TYPE
            ]
        );
    }

    #[test]
    fn sequence_sorts_as_text() {
        assert_eq!(sequence(42), "00000000000000000042");
        assert!(sequence(9) < sequence(10));
        assert_eq!(sequence(i64::MAX).len(), SEQUENCE_DIGITS);
    }

    #[test]
    fn missing_and_foreign_attributes_are_named() {
        let event = event();
        let without = |name: &str| -> Vec<_> {
            event
                .to_headers()
                .into_iter()
                .filter(|(n, _)| n != name)
                .collect()
        };
        assert_eq!(decode(&without("ce_id")), Err(DecodeError::Missing("id")));
        assert_eq!(
            decode(&without("ce_specversion")),
            Err(DecodeError::Missing("specversion"))
        );
        let mut other = event.to_headers();
        other[0].1 = "0.3";
        assert_eq!(decode(&other), Err(DecodeError::SpecVersion("0.3".into())));
    }

    #[test]
    fn application_headers_are_not_attributes() {
        let event = event();
        let mut headers = event.to_headers();
        headers.push(("x-tenant".into(), "7"));
        assert_eq!(decode(&headers), Ok(event));
    }
}
