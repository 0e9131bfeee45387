//! The transaction that replaces ranges: what moves with it, and who may not.

use super::{ASTRAY, HALVES, IDS, Owner, RANGES, of_width, pieces};
use crate::relay::{execute, insert, sandbox, value};
use fanout_relay::claim::Shards;
use fanout_relay::claim::snapshot::Snapshot;
use fanout_relay::encode::Unencodable;
use fanout_relay::park::{self, Parked};
use fanout_relay::position::{self, Fence, Position};
use fanout_relay::rearrange::{self, Plan, Rearranged};
use fanout_relay::retention;
use fanout_relay::stats::RangeState;
use fanout_tests::Sandbox;

const FIRST: Shards = Shards { lo: 0, hi: 32 };

fn at(snapshot: &str) -> Position {
    Position::At(Snapshot::new(snapshot))
}

/// Appends a position; returns how many rows that were.
async fn append(owner: &Owner, fence: &Fence, seq: i64, position: &Position) -> u64 {
    let history = fanout_relay::lease::observe(&owner.source, &owner.member).await;
    let sql = position::append(fence, seq, position, &history.unwrap().history);
    owner.source.execute(sql).await.unwrap()
}

/// Everything that schema `fanout` says about ranges.
async fn all(sandbox: &Sandbox) -> Option<String> {
    let table = |name| format!("(select json_agg(t order by t::text) from fanout.{name} t)");
    let tables = ["ranges", "leases", "positions", "parked"].map(table);
    value(
        sandbox,
        &format!("select json_build_array({})", tables.join(", ")),
    )
    .await
}

#[tokio::test]
async fn the_pieces_begin_where_the_whole_stood() {
    let sandbox = sandbox("replace_split").await;
    let owner = Owner::new(&sandbox, "a").await;
    let (whole, shards) = owner.ranges().await[0];
    let acquired = owner.acquire(whole).await;
    // Inside a large difference.
    let inside = Position::Inside {
        old: Snapshot::new("5:5:"),
        new: Snapshot::new("9:9:"),
        last_id: 77,
    };
    assert_eq!(append(&owner, &acquired.fence, 1, &inside).await, 1);
    let plan = Plan {
        keep: 1,
        ..pieces(shards, 8)
    };
    let kept = owner
        .replaced(std::slice::from_ref(&acquired.fence), &plan)
        .await;
    assert_eq!(
        value(&sandbox, RANGES).await.as_deref(),
        Some("0-8 8-16 16-24 24-32 32-64")
    );
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].position, inside);
    // What is kept can be written to, what is free can be taken; both stand there.
    assert_eq!(append(&owner, &kept[0].fence, 1, &inside).await, 1);
    let other = Owner::of_topic(&sandbox, "b", owner.member.topic).await;
    for (id, shards) in &other.ranges().await[1..4] {
        let taken = other.acquire(*id).await;
        assert_eq!(taken.position, inside, "{shards:?}");
    }
    let predecessors =
        format!("select bool_and(predecessors = '{{{whole}}}') from fanout.ranges where hi <= 32");
    assert_eq!(
        value(&sandbox, &predecessors).await.as_deref(),
        Some("true")
    );
    // Nothing is left of the whole, and nothing more is written under its id.
    let rest = format!(
        "select (select count(*) from fanout.leases where range_id = {whole})
              + (select count(*) from fanout.positions where range_id = {whole})"
    );
    assert_eq!(append(&owner, &acquired.fence, 2, &at("99:99:")).await, 0);
    assert_eq!(value(&sandbox, &rest).await.as_deref(), Some("0"));
}

#[tokio::test]
async fn neighbours_merge_only_where_they_stand_at_one_position() {
    let sandbox = sandbox("replace_merge").await;
    let owner = Owner::new(&sandbox, "a").await;
    let (whole, shards) = owner.ranges().await[0];
    let acquired = owner.acquire(whole).await;
    let kept = owner.replaced(&[acquired.fence], &pieces(shards, 16)).await;
    let fences: Vec<Fence> = kept.into_iter().map(|kept| kept.fence).collect();
    let merged = Plan {
        into: vec![FIRST],
        keep: 1,
    };
    assert_eq!(append(&owner, &fences[0], 1, &at("9:9:")).await, 1);
    let before = all(&sandbox).await;
    let outcome = owner.replace(&fences, &merged).await;
    assert!(matches!(outcome, Rearranged::Apart), "{outcome:?}");
    assert_eq!(all(&sandbox).await, before);
    assert_eq!(append(&owner, &fences[1], 1, &at("9:9:")).await, 1);
    let kept = owner.replaced(&fences, &merged).await;
    assert_eq!(kept[0].position, at("9:9:"));
    assert_eq!(value(&sandbox, RANGES).await.as_deref(), Some(HALVES));
}

