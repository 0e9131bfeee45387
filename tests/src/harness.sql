-- What the harness adds to a test's database beside the project's own SQL.
create schema harness;

-- One row per key: whoever holds its lock writes the key's next event.
create table harness.keys (
  key text primary key,
  seq bigint not null default 0);

-- What webhook receivers were sent, in order of arrival.
create table harness.received (
  seq        bigint generated always as identity primary key,
  arrived_at timestamptz not null default clock_timestamp(),
  receiver   text not null,
  event_id   text,
  headers    jsonb not null,
  body       bytea not null,
  status     integer);
comment on column harness.received.status is 'What was answered; null where nothing was.';
create index on harness.received (receiver, seq);

grant usage on schema harness to fanout_app;
grant select, insert, update on harness.keys to fanout_app;
