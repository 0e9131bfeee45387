//! Removes rows that every topic that wants them has published, some time after they were created.

use crate::claim::lease;
use crate::claim::row::parsed;
use crate::claim::snapshot::{self, Snapshot};
use crate::source::{Failure, Source, classify};
use crate::sql::literal;
use crate::stats::{RangeState, Stats};
use fanout_contract::relay::Claim;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Rows removed at a time.
const BATCH: usize = 1_000;
/// Pause between two full batches: removing leaves room for everything else.
const BUSY: Duration = Duration::from_millis(50);
/// Pause when there is nothing (more) to remove.
const IDLE: Duration = Duration::from_secs(10);

/// Removes expired rows of the ranges this process works on until `stop`. Whoever holds a range's lease removes its rows,
/// so relays never wait for each other.
pub async fn run(source: Source, seconds: i64, stats: Arc<Stats>, stop: CancellationToken) {
    loop {
        let mut pause = IDLE;
        for range in stats.ranges() {
            match expire(&source, &range, seconds, BATCH).await {
                Ok(removed) if removed >= BATCH as u64 => pause = BUSY,
                Ok(_) => {}
                Err(failure) => {
                    tracing::warn!(class = ?failure.class, reason = %failure.message, "published rows can't be removed");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause.mul_f64(1.0 + rand::random::<f64>() / 4.0)) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Removes at most `limit` rows of `range`; returns how many.
pub async fn expire(
    source: &Source,
    range: &RangeState,
    seconds: i64,
    limit: usize,
) -> Result<u64, Failure> {
    let outbox = &source.outbox;
    let sql = match outbox.claim {
        Claim::Snapshot => {
            let published = published(source, range).await?;
            if published.is_empty() {
                // The range was split or merged meanwhile: whoever owns what it became removes its rows.
                return Ok(0);
            }
            snapshot::expire(outbox, range.shards, &published, seconds, limit)
        }
        Claim::Lease => lease::expire(outbox, range.shards, seconds, limit),
        // What is published is deleted already.
        Claim::Delete => return Ok(0),
    };
    source.execute(sql).await
}

/// Stored positions of every range, of this topic and of any other, that may still want a row of `range`: same table,
/// common shards, and a match that a row can meet together with this topic's. At least its own; none once it is gone.
///
/// A topic that nobody runs any more keeps rows for itself until its ranges and positions are deleted.
async fn published(source: &Source, range: &RangeState) -> Result<Vec<Snapshot>, Failure> {
    let latest = crate::position::latest("r.id");
    // Two matches exclude each other when they ask different values of one column.
    let sql = format!(
        "select distinct p.old::text from fanout.ranges own join fanout.topics me on me.id = own.topic_id \
         join fanout.topics t on t.source_table = me.source_table and not exists (select from jsonb_each_text(t.match) a \
         join jsonb_each_text(me.match) b on a.key = b.key and a.value <> b.value) \
         join fanout.ranges r on r.topic_id = t.id and r.lo < own.hi and r.hi > own.lo \
         join lateral ({latest}) p on true \
         where own.id = {} and me.source_table = {}",
        range.fence.range,
        literal(&source.outbox.table.quoted())
    );
    let rows = source.query(sql).await?;
    rows.iter()
        .map(|row| parsed::<String>(row, 0).map(Snapshot::new))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| classify(&error))
}
