//! What can be wrong with a database, each lane with one of its own.

use super::gate::Gate;
use super::scene::{Said, Scene, subscription, topic};
use fanout_crds::condition::{READY, SOURCE_REACHABLE};
use fanout_crds::{FanoutTopic, Subscription};
use fanout_tests::receiver::{Receiver, behave};
use fanout_tests::services::postgres::{PASSWORD, RELAY_ROLE, TEMPLATE};
use serde_json::json;

/// Something that SQL breaks and mends.
struct Fault {
    wreck: &'static str,
    mend: &'static str,
    reason: &'static str,
    words: &'static [&'static str],
}

const TABLE: &str = "spec.source.postgres.table";
const URL: &str = "spec.source.postgres.urlSecretRef";

/// Each row is a lane.
const FAULTS: [&[Fault]; 4] = [
    &[
        Fault {
            wreck: "alter table outbox rename to elsewhere",
            mend: "alter table elsewhere rename to outbox",
            reason: "TableMissing",
            words: &[
                TABLE,
                "\"public\".\"outbox\" does not exist",
                "manifests/sql/10-outbox.sql",
            ],
        },
        Fault {
            wreck: "alter table outbox rename to elsewhere; create view outbox as select * from elsewhere",
            mend: "drop view outbox; alter table elsewhere rename to outbox",
            reason: "NotATable",
            words: &[TABLE, "is not a table", "manifests/sql/10-outbox.sql"],
        },
        Fault {
            wreck: "alter table outbox alter id set cache 50",
            mend: "alter table outbox alter id set cache 1",
            reason: "SequenceCached",
            words: &[TABLE, "caches 50", "set cache 1"],
        },
    ],
    &[
        Fault {
            wreck: "alter table outbox rename column subject to about",
            mend: "alter table outbox rename column about to subject",
            reason: "ColumnInvalid",
            words: &[
                TABLE,
                "\"subject\"",
                "is missing",
                "manifests/sql/10-outbox.sql",
            ],
        },
        Fault {
            wreck: "alter table outbox alter headers type text",
            mend: "alter table outbox alter headers type jsonb using headers::jsonb",
            reason: "ColumnInvalid",
            words: &[
                TABLE,
                "\"headers\"",
                "has type text, not jsonb or json",
                "manifests/sql/10-outbox.sql",
            ],
        },
    ],
    &[
        Fault {
            wreck: "revoke select on outbox from fanout_relay",
            mend: "grant select on outbox to fanout_relay",
            reason: "SourcePermissionDenied",
            words: &[
                URL,
                "needs select on \"public\".\"outbox\"",
                "grants of manifests/sql",
            ],
        },
        Fault {
            wreck: "alter table outbox drop constraint outbox_xid",
            mend: "alter table outbox add constraint outbox_xid check (xid = pg_current_xact_id()) not valid",
            reason: "ConstraintMissing",
            words: &[TABLE, "outbox_xid", "alter table outbox add constraint"],
        },
    ],
    &[
        Fault {
            wreck: "delete from fanout.schema_version",
            mend: "insert into fanout.schema_version (version) values (2)",
            reason: "SchemaOutdated",
            words: &[URL, "is at version 0", "newer steps of manifests/sql"],
        },
        Fault {
            wreck: "alter schema fanout rename to elsewhere",
            mend: "alter schema elsewhere rename to fanout",
            reason: "SchemaOutdated",
            words: &[
                URL,
                "schema fanout is missing",
                "manifests/sql/00-fanout.sql",
            ],
        },
        Fault {
            wreck: "drop index outbox_topic_xid_shard_idx",
            mend: "create index outbox_topic_xid_shard_idx on outbox (topic, xid, shard)",
            reason: "IndexMissing",
            words: &[TABLE, "has no index", "create index on"],
        },
    ],
];

/// Every case of a database.
pub(super) async fn all(scene: &Scene) {
    let [one, two, three, four] = FAULTS;
    tokio::join!(
        lane(scene, "table", one),
        lane(scene, "columns", two),
        lane(scene, "rights", three),
        lane(scene, "schema", four),
        access(scene),
        mapping(scene),
    );
}