#[tokio::test]
async fn whoever_lost_its_lease_replaces_nothing() {
    let sandbox = sandbox("replace_fence").await;
    let owner = Owner::new(&sandbox, "a").await;
    let ranges = owner.ranges().await;
    let zombie = owner.acquire(ranges[0].0).await;
    let held = owner.acquire(ranges[1].0).await;
    let split = pieces(FIRST, 16);
    let merge = Plan {
        into: vec![Shards { lo: 0, hi: 64 }],
        keep: 1,
    };
    owner.release(&zombie.fence).await;
    // Taken by another, and by the same once more.
    for name in ["b", "a"] {
        let other = Owner::of_topic(&sandbox, name, owner.member.topic).await;
        let taken = other.acquire(ranges[0].0).await;
        let before = all(&sandbox).await;
        for (fences, plan) in [
            (vec![zombie.fence.clone()], &split),
            (vec![zombie.fence.clone(), held.fence.clone()], &merge),
        ] {
            let outcome = owner.replace(&fences, plan).await;
            assert!(matches!(outcome, Rearranged::Lost), "{outcome:?}");
        }
        assert_eq!(all(&sandbox).await, before);
        other.release(&taken.fence).await;
    }
    // Split by its new owner: the zombie's late append is nobody's position.
    let other = Owner::of_topic(&sandbox, "b", owner.member.topic).await;
    let taken = other.acquire(ranges[0].0).await;
    let kept = other.replaced(&[taken.fence], &split).await;
    assert_eq!(append(&owner, &zombie.fence, 9, &at("99:99:")).await, 0);
    execute(
        &sandbox,
        &format!(
            "insert into fanout.positions (range_id, term, seq, old, system_identifier, timeline)
             select {}, {}, 999, '77:77:', system_identifier, timeline from fanout.positions limit 1",
            zombie.fence.range, zombie.fence.term
        ),
    )
    .await;
    for kept in kept {
        other.release(&kept.fence).await;
        let again = other.acquire(kept.fence.range).await;
        assert_eq!(again.position, at("1:1:"));
    }
}

#[tokio::test]
async fn parked_rows_go_with_their_keys() {
    let sandbox = sandbox("replace_parked").await;
    insert(&sandbox, 400, 400).await;
    execute(
        &sandbox,
        "insert into outbox (topic, type, subject) values ('posts', 't', 's/0')",
    )
    .await;
    let owner = Owner::new(&sandbox, "a").await;
    let mut fences = Vec::new();
    for (id, Shards { lo, hi }) in owner.ranges().await {
        let fence = owner.acquire(id).await.fence;
        let ids = format!(
            "select string_agg(id::text, ',') from outbox where shard >= {lo} and shard < {hi}"
        );
        let reason = Some(Unencodable::TypeEmpty);
        let parked: Vec<Parked> = value(&sandbox, &ids)
            .await
            .unwrap()
            .split(',')
            .map(|id| Parked {
                id: id.parse().unwrap(),
                reason,
            })
            .collect();
        assert!(park::store(&owner.source, &fence, &parked).await.unwrap());
        fences.push((fence, Shards { lo, hi }));
    }
    assert_eq!(value(&sandbox, ASTRAY).await.as_deref(), Some("0"));
    let held = "select count(distinct range_id) || ' ' || count(*) from fanout.parked";
    let mut kept = Vec::new();
    for (fence, shards) in fences {
        let pieces = pieces(shards, 4);
        let leases = owner.replaced(&[fence], &pieces).await;
        kept.extend(leases.into_iter().map(|kept| kept.fence));
    }
    assert_eq!(value(&sandbox, RANGES).await, Some(of_width(4)));
    assert_eq!(value(&sandbox, ASTRAY).await.as_deref(), Some("0"));
    assert_eq!(value(&sandbox, held).await.as_deref(), Some("16 401"));
    let whole = Plan {
        into: vec![Shards { lo: 0, hi: 64 }],
        keep: 1,
    };
    owner.replaced(&kept, &whole).await;
    assert_eq!(value(&sandbox, held).await.as_deref(), Some("1 401"));
    assert_eq!(value(&sandbox, ASTRAY).await.as_deref(), Some("0"));
}

#[tokio::test]
async fn ranges_with_very_many_parked_rows_stay_as_they_are() {
    let sandbox = sandbox("replace_heavy").await;
    let owner = Owner::new(&sandbox, "a").await;
    let (id, _) = owner.ranges().await[0];
    let park = |rows: i64| {
        format!(
            "insert into fanout.parked (range_id, id, event_id, type, content_type, created_at)
             select {id}, n, gen_random_uuid(), 't', 't', now() from generate_series(1, {rows}) n
             on conflict do nothing"
        )
    };
    execute(&sandbox, &park(rearrange::PARKED_MOST)).await;
    assert!(rearrange::is_light(&owner.source, &[id]).await.unwrap());
    execute(&sandbox, &park(rearrange::PARKED_MOST + 1)).await;
    assert!(!rearrange::is_light(&owner.source, &[id]).await.unwrap());
}

