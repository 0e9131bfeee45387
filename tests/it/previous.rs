//! What the version before wrote and reported is understood: in a rollback this version's workers get its configurations, in an
//! upgrade this version's operator reads its workers' reports.

use fanout_contract::consumer::{ConsumerConfig, ConsumerStatus};
use fanout_contract::relay::{RelayConfig, RelayStatus};
use fanout_tests::services::dirs;

fn file(name: &str) -> String {
    let path = dirs::tests_dir().join("cluster/previous").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn workers_take_over_the_configurations_of_the_version_before() {
    let consumer: ConsumerConfig = serde_yaml::from_str(&file("consumer-config.yaml")).unwrap();
    let search = &consumer.subscriptions[0];
    assert_eq!((search.name.as_str(), search.generation), ("search", 5));
    assert_eq!(search.group_id, "social.search");
    assert_eq!(search.resume.as_deref(), Some("again"));
    let relay: RelayConfig = serde_yaml::from_str(&file("relay-config.yaml")).unwrap();
    assert_eq!((relay.name.as_str(), relay.generation), ("posts", 3));
}

#[test]
fn the_operator_understands_the_reports_of_the_version_before() {
    let consumer: ConsumerStatus = serde_json::from_str(&file("consumer-status.json")).unwrap();
    let search = &consumer.subscriptions[0];
    assert_eq!(search.delivering, Some(false));
    assert_eq!(search.partitions[0].committed, Some(17));
    assert_eq!(search.totals.delivered, 17);
    let relay: RelayStatus = serde_json::from_str(&file("relay-status.json")).unwrap();
    assert!(relay.broker_error.is_some() && relay.source_checked);
    assert_eq!(relay.pending.map(|pending| pending.rows), Some(7));
    assert_eq!((relay.parked.rows, relay.parked.held), (1, 2));
}
