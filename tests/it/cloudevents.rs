//! What the relay and the webhook sink write is what the official CloudEvents SDKs read: the same attributes, the same data.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fanout_contract::consumer::Sink;
use fanout_tests::checker::log::{Log, Record};
use fanout_tests::process::{Consumer, Relay};
use fanout_tests::receiver::{Answer, Receiver, Request};
use fanout_tests::sdks::{Data, Message, Parsed, Sdk};
use fanout_tests::{Sandbox, eventually};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Long enough for anything that works, on a very busy machine.
const LIMIT: Duration = Duration::from_mins(4);
/// A subject that HTTP can't carry as it is, and how it carries it.
const SUBJECT: [&str; 2] = ["post 1/ü 100%", "post%201/%C3%BC%20100%25"];

const ROWS: &str = r#"insert into outbox (topic, key, type, subject, headers, traceparent, content_type, payload) values
  ('posts', 'json', 'json', 'post 1/ü 100%', '{"ce_tenant": "eu", "ce_retries": 7, "x-other": "1"}',
   '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'application/json', convert_to('{"a": [1.5, "ü", null]}', 'UTF8')),
  ('posts', null, 'text', null, null, null, 'text/plain', convert_to('Grüße', 'UTF8')),
  ('posts', 'bytes', 'bytes', 's', null, null, 'application/octet-stream', '\x00ff27fe'),
  ('posts', 'nothing', 'nothing', null, null, null, 'application/json', null)"#;

/// What was committed.
struct Row {
    attributes: BTreeMap<String, String>,
    milliseconds: i64,
    payload: Vec<u8>,
}

async fn rows(sandbox: &Sandbox) -> BTreeMap<String, Row> {
    type Columns = (
        String,
        String,
        Option<String>,
        Option<String>,
        String,
        Vec<u8>,
        i64,
        i64,
    );
    let rows: Vec<Columns> = sqlx::query_as(
        "select event_id::text, type, subject, traceparent, content_type, coalesce(payload, ''), id,
           floor(extract(epoch from created_at) * 1000)::bigint from outbox",
    )
    .fetch_all(sandbox.pool())
    .await
    .unwrap();
    rows.into_iter()
        .map(
            |(id, r#type, subject, traceparent, content_type, payload, number, milliseconds)| {
                let mut attributes = BTreeMap::from([
                    ("specversion".to_owned(), "1.0".to_owned()),
                    ("id".to_owned(), id.clone()),
                    ("source".to_owned(), format!("/{}/posts", sandbox.namespace)),
                    ("sequence".to_owned(), format!("{number:020}")),
                    ("datacontenttype".to_owned(), content_type),
                ]);
                attributes.extend(subject.map(|text| ("subject".to_owned(), text)));
                attributes.extend(traceparent.map(|text| ("traceparent".to_owned(), text)));
                if r#type == "json" {
                    attributes.insert("tenant".to_owned(), "eu".to_owned());
                    attributes.insert("retries".to_owned(), "7".to_owned());
                }
                attributes.insert("type".to_owned(), r#type);
                let row = Row {
                    attributes,
                    milliseconds,
                    payload,
                };
                (id, row)
            },
        )
        .collect()
}

fn of_record(record: &Record) -> Message {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Message {
        protocol: "kafka",
        headers: record
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), text(value)))
            .collect(),
        key: record.key.as_deref().map(text),
        value: STANDARD.encode(record.payload.as_deref().unwrap()),
    }
}

fn of_request(request: &Request) -> Message {
    Message {
        protocol: "http",
        headers: request
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect(),
        key: None,
        value: STANDARD.encode(&request.body),
    }
}

