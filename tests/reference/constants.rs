//! Labels, annotations, finalizers and record headers, from the constants that name them.

use crate::markdown::{code, page as start, table};
use crate::read;

/// A documented constant.
#[derive(Debug)]
pub(crate) struct Constant {
    /// Its text.
    pub(crate) value: String,
    doc: String,
}

impl Constant {
    fn row(self) -> [String; 2] {
        [code(&self.value), self.doc]
    }
}

/// The page on labels, annotations and finalizers.
pub(crate) fn names() -> anyhow::Result<String> {
    let mut page = start(
        "Labels, annotations, names",
        "Keys under `fanout.dev/`. Beside these, what the operator creates carries `app.kubernetes.io/name` (`fanout-relay` or \
         `fanout-consumers`) and `app.kubernetes.io/managed-by: fanout-operator`.",
    );
    page.push('\n');
    page.push_str(&table(
        ["Key", "Meaning"],
        keys()?.into_iter().map(Constant::row),
    ));
    page.push_str(
        "\n## Derived names\n\n`<prefix>` is the chart value `kafka.prefix`. A name over its limit is cut and ends in a hash.\n\n",
    );
    let derived = [
        [
            "Kafka topic",
            "`spec.broker.kafka.topic.name`, else `<prefix><namespace>.<FanoutTopic>`; then `status.topicName`",
        ],
        ["dead letter topic", "`<Kafka topic>.dead`"],
        [
            "consumer group",
            "`<prefix><namespace>.<Subscription>` when the Subscription is new; then `status.groupId`",
        ],
        ["relay Deployment", "`<FanoutTopic>-relay`"],
        [
            "pool Deployments",
            "`<FanoutTopic>-pool-<number>`, at most 100 Subscriptions each; `status.placement` of the Subscription",
        ],
        [
            "Deployment with `isolation: Dedicated`",
            "`<FanoutTopic>-s-<Subscription>`; `status.placement` of the Subscription",
        ],
        [
            "ConfigMap, Secret, ServiceAccount of a worker",
            "as its Deployment",
        ],
    ];
    page.push_str(&table(
        ["What", "Name"],
        derived.map(|row| row.map(str::to_owned)),
    ));
    Ok(page)
}

/// Every key under `fanout.dev/` that the code has a constant for.
pub(crate) fn keys() -> anyhow::Result<Vec<Constant>> {
    let all = constants(&read("contract/src/names.rs")?);
    Ok(all
        .into_iter()
        .filter(|constant| constant.value.starts_with("fanout.dev/"))
        .collect())
}

/// The page on records.
pub(crate) fn records() -> anyhow::Result<String> {
    let text = read("contract/src/envelope.rs")?;
    let all = constants(&text);
    let (event, dead): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter(|constant| {
            constant.value.starts_with("ce_") && constant.value.len() > 3
                || constant.value.starts_with("fanout_")
                || constant.value == "content-type"
        })
        .partition(|constant| !constant.value.starts_with("fanout_"));
    let mut page = start(
        "Records in Kafka",
        "An event is a CloudEvent 1.0 in Kafka binary mode. The record's key is the outbox column `key`, its value the column \
         `payload`, byte for byte. Entries of the outbox column `headers` become further headers: extension attributes where \
         their names begin with `ce_`. A NULL payload is a value of no bytes, or with `relay.nullPayload: Tombstone` no value.\n\n\
         With `relay.format: Debezium` a record has the same key and value, no value for a NULL payload, and one header, `id`: \
         the column `event_id`. That is what Debezium's outbox event router makes of the row by default.",
    );
    page.push_str("\n## Headers of an event\n\n");
    page.push_str(&table(
        ["Header", "CloudEvents attribute"],
        event.into_iter().map(Constant::row),
    ));
    page.push_str(
        "\n`ce_id` is the outbox column `event_id`, the same on every repeat. `ce_source` is `/<namespace>/<FanoutTopic>`. \
         `ce_sequence` is the outbox column `id` with 20 digits, so that texts sort like numbers: order means that first \
         occurrences of a key are in order; a repeat may be older.\n\n\
         ## Headers that a dead letter has beside\n\n",
    );
    page.push_str(&table(
        ["Header", "Meaning"],
        dead.into_iter().map(Constant::row),
    ));
    Ok(page)
}

/// The text constants of a Rust source with their docs, in its order.
pub(crate) fn constants(source: &str) -> Vec<Constant> {
    let mut all = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc.push(text);
            continue;
        }
        let value = line
            .starts_with("pub const ")
            .then(|| line.split_once(": &str = \""))
            .flatten()
            .and_then(|(_, rest)| rest.strip_suffix("\";"));
        if let Some(value) = value {
            all.push(Constant {
                value: value.to_owned(),
                doc: unlinked(&doc.join(" ")),
            });
        }
        doc.clear();
    }
    all
}

/// A link to another item means nothing outside of Rust's own documentation.
fn unlinked(doc: &str) -> String {
    doc.split('[')
        .enumerate()
        .map(|(number, part)| match part.split_once("](") {
            Some((shown, rest)) if number > 0 => {
                let rest = rest.split_once(')').map_or("", |(_, rest)| rest);
                format!("{}{rest}", shown.to_lowercase())
            }
            _ if number > 0 => format!("[{part}"),
            _ => part.to_owned(),
        })
        .collect()
}
