//! The relay, in this process, over a table that is full before it starts.

use clap::Parser as _;
use fanout_contract::relay::RelayStatus;
use fanout_relay::args::Args;
use fanout_tests::{Sandbox, eventually};
use sqlx::AssertSqlSafe;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Far more than a million rows take.
const LIMIT: Duration = Duration::from_mins(10);

/// Commits `rows` rows with a payload of 200 bytes and ten thousand keys.
pub(crate) async fn fill(sandbox: &Sandbox, rows: usize) {
    let sql = format!(
        "insert into outbox (topic, key, type, subject, payload)
         select '{}', 'user-' || n % 10000, 'post.created', 'posts/' || n,
                convert_to(rpad('{{\"n\":' || n || ',\"text\":\"', 198, md5(n::text)) || '\"}}', 'UTF8')
           from generate_series(1, {rows}) n",
        sandbox.topic_name
    );
    for sql in [sql.as_str(), "analyze outbox", "checkpoint"] {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(sandbox.pool())
            .await
            .unwrap();
    }
}

/// Rows a second from taking the ranges to the last acknowledgement.
pub(crate) async fn run(sandbox: &Sandbox, rows: usize) -> f64 {
    let dir = sandbox.dir().join("bench-relay");
    std::fs::create_dir_all(&dir).unwrap();
    let config = serde_yaml::to_string(&sandbox.relay_config()).unwrap();
    std::fs::write(dir.join("config.yaml"), config).unwrap();
    for (name, contents) in sandbox.secret_files() {
        std::fs::write(dir.join(name), contents).unwrap();
    }
    let address = dir.join("admin-addr");
    let args = Args::parse_from([
        "fanout-relay".as_ref(),
        "--config-dir".as_ref(),
        dir.as_os_str(),
        "--instance".as_ref(),
        "bench".as_ref(),
        "--admin-addr".as_ref(),
        "127.0.0.1:0".as_ref(),
        "--admin-addr-file".as_ref(),
        address.as_os_str(),
    ]);
    let stop = CancellationToken::new();
    let relay = tokio::spawn(fanout_relay::run(args, stop.clone()));
    let client = reqwest::Client::new();
    let status = async || -> anyhow::Result<RelayStatus> {
        let url = format!("http://{}/status", std::fs::read_to_string(&address)?);
        let answer = client.get(url).send().await?.bytes().await?;
        Ok(serde_json::from_slice(&answer)?)
    };
    let reach = async |what: &str, accept: fn(&RelayStatus, u64) -> bool| -> (u64, Instant) {
        eventually(LIMIT, what, async || {
            let status = status().await?;
            let published = status.published_total;
            anyhow::ensure!(accept(&status, rows as u64), "{published} published");
            anyhow::Ok((published, Instant::now()))
        })
        .await
    };
    let (first, began) = reach("ranges are owned", |status, _| !status.ranges.is_empty()).await;
    let (last, ended) = reach("all is published", |status, rows| {
        status.published_total >= rows
    })
    .await;
    stop.cancel();
    relay.await.unwrap().unwrap();
    f64::from(u32::try_from(last - first).unwrap()) / (ended - began).as_secs_f64()
}
