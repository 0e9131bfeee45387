//! Topics and groups are deleted; a group with members is not.

use super::{LIMIT, cluster, join, member, offsets, topic, unique};
use fanout_operator::kafka::GroupDeletion;
use fanout_tests::eventually;
use rdkafka::consumer::Consumer as _;
use std::collections::BTreeMap;

#[tokio::test]
async fn a_deleted_topic_is_gone_and_deleting_it_again_is_no_error() {
    let cluster = cluster().await;
    let name = topic(&cluster, "deleted", 2).await;
    cluster.delete_topic(&name).await.unwrap();
    assert_eq!(cluster.describe_topic(&name).await.unwrap(), None);
    cluster.delete_topic(&name).await.unwrap();
}

#[tokio::test]
async fn a_group_is_deleted_with_its_offsets_once_it_has_no_members() {
    let cluster = cluster().await;
    let name = topic(&cluster, "live", 1).await;
    assert_eq!(
        cluster.delete_group(&unique("never-was")).await.unwrap(),
        GroupDeletion::Gone
    );
    for protocol in ["classic", "consumer"] {
        let group = unique("group");
        let start = offsets([(0, 0)]);
        cluster.commit_missing(&group, &name, &start).await.unwrap();
        let consumer = member(&group, protocol);
        join(&consumer, &name).await;
        let deleted = cluster.delete_group(&group).await.unwrap();
        assert_eq!(deleted, GroupDeletion::Active, "{protocol}");
        assert_eq!(
            cluster.committed(&group, &name).await.unwrap(),
            start,
            "{protocol}"
        );

        consumer.unsubscribe();
        drop(consumer);
        eventually(LIMIT, "the group is empty and goes", async || match cluster
            .delete_group(&group)
            .await
            .unwrap()
        {
            GroupDeletion::Gone => Ok(()),
            GroupDeletion::Active => Err("active"),
        })
        .await;
        assert_eq!(
            cluster.committed(&group, &name).await.unwrap(),
            BTreeMap::new(),
            "{protocol}"
        );
    }
}
