-- An outbox table for claim mode Lease: each row goes from pending to processing to done. Run once per table by its owner,
-- with psql, after 00-fanout.sql:
--
--   psql -v ON_ERROR_STOP=1 -v table=public.outbox_lease -v app_role=shop -v relay_role=fanout_relay -f outbox-lease.sql <database>
--
-- table:      schema.table to create (default public.outbox_lease).
-- app_role:   the role that writes events; without it nobody is granted the right to insert.
-- relay_role: the role the relays log in as (default fanout_relay).
--
-- An application inserts in the transaction that changes its own tables, while it holds a row lock (or a unique
-- constraint) that serialises the key until commit: then the order of a key in the log is the order of its commits.

\set ON_ERROR_STOP on
\if :{?table}
\else
  \set table public.outbox_lease
\endif
\if :{?relay_role}
\else
  \set relay_role fanout_relay
\endif

begin;

create table :table (
  -- The sequence must not cache values (cache 1, the default): cached values come out of order.
  id            bigint generated always as identity primary key,
  event_id      uuid not null default gen_random_uuid() unique,
  topic         text not null,
  key           text,
  type          text not null,
  subject       text,
  content_type  text not null default 'application/json',
  headers       jsonb,
  traceparent   text,
  payload       bytea,
  created_at    timestamptz not null default clock_timestamp(),
  status        text not null default 'pending' check (status in ('pending', 'processing', 'done')),
  lease_expires timestamptz,
  attempts      integer not null default 0,
  -- A NULL key must not make a NULL shard: such a row would never be claimed.
  shard         smallint not null generated always as ((hashtext(coalesce(key::text, '')) & 63)::smallint) stored)
  -- Every row is updated twice.
  with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);

-- The columns a FanoutTopic matches on, then what orders the rows. Partial: however many rows are kept, only the
-- unfinished ones are in them. For a FanoutTopic with an empty match: without topic.
create index on :table (topic, id, shard) where status = 'pending';
create index on :table (topic, lease_expires, shard) where status = 'processing';
-- By it what is old and done is found and deleted.
create index on :table (topic, created_at, shard) where status = 'done';

comment on table :table is 'Events to publish, for claim mode Lease. Applications insert, relays change status, lease_expires and attempts, and delete what is done some time later.';
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
comment on column :table.status is 'pending: to publish. processing: claimed by a relay. done: in the log, or set aside in fanout.parked.';
comment on column :table.lease_expires is 'A row that is processing longer than this is claimed again.';
comment on column :table.attempts is 'How often the row was claimed.';
comment on column :table.shard is 'Part of the key space, 0 to 63: relays divide these among themselves.';

grant select, delete, update (status, lease_expires, attempts) on :table to :"relay_role";

\if :{?app_role}
  grant insert (topic, key, type, subject, content_type, headers, traceparent, payload), select (id, event_id)
    on :table to :"app_role";
\endif

commit;
