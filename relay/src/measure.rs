//! Measures what is waiting, beside the publishing.

use crate::claim::row::{parsed, text};
use crate::source::{Failure, SCAN_TIMEOUT, Source, classify};
use crate::stats::{Gauges, Stats};
use fanout_contract::relay::{LongTransaction, PENDING_CAP, Parked, Pending};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Shortest time between two measurements.
const INTERVAL: Duration = Duration::from_secs(2);
/// Measuring takes at most one part in so many of the time.
const SHARE: u32 = 20;
/// A writing transaction older than this is reported, seconds.
const LONG: i64 = 60;
/// Weight of the newest interval in the moving average of the rate.
const SMOOTHING: f64 = 0.3;

/// Measures the ranges this process works on.
#[derive(Debug)]
pub struct Measure {
    source: Source,
    topic: i64,
    stats: Arc<Stats>,
    gauges: Gauges,
    oldest: Option<Sighting>,
    rate: Rate,
}

/// The oldest writing transaction, and since when it has been seen.
#[derive(Debug)]
struct Sighting {
    xid: String,
    since: Instant,
}

impl Measure {
    /// Measures the topic with row `topic` of `fanout.topics`.
    pub fn new(source: Source, topic: i64, stats: Arc<Stats>, gauges: Gauges) -> Self {
        let rate = Rate::new(stats.published_total());
        Self {
            source,
            topic,
            stats,
            gauges,
            oldest: None,
            rate,
        }
    }

