//! The operator's Kafka facade against a real broker.

mod away;
mod deletion;

use fanout_contract::kafka::{KafkaCredentials, Mechanism};
use fanout_operator::kafka::{
    Cluster, ClusterParams, Clusters, CommitOutcome, ErrorClass, NewTopic, Watermarks,
};
use fanout_tests::services::kafka::{SASL_PASSWORD, SASL_USER};
use fanout_tests::{eventually, services};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

fn params(bootstrap: &str) -> ClusterParams {
    ClusterParams {
        bootstrap_servers: bootstrap.to_owned(),
        mechanism: Mechanism::None,
        credentials: KafkaCredentials::default(),
    }
}

async fn cluster() -> Arc<Cluster> {
    let kafka = tokio::task::spawn_blocking(services::kafka).await.unwrap();
    let cluster = Clusters::new()
        .get(&params(&kafka.bootstrap()))
        .await
        .unwrap();
    // A fresh broker has no coordinator until the first question for one.
    eventually(LIMIT, "a coordinator", async || {
        cluster.committed("nobody", "nothing").await.map(drop)
    })
    .await;
    cluster
}

fn unique(name: &str) -> String {
    format!("{name}-{:08x}", rand::random::<u32>())
}

async fn topic(cluster: &Cluster, name: &str, partitions: i32) -> String {
    let name = unique(name);
    let new = NewTopic {
        name: name.clone(),
        partitions: Some(partitions),
        ..NewTopic::default()
    };
    cluster.create_topic(&new).await.unwrap();
    name
}

async fn produce(topic: &str, partition: i32, count: i64, timestamp: impl Fn(i64) -> i64) {
    let producer: FutureProducer = services::kafka().client().create().unwrap();
    for number in 0..count {
        let record = FutureRecord::<str, _>::to(topic)
            .partition(partition)
            .payload("x")
            .timestamp(timestamp(number));
        producer.send(record, LIMIT).await.unwrap();
    }
}

fn offsets<const N: usize>(of: [(i32, i64); N]) -> BTreeMap<i32, i64> {
    of.into()
}

fn list(topic: &str, of: &BTreeMap<i32, i64>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in of {
        list.add_partition_offset(topic, *partition, Offset::Offset(*offset))
            .unwrap();
    }
    list
}

fn member(group: &str, protocol: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", services::kafka().bootstrap())
        .set("group.id", group)
        .set("group.protocol", protocol)
        .set("enable.auto.commit", "false")
        .create()
        .unwrap()
}

/// Subscribes and polls until partitions are assigned.
async fn join(consumer: &BaseConsumer, topic: &str) {
    consumer.subscribe(&[topic]).unwrap();
    eventually(LIMIT, "the consumer has partitions", async || {
        drop(consumer.poll(Duration::from_millis(20)));
        match consumer.assignment().unwrap().count() {
            0 => Err("none"),
            _ => Ok(()),
        }
    })
    .await;
}