/// An application's own table without an order: a mapping that is wrong, and what wants an order that there is not.
async fn mapping(scene: &Scene) {
    let name = "mapping";
    let database = database(scene, name).await;
    let table = "create table events (id uuid primary key default gen_random_uuid(), aggregatetype text, aggregateid text,
            type text, payload jsonb, at timestamptz not null default now());
        grant select, delete on events to fanout_relay";
    scene.sql(&database, table).await;
    let url = scene.postgres.url_as(RELAY_ROLE, &database);
    scene.secret("mapping-database", &[("url", &url)]).await;
    let bootstrap = &scene.cluster.bootstrap;
    let mapped = "table: public.events, claim: Delete, match: [], \
        columns: {eventId: {column: id}, key: {column: aggregateid}, createdAt: {column: at}}";
    let yaml = topic(name, "mapping-database", bootstrap, "partitions: 1");
    scene
        .apply(&yaml.replace("table: public.outbox", mapped))
        .await;
    scene.is_well(&scene.topic(name)).await;
    let key = |column: &str| json!({"spec": {"source": {"postgres": {"columns": {"key": {"column": column}}}}}});
    let words = &[
        "spec.source.postgres.columns.key",
        "column \"author\"",
        "is missing",
    ];
    scene
        .case(
            said(scene, name, "ColumnInvalid", words, true),
            async || scene.patch::<FanoutTopic>(name, key("author")).await,
            async || scene.patch::<FanoutTopic>(name, key("aggregateid")).await,
        )
        .await;

    let hook = Receiver::start(&scene.sandbox, "unordered", behave::ok()).await;
    let delivery = "  delivery: {ordering: None}";
    scene
        .apply(&subscription("unordered", name, hook.url(), delivery))
        .await;
    scene.is_well(&scene.subscription("unordered")).await;
    let ordering = |ordering: &str| json!({"spec": {"delivery": {"ordering": ordering}}});
    let per_key = Said {
        object: scene.subscription("unordered"),
        condition: READY,
        value: "False",
        reason: "OrderingUnavailable",
        words: &["spec.delivery.ordering", "use None", "columns.id"],
        stalled: true,
    };
    scene
        .case(
            per_key,
            async || {
                scene
                    .patch::<Subscription>("unordered", ordering("PerKey"))
                    .await;
            },
            async || {
                scene
                    .patch::<Subscription>("unordered", ordering("None"))
                    .await;
            },
        )
        .await;
    let id = "5d2a3c1e-0b0c-4b8e-9a51-0f6a5c7d8e9f";
    let insert = format!(
        "insert into events (id, aggregatetype, aggregateid, type, payload) values ('{id}', 'post', '1', 't', '{{}}')"
    );
    scene.sql(&database, &insert).await;
    scene.arrives("unordered", id).await;
}

async fn lane(scene: &Scene, name: &str, faults: &[Fault]) {
    let database = database(scene, name).await;
    let url = scene.postgres.url_as(RELAY_ROLE, &database);
    let secret = format!("{name}-database");
    scene.secret(&secret, &[("url", &url)]).await;
    let bootstrap = &scene.cluster.bootstrap;
    scene
        .apply(&topic(name, &secret, bootstrap, "partitions: 1"))
        .await;
    scene.is_well(&scene.topic(name)).await;
    for fault in faults {
        let said = said(scene, name, fault.reason, fault.words, true);
        scene
            .case(
                said,
                async || scene.sql(&database, fault.wreck).await,
                async || scene.sql(&database, fault.mend).await,
            )
            .await;
    }
}

