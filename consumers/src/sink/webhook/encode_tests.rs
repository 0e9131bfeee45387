//! Requests as receivers see them, checked against the CloudEvents HTTP binding and the Standard Webhooks crate.

use super::*;
use fanout_contract::envelope::sequence;
use proptest::prelude::*;
use rstest::rstest;
use standardwebhooks::Webhook;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn attributes() -> Attributes {
    Attributes {
        id: "6f1c".into(),
        source: "/social/posts".into(),
        r#type: "post.created".into(),
        time: Some("2026-01-02T03:04:05.678Z".into()),
        subject: None,
        content_type: Some("application/json".into()),
        extensions: vec![("sequence".into(), sequence(42))],
    }
}

fn event(value: Option<&[u8]>) -> Event {
    Event {
        partition: 0,
        offset: 0,
        timestamp: None,
        key: None,
        value: value.map(<[u8]>::to_vec),
        headers: None,
        attributes: Ok(attributes()),
    }
}

fn signer() -> Signer {
    Signer::new(&[SECRET.to_owned().into()]).unwrap()
}

fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs()
}

fn request(attributes: &Attributes, value: Option<&[u8]>, signer: &Signer) -> Encoded {
    encode(
        &event(value),
        attributes,
        "6f1c:social:search",
        signer,
        now(),
    )
    .unwrap()
}

fn header<'a>(encoded: &'a Encoded, name: &str) -> Option<&'a str> {
    encoded
        .headers
        .get(name)
        .map(|value| value.to_str().unwrap())
}

#[test]
fn an_unsigned_event_is_in_binary_mode_with_its_bytes_unchanged() {
    let body = b"{\"b\":1, \"a\":12345678901234567890.10}\xff";
    let request = request(&attributes(), Some(body), &Signer::default());
    assert_eq!(request.body, body);
    for (name, expected) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "6f1c"),
        ("ce-source", "/social/posts"),
        ("ce-type", "post.created"),
        ("ce-time", "2026-01-02T03:04:05.678Z"),
        ("ce-sequence", "00000000000000000042"),
        ("content-type", "application/json"),
        ("webhook-id", "6f1c:social:search"),
        ("idempotency-key", "6f1c:social:search"),
    ] {
        assert_eq!(header(&request, name), Some(expected), "{name}");
    }
    for name in [
        "ce-subject",
        "webhook-signature",
        "webhook-timestamp",
        "ce-datacontenttype",
    ] {
        assert_eq!(header(&request, name), None, "{name}");
    }
}

#[rstest]
#[case("plain", "plain")]
#[case("a b", "a%20b")]
#[case("a\"b%c", "a%22b%25c")]
#[case("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80")]
#[case("a\r\nX-Evil: 1", "a%0D%0AX-Evil:%201")]
#[case("\u{0}\u{7f}", "%00%7F")]
fn attribute_values_are_percent_encoded(#[case] subject: &str, #[case] expected: &str) {
    let attributes = Attributes {
        subject: Some(subject.into()),
        ..attributes()
    };
    let request = request(&attributes, None, &Signer::default());
    assert_eq!(header(&request, "ce-subject"), Some(expected));
}

#[test]
fn a_signed_event_is_structured_and_verifies_with_the_reference_implementation() {
    let request = request(&attributes(), Some(b"{\"a\":1}"), &signer());
    Webhook::new(SECRET)
        .unwrap()
        .verify(&request.body, &request.headers)
        .unwrap();
    assert_eq!(header(&request, "content-type"), Some(STRUCTURED));
    assert_eq!(
        String::from_utf8(request.body).unwrap(),
        "{\"specversion\":\"1.0\",\"id\":\"6f1c\",\"source\":\"/social/posts\",\"type\":\"post.created\",\
         \"time\":\"2026-01-02T03:04:05.678Z\",\"sequence\":\"00000000000000000042\",\
         \"datacontenttype\":\"application/json\",\"data\":{\"a\":1}}"
    );
}

#[test]
fn both_secrets_verify_while_they_are_rotated() {
    let old = format!("whsec_{}", STANDARD.encode([9; 32]));
    let signer = Signer::new(&[SECRET.to_owned().into(), old.clone().into()]).unwrap();
    let request = request(&attributes(), Some(b"{}"), &signer);
    for secret in [SECRET, &old] {
        Webhook::new(secret)
            .unwrap()
            .verify(&request.body, &request.headers)
            .unwrap();
    }
}

