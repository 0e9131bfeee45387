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

grant select, delete on :table to :"relay_role";

\if :{?app_role}
  grant insert (topic, key, type, subject, content_type, headers, traceparent, payload), select (id, event_id)
    on :table to :"app_role";
\endif

commit;