/// A database that can't be reached, and one that lets the relay in no more.
async fn access(scene: &Scene) {
    let name = "access";
    let database = database(scene, name).await;
    let role = format!("relay_{database}");
    scene
        .sql(
            &database,
            &format!("create role {role} login password '{PASSWORD}' in role {RELAY_ROLE}"),
        )
        .await;
    let gate = Gate::closed(scene.postgres.port());
    gate.open().await;
    let url = |password: &str, database: &str| {
        format!(
            "postgres://{role}:{password}@127.0.0.1:{}/{database}",
            gate.port()
        )
    };
    let secret = "access-database";
    let right = url(PASSWORD, &database);
    scene.secret(secret, &[("url", &right)]).await;
    let bootstrap = &scene.cluster.bootstrap;
    scene
        .apply(&topic(name, secret, bootstrap, "partitions: 1"))
        .await;
    scene.is_well(&scene.topic(name)).await;

    let words = &[URL, "does not answer", "check host and port"];
    scene
        .case(
            said(scene, name, "SourceUnreachable", words, false),
            async || gate.close(),
            async || gate.open().await,
        )
        .await;
    // In the Secret: the relay is told, and mended by the Secret alone.
    let words: &[&str] = &[URL, "refused user or password", "correct the Secret"];
    scene
        .case(
            said(scene, name, "SourceAuthenticationFailed", words, true),
            async || {
                scene
                    .secret(secret, &[("url", &url("wr0ng-passw0rd", &database))])
                    .await;
            },
            async || scene.secret(secret, &[("url", &right)]).await,
        )
        .await;
    // In the database: sessions that stand go on, so only asking finds out.
    let alter = |password: &str| format!("alter role {role} password '{password}'");
    scene
        .case(
            said(scene, name, "SourceAuthenticationFailed", words, true),
            async || scene.sql(&database, &alter("another")).await,
            async || scene.sql(&database, &alter(PASSWORD)).await,
        )
        .await;
    let words = &[URL, "does not exist", "correct the Secret or create it"];
    scene
        .case(
            said(scene, name, "DatabaseMissing", words, true),
            async || {
                scene
                    .secret(secret, &[("url", &url(PASSWORD, "nowhere"))])
                    .await;
            },
            async || scene.secret(secret, &[("url", &right)]).await,
        )
        .await;
    let words = &[URL, "not a postgres:// URL"];
    scene
        .case(
            said(scene, name, "SourceUrlInvalid", words, true),
            async || scene.secret(secret, &[("url", "wr0ng-passw0rd")]).await,
            async || scene.secret(secret, &[("url", &right)]).await,
        )
        .await;
    secret_of_the_topic(scene, name, secret, &right).await;
}

/// The Secret itself: gone, not labelled, without its key. Relays go on with what they have.
async fn secret_of_the_topic(scene: &Scene, name: &str, secret: &str, url: &str) {
    use k8s_openapi::api::core::v1::Secret;
    use kube::api::DeleteParams;
    let here = |reason: &'static str, words: &'static [&'static str]| Said {
        condition: READY,
        ..said(scene, name, reason, words, true)
    };
    let secrets = scene.cluster.api::<Secret>(&scene.namespace);
    let label = |value: serde_json::Value| json!({"metadata": {"labels": {"fanout.dev/credentials": value}}});
    let words = &[URL, "Secret access-database", "create or label it"];
    scene
        .case(
            here("SecretNotPermitted", words),
            async || {
                drop(
                    secrets
                        .delete(secret, &DeleteParams::default())
                        .await
                        .unwrap(),
                );
            },
            async || scene.secret(secret, &[("url", url)]).await,
        )
        .await;
    scene
        .case(
            here("SecretNotPermitted", words),
            async || scene.patch::<Secret>(secret, label(json!(null))).await,
            async || scene.patch::<Secret>(secret, label(json!("true"))).await,
        )
        .await;
    let words = &[URL, "Secret access-database has no key url", "add it"];
    scene
        .case(
            here("SecretKeyMissing", words),
            async || {
                scene
                    .patch::<Secret>(secret, json!({"data": {"url": null}}))
                    .await;
            },
            async || scene.secret(secret, &[("url", url)]).await,
        )
        .await;
}

async fn database(scene: &Scene, name: &str) -> String {
    let database = format!("bad_{name}_{:08x}", rand::random::<u32>());
    scene
        .sql(
            "postgres",
            &format!("create database {database} template {TEMPLATE}"),
        )
        .await;
    database
}

fn said(
    scene: &Scene,
    topic: &str,
    reason: &'static str,
    words: &'static [&'static str],
    stalled: bool,
) -> Said {
    Said {
        object: scene.topic(topic),
        condition: SOURCE_REACHABLE,
        value: "False",
        reason,
        words,
        stalled,
    }
}
