//! Filters as tables: expression, event, answer.

use super::*;
use rstest::rstest;

const DATA: &str = r#"{"total": 41, "big": 18446744073709551615, "ratio": 0.5, "tags": ["a", "b"], "visibility": "public", "none": null, "nested": {"deep": [1, 2]}}"#;

fn event() -> Attributes {
    Attributes {
        id: "e-1".into(),
        source: "/social/posts".into(),
        r#type: "post.created".into(),
        time: Some("2026-01-02T03:04:05Z".into()),
        subject: None,
        content_type: Some("application/json; charset=utf-8".into()),
        extensions: vec![
            ("sequence".into(), "00000000000000000042".into()),
            ("type".into(), "forged".into()),
            ("subject".into(), "forged".into()),
        ],
    }
}

#[expect(clippy::unwrap_in_result, reason = "the filter of a test compiles")]
fn judge(source: &str) -> Result<bool, EvalError> {
    Filter::compile(source)
        .expect("compiles")
        .matches(&event(), Some(DATA.as_bytes()))
}

#[rstest]
#[case("true", true)]
#[case("event.type == 'post.created'", true)]
#[case("event.type == 'forged'", false)]
#[case("has(event.subject)", false)]
#[case("has(event.data) && event.data.visibility == \"public\"", true)]
#[case("event.data.total + 1 == 42", true)]
#[case("event.data.total * 2 - 1 > 80 && -event.data.total < 0", true)]
#[case("event.data.big > 5u", true)]
#[case("event.data.ratio * 2.0 == 1.0", true)]
#[case("event.data.none == null", true)]
#[case("'b' in event.data.tags", true)]
#[case("event.data.tags.exists(tag, tag.startsWith('a'))", true)]
#[case("event.data.tags.all(event, event == 'a')", false)]
#[case("event.data.nested.deep[1] == 2", true)]
#[case("event['data'].total == 41", true)]
#[case("event.sequence == '00000000000000000042'", true)]
#[case("event.source.matches('^/social/')", true)]
#[case("timestamp(event.time).getFullYear() == 2026", true)]
#[case("type(event.data.tags) == list", true)]
#[case(
    "event.data.tags.filter(t, t != 'a').map(t, size(t)).exists(n, n == 1)",
    true
)]
fn expressions_are_evaluated(#[case] source: &str, #[case] expected: bool) {
    assert_eq!(judge(source), Ok(expected), "{source}");
}

#[rstest]
#[case("event.subject == 'x'")]
#[case("event.data.missing > 1")]
#[case("event.data.total == 41 && event.data.visibility > 3")]
#[case("event.data.total / 0 == 1")]
#[case("9223372036854775807 + event.data.total > 0")]
fn what_cannot_be_evaluated_is_an_error(#[case] source: &str) {
    assert_eq!(judge(source), Err(EvalError::Failed), "{source}");
}

#[test]
fn a_result_that_is_no_boolean_is_an_error() {
    assert_eq!(judge("event.data.total"), Err(EvalError::NotBoolean));
}

#[rstest]
#[case("posts.id == 1", FilterError::UnknownVariable("posts".into()))]
#[case("event.data.tags.exists(t, tt == 'a')", FilterError::UnknownVariable("tt".into()))]
#[case("event.data.tags.exists(t, t == 'a') && t == 'a'", FilterError::UnknownVariable("t".into()))]
#[case("lookup(event.id)", FilterError::UnknownFunction("lookup".into()))]
#[case("event.id.lowerAscii() == 'x'", FilterError::UnknownFunction("lowerAscii".into()))]
#[case(
    "event.data.tags.all(a, event.data.tags.all(b, a == b))",
    FilterError::NestedComprehension
)]
fn what_a_filter_may_not_use_is_refused_when_compiling(
    #[case] source: &str,
    #[case] expected: FilterError,
) {
    assert_eq!(Filter::compile(source).unwrap_err(), expected);
}

#[rstest]
#[case("")]
#[case("event.")]
#[case("event.type = 'x'")]
#[case("event.type == 'x")]
#[case("event.type == 'x' event.id")]
#[case("\u{0}")]
fn what_is_no_cel_is_refused(#[case] source: &str) {
    assert!(matches!(
        Filter::compile(source),
        Err(FilterError::Syntax(_))
    ));
}

#[test]
fn length_is_bounded_in_bytes() {
    let fits = format!("event.id != '{}'", "ü".repeat((MAX_BYTES - 14) / 2));
    assert_eq!(fits.len(), MAX_BYTES);
    Filter::compile(&fits).unwrap();
    assert_eq!(
        Filter::compile(&format!("{fits} ")).unwrap_err(),
        FilterError::TooLong
    );
}

/// Each of these brings down a process whose parser or interpreter recurses without a bound.
#[rstest]
#[case("(", "true", ")")]
#[case("[", "1", "]")]
#[case("{1:", "1", "}")]
#[case("", "event", ".a")]
#[case("", "event", "[0]")]
#[case("1+", "1", "")]
#[case("1-(", "1", ")")]
#[case("!", "true", "")]
#[case("-", "1", "")]
#[case("!(", "true", ")")]
#[case("true?true:", "true", "")]
#[case("true?(", "true", "):true")]
#[case("size(", "''", ")")]
#[case("has(event.a)&&", "true", "")]
#[case("event.a.map(x,", "x", ")")]
#[case("", "''", ".size()")]
fn nesting_never_overflows_the_stack(
    #[case] open: &str,
    #[case] middle: &str,
    #[case] close: &str,
) {
    for levels in [10, 60, 100, 1000, 5000] {
        let source = format!("{}{middle}{}", open.repeat(levels), close.repeat(levels));
        if let Ok(filter) = Filter::compile(&source) {
            // Evaluated on a stack like the runtime's.
            std::thread::Builder::new()
                .stack_size(2 << 20)
                .spawn(move || filter.matches(&event(), Some(DATA.as_bytes())).is_ok())
                .unwrap()
                .join()
                .unwrap();
        } else {
            assert!(levels > 10 || open.contains("map("), "{source}");
        }
    }
}