#[rstest]
#[case(b"{\"z\":1e308, \"a\": 12345678901234567890123, \"a\": 0.10}")]
#[case(b"[1.0, 1e2,\n -0]")]
#[case(b"\"text\"")]
#[case(b"null")]
fn json_stands_in_a_structured_event_byte_for_byte(#[case] data: &[u8]) {
    let request = request(&attributes(), Some(data), &signer());
    let text = String::from_utf8(request.body).unwrap();
    let data = std::str::from_utf8(data).unwrap();
    assert!(text.ends_with(&format!("\"data\":{data}}}")), "{text}");
}

#[rstest]
#[case("application/json", b"{\"a\":")]
#[case("application/json", b"{\"a\":\"\xff\"}")]
#[case("application/json", b"")]
#[case("application/json", b"{}{}")]
#[case("application/json", b"1,\"data\":2")]
#[case("text/plain", b"{}")]
#[case("application/avro", b"\x00\x01")]
fn what_is_no_json_goes_in_base64(#[case] content_type: &str, #[case] data: &[u8]) {
    let attributes = Attributes {
        content_type: Some(content_type.into()),
        ..attributes()
    };
    let request = request(&attributes, Some(data), &signer());
    let document: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(document["data_base64"], STANDARD.encode(data));
    assert!(document.get("data").is_none());
}

#[test]
fn an_event_without_data_has_none() {
    let structured = request(&attributes(), None, &signer());
    let document: serde_json::Value = serde_json::from_slice(&structured.body).unwrap();
    assert!(document.get("data").is_none() && document.get("data_base64").is_none());
    assert!(
        request(&attributes(), None, &Signer::default())
            .body
            .is_empty()
    );
}

#[test]
fn odd_extensions_never_spoil_an_event() {
    let attributes = Attributes {
        extensions: vec![
            ("data".into(), "forged".into()),
            ("twice".into(), "first".into()),
            ("twice".into(), "second".into()),
            ("not a token".into(), "x".into()),
            (String::new(), "empty name".into()),
            ("quote\"".into(), "a\"b\\c\u{1}".into()),
        ],
        ..attributes()
    };
    let binary = request(&attributes, None, &Signer::default());
    assert_eq!(header(&binary, "ce-twice"), Some("second"));
    assert_eq!(header(&binary, "ce-data"), None);
    let structured = request(&attributes, Some(b"1"), &signer());
    let document: serde_json::Value = serde_json::from_slice(&structured.body).unwrap();
    assert_eq!(document["data"], 1);
    assert_eq!(document["twice"], "second");
    assert_eq!(document["quote\""], "a\"b\\c\u{1}");
}

#[rstest]
#[case("6f1c", "social", "search", "6f1c:social:search")]
#[case("a.b", "n", "s.t", "a%2Eb:n:s%2Et")]
#[case("a:b%c", "n", "s", "a%3Ab%25c:n:s")]
#[case("a b\u{e9}\n", "n", "s", "a%20b%C3%A9%0A:n:s")]
fn the_delivery_id_has_no_full_stop_and_is_unambiguous(
    #[case] event: &str,
    #[case] namespace: &str,
    #[case] subscription: &str,
    #[case] expected: &str,
) {
    assert_eq!(delivery_id(event, namespace, subscription), expected);
}

proptest! {
    /// Whatever is in an event, there is a request, it verifies, and its parts come back.
    #[test]
    fn any_event_can_be_encoded(
        id in ".{1,30}", subject in proptest::option::of(".{0,30}"), value in proptest::option::of(any::<Vec<u8>>()),
        extensions in proptest::collection::vec((".{0,10}", ".{0,10}"), 0..4),
    ) {
        let attributes = Attributes {
            id: id.clone(),
            subject: subject.clone(),
            extensions: extensions.into_iter().filter(|(name, _)| !["id", "subject"].contains(&name.as_str())).collect(),
            ..attributes()
        };
        let event = event(value.as_deref());
        let delivery = delivery_id(&id, "n", "s");
        prop_assert!(!delivery.contains('.'));
        let binary = encode(&event, &attributes, &delivery, &Signer::default(), now()).unwrap();
        prop_assert_eq!(&binary.body, &value.clone().unwrap_or_default());
        let signed = encode(&event, &attributes, &delivery, &signer(), now()).unwrap();
        Webhook::new(SECRET).unwrap().verify(&signed.body, &signed.headers).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&signed.body).unwrap();
        prop_assert_eq!(document["id"].as_str(), Some(id.as_str()));
        prop_assert_eq!(document["subject"].as_str(), subject.as_deref());
    }

    #[test]
    fn different_deliveries_have_different_ids(a in ".{1,8}", b in ".{1,8}", c in ".{1,8}", d in ".{1,8}") {
        prop_assume!((&a, &b) != (&c, &d));
        prop_assert_ne!(delivery_id(&a, &b, "s"), delivery_id(&c, &d, "s"));
    }
}
