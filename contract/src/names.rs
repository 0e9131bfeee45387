//! Names that more than one binary must derive in the same way; nothing else builds them.

use sha2::{Digest, Sha256};

/// API group of both kinds, and prefix of every label and annotation.
pub const GROUP: &str = "fanout.dev";
/// Label a Secret must carry (value `"true"`) before a FanoutTopic or Subscription may refer to it.
pub const CREDENTIALS_LABEL: &str = "fanout.dev/credentials";
/// Annotation on a Subscription: a changed value resumes it after its endpoint answered 410 Gone.
pub const RESUME_ANNOTATION: &str = "fanout.dev/resume";
/// Annotation on a FanoutTopic: system identifier of the PostgreSQL server that shall be published from although the stored
/// positions were written by another one (`SourceChanged`).
pub const ACCEPT_SOURCE_ANNOTATION: &str = "fanout.dev/accept-source";
/// Annotation the operator changes on a worker's pods so that the kubelet refreshes their volume at once.
pub const CONFIG_ANNOTATION: &str = "fanout.dev/config";
/// Finalizer on a FanoutTopic or Subscription with `deletionPolicy: Delete`.
pub const CLEANUP_FINALIZER: &str = "fanout.dev/cleanup";
/// How a webhook's signing secret begins, which no password and no URL does.
pub const SIGNING_SECRET_PREFIX: &str = "whsec_";
/// Label on everything the operator creates: the FanoutTopic it belongs to.
pub const TOPIC_LABEL: &str = "fanout.dev/topic";
/// Label on worker objects: the worker (Deployment) they belong to.
pub const WORKER_LABEL: &str = "fanout.dev/worker";

/// Where a worker's projected volume is mounted.
pub const CONFIG_DIR: &str = "/etc/fanout";
/// The configuration file in [`CONFIG_DIR`]; Secret values lie beside it as `<uid>.<field>`.
pub const CONFIG_FILE: &str = "config.yaml";
/// Secret file that keys the configuration hash, so that the published hash says nothing about secrets.
pub const HASH_KEY_FILE: &str = "hash.key";
/// Port of a worker's admin server (`/livez`, `/readyz`, `/metrics`, `/status`).
pub const ADMIN_PORT: u16 = 8080;

/// Longest name of a Deployment whose pods' labels and host names stay valid.
const DEPLOYMENT_MAX: usize = 63;
/// Longest legal Kafka topic name.
const KAFKA_TOPIC_MAX: usize = 249;

/// Default Kafka topic of a FanoutTopic: `<prefix><namespace>.<name>`.
pub fn kafka_topic(prefix: &str, namespace: &str, topic: &str) -> String {
    shorten(
        &format!("{prefix}{namespace}.{topic}"),
        KAFKA_TOPIC_MAX - DEAD_SUFFIX.len(),
    )
}

/// Default Kafka topic of a FanoutTopic in format Debezium: `<prefix>outbox.event.<name>`, which is where Debezium's outbox event
/// router sends rows of this name without the prefix.
pub fn routed_topic(prefix: &str, topic: &str) -> String {
    format!("{prefix}outbox.event.{topic}")
}

const DEAD_SUFFIX: &str = ".dead";

/// Dead letter topic beside a Kafka topic.
pub fn dead_letter_topic(kafka_topic: &str) -> String {
    format!("{kafka_topic}{DEAD_SUFFIX}")
}

/// Compacted topic beside a Kafka topic: the positions of relays with `delivery: Transactional`.
pub fn positions_topic(kafka_topic: &str) -> String {
    shorten(&format!("{kafka_topic}.positions"), KAFKA_TOPIC_MAX)
}

/// Partitions of a [`positions_topic`]: one for each shard that a range may begin with.
pub const POSITIONS_PARTITIONS: i32 = 64;

/// `transactional.id` of a range of a Kafka topic's outbox: `<topic>.<id>`. Ids of ranges are never used again.
pub fn transactional_id(kafka_topic: &str, range: i64) -> String {
    format!("{kafka_topic}.{range}")
}

/// Consumer group of a new Subscription: `<prefix><namespace>.<subscription>`. Computed once; afterwards
/// `status.groupId` is the truth.
pub fn group_id(prefix: &str, namespace: &str, subscription: &str) -> String {
    format!("{prefix}{namespace}.{subscription}")
}

/// Deployment of a topic's relays.
pub fn relay_deployment(topic: &str) -> String {
    shorten(&format!("{topic}-relay"), DEPLOYMENT_MAX)
}

/// Deployment of the topic's pool number `pool`.
pub fn pool_deployment(topic: &str, pool: u32) -> String {
    shorten(&format!("{topic}-pool-{pool}"), DEPLOYMENT_MAX)
}

