-- An outbox table. Run once per table by its owner, with psql, after 00-fanout.sql:
--
--   psql -v ON_ERROR_STOP=1 -v table=public.outbox -v app_role=shop -v relay_role=fanout_relay -f 10-outbox.sql <database>
--
-- table:      schema.table to create (default public.outbox).
-- app_role:   the role that writes events; without it nobody is granted the right to insert.
-- relay_role: the role the relays log in as (default fanout_relay).
--
-- An application inserts in the transaction that changes its own tables, while it holds a row lock (or a unique
-- constraint) that serialises the key until commit: then the order of a key in the log is the order of its commits.

\set ON_ERROR_STOP on
\if :{?table}
\else
  \set table public.outbox
\endif
\if :{?relay_role}
\else
  \set relay_role fanout_relay
\endif

begin;

create table :table (
  -- The sequence must not cache values (cache 1, the default): cached values come out of order.
  id           bigint generated always as identity primary key,
  event_id     uuid not null default gen_random_uuid() unique,
  topic        text not null,
  key          text,
  type         text not null,
  subject      text,
  content_type text not null default 'application/json',
  headers      jsonb,
  traceparent  text,
  payload      bytea,
  created_at   timestamptz not null default clock_timestamp(),
  xid          xid8 not null default pg_current_xact_id(),
  -- A NULL key must not make a NULL shard: such a row would never be claimed.
  shard        smallint not null generated always as ((hashtext(coalesce(key::text, '')) & 63)::smallint) stored);

-- Refuses forged and replicated transaction ids and every UPDATE. Always by ALTER: inside CREATE TABLE "not valid" is
-- dropped, and restoring a dump would fail. A new partition is a table of its own that gets the same ALTER and is then
-- attached.
alter table :table add constraint outbox_xid check (xid = pg_current_xact_id()) not valid;

-- The columns a FanoutTopic matches on, then xid, shard. For a FanoutTopic with an empty match: (xid, shard).
create index on :table (topic, xid, shard);

comment on table :table is 'Events to publish. Applications insert, relays read and, some time after publishing, delete; nobody updates.';
comment on column :table.id is 'Order of the events of a key. The record carries it as ce_sequence.';
comment on column :table.event_id is 'Id of the event, the same on every repeat.';
comment on column :table.topic is 'Name of the FanoutTopic, unless that matches on other columns.';
comment on column :table.key is 'Events of one key are published in the order of their commits. Null: ordered with nothing.';
comment on column :table.type is 'CloudEvents type, for example post.created. Not empty.';
comment on column :table.subject is 'CloudEvents subject.';
comment on column :table.content_type is 'Media type of the payload.';
comment on column :table.headers is 'Further CloudEvents attributes: an object of texts, numbers and booleans.';
comment on column :table.traceparent is 'W3C trace context of the transaction that wrote the event.';
comment on column :table.payload is 'Data of the event, passed on byte for byte.';
comment on column :table.created_at is 'CloudEvents time; retention counts from it.';
comment on column :table.xid is 'Transaction that wrote the row: by it a relay knows what became visible.';
comment on column :table.shard is 'Part of the key space, 0 to 63: relays divide these among themselves.';

grant select, delete on :table to :"relay_role";

\if :{?app_role}
  grant insert (topic, key, type, subject, content_type, headers, traceparent, payload), select (id, event_id)
    on :table to :"app_role";
\endif

commit;
