//! Format Debezium, record by record beside Debezium's own outbox event router on the same rows.

use super::{LIMIT, execute};
use fanout_contract::names::routed_topic;
use fanout_contract::relay::{Broker, Format, Source};
use fanout_tests::checker::log::Log;
use fanout_tests::process::Relay;
use fanout_tests::services::connect::{Connect, Jvm, debezium};
use fanout_tests::services::postgres::Postgres;
use fanout_tests::{Sandbox, eventually, services};
use std::collections::BTreeMap;

/// A record as a reader sees it: key, headers, value.
type Seen = (Option<Vec<u8>>, Vec<(String, Vec<u8>)>, Option<Vec<u8>>);

/// The connector does not wait long for more.
const SOON: (&str, &str) = ("poll.interval.ms", "20");

/// The records of `topic` by event id, which the only header holds.
async fn seen(sandbox: &Sandbox, topic: &str) -> BTreeMap<String, Seen> {
    let log = Log::read(&sandbox.bootstrap, topic).await;
    log.records
        .iter()
        .map(|record| {
            let id = record.header("id").expect("the router's header");
            let record = record.clone();
            (id, (record.key, record.headers, record.payload))
        })
        .collect()
}

async fn server() -> Postgres {
    tokio::task::spawn_blocking(|| Postgres::start_logical().unwrap())
        .await
        .unwrap()
}

/// A table as Debezium documents it, whose rows a trigger also puts into the outbox, and the outbox itself, for bytes, as far as
/// its topic is `bytes`; both with what a connector needs.
async fn tables(sandbox: &Sandbox, bytes: &str) {
    execute(
        sandbox,
        &format!("create table debezium (id uuid primary key default gen_random_uuid(), aggregatetype varchar(255) not null,
           aggregateid varchar(255), type varchar(255) not null, payload jsonb);
         create function copy() returns trigger language plpgsql as $$ begin
           insert into outbox (event_id, topic, key, type, payload)
             values (new.id, new.aggregatetype, new.aggregateid, new.type, convert_to(new.payload::text, 'UTF8'));
           return new; end $$;
         create trigger copy after insert on debezium for each row execute function copy();
         create publication dbz_debezium for table debezium;
         create publication dbz_outbox for table outbox where (topic = '{bytes}')"),
    )
    .await;
    for slot in ["dbz_debezium", "dbz_outbox"] {
        let create = format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        execute(sandbox, &create).await;
    }
}

#[tokio::test]
async fn records_are_those_of_the_real_router_on_the_same_rows() {
    let server = server().await;
    let sandbox = Sandbox::with("debezium", &server, services::kafka()).await;
    // The name by which rows are matched and routed; unique, because the broker is shared.
    let name = &sandbox.namespace;
    let (jsonb, bytes) = (format!("{name}-jsonb"), format!("{name}-bytes"));
    tables(&sandbox, &bytes).await;
    let kafka = services::kafka();
    for routed in [&jsonb, &bytes] {
        kafka.create_topic(&routed_topic("", routed), 3, &[]).await;
        kafka.create_topic(&format!("ours.{routed}"), 3, &[]).await;
    }
    let connectors = [
        ("jsonb", debezium(&sandbox, "debezium", &[SOON]).unwrap()),
        (
            "bytes",
            debezium(
                &sandbox,
                "outbox",
                &[
                    SOON,
                    (
                        "value.converter",
                        "io.debezium.converters.BinaryDataConverter",
                    ),
                    ("transforms.outbox.table.field.event.id", "event_id"),
                    ("transforms.outbox.table.field.event.key", "key"),
                    ("transforms.outbox.route.by.field", "topic"),
                ],
            )
            .unwrap(),
        ),
    ];
    let bootstrap = sandbox.bootstrap.clone();
    let connect =
        tokio::task::spawn_blocking(move || Connect::start(&bootstrap, &connectors, Jvm::Quick))
            .await
            .unwrap()
            .unwrap();
    let mut relays = Vec::new();
    for routed in [&jsonb, &bytes] {
        let mut config = sandbox.relay_config();
        config.format = Format::Debezium;
        let Source::Postgres(postgres) = &mut config.source;
        postgres.r#match[0].value.clone_from(routed);
        let Broker::Kafka(target) = &mut config.broker;
        target.topic = format!("ours.{routed}");
        relays.push(Relay::start(&sandbox, routed, &config).await);
    }
    execute(
        &sandbox,
        &format!(
            r#"insert into debezium (aggregatetype, aggregateid, type, payload) values
                 ('{jsonb}', 'k', 'post.created', '{{"b": 1, "a":  [1.50, "ü", null], "big": 12345678901234567890.5}}'),
                 ('{jsonb}', '7f1c1f5e-8a55-4f0e-9d0b-0c9a3c1c9a11', 't', '"text"'),
                 ('{jsonb}', '9007199254740993', 't', '{{}}'), ('{jsonb}', '', 't', 'null'),
                 ('{jsonb}', null, 't', '[]'), ('{jsonb}', 'deleted', 't', null);
               insert into outbox (topic, key, type, subject, headers, traceparent, content_type, payload) values
                 ('{bytes}', 'k', 't', 's', '{{"x-tenant": "7"}}', '00-a-b-01', 'application/octet-stream', '\x00ff27fe'),
                 ('{bytes}', 'ключ', 't', null, null, null, 'text/plain', convert_to('Grüße', 'UTF8')),
                 ('{bytes}', null, 't', null, null, null, 'application/json', '{{ "a" :  1 }}'),
                 ('{bytes}', '', 't', null, null, null, 'application/json', ''),
                 ('{bytes}', 'deleted', 't', null, null, null, 'application/json', null)"#
        ),
    )
    .await;
    for (routed, count) in [(&jsonb, 6), (&bytes, 5)] {
        eventually(LIMIT, "both have every row", async || {
            connect.ensure_running()?;
            let theirs = seen(&sandbox, &routed_topic("", routed)).await;
            let ours = seen(&sandbox, &format!("ours.{routed}")).await;
            anyhow::ensure!(
                theirs.len() == count && ours.len() == count,
                "{} of the router, {} of the relay",
                theirs.len(),
                ours.len()
            );
            assert_eq!(ours, theirs, "{routed}");
            Ok(())
        })
        .await;
    }
}
