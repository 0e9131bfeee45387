//! Parses messages with the CloudEvents SDK for Rust: a JSON list on standard input, a JSON list of events on standard output.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cloudevents::binding::http::to_event;
use cloudevents::event::SpecVersion;
use cloudevents::message::{
    BinaryDeserializer, BinarySerializer, Error, MessageAttributeValue, Result,
};
use cloudevents::{AttributesReader as _, Data, Event};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Message {
    protocol: String,
    headers: BTreeMap<String, String>,
    value: String,
}

/// A Kafka record as the SDK's own binding hands it on, which needs another version of the client.
struct Record {
    headers: BTreeMap<String, String>,
    value: Vec<u8>,
}

impl BinaryDeserializer for Record {
    fn deserialize_binary<R: Sized, V: BinarySerializer<R>>(mut self, mut visitor: V) -> Result<R> {
        let version = self
            .headers
            .remove("ce_specversion")
            .ok_or(Error::WrongEncoding {})?;
        let version = SpecVersion::try_from(version.as_str())?;
        let attributes = version.attribute_names();
        visitor = visitor.set_spec_version(version)?;
        for (name, value) in self.headers {
            let value = MessageAttributeValue::String(value);
            visitor = match name.strip_prefix("ce_") {
                None if name == "content-type" => {
                    visitor.set_attribute("datacontenttype", value)?
                }
                None => visitor,
                Some(name) if attributes.contains(&name) => visitor.set_attribute(name, value)?,
                Some(name) => visitor.set_extension(name, value)?,
            };
        }
        visitor.end_with_data(self.value)
    }
}

fn parse(message: Message) -> Result<Event> {
    let value = STANDARD.decode(message.value).expect("base64");
    if message.protocol == "kafka" {
        let headers = message.headers;
        return BinaryDeserializer::into_event(Record { headers, value });
    }
    let headers: HeaderMap = message
        .headers
        .iter()
        .map(|(name, value)| {
            let name: HeaderName = name.parse().expect("a header's name");
            (
                name,
                HeaderValue::from_str(value).expect("a header's value"),
            )
        })
        .collect();
    to_event(&headers, value)
}

fn shown(event: &Event) -> Value {
    let attributes: Map<String, Value> = event
        .iter()
        .filter(|(name, _)| *name != "time")
        .map(|(name, value)| (name.to_owned(), value.to_string().into()))
        .collect();
    let data = match event.data() {
        None => Value::Null,
        Some(Data::Binary(bytes)) => json!({"base64": STANDARD.encode(bytes)}),
        Some(Data::String(text)) => json!({"value": text}),
        Some(Data::Json(value)) => json!({"value": value}),
    };
    json!({
        "attributes": attributes,
        "milliseconds": event.time().map(|time| time.timestamp_millis()),
        "data": data,
    })
}

fn main() {
    let messages: Vec<Message> = serde_json::from_reader(std::io::stdin()).expect("messages");
    let events: Vec<Value> = messages
        .into_iter()
        .map(|message| shown(&parse(message).expect("an event")))
        .collect();
    serde_json::to_writer(std::io::stdout(), &events).expect("written");
}
