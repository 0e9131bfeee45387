//! A position belongs to one database history; leases and terms fence who writes it.

use super::table::restore;
use super::{LIMIT, execute, sandbox, source, value};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::RelayStart;
use fanout_relay::claim::snapshot::Snapshot;
use fanout_relay::encode::Unencodable;
use fanout_relay::lease::{self, Member};
use fanout_relay::park::{self, Parked};
use fanout_relay::position::{self, Position};
use fanout_tests::process::Relay;
use fanout_tests::{Sandbox, configs, services};

#[tokio::test]
async fn a_restored_copy_publishes_nothing() {
    let sandbox = sandbox("history_copy").await;
    super::insert(&sandbox, 20, 2).await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    relay
        .wait_until(LIMIT, "published", |status| status.published_total == 20)
        .await;
    assert!(relay.terminate().await.success());
    let copy = restore(&sandbox).await;
    let mut files = sandbox.secret_files();
    let url = services::postgres().url_as(services::postgres::RELAY_ROLE, &copy);
    files.insert(configs::URL_FILE.to_owned(), url.into_bytes());
    let relay = Relay::start_with(&sandbox, "b", &sandbox.relay_config(), files).await;
    let status = relay
        .wait_until(LIMIT, "the class", |status| {
            status
                .source_error
                .as_ref()
                .is_some_and(|error| error.class == SourceError::SourceChanged)
        })
        .await;
    assert_eq!((status.published_total, status.ranges.len()), (0, 0));
    assert!(relay.ready().await.unwrap(), "it stays up");
}

#[tokio::test]
async fn a_position_of_another_system_stops_the_topic() {
    let sandbox = sandbox("history_system").await;
    let relay = Relay::start(&sandbox, "a", &sandbox.relay_config()).await;
    relay
        .wait_until(LIMIT, "its ranges", |status| status.ranges.len() == 2)
        .await;
    assert!(relay.terminate().await.success());
    // Written here, but as by another system: what a physical copy of other origin would hold.
    execute(
        &sandbox,
        "insert into fanout.positions (range_id, term, seq, old, system_identifier, timeline)
         select range_id, term, 1000000, old, 4711, timeline from fanout.positions order by term desc limit 1",
    )
    .await;
    let relay = Relay::start(&sandbox, "b", &sandbox.relay_config()).await;
    let status = relay
        .wait_until(LIMIT, "the class", |status| status.source_error.is_some())
        .await;
    let error = status.source_error.unwrap();
    assert_eq!(error.class, SourceError::SourceChanged);
    assert!(error.message.contains("4711"), "{error:?}");
}

/// A member with its first range, in this process.
async fn owner(sandbox: &Sandbox, name: &str) -> (fanout_relay::source::Source, Member, i64) {
    let source = source(sandbox).await;
    let topic = lease::register(&source, "cluster", "topic", RelayStart::Earliest)
        .await
        .unwrap();
    let member = Member {
        topic,
        owner: name.to_owned(),
    };
    let range = value(
        sandbox,
        &format!("select min(id) from fanout.ranges where topic_id = {topic}"),
    )
    .await;
    (source, member, range.unwrap().parse().unwrap())
}

#[tokio::test]
async fn whoever_lost_its_lease_can_neither_store_nor_park() {
    let sandbox = sandbox("history_fence").await;
    super::insert(&sandbox, 1, 1).await;
    let (source, old, range) = owner(&sandbox, "old").await;
    let zombie = lease::acquire(&source, &old, range).await.unwrap().unwrap();
    let new = Member {
        owner: "new".to_owned(),
        ..old.clone()
    };
    assert!(
        lease::acquire(&source, &new, range)
            .await
            .unwrap()
            .is_none(),
        "the lease is held"
    );
    let store = async |seq| {
        let sql = position::append(
            &zombie.fence,
            seq,
            &Position::At(Snapshot::new("9:9:")),
            &zombie.history,
        );
        source.execute(sql).await.unwrap()
    };
    assert_eq!(store(1).await, 1);
    execute(
        &sandbox,
        &format!(
            "update fanout.leases set expires_at = clock_timestamp() where range_id = {range}"
        ),
    )
    .await;
    let taken = lease::acquire(&source, &new, range).await.unwrap().unwrap();
    assert_eq!(taken.fence.term, zombie.fence.term + 1);
    assert_eq!(
        taken.position,
        Position::At(Snapshot::new("9:9:")),
        "from where the other one was"
    );

    assert_eq!(store(2).await, 0, "fenced");
    let row = Parked {
        id: 1,
        reason: Some(Unencodable::TypeEmpty),
    };
    assert!(
        !park::store(&source, &zombie.fence, &[row]).await.unwrap(),
        "fenced"
    );
    assert_eq!(
        value(&sandbox, "select count(*) from fanout.parked")
            .await
            .as_deref(),
        Some("0")
    );
    // Renewing does not help it either, and giving back takes nothing from the new owner.
    let view = lease::look(&source, &old, std::slice::from_ref(&zombie.fence))
        .await
        .unwrap();
    assert!(
        view.ranges
            .iter()
            .all(|range| range.holder.as_deref() != Some("old"))
    );
    lease::release(&source, &zombie.fence).await.unwrap();
    assert!(
        lease::acquire(&source, &old, range)
            .await
            .unwrap()
            .is_none()
    );
    assert!(park::store(&source, &taken.fence, &[row]).await.unwrap());
}

#[tokio::test]
async fn a_late_append_of_a_zombie_is_never_the_latest_position() {
    let sandbox = sandbox("history_late").await;
    let (source, old, range) = owner(&sandbox, "old").await;
    let zombie = lease::acquire(&source, &old, range).await.unwrap().unwrap();
    lease::release(&source, &zombie.fence).await.unwrap();
    let taken = lease::acquire(&source, &old, range).await.unwrap().unwrap();
    // As if its statement had begun before the takeover: many appends under the old term.
    execute(
        &sandbox,
        &format!(
            "insert into fanout.positions (range_id, term, seq, old, system_identifier, timeline)
             select {range}, {}, 999, '77:77:', system_identifier, timeline from fanout.positions limit 1",
            zombie.fence.term
        ),
    )
    .await;
    let latest = value(
        &sandbox,
        &format!(
            "select term from ({}) p",
            position::latest(&range.to_string())
        ),
    )
    .await;
    assert_eq!(latest, Some(taken.fence.term.to_string()));
}

#[tokio::test]
async fn a_position_is_not_stored_in_another_history() {
    let sandbox = sandbox("history_append").await;
    let (source, member, range) = owner(&sandbox, "a").await;
    let taken = lease::acquire(&source, &member, range)
        .await
        .unwrap()
        .unwrap();
    let mut elsewhere = taken.history.clone();
    elsewhere.timeline = "00000099".to_owned();
    let sql = position::append(&taken.fence, 1, &taken.position, &elsewhere);
    assert_eq!(source.execute(sql).await.unwrap(), 0);
}
