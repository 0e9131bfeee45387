//! Observer of a webhook endpoint: what a [`crate::receiver::Receiver`] recorded.

use super::content::{self, Form};
use crate::verdict::Event;
use base64::Engine as _;
use fanout_contract::envelope::{Attributes, SEQUENCE};
use serde_json::Value;
use sqlx::PgPool;
use std::collections::HashMap;

/// A request that was answered with success.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Event id.
    pub(super) id: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// Requests of `receiver` that were answered with success, in the order of arrival.
pub(super) async fn accepted(pool: &PgPool, receiver: &str) -> Vec<Accepted> {
    let rows: Vec<(String, String, Vec<u8>)> = sqlx::query_as(
        "select coalesce(event_id, ''), headers::text, body
           from harness.received
          where receiver = $1 and status between 200 and 299
          order by seq",
    )
    .bind(receiver)
    .fetch_all(pool)
    .await
    .expect("the superuser reads what was received");
    rows.into_iter()
        .map(|(id, headers, body)| Accepted {
            id,
            headers: serde_json::from_str(&headers).expect("written by the receiver"),
            body,
        })
        .collect()
}

impl Accepted {
    /// For the verdict, as the event of `key`.
    pub(super) fn event(self, key: Option<&str>, form: Form) -> Event {
        let content_type = self.headers.get("content-type").map(String::as_str);
        let structured =
            content_type.is_some_and(|value| value.starts_with("application/cloudevents"));
        let (attributes, data) = if structured {
            structured_event(&self.body)
        } else {
            (binary_attributes(&self.headers), self.body)
        };
        Event {
            content: content::digest(&attributes, &data, form),
            id: self.id,
            key: key.map(str::to_owned),
            sequence: 0,
        }
    }
}

fn binary_attributes(headers: &HashMap<String, String>) -> Attributes {
    let text = |name: &str| headers.get(name).cloned();
    Attributes {
        id: text("ce-id").unwrap_or_default(),
        source: text("ce-source").unwrap_or_default(),
        r#type: text("ce-type").unwrap_or_default(),
        time: None,
        subject: text("ce-subject"),
        content_type: text("content-type"),
        extensions: sequence(text("ce-sequence")),
    }
}

/// Attributes and data of a JSON document in structured mode.
fn structured_event(body: &[u8]) -> (Attributes, Vec<u8>) {
    let document: HashMap<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| document.get(name)?.as_str().map(str::to_owned);
    let attributes = Attributes {
        id: text("id").unwrap_or_default(),
        source: text("source").unwrap_or_default(),
        r#type: text("type").unwrap_or_default(),
        time: None,
        subject: text("subject"),
        content_type: text("datacontenttype"),
        extensions: sequence(text("sequence")),
    };
    let data = match (text("data_base64"), document.get("data")) {
        (Some(encoded), _) => base64::engine::general_purpose::STANDARD
            .decode(encoded)
            .unwrap_or_default(),
        (None, Some(Value::String(plain))) if !is_json(attributes.content_type.as_deref()) => {
            plain.clone().into_bytes()
        }
        (None, Some(value)) => value.to_string().into_bytes(),
        (None, None) => Vec::new(),
    };
    (attributes, data)
}

fn sequence(value: Option<String>) -> Vec<(String, String)> {
    value
        .map(|value| (SEQUENCE.to_owned(), value))
        .into_iter()
        .collect()
}

fn is_json(content_type: Option<&str>) -> bool {
    content_type
        .is_none_or(|value| value.starts_with("application/json") || value.contains("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINARY: [(&str, &str); 5] = [
        ("ce-id", "1"),
        ("ce-type", "post.created"),
        ("ce-subject", "key-1/1"),
        ("ce-sequence", "00000000000000000007"),
        ("content-type", "application/json"),
    ];

    fn request(headers: &[(&str, &str)], body: &str) -> Accepted {
        Accepted {
            id: "1".to_owned(),
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: body.as_bytes().to_vec(),
        }
    }

    #[test]
    fn both_modes_say_the_same() {
        let binary = request(&BINARY, r#"{ "n": 1 }"#).event(Some("key-1"), Form::Json);
        let document = r#"{"specversion":"1.0","id":"1","source":"/a/b","type":"post.created","subject":"key-1/1",
            "sequence":"00000000000000000007","datacontenttype":"application/json","data":{"n":1}}"#;
        let headers = [(
            "content-type",
            "application/cloudevents+json; charset=utf-8",
        )];
        let structured = request(&headers, document).event(Some("key-1"), Form::Json);
        assert_eq!(binary, structured);
    }

    #[test]
    fn base64_data_is_decoded() {
        let document = r#"{"type":"t","datacontenttype":"image/png","data_base64":"AP8="}"#;
        assert_eq!(structured_event(document.as_bytes()).1, [0, 255]);
    }
}
