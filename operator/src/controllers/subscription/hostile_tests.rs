//! What somebody who may write Subscriptions and nothing else could try against the others in a worker.

use super::validate::validate;
use crate::controllers::error::Invalid;
use fanout_contract::consumer::SubscriptionConfig;
use fanout_contract::names;
use fanout_crds::Subscription;
use fanout_crds::condition::reason;
use fanout_runtime::guard::Guard;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use proptest::prelude::*;
use rstest::rstest;
use std::collections::BTreeMap;
use std::sync::Arc;

fn subscription() -> Subscription {
    let text = "
metadata: {name: search, namespace: social, uid: bbbb, generation: 5}
spec:
  topicRef: {name: posts}
  sink: {webhook: {url: 'https://search.example.com/hook', signing: {secretRefs: [{name: s, key: k}]}}}
";
    serde_yaml::from_str(text).unwrap()
}

fn judge(subscription: &Subscription, secret: &str) -> Result<SubscriptionConfig, Invalid> {
    let secret = Secret {
        data: Some(BTreeMap::from([(
            "k".to_owned(),
            ByteString(secret.as_bytes().to_vec()),
        )])),
        ..Secret::default()
    };
    let lookup = |_: &str| Some(Arc::new(secret.clone()));
    validate(subscription, &lookup, &Guard::new(&[], &[])).map(|valid| valid.config)
}

const SIGNING: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";

#[rstest]
#[case::signing_secret(SIGNING, None)]
#[case::database_url(
    "postgres://relay:canary@database/social",
    Some("key k of Secret s must be whsec_ and the base64 of 24 to 64 bytes")
)]
#[case::password_that_is_base64(
    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    Some("key k of Secret s must be whsec_ and the base64 of 24 to 64 bytes")
)]
fn only_a_signing_secret_reaches_the_worker_that_signs(
    #[case] value: &str,
    #[case] expected: Option<&str>,
) {
    let refused = judge(&subscription(), value).err();
    assert_eq!(
        refused.as_ref().map(|invalid| invalid.reason),
        expected.map(|_| reason::SINK_INVALID)
    );
    let message = refused.map(|invalid| invalid.message);
    let expected = expected.map(|text| format!("spec.sink.webhook.signing.secretRefs[0]: {text}"));
    assert_eq!(message, expected);
}

#[test]
fn a_large_signing_secret_does_not_fill_the_others_secret() {
    let large = format!("whsec_{}", "A".repeat(500_000));
    let refused = judge(&subscription(), &large).unwrap_err();
    assert_eq!(refused.reason, reason::SINK_INVALID);
}

#[test]
fn a_large_annotation_does_not_fill_the_others_configuration() {
    let mut subscription = subscription();
    subscription
        .annotations_mut()
        .insert(names::RESUME_ANNOTATION.to_owned(), "x".repeat(250_000));
    let config = judge(&subscription, SIGNING).unwrap();
    assert!(config.resume.unwrap().len() <= 64);
}

/// A hundred of these must fit into one ConfigMap.
#[rstest]
#[case::longest_that_is_plain("a", 4_070, true)]
#[case::escaped("\u{1}", 4_070, false)]
#[case::line_breaks("\n", 4_070, false)]
fn a_filter_takes_no_more_than_its_share(
    #[case] text: &str,
    #[case] times: usize,
    #[case] fits: bool,
) {
    let mut subscription = subscription();
    let filter = match text {
        "\n" => format!("true{}", text.repeat(times)),
        _ => format!("event.id == '{}'", text.repeat(times)),
    };
    subscription.spec.filter = Some(filter);
    let refused = judge(&subscription, SIGNING).err().map(|it| it.reason);
    assert_eq!(refused, (!fits).then_some(reason::SPEC_INVALID));
}

proptest! {
    /// One text that a worker can't read would take its whole configuration with it.
    #[test]
    fn whatever_is_written_the_worker_reads_the_same(text in any::<String>(), odd in "[\u{0}-\u{a0}\u{2028}\u{2029}\u{feff}\u{fffe}]{0,8}") {
        let mut subscription = subscription();
        let text = format!("{odd}{text}{odd}");
        subscription.annotations_mut().insert(names::RESUME_ANNOTATION.to_owned(), text.clone());
        let mut config = judge(&subscription, SIGNING).unwrap();
        config.filter = Some(text);
        let written = serde_yaml::to_string(&vec![&config]).unwrap();
        let read: Vec<SubscriptionConfig> = serde_yaml::from_str(&written).unwrap();
        prop_assert_eq!(read, vec![config]);
    }
}
