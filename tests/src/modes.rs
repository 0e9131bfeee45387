//! An outbox for each claim mode, made of a sandbox's own.

use crate::Sandbox;
use crate::services::dirs;
use crate::services::postgres::{APP_ROLE, Postgres, RELAY_ROLE};
use fanout_contract::relay::{Claim, ColumnSource, Columns, RelayConfig, Source};

/// All of them.
pub const MODES: [Claim; 3] = [Claim::Snapshot, Claim::Lease, Claim::Delete];

/// A table that gets a copy of each row of `outbox`, in the transaction that writes it.
const QUEUE: &str = "
    create table queue (number bigint primary key, event uuid not null, post text, kind text not null, about text,
        media text not null, data bytea, at timestamptz not null);
    create function copy() returns trigger language plpgsql security definer as $$ begin
        insert into public.queue values (new.id, new.event_id, new.key, new.type, new.subject, new.content_type, new.payload, new.created_at);
        return null;
    end $$;
    create trigger copy after insert on outbox for each row execute function copy();
    grant select, delete on queue to fanout_relay";

/// Makes the sandbox's outbox one for `claim`, and returns the configuration of its relay. In every mode all rows that were
/// committed stay in `outbox`.
pub async fn prepare(sandbox: &Sandbox, server: &Postgres, claim: Claim) -> RelayConfig {
    let mut config = sandbox.relay_config();
    let Source::Postgres(postgres) = &mut config.source;
    postgres.claim = claim;
    match claim {
        Claim::Snapshot => {}
        Claim::Lease => {
            execute(sandbox, "drop table outbox").await;
            manifest(sandbox, server, "outbox-lease.sql", "public.outbox");
        }
        // What is published is deleted from a table of its own, with other names: `outbox` stays as the truth.
        Claim::Delete => {
            execute(sandbox, QUEUE).await;
            "public.queue".clone_into(&mut postgres.table);
            postgres.columns = Some(queue_columns());
            postgres.r#match.clear();
        }
    }
    config
}

/// Runs a file of `manifests/sql` for `table`.
pub fn manifest(sandbox: &Sandbox, server: &Postgres, file: &str, table: &str) {
    let file = dirs::tests_dir().join("../manifests/sql").join(file);
    let variables = [
        ("table", table),
        ("app_role", APP_ROLE),
        ("relay_role", RELAY_ROLE),
    ];
    server
        .psql_file(&sandbox.database, &file, &variables)
        .expect("the manifest runs");
}

async fn execute(sandbox: &Sandbox, sql: &'static str) {
    sqlx::raw_sql(sql)
        .execute(sandbox.pool())
        .await
        .expect("the superuser writes");
}

fn queue_columns() -> Columns {
    let column = |name: &str| Some(ColumnSource::Column(name.to_owned()));
    Columns {
        id: column("number"),
        event_id: column("event"),
        key: column("post"),
        r#type: column("kind"),
        subject: column("about"),
        content_type: column("media"),
        payload: column("data"),
        created_at: column("at"),
        ..Columns::default()
    }
}