#[tokio::test]
async fn a_created_topic_has_what_was_asked_for_and_an_id_of_its_own() {
    let cluster = cluster().await;
    let new = NewTopic {
        name: unique("create"),
        partitions: Some(3),
        replication_factor: Some(1),
        config: BTreeMap::from([("retention.ms".to_owned(), "123456".to_owned())]),
    };
    assert_eq!(cluster.describe_topic(&new.name).await.unwrap(), None);
    let created = cluster.create_topic(&new).await.unwrap();
    assert_eq!((created.partitions, created.replication_factor), (3, 1));
    assert_eq!(created.id.len(), 22, "{}", created.id);
    assert_eq!(
        cluster.describe_topic(&new.name).await.unwrap(),
        Some(created.clone())
    );
    let config = cluster.topic_config(&new.name).await.unwrap();
    assert_eq!(config["retention.ms"], "123456");
    assert!(
        config.contains_key("max.message.bytes"),
        "defaults included"
    );

    let again = cluster.create_topic(&new).await.unwrap_err();
    assert_eq!(again.class, ErrorClass::TopicExists);

    // The same name deleted and made anew is another topic.
    let admin = services::kafka().admin();
    admin
        .delete_topics(&[&new.name], &rdkafka::admin::AdminOptions::new())
        .await
        .unwrap();
    eventually(LIMIT, "the topic is gone", async || {
        match cluster.describe_topic(&new.name).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let second = cluster.create_topic(&new).await.unwrap();
    assert_ne!(second.id, created.id);
}

#[tokio::test]
async fn what_is_absent_from_a_new_topic_is_the_brokers_default() {
    let cluster = cluster().await;
    let new = NewTopic {
        name: unique("defaults"),
        ..NewTopic::default()
    };
    let created = cluster.create_topic(&new).await.unwrap();
    // num.partitions of the test broker.
    assert_eq!((created.partitions, created.replication_factor), (6, 1));
}

#[tokio::test]
async fn refused_topics_say_which_field_is_wrong() {
    let cluster = cluster().await;
    let class = async |new: NewTopic| cluster.create_topic(&new).await.unwrap_err().class;
    let name = || unique("refused");
    let config = BTreeMap::from([("retention.ms".to_owned(), "soon".to_owned())]);
    let cases = [
        (
            NewTopic {
                name: name(),
                partitions: Some(0),
                ..NewTopic::default()
            },
            ErrorClass::InvalidPartitions,
        ),
        (
            NewTopic {
                name: name(),
                replication_factor: Some(7),
                ..NewTopic::default()
            },
            ErrorClass::InvalidReplicationFactor,
        ),
        (
            NewTopic {
                name: name(),
                config,
                ..NewTopic::default()
            },
            ErrorClass::InvalidConfig,
        ),
        (
            NewTopic {
                name: "no spaces".to_owned(),
                ..NewTopic::default()
            },
            ErrorClass::InvalidConfig,
        ),
        (
            NewTopic {
                name: "nul\0".to_owned(),
                ..NewTopic::default()
            },
            ErrorClass::InvalidConfig,
        ),
    ];
    for (new, expected) in cases {
        assert_eq!(class(new.clone()).await, expected, "{new:?}");
    }
}

#[tokio::test]
async fn partitions_grow_and_never_shrink() {
    let cluster = cluster().await;
    let name = topic(&cluster, "grow", 2).await;
    cluster.add_partitions(&name, 5).await.unwrap();
    eventually(LIMIT, "five partitions", async || {
        match cluster.describe_topic(&name).await.unwrap() {
            Some(info) if info.partitions == 5 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let fewer = cluster.add_partitions(&name, 3).await.unwrap_err();
    assert_eq!(fewer.class, ErrorClass::InvalidPartitions);
    let missing = cluster
        .add_partitions(&unique("none"), 3)
        .await
        .unwrap_err();
    assert_eq!(missing.class, ErrorClass::TopicMissing);
}

#[tokio::test]
async fn the_cluster_has_an_id() {
    let cluster = cluster().await;
    let id = cluster.cluster_id().await.unwrap();
    assert_eq!(id.len(), 22, "{id}");
}

#[tokio::test]
async fn start_offsets_fill_gaps_and_overwrite_nothing() {
    let cluster = cluster().await;
    let name = topic(&cluster, "missing", 4).await;
    let group = unique("group");
    assert_eq!(
        cluster.committed(&group, &name).await.unwrap(),
        BTreeMap::new()
    );
    produce(&name, 1, 9, |_| 1).await;

    let worker = member(&group, "classic");
    worker
        .commit(&list(&name, &offsets([(1, 7)])), CommitMode::Sync)
        .unwrap();
    drop(worker);

    let wanted = offsets([(0, 0), (1, 3), (2, 0), (3, 0)]);
    let outcome = cluster
        .commit_missing(&group, &name, &wanted)
        .await
        .unwrap();
    assert_eq!(outcome, CommitOutcome::Committed);
    let expected = offsets([(0, 0), (1, 7), (2, 0), (3, 0)]);
    assert_eq!(cluster.committed(&group, &name).await.unwrap(), expected);

    // Again, with other wishes: nothing changes.
    let other = offsets([(0, 5), (1, 5), (2, 5), (3, 5)]);
    let outcome = cluster.commit_missing(&group, &name, &other).await.unwrap();
    assert_eq!(outcome, CommitOutcome::Committed);
    assert_eq!(cluster.committed(&group, &name).await.unwrap(), expected);
}

#[tokio::test]
async fn offsets_of_other_topics_are_not_mixed_in() {
    let cluster = cluster().await;
    let (one, two) = (
        topic(&cluster, "one", 1).await,
        topic(&cluster, "two", 1).await,
    );
    let group = unique("group");
    for (name, offset) in [(&one, 0), (&two, 0)] {
        cluster
            .commit_missing(&group, name, &offsets([(0, offset)]))
            .await
            .unwrap();
    }
    assert_eq!(
        cluster.committed(&group, &one).await.unwrap(),
        offsets([(0, 0)])
    );
}

#[tokio::test]
async fn a_group_with_members_is_left_alone() {
    for protocol in ["classic", "consumer"] {
        let cluster = cluster().await;
        let name = topic(&cluster, "live", 2).await;
        let group = unique("group");
        let consumer = member(&group, protocol);
        join(&consumer, &name).await;
        let wanted = offsets([(0, 0), (1, 0)]);
        let outcome = cluster
            .commit_missing(&group, &name, &wanted)
            .await
            .unwrap();
        assert_eq!(outcome, CommitOutcome::GroupActive, "{protocol}");
        assert_eq!(
            cluster.committed(&group, &name).await.unwrap(),
            BTreeMap::new()
        );

        // Once it has left, its offsets can be completed.
        consumer.unsubscribe();
        drop(consumer);
        eventually(LIMIT, "the group is empty", async || {
            match cluster
                .commit_missing(&group, &name, &wanted)
                .await
                .unwrap()
            {
                CommitOutcome::Committed => Ok(()),
                CommitOutcome::GroupActive => Err("active"),
            }
        })
        .await;
        assert_eq!(cluster.committed(&group, &name).await.unwrap(), wanted);
    }
}

#[tokio::test]
async fn an_offset_for_a_time_is_the_first_record_not_older() {
    let cluster = cluster().await;
    let name = topic(&cluster, "time", 3).await;
    produce(&name, 0, 10, |number| 1_000 + 100 * number).await;
    produce(&name, 1, 4, |_| 500).await;
    let at = async |time| cluster.offsets_for_time(&name, time).await.unwrap();
    // Partition 1 is older throughout, partition 2 is empty: both start at their end.
    assert_eq!(at(1_250).await, offsets([(0, 3), (1, 4), (2, 0)]));
    assert_eq!(at(1_300).await, offsets([(0, 3), (1, 4), (2, 0)]));
    assert_eq!(at(0).await, offsets([(0, 0), (1, 0), (2, 0)]));
    assert_eq!(at(i64::MAX / 2).await, offsets([(0, 10), (1, 4), (2, 0)]));
}

#[tokio::test]
async fn watermarks_follow_what_was_produced_and_removed() {
    let cluster = cluster().await;
    let name = topic(&cluster, "ends", 2).await;
    produce(&name, 0, 5, |_| 1).await;
    services::kafka()
        .admin()
        .delete_records(
            &list(&name, &offsets([(0, 2)])),
            &rdkafka::admin::AdminOptions::new(),
        )
        .await
        .unwrap();
    let expected = BTreeMap::from([
        (0, Watermarks { start: 2, end: 5 }),
        (1, Watermarks { start: 0, end: 0 }),
    ]);
    assert_eq!(cluster.watermarks(&name).await.unwrap(), expected);
    let missing = cluster.watermarks(&unique("none")).await.unwrap_err();
    assert_eq!(missing.class, ErrorClass::TopicMissing);
}

#[tokio::test]
async fn a_dead_broker_is_unreachable_and_a_silent_one_ends_at_the_deadline() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    // Accepts connections (the kernel does) and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let clusters = Clusters::new();
    let class = async |address: String| {
        let cluster = clusters.get(&params(&address)).await.unwrap();
        let started = Instant::now();
        let error = cluster.describe_topic("any").await.unwrap_err();
        assert!(
            started.elapsed() < Duration::from_secs(15),
            "{:?}",
            started.elapsed()
        );
        error.class
    };
    let (dead, mute) = tokio::join!(
        class(closed.to_string()),
        class(silent.local_addr().unwrap().to_string()),
    );
    assert_eq!(dead, ErrorClass::Unreachable);
    assert!(
        matches!(mute, ErrorClass::Timeout | ErrorClass::Unreachable),
        "{mute:?}"
    );
}

#[tokio::test]
async fn a_refused_login_is_told_apart_from_a_dead_broker_and_at_once() {
    let kafka = tokio::task::spawn_blocking(services::kafka).await.unwrap();
    let clusters = Clusters::new();
    let as_user = |password: &str| ClusterParams {
        bootstrap_servers: kafka.sasl_bootstrap(),
        mechanism: Mechanism::ScramSha512,
        credentials: KafkaCredentials {
            user: Some(SASL_USER.to_owned()),
            password: Some(password.to_owned()),
            ..KafkaCredentials::default()
        },
    };
    let right = clusters.get(&as_user(SASL_PASSWORD)).await.unwrap();
    right.cluster_id().await.unwrap();

    let wrong = clusters.get(&as_user("wrong horse")).await.unwrap();
    let started = Instant::now();
    for _ in 0..20 {
        let error = wrong.describe_topic("any").await.unwrap_err();
        assert_eq!(error.class, ErrorClass::AuthenticationFailed);
        assert!(!error.to_string().contains("horse"), "{error}");
    }
    // One deadline is ten seconds: none was waited out.
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}",
        started.elapsed()
    );

    // A mechanism that the broker does not offer is a matter of credentials, too.
    let mut other = as_user(SASL_PASSWORD);
    other.mechanism = Mechanism::Plain;
    let error = clusters
        .get(&other)
        .await
        .unwrap()
        .cluster_id()
        .await
        .unwrap_err();
    assert_eq!(error.class, ErrorClass::AuthenticationFailed);
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_an_error_of_the_client() {
    let mut broken = params("127.0.0.1:1");
    broken.credentials.ca = Some("no certificate".to_owned());
    let error = Clusters::new().get(&broken).await.err().unwrap();
    assert_eq!(error.class, ErrorClass::TlsFailed);
    assert!(!error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn the_same_parameters_share_one_client() {
    let kafka = tokio::task::spawn_blocking(services::kafka).await.unwrap();
    let clusters = Clusters::new();
    let same = params(&kafka.bootstrap());
    let (one, two) = tokio::join!(clusters.get(&same), clusters.get(&same));
    assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
    let mut other = same.clone();
    other.credentials.password = Some("rotated".to_owned());
    clusters.get(&other).await.unwrap();
    assert_eq!(clusters.len(), 2);
}

#[tokio::test]
async fn two_hundred_groups_are_read_side_by_side_on_one_client() {
    const GROUPS: i64 = 200;
    let cluster = cluster().await;
    let name = topic(&cluster, "many", 6).await;
    let ids: Vec<String> = (0..GROUPS).map(|_| unique("group")).collect();
    stream::iter((0_i64..).zip(&ids))
        .map(Ok)
        .try_for_each_concurrent(32, |(number, group)| {
            let wanted = (0..6).map(|partition| (partition, number)).collect();
            let (cluster, name) = (&cluster, &name);
            async move { cluster.commit_missing(group, name, &wanted).await.map(drop) }
        })
        .await
        .unwrap();
    let read: Vec<BTreeMap<i32, i64>> = stream::iter(&ids)
        .map(|group| cluster.committed(group, &name))
        .buffered(64)
        .try_collect()
        .await
        .unwrap();
    for (number, committed) in (0_i64..).zip(&read) {
        assert_eq!(committed.len(), 6);
        assert!(
            committed.values().all(|offset| *offset == number),
            "{committed:?}"
        );
    }
}

/// Runs [`in_a_process_of_its_own`] where no other test adds threads or memory.
#[tokio::test]
async fn many_calls_and_many_clients_leave_nothing_behind() {
    let cluster = cluster().await;
    let name = topic(&cluster, "leak", 2).await;
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "kafka_admin::in_a_process_of_its_own",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("FANOUT_TEST_BOOTSTRAP", services::kafka().bootstrap())
        .env("FANOUT_TEST_TOPIC", &name)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
#[ignore = "run by many_calls_and_many_clients_leave_nothing_behind"]
#[expect(
    clippy::disallowed_methods,
    reason = "how the test that runs it passes its parameters"
)]
async fn in_a_process_of_its_own() {
    let bootstrap = std::env::var("FANOUT_TEST_BOOTSTRAP").unwrap();
    let name = std::env::var("FANOUT_TEST_TOPIC").unwrap();
    let calls = async |cluster: &Cluster, count: usize| {
        stream::iter(0..count)
            .for_each_concurrent(32, |number| {
                let name = &name;
                async move {
                    cluster
                        .committed(&format!("leak-{}", number % 7), name)
                        .await
                        .unwrap();
                    cluster.watermarks(name).await.unwrap();
                    cluster.describe_topic("no-such-topic").await.unwrap();
                    // Given up while under way: its answer comes to nobody.
                    drop(tokio::time::timeout(Duration::ZERO, cluster.watermarks(name)).await);
                }
            })
            .await;
    };
    let client = async || Clusters::new().get(&params(&bootstrap)).await.unwrap();

    let cluster = client().await;
    calls(&cluster, 500).await;
    let before = resident_kib();
    calls(&cluster, 2_000).await;
    let grown = resident_kib().saturating_sub(before);
    // 12,000 events of at least half a KiB each would be 6 MiB.
    assert!(grown < 4_096, "{grown} KiB more after 2,000 rounds");
    drop(cluster);

    eventually(LIMIT, "its threads have ended", async || no_clients()).await;
    let before = resident_kib();
    for _ in 0..20 {
        let cluster = client().await;
        calls(&cluster, 1).await;
    }
    eventually(LIMIT, "all threads have ended", async || no_clients()).await;
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 8_192, "{grown} KiB more after 20 clients");
}

fn no_clients() -> Result<(), String> {
    let names: Vec<String> = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("rdk:") || name.starts_with("kafka-admin"))
        .collect();
    if names.is_empty() {
        Ok(())
    } else {
        Err(format!("{names:?}"))
    }
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
