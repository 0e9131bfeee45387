//! Turns an event into a request: CloudEvents HTTP binding 1.0.2, binary mode when unsigned, structured when signed.

use super::sign::Signer;
use crate::event::Event;
use crate::verdict::Failure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fanout_contract::envelope::{Attributes, SPEC_VERSION};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::de::IgnoredAny;
use std::fmt::Write;

/// Media type of a structured event.
const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A request without its URL.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// Encodes `event`. `id` is the [`delivery_id`]; `timestamp` the time of this attempt, seconds since 1970.
pub(super) fn encode(
    event: &Event,
    attributes: &Attributes,
    id: &str,
    signer: &Signer,
    timestamp: u64,
) -> Result<Encoded, Failure> {
    let mut encoded = if signer.is_empty() {
        binary(event, attributes)?
    } else {
        structured(event, attributes)
    };
    let headers = &mut encoded.headers;
    headers.insert(WEBHOOK_ID, value(id)?);
    headers.insert(IDEMPOTENCY_KEY, value(id)?);
    if !signer.is_empty() {
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(timestamp));
        let signature = signer.sign(id, timestamp, &encoded.body);
        headers.insert(WEBHOOK_SIGNATURE, value(&signature)?);
    }
    Ok(encoded)
}

/// `<event id>:<namespace>:<subscription>`: the same for every attempt, and without the full stop that separates
/// what is signed.
pub(super) fn delivery_id(event_id: &str, namespace: &str, subscription: &str) -> String {
    let part = |text| {
        percent_encode(text, |byte| {
            byte.is_ascii_graphic() && !b".%:".contains(&byte)
        })
    };
    format!(
        "{}:{}:{}",
        part(event_id),
        part(namespace),
        part(subscription)
    )
}

fn value(text: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(text).map_err(|_| Failure::Unencodable)
}

fn binary(event: &Event, attributes: &Attributes) -> Result<Encoded, Failure> {
    let mut headers = HeaderMap::new();
    for (name, text) in context(attributes) {
        // An extension with a name that HTTP can't carry is left out: the event matters more.
        if let Ok(name) = HeaderName::try_from(format!("ce-{name}")) {
            headers.insert(name, value(&attribute_value(text))?);
        }
    }
    if let Some(content_type) = attributes.content_type.as_deref() {
        headers.insert(CONTENT_TYPE, value(content_type)?);
    }
    Ok(Encoded {
        headers,
        body: event.value.clone().unwrap_or_default(),
    })
}

/// Section 3.1.3.2: space, double quote, percent and everything outside printable ASCII is percent-encoded.
fn attribute_value(text: &str) -> String {
    percent_encode(text, |byte| {
        byte.is_ascii_graphic() && !b"\"%".contains(&byte)
    })
}

fn percent_encode(text: &str, plain: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if plain(byte) {
            encoded.push(char::from(byte));
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Attributes in a fixed order, without `datacontenttype`.
fn context(attributes: &Attributes) -> impl Iterator<Item = (&str, &str)> {
    let own = [
        ("specversion", Some(SPEC_VERSION)),
        ("id", Some(attributes.id.as_str())),
        ("source", Some(attributes.source.as_str())),
        ("type", Some(attributes.r#type.as_str())),
        ("time", attributes.time.as_deref()),
        ("subject", attributes.subject.as_deref()),
    ];
    let own = own
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    own.chain(extensions(attributes))
}

/// Extensions, each name once (the last wins) and none that means something else in an event.
fn extensions(attributes: &Attributes) -> impl Iterator<Item = (&str, &str)> {
    const TAKEN: &[&str] = &["data", "data_base64", "datacontenttype"];
    let all = &attributes.extensions;
    all.iter()
        .enumerate()
        .filter_map(move |(index, (name, value))| {
            let later = all.iter().skip(index + 1).any(|(other, _)| other == name);
            (!later && !TAKEN.contains(&name.as_str())).then_some((name.as_str(), value.as_str()))
        })
}

/// JSON event format. The payload is copied as it is: parsing and printing would change large numbers and the
/// order of keys.
fn structured(event: &Event, attributes: &Attributes) -> Encoded {
    let mut body = Vec::with_capacity(512 + event.value.as_ref().map_or(0, Vec::len));
    let mut member = |name: &str, value: &str| {
        body.push(if body.is_empty() { b'{' } else { b',' });
        json_string(&mut body, name);
        body.push(b':');
        json_string(&mut body, value);
    };
    for (name, value) in context(attributes) {
        member(name, value);
    }
    if let Some(content_type) = attributes.content_type.as_deref() {
        member("datacontenttype", content_type);
    }
    match event.value.as_deref() {
        Some(data) if embeds(attributes, data) => {
            body.extend_from_slice(b",\"data\":");
            body.extend_from_slice(data);
        }
        Some(data) => member("data_base64", &STANDARD.encode(data)),
        None => {}
    }
    body.push(b'}');
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(STRUCTURED));
    Encoded { headers, body }
}

/// May the payload stand in a JSON document as it is?
fn embeds(attributes: &Attributes, data: &[u8]) -> bool {
    let is_json = attributes
        .content_type
        .as_deref()
        .is_some_and(|content_type| {
            let essence = content_type.split(';').next().unwrap_or_default();
            let essence = essence.trim().to_ascii_lowercase();
            essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
        });
    is_json
        && std::str::from_utf8(data)
            .is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

fn json_string(body: &mut Vec<u8>, text: &str) {
    // Writing a string to memory can't fail; were it to, an empty one keeps the document valid.
    match serde_json::to_vec(text) {
        Ok(quoted) => body.extend_from_slice(&quoted),
        Err(_) => body.extend_from_slice(b"\"\""),
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
