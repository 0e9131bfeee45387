//! A request becomes a delivery: CloudEvents over HTTP in binary or structured mode.

use crate::event;
use axum::http::{HeaderMap, header};
use serde_json::Value;

/// What is recorded of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) subscription: String,
    pub(super) event_id: String,
    pub(super) author: String,
    pub(super) sequence: i64,
    pub(super) digest: Vec<u8>,
}

/// The event in a request; `None` when it is none of this application's.
pub(super) fn decode(subscription: String, headers: &HeaderMap, body: &[u8]) -> Option<Delivery> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let structured = text(header::CONTENT_TYPE.as_str())
        .is_some_and(|value| value.starts_with("application/cloudevents+json"));
    let (id, r#type, data) = if structured {
        (body["id"].as_str()?, body["type"].as_str()?, &body["data"])
    } else {
        (text("ce-id")?, text("ce-type")?, &body)
    };
    Some(Delivery {
        subscription,
        event_id: id.to_owned(),
        author: data["author"].as_str()?.to_owned(),
        sequence: data["sequence"].as_i64()?,
        digest: event::digest(r#type, data),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn both_modes_give_the_same_delivery() {
        let data = json!({"author": "a", "sequence": 4, "visibility": "public", "detail": "x"});
        let binary = decode(
            "s".into(),
            &headers(&[
                ("content-type", "application/json"),
                ("ce-id", "1"),
                ("ce-type", "post.created"),
            ]),
            data.to_string().as_bytes(),
        );
        let document =
            json!({"specversion": "1.0", "id": "1", "type": "post.created", "data": data});
        let structured = decode(
            "s".into(),
            &headers(&[(
                "content-type",
                "application/cloudevents+json; charset=utf-8",
            )]),
            document.to_string().as_bytes(),
        );
        assert_eq!(binary, structured);
        assert_eq!(
            binary.unwrap(),
            Delivery {
                subscription: "s".into(),
                event_id: "1".into(),
                author: "a".into(),
                sequence: 4,
                digest: event::digest("post.created", &data),
            }
        );
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let event = [("ce-id", "1"), ("ce-type", "post.created")];
        assert_eq!(decode("s".into(), &headers(&event), b"no json"), None);
        assert_eq!(decode("s".into(), &headers(&event), b"{}"), None);
        let data = br#"{"author": "a", "sequence": 1}"#;
        assert!(decode("s".into(), &headers(&event), data).is_some());
        assert_eq!(decode("s".into(), &headers(&event[..1]), data), None);
    }
}