    /// Measures again and again until `stop`. What can't be measured is unknown, never 0.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let began = Instant::now();
            let measured = tokio::select! {
                measured = self.once() => measured,
                () = stop.cancelled() => return,
            };
            if let Err(failure) = measured {
                tracing::debug!(class = ?failure.class, "measuring failed");
                self.stats.measured(None, self.stats.status().parked, None);
            }
            let pause = INTERVAL.max(began.elapsed() * SHARE);
            tokio::select! {
                () = tokio::time::sleep(pause.mul_f64(1.0 + rand::random::<f64>() / 4.0)) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Measures once.
    pub async fn once(&mut self) -> Result<(), Failure> {
        self.stats
            .rate(self.rate.next(self.stats.published_total(), Instant::now()));
        let (parked, release) = parked(&self.source, self.topic).await?;
        self.stats.ask_release(release);
        let long = self.long_transaction().await?;
        let pending = self.pending().await?;
        self.gauges.parked_rows.set(parked.rows);
        self.gauges.held_rows.set(parked.held);
        self.stats.measured(pending, parked, long);
        Ok(())
    }

    async fn pending(&self) -> Result<Option<Pending>, Failure> {
        let ranges = self.stats.ranges();
        self.gauges
            .ranges
            .set(ranges.len().try_into().unwrap_or(i64::MAX));
        if ranges.is_empty() {
            return Ok(None);
        }
        let mut sum = Pending {
            rows: 0,
            oldest_event_time: None,
        };
        let mut age: f64 = 0.0;
        for range in ranges {
            let outbox = &self.source.outbox;
            let sql = outbox.pending(range.shards, &range.position, PENDING_CAP);
            let rows = self.source.query_within(SCAN_TIMEOUT, sql).await?;
            let row = rows
                .first()
                .ok_or_else(|| classify(&sqlx::Error::RowNotFound))?;
            let read = || -> Result<_, sqlx::Error> {
                let age = text(row, 2)?.and_then(|age| age.parse::<f64>().ok());
                Ok((parsed::<i64>(row, 0)?, text(row, 1)?.map(utc), age))
            };
            let (rows, oldest, oldest_age) = read().map_err(|error| classify(&error))?;
            sum.rows = (sum.rows + rows).min(PENDING_CAP);
            // Texts of one form sort as times.
            sum.oldest_event_time = [sum.oldest_event_time, oldest].into_iter().flatten().min();
            age = age.max(oldest_age.unwrap_or(0.0));
        }
        self.gauges.pending_rows.set(sum.rows);
        self.gauges.oldest.set(age);
        Ok(Some(sum))
    }

    /// The oldest transaction of this database that has written and is open for long. Its age is visible only with
    /// `pg_read_all_stats`; without, it counts from when it was first seen.
    async fn long_transaction(&mut self) -> Result<Option<LongTransaction>, Failure> {
        let rows = self
            .source
            .query(
                "select l.transactionid, l.pid, extract(epoch from clock_timestamp() - a.xact_start)::bigint \
                 from pg_locks l join pg_stat_activity a on a.pid = l.pid \
                 where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted \
                 and a.datname = current_database() and a.pid <> pg_backend_pid() \
                 order by age(l.transactionid) desc limit 1"
                    .to_owned(),
            )
            .await?;
        let Some(row) = rows.first() else {
            self.oldest = None;
            return Ok(None);
        };
        let read = || -> Result<_, sqlx::Error> {
            let age = text(row, 2)?.and_then(|age| age.parse::<i64>().ok());
            Ok((parsed::<String>(row, 0)?, parsed::<i32>(row, 1)?, age))
        };
        let (xid, pid, age_seconds) = read().map_err(|error| classify(&error))?;
        if self.oldest.as_ref().is_none_or(|seen| seen.xid != xid) {
            let since = Instant::now();
            self.oldest = Some(Sighting { xid, since });
        }
        let seen = self
            .oldest
            .as_ref()
            .map_or(0, |seen| seen.since.elapsed().as_secs());
        let long = age_seconds.map_or_else(|| seen > LONG.unsigned_abs(), |age| age > LONG);
        Ok(long.then_some(LongTransaction { pid, age_seconds }))
    }
}

/// Rows set aside, over the whole topic, and the ranges where some are to be released or dropped.
async fn parked(source: &Source, topic: i64) -> Result<(Parked, BTreeSet<i64>), Failure> {
    let rows = source
        .query_within(
            SCAN_TIMEOUT,
            format!(
                "select count(p.reason), count(*) - count(p.reason), \
                 string_agg(distinct p.range_id::text, ',') filter (where p.action is not null) from fanout.parked p \
                 join fanout.ranges r on r.id = p.range_id where r.topic_id = {topic}"
            ),
        )
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| classify(&sqlx::Error::RowNotFound))?;
    let read = || -> Result<_, sqlx::Error> {
        let parked = Parked {
            rows: parsed(row, 0)?,
            held: parsed(row, 1)?,
        };
        let release = text(row, 2)?.unwrap_or_default();
        Ok((parked, release.split(',').flat_map(str::parse).collect()))
    };
    read().map_err(|error| classify(&error))
}

/// A JSON time in UTC as RFC 3339.
fn utc(json: &str) -> String {
    format!("{}Z", json.trim_matches('"'))
}

/// Moving average of a counter's rate.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    total: u64,
    at: Instant,
    per_second: f64,
}

impl Rate {
    /// Starts at `total`.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            at: Instant::now(),
            per_second: 0.0,
        }
    }

    /// The rate after the counter reached `total` at `now`, per second.
    pub fn next(&mut self, total: u64, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        if seconds > 0.0 {
            let grown = u32::try_from(total.saturating_sub(self.total)).unwrap_or(u32::MAX);
            let current = f64::from(grown) / seconds;
            self.per_second += SMOOTHING * (current - self.per_second);
            self.total = total;
            self.at = now;
        }
        // An average that has died down is none.
        if self.per_second < 0.01 {
            self.per_second = 0.0;
        }
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_and_dies_down() {
        let mut rate = Rate::new(0);
        let mut now = rate.at;
        let mut total = 0;
        for _ in 0..30 {
            now += Duration::from_secs(1);
            total += 100;
            rate.next(total, now);
        }
        assert!((rate.per_second - 100.0).abs() < 1.0, "{rate:?}");
        for _ in 0..60 {
            now += Duration::from_secs(1);
            rate.next(total, now);
        }
        assert!(rate.per_second.abs() < f64::EPSILON, "{rate:?}");
    }
}
