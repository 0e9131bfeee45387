//! What arrives at an endpoint, and in which order.

use super::log::{Log, cloud_event, header, headers, pairs, payload};
use super::*;
use fanout_contract::consumer::Ordering;
use fanout_contract::envelope::dead_letter;
use fanout_tests::receiver::behave;
use rdkafka::message::Message as _;
use sqlx::Row as _;

/// Dead letters of a scene.
fn dead_letters(scene: &Scene) -> Log {
    Log::new(&scene.sandbox.bootstrap, &scene.sandbox.dead_letter_topic)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_arrives_as_it_is_in_the_log() {
    let scene = Scene::new("c_arrives", behave::ok()).await;
    let data = "{\"b\": 12345678901234567890123, \"a\": 1e308, \"a\": 0.10}\n";
    scene
        .log
        .event(Some("k"), "e-1", "post.created", data)
        .await;
    let _consumer = scene.consumer("pool-0").await;
    scene.arrive(&["e-1".to_owned()]).await;
    let row = sqlx::query("select headers::text as headers, body from harness.received")
        .fetch_one(scene.sandbox.pool())
        .await
        .unwrap();
    assert_eq!(row.get::<Vec<u8>, _>("body"), data.as_bytes());
    let sent: serde_json::Value = serde_json::from_str(row.get("headers")).unwrap();
    let delivery = format!("e-1:{}:hook", scene.sandbox.namespace);
    for (name, expected) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "e-1"),
        ("ce-source", "/test/posts"),
        ("ce-type", "post.created"),
        ("ce-time", "2026-01-02T03:04:05.678Z"),
        ("content-type", "application/json"),
        ("webhook-id", &delivery),
        ("idempotency-key", &delivery),
    ] {
        assert_eq!(sent[name], expected, "{name}");
    }
    scene.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_event_verifies_with_both_secrets_while_they_are_rotated() {
    let scene = Scene::new("c_signed", behave::ok())
        .await
        .with(|subscription| {
            let Sink::Webhook(webhook) = &mut subscription.sink;
            webhook.signing_secret_files = vec!["new".to_owned(), "old".to_owned()];
        });
    let secrets = [
        ("new", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        ("old", "whsec_UGxhbnRlZFNlY3JldCBzaWducyBmb3Igb2xkIHRlc3Rz"),
    ];
    let mut files = scene.sandbox.secret_files();
    files.extend(secrets.map(|(name, secret)| (name.to_owned(), secret.as_bytes().to_vec())));
    scene.log.event(Some("k"), "e-1", "t", "{\"a\": 1.0}").await;
    let config = scene
        .sandbox
        .consumer_config(vec![scene.subscription.clone()]);
    let consumer = Consumer::start_with(&scene.sandbox, "pool-0", &config, files).await;
    scene.arrive(&["e-1".to_owned()]).await;
    let row = sqlx::query("select headers::text as headers, body from harness.received")
        .fetch_one(scene.sandbox.pool())
        .await
        .unwrap();
    let body: Vec<u8> = row.get("body");
    let sent: serde_json::Value = serde_json::from_str(row.get("headers")).unwrap();
    let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"]
        .map(|name| {
            (
                name.parse().unwrap(),
                sent[name].as_str().unwrap().parse().unwrap(),
            )
        })
        .into_iter()
        .collect();
    for (_, secret) in secrets {
        standardwebhooks::Webhook::new(secret)
            .unwrap()
            .verify(&body, &headers)
            .unwrap();
    }
    assert!(
        String::from_utf8(body)
            .unwrap()
            .ends_with("\"data\":{\"a\": 1.0}}")
    );
    for page in ["/metrics", "/status"] {
        let text = consumer.get(page).await.unwrap().1;
        let leaked = secrets.iter().any(|(_, secret)| text.contains(secret));
        assert!(!leaked, "{page} shows a secret");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_while_deliveries_fail() {
    let scene = Scene::new("c_order", behave::every_nth_fails(3)).await;
    let mut all = Vec::new();
    for number in 0..20 {
        let round: Vec<_> = (0..15).map(|key| format!("k{key}-{number:04}")).collect();
        scene.log.append(&round).await;
        all.extend(round);
    }
    let consumer = scene.consumer("pool-0").await;
    scene.arrive(&all).await;
    let accepted = scene.accepted().await;
    assert_in_order(&accepted);
    assert_no_repeats(&accepted);
    scene.drained().await;
    let status = consumer.status().await.unwrap();
    let totals = the(&status, "hook").totals;
    assert_eq!((totals.delivered, totals.dead_lettered), (300, 0));
    assert!(totals.failed_attempts >= 100, "{totals:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_key_blocks_only_itself() {
    let scene = Scene::new("c_one_key", failing("bad", Answer::Status(500))).await;
    let (bad, good) = (ids("bad", 0..3), ids("good", 0..200));
    scene.log.append(&bad).await;
    scene.log.append(&good).await;
    let consumer = scene.consumer("pool-0").await;
    scene.arrive(&good).await;
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").totals.dead_lettered, 0);
    scene.hook.set(behave::ok());
    scene.arrive(&bad).await;
    assert_in_order(&scene.accepted().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_order_an_event_waits_for_none_of_its_key() {
    let scene = Scene::new("c_no_order", failing("k-0000", Answer::Status(500)))
        .await
        .with(|subscription| subscription.delivery.ordering = Ordering::None);
    scene.log.append(&ids("k", 0..50)).await;
    let _consumer = scene.consumer("pool-0").await;
    scene.arrive(&ids("k", 1..50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_event_goes_to_the_dead_letters_unchanged_and_its_key_goes_on() {
    let scene = Scene::new("c_dead", failing("k-0000", Answer::Status(503)))
        .await
        .with(|subscription| subscription.delivery.retry.max_attempts = 3);
    let own = [
        ("ce_specversion", Some(&b"1.0"[..])),
        ("ce_id", Some(b"k-0000")),
        ("ce_source", Some(b"/s")),
        ("ce_type", Some(b"t")),
        ("x-twice", Some(b"1")),
        ("x-twice", Some(b"2")),
        ("x-null", None),
        ("x-bytes", Some(b"\xff\x00\xfe")),
    ];
    let offset = scene
        .log
        .raw(Some(b"key\xff"), Some(b"\x00data"), Some(headers(&own)))
        .await;
    scene
        .log
        .raw(
            Some(b"key\xff"),
            Some(b"{}"),
            Some(cloud_event("k-0001", "t")),
        )
        .await;
    let consumer = scene.consumer("pool-0").await;
    scene.arrive(&ids("k", 1..2)).await;
    let letter = dead_letters(&scene).records(1).await.remove(0);
    assert_eq!(
        (letter.key(), payload(&letter)),
        (Some(&b"key\xff"[..]), Some(&b"\x00data"[..]))
    );
    let kept: Vec<_> = own
        .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
        .into_iter()
        .collect();
    assert_eq!(pairs(&letter)[..own.len()], kept);
    for (name, expected) in [
        (
            dead_letter::SUBSCRIPTION,
            format!("{}/hook", scene.sandbox.namespace),
        ),
        (dead_letter::REASON, "HttpStatus503".to_owned()),
        (dead_letter::ATTEMPTS, "3".to_owned()),
        (
            dead_letter::ORIGIN,
            format!("{}/0/{offset}", scene.sandbox.kafka_topic),
        ),
    ] {
        assert_eq!(header(&letter, name), Some(expected), "{name}");
    }
    let first = header(&letter, dead_letter::FIRST_ATTEMPT_TIME).unwrap();
    let last = header(&letter, dead_letter::LAST_ATTEMPT_TIME).unwrap();
    assert!(
        first < last && last.ends_with('Z') && last.len() == 24,
        "{first} {last}"
    );
    scene.drained().await;
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").totals.dead_lettered, 1);
}

/// Whatever their keys, and whatever fails: the accepted events of a partition have its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_order_is_the_order_of_the_log() {
    let scene = Scene::new("c_strict", behave::every_nth_fails(5))
        .await
        .with(|subscription| {
            subscription.delivery.ordering = Ordering::Strict;
        });
    let events: Vec<_> = (0..120).map(|key| format!("k{key}-0000")).collect();
    let mut places = BTreeMap::new();
    for id in &events {
        let (key, _) = id.rsplit_once('-').unwrap();
        let place = scene.log.event(Some(key), id, "test", "{}").await;
        places.insert(id.clone(), place);
    }
    let consumer = scene.consumer("pool-0").await;
    scene.arrive(&events).await;
    let accepted = scene.accepted().await;
    assert_no_repeats(&accepted);
    let mut last = BTreeMap::new();
    for id in &accepted {
        let (partition, offset) = places[id];
        if let Some(before) = last.insert(partition, offset) {
            assert!(before < offset, "{id} came after offset {before}");
        }
    }
    scene.drained().await;
    let status = consumer.status().await.unwrap();
    assert_eq!(the(&status, "hook").totals.dead_lettered, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hopeless_answer_gets_three_attempts() {
    let scene = Scene::new("c_hopeless", failing("bad", Answer::Status(422))).await;
    scene.log.append(&ids("bad", 0..1)).await;
    let _consumer = scene.consumer("pool-0").await;
    let letter = dead_letters(&scene).records(1).await.remove(0);
    assert_eq!(header(&letter, dead_letter::ATTEMPTS).as_deref(), Some("3"));
    assert_eq!(scene.hook.requests(), 3);
}

/// Appends six records that are no CloudEvents or can't be sent, and four odd CloudEvents: tombstone, bytes, twice, lines.
async fn append_odd_records(log: &Log) {
    let id = |id: &'static str, more: &[(&'static str, Option<&'static [u8]>)]| {
        let mut pairs = vec![
            ("ce_specversion", Some(&b"1.0"[..])),
            ("ce_id", Some(id.as_bytes())),
            ("ce_source", Some(b"/s")),
            ("ce_type", Some(b"t")),
        ];
        pairs.extend_from_slice(more);
        Some(headers(&pairs))
    };
    let json: Option<&[u8]> = Some(b"{}");
    // No CloudEvents.
    log.raw(None, None, None).await;
    let nameless = Some(headers(&[("x", None)]));
    log.raw(Some(b"k"), json, nameless).await;
    log.raw(None, json, id("", &[])).await;
    let not_utf8 = [("ce_subject", Some(&b"\xff"[..]))];
    log.raw(None, json, id("bad", &not_utf8)).await;
    let other_version = [("ce_specversion", Some(&b"0.3"[..]))];
    log.raw(None, json, id("bad", &other_version)).await;
    // An event that no HTTP header can carry.
    let line_break = [("content-type", Some(&b"a\nb"[..]))];
    log.raw(None, json, id("bad", &line_break)).await;
    // CloudEvents.
    log.raw(None, None, id("tombstone", &[])).await;
    let blank = [("ce_x y", Some(&b"1"[..]))];
    log.raw(Some(b"\xff\xfe"), Some(b"\xff"), id("bytes", &blank))
        .await;
    let twice = [
        ("ce_a", Some(&b"1"[..])),
        ("ce_a", Some(b"2")),
        ("ce_", None),
    ];
    log.raw(None, json, id("twice", &twice)).await;
    let lines = [("ce_subject", Some(&b"a\r\nx-evil: 1"[..]))];
    log.raw(None, json, id("lines", &lines)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_any_form_are_delivered_or_dead_lettered_and_never_stop_the_rest() {
    let scene = Scene::new("c_odd", behave::ok()).await;
    append_odd_records(&scene.log).await;
    let _consumer = scene.consumer("pool-0").await;
    scene
        .arrive(&["tombstone", "bytes", "twice", "lines"].map(str::to_owned))
        .await;
    let letters = dead_letters(&scene).records(6).await;
    let reasons: Vec<_> = letters
        .iter()
        .map(|letter| header(letter, dead_letter::REASON).unwrap())
        .collect();
    assert_eq!(
        reasons
            .iter()
            .filter(|reason| *reason == "NotACloudEvent")
            .count(),
        5
    );
    assert_eq!(
        reasons
            .iter()
            .filter(|reason| *reason == "Unencodable")
            .count(),
        1
    );
    scene.drained().await;
    let evil: i64 =
        sqlx::query_scalar("select count(*) from harness.received where headers ? 'x-evil'")
            .fetch_one(scene.sandbox.pool())
            .await
            .unwrap();
    assert_eq!(evil, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_lets_through_what_matches_and_counts_the_rest() {
    let scene = Scene::new("c_filter", behave::ok())
        .await
        .with(|subscription| {
            subscription.filter =
                Some("event.type == 'wanted' || event.data.total + 1 > 10".to_owned());
        });
    let send = async |id: &str, r#type: &str, data: &str| {
        scene.log.event(None, id, r#type, data).await;
    };
    send("by-type", "wanted", "{}").await;
    send("by-data", "t", r#"{"total": 10}"#).await;
    send("no-match", "t", r#"{"total": 9}"#).await;
    send("no-field", "t", "{}").await;
    let consumer = scene.consumer("pool-0").await;
    scene.drained().await;
    let mut accepted = scene.accepted().await;
    accepted.sort();
    assert_eq!(accepted, ["by-data", "by-type"]);
    let status = consumer.status().await.unwrap();
    let totals = the(&status, "hook").totals;
    assert_eq!(
        (totals.delivered, totals.filtered, totals.filter_errors),
        (2, 1, 1)
    );
}