fn check(sdk: Sdk, message: &Message, parsed: &Parsed, rows: &BTreeMap<String, Row>) {
    let id = parsed.attributes["id"].clone().unwrap();
    let row = &rows[&id];
    let told = format!("{sdk:?} of {message:?}: {parsed:?}");
    let mut attributes: BTreeMap<String, String> = parsed
        .attributes
        .iter()
        // What the SDKs make of the record's key, which is no attribute.
        .filter(|(name, _)| *name != "partitionkey")
        .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
        .collect();
    // Not every SDK decodes the attributes of HTTP's binary mode.
    if message.protocol == "http"
        && attributes
            .get("subject")
            .is_some_and(|text| text == SUBJECT[1])
    {
        attributes.insert("subject".to_owned(), SUBJECT[0].to_owned());
    }
    assert_eq!(attributes, row.attributes, "{told}");
    assert_eq!(parsed.milliseconds, row.milliseconds, "{told}");
    let same = match &parsed.data {
        None => row.payload.is_empty(),
        Some(Data::Base64(text)) => STANDARD.decode(text).unwrap() == row.payload,
        Some(Data::Value(value)) => {
            value.as_str().map(str::as_bytes) == Some(&row.payload)
                || serde_json::from_slice::<Value>(&row.payload).is_ok_and(|wrote| wrote == *value)
        }
    };
    assert!(same, "{told}");
}

/// An endpoint that keeps its requests.
async fn endpoint(sandbox: &Sandbox, name: &str) -> (Receiver, Arc<Mutex<Vec<Request>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = requests.clone();
    let behaviour = Box::new(move |request: &Request| {
        kept.lock().unwrap().push(request.clone());
        Answer::OK
    });
    (Receiver::start(sandbox, name, behaviour).await, requests)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_sdks_read_records_and_requests() {
    let sandbox = Sandbox::new("cloudevents").await;
    let _relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    sqlx::raw_sql(ROWS).execute(sandbox.pool()).await.unwrap();
    let (binary, binary_requests) = endpoint(&sandbox, "binary").await;
    let (structured, structured_requests) = endpoint(&sandbox, "structured").await;
    let mut signed = sandbox.webhook("structured", structured.url());
    let Sink::Webhook(webhook) = &mut signed.sink;
    webhook.signing_secret_files = vec!["signing".to_owned()];
    let mut files = sandbox.secret_files();
    let secret = b"whsec_UGxhbnRlZFNlY3JldCBzaWducyBmb3Igb2xkIHRlc3Rz";
    files.insert("signing".to_owned(), secret.to_vec());
    let subscriptions = vec![sandbox.webhook("binary", binary.url()), signed];
    let config = sandbox.consumer_config(subscriptions);
    let _consumer = Consumer::start_with(&sandbox, "pool-0", &config, files).await;

    let rows = rows(&sandbox).await;
    let log = eventually(LIMIT, "every row in the log", async || {
        let log = Log::read(&sandbox.bootstrap, &sandbox.kafka_topic).await;
        let count = log.records.len();
        if count >= rows.len() {
            Ok(log)
        } else {
            Err(format!("{count} records"))
        }
    })
    .await;
    for requests in [&binary_requests, &structured_requests] {
        eventually(LIMIT, "every event at its endpoint", async || {
            let count = requests.lock().unwrap().len();
            if count >= rows.len() {
                Ok(())
            } else {
                Err(format!("{count} requests"))
            }
        })
        .await;
    }
    let mut messages: Vec<Message> = log.records.iter().map(of_record).collect();
    for requests in [&binary_requests, &structured_requests] {
        messages.extend(requests.lock().unwrap().iter().map(of_request));
    }
    let structured_ones = messages
        .iter()
        .filter(|message| {
            message.headers["content-type"].starts_with("application/cloudevents+json")
        })
        .count();
    assert!(
        structured_ones >= rows.len(),
        "{structured_ones} in structured mode"
    );
    for sdk in Sdk::ALL {
        let messages: Vec<Message> = messages
            .iter()
            // The SDK for JavaScript reads no record without data, of whatever form.
            .filter(|message| {
                !(sdk == Sdk::JavaScript && message.protocol == "kafka" && message.value.is_empty())
            })
            .cloned()
            .collect();
        let asked = messages.clone();
        let parsed = tokio::task::spawn_blocking(move || sdk.parse(&asked))
            .await
            .unwrap();
        let parsed = parsed.unwrap();
        assert_eq!(parsed.len(), messages.len());
        for (message, parsed) in messages.iter().zip(&parsed) {
            check(sdk, message, parsed, &rows);
        }
    }
}