/// Deployment of a Subscription with `isolation: Dedicated`.
///
/// Where that could also be the name of another pair's worker (topic `a`, subscription `b-s-c`; topic `a-s-b`,
/// subscription `c`), of a relay or of a pool, a hash of the pair is added.
pub fn dedicated_deployment(topic: &str, subscription: &str) -> String {
    let name = format!("{topic}-s-{subscription}");
    if is_ambiguous(topic, subscription) {
        let pair = format!("{topic}/{subscription}");
        return with_hash(&name, &pair, DEPLOYMENT_MAX);
    }
    shorten(&name, DEPLOYMENT_MAX)
}

fn is_ambiguous(topic: &str, subscription: &str) -> bool {
    let (head, tail) = subscription.rsplit_once('-').unwrap_or(("", subscription));
    let like_relay = tail == "relay";
    let like_pool = (head == "pool" || head.ends_with("-pool"))
        && tail.bytes().all(|byte| byte.is_ascii_digit());
    format!("{topic}-").contains("-s-")
        || format!("-{subscription}").contains("-s-")
        || like_relay
        || like_pool
}

/// What a worker is told of the annotations [`RESUME_ANNOTATION`] and [`ACCEPT_SOURCE_ANNOTATION`]: something short that
/// changes with `value`.
pub fn annotation_token(value: &str) -> String {
    const TOKEN_MAX: usize = 64;
    shorten(value, TOKEN_MAX)
}

/// File of one Secret value in a worker's volume: `<uid>.<field>`, the uid being that of the object whose
/// field refers to the Secret.
pub fn secret_file(uid: &str, field: &str) -> String {
    format!("{uid}.{field}")
}

/// Cuts `name` to `max` bytes; a cut name ends in a hash of the whole, so that two long names stay apart.
fn shorten(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    with_hash(name, name, max)
}

/// `name`, cut where needed, and a hash of `of`; at most `max` bytes.
fn with_hash(name: &str, of: &str, max: usize) -> String {
    // Long enough that nobody finds another name with the same hash.
    const HASH: usize = 16;
    let digest = Sha256::digest(of.as_bytes());
    let hash = digest
        .iter()
        .take(HASH / 2)
        .fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"));
    let kept: String = name.chars().take(max - HASH - 1).collect();
    format!("{}-{hash}", kept.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_kept() {
        assert_eq!(relay_deployment("posts"), "posts-relay");
        assert_eq!(pool_deployment("posts", 0), "posts-pool-0");
        assert_eq!(dedicated_deployment("posts", "search"), "posts-s-search");
        assert_eq!(kafka_topic("", "social", "posts"), "social.posts");
        assert_eq!(routed_topic("prod.", "posts"), "prod.outbox.event.posts");
        assert_eq!(dead_letter_topic("social.posts"), "social.posts.dead");
        assert_eq!(positions_topic("social.posts"), "social.posts.positions");
        assert_eq!(transactional_id("social.posts", 7), "social.posts.7");
        assert_eq!(group_id("prod.", "social", "search"), "prod.social.search");
    }

    #[test]
    fn long_names_are_cut_and_stay_distinct() {
        let topic = "t".repeat(40);
        let one = dedicated_deployment(&topic, &format!("{}a", "s".repeat(39)));
        let two = dedicated_deployment(&topic, &format!("{}b", "s".repeat(39)));
        assert_eq!(one.len(), 63);
        assert_ne!(one, two);
    }

    #[test]
    fn no_two_workers_of_a_namespace_share_a_name() {
        let parts = [
            "a", "s", "b", "a-s", "s-b", "a-s-b", "b-s-c", "c", "relay", "a-relay", "pool-0",
            "a-pool-0",
        ];
        let mut names = std::collections::BTreeMap::new();
        let mut claim = |name: String, by: String| {
            if let Some(other) = names.insert(name.clone(), by.clone()) {
                panic!("{name} belongs to {other} and to {by}");
            }
        };
        for topic in parts {
            claim(relay_deployment(topic), format!("relay of {topic}"));
            claim(pool_deployment(topic, 0), format!("pool of {topic}"));
            for subscription in parts {
                let by = format!("{subscription} of {topic}");
                claim(dedicated_deployment(topic, subscription), by);
            }
        }
    }

    #[test]
    fn an_annotation_of_any_size_becomes_a_short_token_that_changes_with_it() {
        assert_eq!(annotation_token("2026-01-02"), "2026-01-02");
        let (one, two) = ("a".repeat(1_000), format!("{}b", "a".repeat(999)));
        assert!(annotation_token(&one).len() <= 64);
        assert_ne!(annotation_token(&one), annotation_token(&two));
    }

    #[test]
    fn a_cut_never_leaves_a_separator_before_the_hash() {
        let name = shorten(&format!("{}-{}", "a".repeat(53), "b".repeat(40)), 63);
        assert!(!name.contains("--"), "{name}");
    }
}
