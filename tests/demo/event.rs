//! The demo's events: what they contain, and who wants which.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Type of the event about a new post.
pub(crate) const POST: &str = "post.created";
/// Type of the event about a new follower.
pub(crate) const FOLLOW: &str = "user.followed";
/// Type of the event about a liked post.
pub(crate) const LIKE: &str = "post.liked";

/// Which events a Subscription of the demo's manifests should get: said here once more, independently of its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Everything,
    PublicPosts,
}

impl Wanted {
    pub(crate) fn matches(self, r#type: &str, visibility: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::PublicPosts => r#type == POST && visibility == "public",
        }
    }
}

/// The Subscriptions of the demo's manifests.
pub(crate) const SUBSCRIPTIONS: [(&str, Wanted); 3] = [
    ("search-index", Wanted::PublicPosts),
    ("notifications", Wanted::Everything),
    ("analytics", Wanted::Everything),
];

/// What one event says. `detail` is the post's text, the followed author or the liked post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) r#type: &'static str,
    pub(crate) author: String,
    pub(crate) visibility: &'static str,
    pub(crate) detail: String,
}

impl Event {
    /// Payload of the outbox row, with the event's number among those of its author.
    pub(crate) fn payload(&self, sequence: i64) -> Value {
        json!({
            "author": self.author,
            "sequence": sequence,
            "visibility": self.visibility,
            "detail": self.detail,
        })
    }
}

/// Digest of what must arrive unchanged. Independent of how the JSON is laid out, because a signed webhook carries
/// the payload inside another document.
pub(crate) fn digest(r#type: &str, payload: &Value) -> Vec<u8> {
    Sha256::digest(json!([r#type, payload]).to_string().as_bytes()).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanout_contract::envelope::Attributes;
    use fanout_runtime::filter::Filter;

    #[test]
    fn the_digest_ignores_layout_and_nothing_else() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let base = digest(POST, &value(r#"{"a":1,"b":"x"}"#));
        assert_eq!(base, digest(POST, &value(r#"{ "b": "x", "a": 1 }"#)));
        assert_ne!(base, digest(LIKE, &value(r#"{"a":1,"b":"x"}"#)));
        assert_ne!(base, digest(POST, &value(r#"{"a":1,"b":"y"}"#)));
    }

    #[test]
    fn only_public_posts_are_searched() {
        assert!(Wanted::PublicPosts.matches(POST, "public"));
        assert!(!Wanted::PublicPosts.matches(POST, "followers"));
        assert!(!Wanted::PublicPosts.matches(LIKE, "public"));
        assert!(Wanted::Everything.matches(LIKE, "public"));
    }

    /// The Subscriptions of the manifests: name and filter.
    fn manifests() -> Vec<(String, Option<Filter>)> {
        let documents: Vec<Value> =
            serde_yaml::from_multiple(include_str!("manifests/fanout.yaml")).unwrap();
        documents
            .iter()
            .filter(|object| object["kind"] == "Subscription")
            .map(|object| {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let filter = object["spec"]["filter"].as_str();
                (name, filter.map(|source| Filter::compile(source).unwrap()))
            })
            .collect()
    }

    #[test]
    fn the_report_expects_what_the_manifests_ask_for() {
        let manifests = manifests();
        assert_eq!(manifests.len(), SUBSCRIPTIONS.len());
        for (name, wanted) in SUBSCRIPTIONS {
            let (_, filter) = manifests.iter().find(|(found, _)| found == name).unwrap();
            for kind in [POST, FOLLOW, LIKE] {
                for visibility in ["public", "followers"] {
                    let attributes = Attributes {
                        id: "1".to_owned(),
                        source: "/social/posts".to_owned(),
                        r#type: kind.to_owned(),
                        time: None,
                        subject: None,
                        content_type: Some("application/json".to_owned()),
                        extensions: Vec::new(),
                    };
                    let data = json!({"visibility": visibility}).to_string();
                    let matches = filter.as_ref().is_none_or(|filter| {
                        filter.matches(&attributes, Some(data.as_bytes())).unwrap()
                    });
                    assert_eq!(
                        matches,
                        wanted.matches(kind, visibility),
                        "{name} {kind} {visibility}"
                    );
                }
            }
        }
    }
}