#[rstest]
#[case(Some("application/json"), true)]
#[case(Some("Application/JSON;charset=utf-8"), true)]
#[case(Some("application/vnd.post+json"), true)]
#[case(Some("text/json"), true)]
#[case(Some("text/plain"), false)]
#[case(Some("application/jsonp"), false)]
#[case(None, false)]
fn data_is_present_only_for_json(#[case] content_type: Option<&str>, #[case] present: bool) {
    let mut event = event();
    event.content_type = content_type.map(str::to_owned);
    let filter = Filter::compile("has(event.data)").unwrap();
    assert_eq!(filter.matches(&event, Some(b"{}")), Ok(present));
}

#[rstest]
#[case(None)]
#[case(Some(&b"{"[..]))]
#[case(Some(&b"\xff\xfe"[..]))]
#[case(Some(&b""[..]))]
fn data_that_does_not_parse_is_absent(#[case] data: Option<&[u8]>) {
    let filter = Filter::compile("has(event.data)").unwrap();
    assert_eq!(filter.matches(&event(), data), Ok(false));
}

#[test]
fn only_a_filter_that_reads_data_pays_for_its_size() {
    let large = format!("[{}1]", "1,".repeat(MAX_DATA_NODES));
    let by_type = Filter::compile("event.type == 'post.created'").unwrap();
    let by_data = Filter::compile("size(event.data) > 1").unwrap();
    assert_eq!(by_type.matches(&event(), Some(large.as_bytes())), Ok(true));
    assert_eq!(
        by_data.matches(&event(), Some(large.as_bytes())),
        Err(EvalError::DataTooLarge)
    );
}

/// Each of these costs more memory or time than a worker has, on an ordinary event.
#[rstest]
#[case::doubling_text("[event.id].map(a, a + a).map(b, b + b).map(c, c + c).size() > 0")]
#[case::doubling_lists("[1].map(a, [a, a]).map(b, [b, b]).map(c, [c, c]) == [[1]]")]
#[case::doubling_objects("[1].map(a, {'x': a, 'y': a}).size() > 0")]
#[case::copies("event.data.tags.map(t, bytes(event.data.visibility)).size() > 0")]
#[case::copies_of_text("event.data.tags.map(t, string(event.data)).size() > 0")]
#[case::joins_in_a_condition("event.data.tags.exists(t, (t + t) == 'aa')")]
#[case::collected_by_a_condition("event.data.tags.map(t, t != 'x', t + t).size() > 0")]
fn what_could_grow_without_a_bound_is_refused(#[case] source: &str) {
    let refused = Filter::compile(source).unwrap_err();
    assert!(matches!(refused, FilterError::Unbounded(_)), "{refused}");
}

#[test]
fn joins_outside_loops_are_few() {
    let joined = |joins: usize| format!("size(event.id{}) > 0", " + event.id".repeat(joins));
    assert_eq!(judge(&joined(16)), Ok(true));
    assert!(matches!(
        Filter::compile(&joined(17)),
        Err(FilterError::Unbounded(_))
    ));
}

#[rstest]
#[case("event.data.tags.map(t, size(t) + 1).exists(n, n == 2)")]
#[case("event.data.tags.all(t, int(event.data.total) + event.data.total > 1)")]
#[case("event.data.tags.exists_one(t, t in ['b', 'c'])")]
#[case("event.data.tags.exists(t, string(event.data.total) == '41')")]
#[case("event.data.nested.deep.map(n, n * 2) == [2, 4]")]
#[case("event.type + '/' + event.id == 'post.created/e-1'")]
fn what_is_bounded_is_not_refused(#[case] source: &str) {
    assert_eq!(judge(source), Ok(true), "{source}");
}

#[rstest]
#[case("event.id.matches(event.data.visibility)")]
#[case("event.id.matches('a' + 'b')")]
#[case("event.id.matches('(')")]
#[case("event.id.matches('((a{1,100}){1,100}){1,100}')")]
fn a_pattern_is_a_short_literal(#[case] source: &str) {
    assert_eq!(Filter::compile(source).unwrap_err(), FilterError::Pattern);
}

/// The same expressions are fine on an event of common size.
#[rstest]
#[case("event.data.all.all(x, x in event.data.all)")]
#[case("event.data.all.exists(x, x.matches('no'))")]
#[case("event.data.all.exists(x, x == event.data.text)")]
fn an_expression_that_would_take_too_long_is_not_evaluated(#[case] source: &str) {
    let filter = Filter::compile(source).unwrap();
    let data = |elements: usize, text: usize| {
        let all = vec!["\"x\""; elements].join(",");
        format!("{{\"all\": [{all}], \"text\": \"{}\"}}", "t".repeat(text))
    };
    let judged = |data: String| filter.matches(&event(), Some(data.as_bytes()));
    judged(data(100, 2_000)).unwrap();
    assert_eq!(judged(data(9_000, 900_000)), Err(EvalError::DataTooLarge));
}