#[tokio::test]
async fn retention_follows_the_ranges() {
    let sandbox = sandbox("replace_retention").await;
    insert(&sandbox, 200, 100).await;
    let everything = value(&sandbox, "select pg_current_snapshot()")
        .await
        .unwrap();
    let owner = Owner::new(&sandbox, "a").await;
    let expire = async |fence: &Fence, shards: Shards| {
        let range = RangeState {
            shards,
            fence: fence.clone(),
            position: at(&everything),
        };
        let removed = retention::expire(&owner.source, &range, 0, 1_000);
        removed.await.unwrap()
    };
    let rows = async |shards: Shards| {
        let Shards { lo, hi } = shards;
        let count = format!("select count(*) from outbox where shard >= {lo} and shard < {hi}");
        value(&sandbox, &count)
            .await
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let (id, shards) = owner.ranges().await[0];
    let whole = owner.acquire(id).await.fence;
    assert_eq!(append(&owner, &whole, 1, &at("1:1:")).await, 1);
    let plan = pieces(shards, 16);
    let kept = owner.replaced(std::slice::from_ref(&whole), &plan).await;
    // By a relay that does not know it yet.
    assert_eq!(expire(&whole, shards).await, 0);
    // One half is published, the other is not.
    assert_eq!(append(&owner, &kept[0].fence, 1, &at(&everything)).await, 1);
    // A second topic reads the same rows, in ranges of its own, and is behind.
    let source = owner.source.clone();
    let start = fanout_contract::relay::RelayStart::Earliest;
    let second = fanout_relay::lease::register(&source, "cluster", "second", start);
    let second = Owner::of_topic(&sandbox, "s", second.await.unwrap()).await;
    assert_eq!(expire(&kept[0].fence, plan.into[0]).await, 0);
    let (id, shards) = second.ranges().await[0];
    let lease = second.acquire(id).await;
    // Its quarters: one is published, one is not.
    let quarters = pieces(shards, 8);
    let leases = second.replaced(&[lease.fence], &quarters).await;
    assert_eq!(
        append(&second, &leases[0].fence, 1, &at(&everything)).await,
        1
    );
    assert_eq!(
        expire(&kept[0].fence, plan.into[0]).await,
        0,
        "a quarter is not published"
    );
    assert_eq!(
        append(&second, &leases[1].fence, 1, &at(&everything)).await,
        1
    );
    let (published, behind) = (rows(plan.into[0]).await, rows(plan.into[1]).await);
    assert!(published > 0 && behind > 0);
    assert_eq!(
        expire(&kept[1].fence, plan.into[1]).await,
        0,
        "the other half is not published"
    );
    assert_eq!(expire(&kept[0].fence, plan.into[0]).await, published);
    assert_eq!(
        (rows(plan.into[0]).await, rows(plan.into[1]).await),
        (0, behind)
    );
}

#[tokio::test]
async fn a_topic_that_is_made_again_keeps_its_ranges() {
    let sandbox = sandbox("replace_register").await;
    let owner = Owner::new(&sandbox, "a").await;
    let all = owner.ranges().await;
    let mut fences = Vec::new();
    for (id, _) in all {
        fences.push(owner.acquire(id).await.fence);
    }
    let whole = Plan {
        into: vec![Shards { lo: 0, hi: 64 }],
        keep: 1,
    };
    owner.replaced(&fences, &whole).await;
    let before = value(&sandbox, IDS).await;
    Owner::new(&sandbox, "b").await;
    assert_eq!(value(&sandbox, IDS).await, before);
}

#[tokio::test]
async fn ranges_of_an_older_schema_split_once_it_is_brought_up_to_date() {
    let sandbox = sandbox("replace_upgrade").await;
    // As version 1 was.
    execute(
        &sandbox,
        "delete from fanout.schema_version where version > 1;
         alter table fanout.ranges drop column predecessors;
         alter table fanout.parked drop column action, alter constraint parked_range_id_fkey not deferrable;
         revoke update on fanout.parked from fanout_relay",
    )
    .await;
    let owner = Owner::new(&sandbox, "a").await;
    let (id, shards) = owner.ranges().await[0];
    let fence = owner.acquire(id).await.fence;
    let plan = pieces(shards, 16);
    let outcome = owner.replace(std::slice::from_ref(&fence), &plan).await;
    assert!(matches!(outcome, Rearranged::Failed(_)), "{outcome:?}");
    let step = fanout_tests::documents::root().join("manifests/sql/upgrade/2-parked-actions.sql");
    fanout_tests::services::postgres()
        .psql_file(&sandbox.database, &step, &[("relay_role", "fanout_relay")])
        .unwrap();
    owner.replaced(&[fence], &plan).await;
    assert_eq!(
        value(&sandbox, RANGES).await.as_deref(),
        Some("0-16 16-32 32-64")
    );
}
