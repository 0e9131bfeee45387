//! What `kubectl get` shows of all objects of both kinds, read again and again by one task for all cases.

use axum::http::Request;
use axum::http::header::ACCEPT;
use kube::Client;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;

/// Between two readings.
const PAUSE: Duration = Duration::from_millis(250);
/// What kubectl asks for.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// An object: resource, namespace, name.
pub(super) type Key = (&'static str, String, String);

/// One line of `kubectl get`, with the object behind it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    columns: HashMap<String, String>,
    pub(super) object: Value,
}

impl Row {
    /// A column by its heading.
    pub(super) fn column(&self, heading: &str) -> &str {
        self.columns.get(heading).map_or("", String::as_str)
    }

    /// Value, reason and message of a condition at the present generation.
    pub(super) fn condition(&self, kind: &str) -> Option<(&str, &str, &str)> {
        let conditions = self.object["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|it| it["type"] == kind)?;
        if found["observedGeneration"] != self.object["metadata"]["generation"] {
            return None;
        }
        let text = |field: &str| found[field].as_str().unwrap_or_default();
        Some((text("status"), text("reason"), text("message")))
    }

    /// All conditions, for whoever has to find out why a test failed.
    pub(super) fn conditions(&self) -> String {
        let conditions = self.object["status"]["conditions"].as_array();
        let lines = conditions.into_iter().flatten().map(|it| {
            let text = |field: &str| it[field].as_str().unwrap_or_default();
            let (kind, status, reason) = (text("type"), text("status"), text("reason"));
            format!("{kind}={status}/{reason} ({})", text("message"))
        });
        lines.collect::<Vec<_>>().join(", ")
    }
}

/// The lines of both kinds.
pub(super) struct Board {
    rows: watch::Receiver<HashMap<Key, Row>>,
    task: tokio::task::JoinHandle<()>,
}

impl Board {
    pub(super) fn start(client: Client) -> Self {
        let (sender, rows) = watch::channel(HashMap::new());
        let task = tokio::spawn(async move {
            loop {
                let mut all = HashMap::new();
                for resource in ["fanouttopics", "subscriptions"] {
                    // One reading that fails is no news.
                    if let Ok(table) = read(&client, resource).await {
                        all.extend(rows_of(resource, &table));
                    }
                }
                sender.send_replace(all);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { rows, task }
    }

    /// Waits until the line of `key` is as `accept` wants, at most for `limit`; returns how long it took.
    pub(super) async fn until(
        &self,
        key: &Key,
        limit: Duration,
        what: &str,
        accept: impl Fn(&Row) -> Result<(), String>,
    ) -> Duration {
        let begun = std::time::Instant::now();
        let mut rows = self.rows.clone();
        let mut last = "it does not exist".to_owned();
        let looked = async {
            loop {
                let row = rows.borrow_and_update().get(key).cloned();
                if let Some(row) = row {
                    match accept(&row) {
                        Ok(()) => return,
                        Err(seen) => last = seen,
                    }
                }
                rows.changed().await.unwrap();
            }
        };
        let in_time = tokio::time::timeout(limit, looked).await.is_ok();
        assert!(
            in_time,
            "not within {limit:?}: {what} of {key:?}; last seen: {last}"
        );
        begun.elapsed()
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(client: &Client, resource: &str) -> anyhow::Result<Value> {
    let request = Request::get(format!(
        "/apis/fanout.dev/v1alpha1/{resource}?includeObject=Object"
    ));
    let request = request.header(ACCEPT, TABLE).body(Vec::new())?;
    Ok(client.request(request).await?)
}

fn rows_of(resource: &'static str, table: &Value) -> Vec<(Key, Row)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let headings = list(&table["columnDefinitions"]);
    let row = |row: &Value| {
        let cells = list(&row["cells"]);
        let columns = headings.iter().zip(cells).map(|(heading, cell)| {
            let text = cell
                .as_str()
                .map_or_else(|| cell.to_string(), str::to_owned);
            (
                heading["name"].as_str().unwrap_or_default().to_owned(),
                text,
            )
        });
        let object = row["object"].clone();
        let of = |field: &str| {
            let text = object["metadata"][field].as_str();
            text.unwrap_or_default().to_owned()
        };
        let key = (resource, of("namespace"), of("name"));
        let columns = columns.collect();
        (key, Row { columns, object })
    };
    list(&table["rows"]).iter().map(row).collect()
}
