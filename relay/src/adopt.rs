//! Releases a topic whose positions another history wrote, once a human accepted the server that answers.
//!
//! A position that came here physically (`pg_upgrade`, a standby made a server of its own) still says what is published:
//! the rows and their transaction ids came with it. One that was dumped and restored says nothing, so the topic begins
//! anew and publishes every row of the table: repeats with the same ids, and nothing is missing. Before that no row may
//! carry a transaction id of the other server, because a poll would not see it until that id is reached here. In the claim
//! modes `Lease` and `Delete` the rows themselves say what is published, and came with that.

use crate::claim::row::{flag, parsed};
use crate::claim::snapshot::Snapshot;
use crate::lease;
use crate::position::{self, History, Position, Stored, history};
use crate::source::{Failure, SCAN_TIMEOUT, Source, Transaction, classify, failure};
use fanout_contract::reason::SourceError;
use fanout_contract::relay::Claim;
use sqlx::postgres::PgRow;

/// Checks that the positions of `topic` belong to the server that answers, and makes them its own where `accepted` is its
/// system identifier.
pub async fn check_history(
    source: &Source,
    topic: i64,
    accepted: Option<&str>,
) -> Result<(), Failure> {
    let Err(found) = lease::check_history(source, topic).await else {
        return Ok(());
    };
    if found.class != SourceError::SourceChanged || accepted.is_none() {
        return Err(found);
    }
    let here = here(
        &source
            .query(format!("select h.* from {}", history()))
            .await?,
    )?;
    if accepted != Some(here.system_identifier.to_string().as_str()) {
        return Err(found);
    }
    if !is_own_table(source, topic).await? {
        return Err(found);
    }
    adopt(source, topic, &here).await?;
    lease::check_history(source, topic).await
}

fn here(rows: &[PgRow]) -> Result<History, Failure> {
    rows.first()
        .ok_or(sqlx::Error::RowNotFound)
        .and_then(|row| History::decode(row, 0))
        .map_err(|error| classify(&error))
}

async fn is_own_table(source: &Source, topic: i64) -> Result<bool, Failure> {
    let table = crate::sql::literal(&source.outbox.table.quoted());
    let sql = format!("select source_table = {table} from fanout.topics where id = {topic}");
    let rows = source.query(sql).await?;
    rows.first()
        .ok_or(sqlx::Error::RowNotFound)
        .and_then(|row| flag(row, 0))
        .map_err(|error| classify(&error))
}

/// Appends a position of this history to each range that has none, under a new term, which fences whoever wrote before.
/// Of several relays that do so at once, one does.
async fn adopt(source: &Source, topic: i64, here: &History) -> Result<(), Failure> {
    // Before the leases are locked: it reads the whole table.
    let foreign = source.outbox.claim == Claim::Snapshot && has_foreign_rows(source).await?;
    let mut transaction = source.begin().await?;
    transaction
        .query(format!(
            "select l.range_id from fanout.leases l join fanout.ranges r on r.id = l.range_id \
             where r.topic_id = {topic} order by l.range_id for update of l"
        ))
        .await?;
    let ranges = transaction.query(positions(topic)).await?;
    for row in &ranges {
        let range = Range::read(row, here).map_err(|error| classify(&error))?;
        let Some(position) = range.begins else {
            continue;
        };
        if position == Position::At(Snapshot::nothing()) && foreign {
            transaction.rollback().await?;
            return Err(foreign_rows(source));
        }
        let written = append(&mut transaction, range.id, &position, here).await?;
        if written == 0 {
            transaction.rollback().await?;
            return Err(failure(
                SourceError::SourceUnreachable,
                "the database failed over or crashed: looking again",
            ));
        }
        tracing::warn!(
            range = range.id,
            anew = position == Position::At(Snapshot::nothing()),
            "the position was made one of this server, as the annotation says"
        );
    }
    transaction.commit().await
}

/// A range and the position it begins at here, unless it has one already.
struct Range {
    id: i64,
    begins: Option<Position>,
}

/// Range id, whether what is stored came here physically and is not ahead of this server, and the latest position.
fn positions(topic: i64) -> String {
    let latest = position::latest("r.id");
    // A single dumped position may by chance have been restored by the transaction id it names; all of them can't.
    format!(
        "select r.id, (select bool_and(o.xid::xid = o.xmin) from fanout.positions o where o.range_id = r.id) \
         and pg_snapshot_xmax(p.old) <= pg_snapshot_xmax(pg_current_snapshot()), p.* \
         from fanout.ranges r left join lateral ({latest}) p on true where r.topic_id = {topic} order by r.id"
    )
}

impl Range {
    fn read(row: &PgRow, here: &History) -> Result<Self, sqlx::Error> {
        let stored = Stored::decode(row, 2).ok();
        let begins = match stored {
            Some(stored) if stored.belongs_to(here) => None,
            Some(stored) if flag(row, 1)? => Some(stored.position),
            _ => Some(Position::At(Snapshot::nothing())),
        };
        Ok(Self {
            id: parsed(row, 0)?,
            begins,
        })
    }
}

async fn append(
    transaction: &mut Transaction,
    range: i64,
    position: &Position,
    here: &History,
) -> Result<u64, Failure> {
    transaction
        .execute(format!(
            "with l as (update fanout.leases set owner = null, term = term + 1, expires_at = '-infinity' \
             where range_id = {range} returning term) \
             insert into fanout.positions (range_id, term, seq, old, new, last_id, system_identifier, timeline) \
             select {range}, l.term, 0, {}, h.system_identifier, h.timeline from l, {} \
             where h.system_identifier = {} and h.incarnation = {}",
            position.values(),
            history(),
            here.system_identifier,
            here.incarnation,
        ))
        .await
}

async fn has_foreign_rows(source: &Source) -> Result<bool, Failure> {
    let sql = format!(
        "select exists (select from {} where {} and xid::xid <> xmin)",
        source.outbox.table.quoted(),
        source.outbox.matched()
    );
    let rows = source.query_within(SCAN_TIMEOUT, sql).await?;
    rows.first()
        .ok_or(sqlx::Error::RowNotFound)
        .and_then(|row| flag(row, 0))
        .map_err(|error| classify(&error))
}

fn foreign_rows(source: &Source) -> Failure {
    let table = source.outbox.table.quoted();
    failure(
        SourceError::SourceChanged,
        format!(
            "{table} has rows that were restored with transaction ids of another server, which can't be read in order here: \
             update {table} set xid = default where xid::xid <> xmin"
        ),
    )
}
