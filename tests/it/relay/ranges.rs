//! Ranges split and merge while relays come and go.

mod kills;
mod relays;
mod replacing;

use super::{source, value};
use fanout_relay::claim::Shards;
use fanout_relay::lease::{self, Acquired, Member};
use fanout_relay::position::Fence;
use fanout_relay::rearrange::{self, Plan, Rearranged};
use fanout_relay::source::Source;
use fanout_tests::{Sandbox, eventually};

/// The ranges of the only topic, as `lo-hi`.
const RANGES: &str =
    "select coalesce(string_agg(lo || '-' || hi, ' ' order by lo), '') from fanout.ranges";
/// The same with their ids.
const IDS: &str = "select coalesce(string_agg(id || ':' || lo || '-' || hi, ' ' order by lo), '') from fanout.ranges";
/// Two ranges.
pub(super) const HALVES: &str = "0-32 32-64";
/// Parked rows whose range has other shards than their key.
const ASTRAY: &str =
    "select count(*) from fanout.parked p join fanout.ranges r on r.id = p.range_id
    where hashtext(coalesce(key, '')) & 63 not between r.lo and r.hi - 1";

/// Waits until the only topic has the ranges `wanted`.
pub(super) async fn expect_ranges(sandbox: &Sandbox, wanted: &str) {
    eventually(super::LIMIT, &format!("ranges {wanted}"), async || {
        let found = value(sandbox, RANGES).await.unwrap_or_default();
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Aligned ranges of this width, as [`RANGES`] shows them.
pub(super) fn of_width(width: i32) -> String {
    let ranges = (0..64 / width).map(|n| format!("{}-{}", n * width, (n + 1) * width));
    ranges.collect::<Vec<_>>().join(" ")
}

/// `width` shards each.
fn pieces(of: Shards, width: i32) -> Plan {
    let width_of = usize::try_from(width).unwrap();
    let los = (of.lo..of.hi).step_by(width_of);
    let into: Vec<Shards> = los.map(|lo| Shards { lo, hi: lo + width }).collect();
    Plan {
        keep: into.len(),
        into,
    }
}

/// A relay in this process.
struct Owner {
    source: Source,
    member: Member,
}

impl Owner {
    /// Owner `name` of topic `topic`.
    async fn of_topic(sandbox: &Sandbox, name: &str, topic: i64) -> Self {
        Self {
            source: source(sandbox).await,
            member: Member {
                topic,
                owner: name.to_owned(),
            },
        }
    }

    /// Owner `name` of the topic `posts` of cluster `cluster`, which is made where it is missing.
    async fn new(sandbox: &Sandbox, name: &str) -> Self {
        let source = source(sandbox).await;
        let start = fanout_contract::relay::RelayStart::Earliest;
        let topic = lease::register(&source, "cluster", "posts", start)
            .await
            .unwrap();
        Self::of_topic(sandbox, name, topic).await
    }

    async fn ranges(&self) -> Vec<(i64, Shards)> {
        let view = lease::observe(&self.source, &self.member).await.unwrap();
        let ranges = view.ranges.into_iter();
        ranges.map(|range| (range.id, range.shards)).collect()
    }

    async fn acquire(&self, range: i64) -> Acquired {
        let acquired = lease::acquire(&self.source, &self.member, range).await;
        acquired.unwrap().expect("nobody holds it")
    }

    async fn replace(&self, old: &[Fence], plan: &Plan) -> Rearranged {
        rearrange::rearrange(&self.source, &self.member, old, plan)
            .await
            .unwrap()
    }

    /// The same, which must succeed; returns the leases.
    async fn replaced(&self, old: &[Fence], plan: &Plan) -> Vec<Acquired> {
        match self.replace(old, plan).await {
            Rearranged::Done(kept) => kept.into_iter().map(|(_, acquired)| acquired).collect(),
            other => panic!("{other:?}"),
        }
    }

    async fn release(&self, fence: &Fence) {
        lease::release(&self.source, fence).await.unwrap();
    }
}

/// Splits every range of the only topic, which nobody may hold, into ranges of this width.
pub(super) async fn split_all(sandbox: &Sandbox, width: i32) {
    let topic = value(sandbox, "select id from fanout.topics").await;
    let owner = Owner::of_topic(sandbox, "splitter", topic.unwrap().parse().unwrap()).await;
    for (id, shards) in owner.ranges().await {
        let acquired = owner.acquire(id).await;
        let plan = pieces(shards, width);
        for kept in owner.replaced(&[acquired.fence], &plan).await {
            owner.release(&kept.fence).await;
        }
    }
}
