//! Which settings are refused, which stop one subscription, and what survives a change.

use super::*;

const CONFIG: &str = r"
namespace: social
topicName: posts
broker:
  cluster: {bootstrapServers: 'kafka:9092', auth: {mechanism: Plain, userFile: u, passwordFile: p}}
  topic: social.posts
  deadLetterTopic: social.posts.dead
egress: {allowedCIDRs: [10.0.0.0/8]}
subscriptions:
- name: search
  uid: '1'
  generation: 3
  groupId: social.search
  filter: event.type == 'a'
  sink: {webhook: {url: 'https://hooks.example/', signingSecretFiles: [s], timeoutSeconds: 10}}
  delivery: {ordering: PerKey, maxInFlight: 64, retry: {maxAttempts: 5, initialBackoffMilliseconds: 500, maxBackoffSeconds: 60, maxAgeSeconds: 3600}}
";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";

fn loaded(change: impl Fn(String) -> String, secret: &str) -> Loaded<ConsumerConfig> {
    fanout_runtime::tls::install_ring_provider();
    let files = [
        ("config.yaml", change(CONFIG.to_owned())),
        ("u", "user".to_owned()),
        ("p", "hunter2".to_owned()),
        ("s", secret.to_owned()),
    ];
    let folder = tempfile(&files);
    let loaded = fanout_runtime::config::load(&folder).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    loaded
}

fn tempfile(files: &[(&str, String)]) -> std::path::PathBuf {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!(
        "fanout-settings-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    folder
}

fn plan(change: impl Fn(String) -> String) -> Result<Plan, SettingsError> {
    Plan::new(&loaded(change, SECRET), None)
}

fn fault(change: impl Fn(String) -> String) -> Option<StopReason> {
    let plan = plan(change).unwrap();
    plan.subscriptions[0]
        .fault
        .as_ref()
        .map(|fault| fault.reason)
}

#[test]
fn a_good_configuration_has_no_fault() {
    assert_eq!(fault(|text| text), None);
    let properties = plan(|text| text).unwrap().connection.properties;
    assert!(properties.contains(&("sasl.password", "hunter2".to_owned())));
}

#[test]
fn a_bad_subscription_stops_alone_with_its_reason() {
    let cases = [
        (
            "event.type == 'a'",
            "event.type ==",
            StopReason::FilterInvalid,
        ),
        ("event.type == 'a'", "posts.x", StopReason::FilterInvalid),
        (
            "https://hooks.example/",
            "http://127.0.0.1/",
            StopReason::AddressRefused,
        ),
        (
            "https://hooks.example/",
            "http://192.168.0.1/",
            StopReason::AddressRefused,
        ),
        (
            "https://hooks.example/",
            "http://localhost/",
            StopReason::AddressRefused,
        ),
        (
            "https://hooks.example/",
            "https://u:p@hooks.example/",
            StopReason::SinkInvalid,
        ),
        (
            "https://hooks.example/",
            "mailto:x@hooks.example",
            StopReason::SinkInvalid,
        ),
        (
            "signingSecretFiles: [s]",
            "signingSecretFiles: [missing]",
            StopReason::SinkInvalid,
        ),
        (
            "signingSecretFiles: [s]",
            "signingSecretFiles: [p]",
            StopReason::SinkInvalid,
        ),
    ];
    for (from, to, reason) in cases {
        assert_eq!(fault(|text| text.replace(from, to)), Some(reason), "{to}");
    }
}

#[test]
fn a_fault_never_shows_the_setting() {
    let plan = plan(|text| text.replace("https://", "https://user:hunter2@")).unwrap();
    assert!(
        !plan.subscriptions[0]
            .fault
            .as_ref()
            .unwrap()
            .message
            .contains("hunter2")
    );
}

#[test]
fn an_admitted_range_admits() {
    assert_eq!(
        fault(|text| text.replace("https://hooks.example/", "http://10.1.2.3/")),
        None
    );
}

#[test]
fn what_concerns_all_refuses_the_whole_configuration() {
    assert!(matches!(
        plan(|text| text.replace("10.0.0.0/8", "10.0.0.0/40")),
        Err(SettingsError::Cidr(_))
    ));
    assert!(matches!(
        plan(|text| text.replace("passwordFile: p", "passwordFile: gone")),
        Err(SettingsError::File(_))
    ));
    let twice = |text: String| {
        let (head, subscription) = text.split_once("- name").unwrap();
        format!(
            "{head}- name{subscription}- name{}",
            subscription.replace("social.search", "x")
        )
    };
    assert!(matches!(plan(twice), Err(SettingsError::Twice(_))));
}

#[test]
fn connections_survive_changes_that_do_not_concern_them() {
    let before = plan(|text| text).unwrap();
    let after = |change: fn(String) -> String, secret| {
        Plan::new(&loaded(change, secret), Some(&before)).unwrap()
    };
    let same_sink = |plan: &Plan| {
        let sink = |plan: &Plan| Arc::clone(plan.subscriptions[0].sink.as_ref().ok().unwrap());
        Arc::ptr_eq(&sink(&before), &sink(plan))
    };
    assert!(same_sink(&after(
        |text| text.replace("event.type == 'a'", "event.type == 'b'"),
        SECRET
    )));
    assert!(!same_sink(&after(
        |text| text.replace("example/", "example/x"),
        SECRET
    )));
    assert!(!same_sink(&after(
        |text| text.replace("10.0.0.0/8", "10.0.0.0/9"),
        SECRET
    )));
    let rotated = format!("whsec_{}\n", "QUJD".repeat(8));
    assert!(!same_sink(&after(|text| text, &rotated)));
}
