use super::*;
use fanout_contract::envelope::Attributes;
use proptest::prelude::*;
use rstest::rstest;

fn row() -> Row<'static> {
    Row {
        id: 42,
        event_id: "6f1c1f5e-8a55-4f0e-9d0b-0c9a3c1c9a11",
        key: Some("k"),
        r#type: "post.created",
        subject: None,
        content_type: "application/json",
        headers: None,
        traceparent: None,
        payload: Some("7b7d"),
        created_at: "\"2026-01-02T03:04:05.678\"",
        identity: None,
    }
}

fn encoding(format: Format, null_payload: NullPayload) -> Encoding {
    Encoding {
        source: "/social/posts".to_owned(),
        format,
        null_payload,
    }
}

fn encoder() -> Encoder {
    limited(1_048_588)
}

/// What a FanoutTopic has by default.
pub(crate) fn cloud_events() -> Encoding {
    encoding(Format::CloudEvents, NullPayload::Empty)
}

fn limited(max_message_bytes: usize) -> Encoder {
    Encoder::new(cloud_events(), max_message_bytes)
}

#[rstest]
#[case(Format::CloudEvents, NullPayload::Empty, Some(""))]
#[case(Format::CloudEvents, NullPayload::Tombstone, None)]
#[case(Format::Debezium, NullPayload::Empty, None)]
fn a_null_payload_is_a_tombstone_only_where_that_is_asked_for(
    #[case] format: Format,
    #[case] null_payload: NullPayload,
    #[case] value: Option<&str>,
) {
    let encoder = Encoder::new(encoding(format, null_payload), 1_000);
    let null = Row {
        payload: None,
        ..row()
    };
    assert_eq!(encoder.value(&null), value);
    assert_eq!(encoder.value(&row()), Some("7b7d"));
}

#[test]
fn debezium_needs_nothing_but_the_id() {
    let encoder = Encoder::new(encoding(Format::Debezium, NullPayload::Empty), 1_000);
    let bare = Row {
        r#type: "",
        headers: Some("[1]"),
        created_at: "\"infinity\"",
        ..row()
    };
    assert_eq!(encoder.check(&bare), Ok(()));
    let mut headers = Vec::new();
    encoder
        .each_header(&bare, |name, value| {
            headers.push((name.to_owned(), value.to_owned()));
        })
        .unwrap();
    assert_eq!(headers, [("id".to_owned(), bare.event_id.to_owned())]);
}

fn headers(row: &Row<'_>) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    encoder()
        .each_header(row, |name, value| {
            headers.push((name.to_owned(), value.to_owned()));
        })
        .unwrap();
    headers
}

#[test]
fn a_row_is_a_cloud_event() {
    let full = Row {
        subject: Some("s"),
        traceparent: Some("00-1-2-01"),
        headers: Some(r#"{"x-tenant": "ü", "ce_tenant": 7, "x-none": null}"#),
        ..row()
    };
    let headers = headers(&full);
    let event = Attributes::from_headers(
        headers
            .iter()
            .map(|(n, v)| (n.as_str(), Some(v.as_bytes()))),
    )
    .unwrap();
    assert_eq!(event.id, full.event_id);
    assert_eq!(event.source, "/social/posts");
    assert_eq!(event.r#type, "post.created");
    assert_eq!(event.time.as_deref(), Some("2026-01-02T03:04:05.678Z"));
    assert_eq!(event.subject.as_deref(), Some("s"));
    assert_eq!(event.content_type.as_deref(), Some("application/json"));
    assert_eq!(event.extension("sequence"), Some("00000000000000000042"));
    assert_eq!(event.extension("traceparent"), Some("00-1-2-01"));
    assert_eq!(event.extension("tenant"), Some("7"));
    assert!(headers.contains(&("x-tenant".into(), "ü".into())));
    assert!(!headers.iter().any(|(name, _)| name == "x-none"));
}

#[test]
fn absent_attributes_have_no_header() {
    let bare = Row {
        subject: Some(""),
        traceparent: Some(""),
        ..row()
    };
    let headers = headers(&bare);
    assert!(
        !headers
            .iter()
            .any(|(name, _)| name == "ce_subject" || name == "ce_traceparent")
    );
}

#[rstest]
#[case::array("[]")]
#[case::text(r#""a""#)]
#[case::nested(r#"{"a": {"b": 1}}"#)]
#[case::list(r#"{"a": [1]}"#)]
#[case::no_name(r#"{"": "x"}"#)]
#[case::attribute_of_a_column(r#"{"ce_id": "x"}"#)]
#[case::attribute_of_the_relay(r#"{"ce_sequence": "1"}"#)]
#[case::content_type(r#"{"Content-Type": "x"}"#)]
#[case::illegal_extension(r#"{"ce_Tenant": "x"}"#)]
fn headers_that_are_no_object_of_texts_are_refused(#[case] json: &str) {
    let row = Row {
        headers: Some(json),
        ..row()
    };
    assert_eq!(encoder().check(&row), Err(Unencodable::HeadersInvalid));
}

#[rstest]
#[case("\"infinity\"")]
#[case("\"10000-01-01T00:00:00\"")]
#[case("\"0044-03-15T00:00:00 BC\"")]
fn times_that_rfc_3339_can_not_write_are_refused(#[case] created_at: &str) {
    let row = Row {
        created_at,
        ..row()
    };
    assert_eq!(encoder().check(&row), Err(Unencodable::TimeInvalid));
}

#[test]
fn an_empty_type_is_refused() {
    let row = Row {
        r#type: "",
        ..row()
    };
    assert_eq!(encoder().check(&row), Err(Unencodable::TypeEmpty));
}

#[test]
fn a_record_may_fill_the_limit_exactly() {
    // 61 for the batch; 3 and the varints of the record; what the headers weigh is in `each_header`.
    let payload = "00".repeat(1000);
    let row = Row {
        payload: Some(&payload),
        ..row()
    };
    let weight: usize = headers(&row)
        .iter()
        .map(|(n, v)| 1 + n.len() + 1 + v.len())
        .sum();
    let body = 3 + (1 + 1) + (2 + 1000) + 1 + weight;
    let exact = 61 + 2 + body;
    assert_eq!(limited(exact).check(&row), Ok(()));
    assert_eq!(
        limited(exact - 1).check(&row),
        Err(Unencodable::RecordTooLarge)
    );
}

#[rstest]
#[case(0, 1)]
#[case(63, 1)]
#[case(64, 2)]
#[case(8191, 2)]
#[case(8192, 3)]
#[case(1_048_575, 3)]
#[case(1_048_576, 4)]
fn varints_are_zigzag(#[case] value: usize, #[case] bytes: usize) {
    assert_eq!(varint(value), bytes);
}

proptest! {
    #[test]
    fn no_headers_make_it_panic(json in ".*") {
        let row = Row { headers: Some(&json), ..row() };
        let _either = encoder().check(&row);
    }
}
