-- Schema fanout: what the relays of one database remember. Run once per database by its owner, with psql:
--
--   psql -v ON_ERROR_STOP=1 -v relay_role=fanout_relay -f 00-fanout.sql <database>
--
-- relay_role: the role the relays log in as (default fanout_relay). It is created without a password where it does not
-- exist; give it one with \password. Relays never create, alter or drop anything.

\set ON_ERROR_STOP on
\if :{?relay_role}
\else
  \set relay_role fanout_relay
\endif

select format('create role %I login', :'relay_role')
 where not exists (select from pg_roles where rolname = :'relay_role') \gexec

begin;

create schema fanout;
comment on schema fanout is 'Positions, leases and parked rows of the fanout relays.';

create table fanout.schema_version (
  version    integer primary key,
  applied_at timestamptz not null default clock_timestamp());
comment on table fanout.schema_version is 'Steps applied to this schema; a relay refuses to run below the version it knows.';
insert into fanout.schema_version (version) values (1), (2);

create table fanout.topics (
  id           bigint generated always as identity primary key,
  cluster_id   text not null,
  topic        text not null,
  source_table text not null,
  match        jsonb not null,
  unique (cluster_id, topic));
comment on table fanout.topics is 'One row per Kafka topic that is fed from this database.';
comment on column fanout.topics.cluster_id is 'Id of the Kafka cluster: positions belong to one cluster and topic.';
comment on column fanout.topics.source_table is 'The outbox table, as schema.table, quoted where needed.';
comment on column fanout.topics.match is 'Which rows of the table belong to the topic: an object of column and value. Retention removes a row only when every topic that wants it has it.';

create table fanout.ranges (
  id           bigint generated always as identity primary key,
  topic_id     bigint not null references fanout.topics,
  lo           smallint not null,
  hi           smallint not null,
  predecessors bigint[] not null default '{}',
  unique (topic_id, lo),
  check (0 <= lo and lo < hi and hi <= 64));
comment on table fanout.ranges is 'Shards lo (inclusive) to hi (exclusive) of a topic, published by one relay at a time. Ids are never used again. The ranges of a topic are split and merged as relays come and go; together they always are shards 0 to 63.';
comment on column fanout.ranges.predecessors is 'Ids of the ranges that were split or merged into this one.';

create table fanout.leases (
  range_id   bigint primary key references fanout.ranges,
  owner      text,
  term       bigint not null default 0,
  expires_at timestamptz not null default '-infinity')
  with (fillfactor = 20);
comment on table fanout.leases is 'Who publishes a range. The term rises with each change of owner and fences the one before.';

create table fanout.positions (
  range_id          bigint not null,  -- no foreign key: it would lock the range's row at every append
  term              bigint not null,
  seq               bigint not null,
  old               pg_snapshot not null,
  new               pg_snapshot,
  last_id           bigint,
  system_identifier bigint not null,
  timeline          text not null,
  xid               xid8 not null default pg_current_xact_id(),
  created_at        timestamptz not null default clock_timestamp(),
  primary key (range_id, term, seq),
  check ((new is null) = (last_id is null)));
comment on table fanout.positions is 'How far a range is published: the row with the highest (term, seq). Rows are appended, never updated.';
comment on column fanout.positions.old is 'Everything visible in this snapshot is in the log.';
comment on column fanout.positions.new is 'Inside a large difference: its end. Rows between old and new are in the log up to last_id.';
comment on column fanout.positions.xid is 'The transaction that wrote the row; where it differs from xmin the row was dumped or replicated and its snapshots mean nothing here.';

create table fanout.parked (
  range_id     bigint not null references fanout.ranges deferrable,
  id           bigint not null,
  reason       text,
  action       text check (action in ('Release', 'Drop')),
  event_id     text not null,
  key          text,
  type         text not null,
  subject      text,
  content_type text not null,
  headers      jsonb,
  traceparent  text,
  payload      bytea,
  created_at   timestamptz not null,
  parked_at    timestamptz not null default clock_timestamp(),
  primary key (range_id, id));
create index on fanout.parked (range_id, key);
create index on fanout.parked (range_id, key, id) where reason is not null and action is null;
create index on fanout.parked (range_id) where action is not null;
comment on table fanout.parked is 'Rows that could not be published as they are, and the later rows of their keys.';
comment on column fanout.parked.id is 'id of the outbox row.';
comment on column fanout.parked.reason is 'Why the row can not be published; null where it is only held behind an earlier row of its key.';
comment on column fanout.parked.action is 'For people to set: Release publishes the row once more, Drop gives it up; then what is held behind it goes on. Null again where it still can not be published.';

create table fanout.members (
  topic_id bigint not null references fanout.topics,
  owner    text not null,
  seen_at  timestamptz not null default clock_timestamp(),
  primary key (topic_id, owner))
  with (fillfactor = 20);
comment on table fanout.members is 'Relays that are up: each takes its share of the ranges.';

grant usage on schema fanout to :"relay_role";
grant select on all tables in schema fanout to :"relay_role";
-- delete on topics: only for a FanoutTopic with deletionPolicy Delete, when it is deleted.
grant insert, update (match), delete on fanout.topics to :"relay_role";
grant insert, delete on fanout.ranges to :"relay_role";
grant insert, update, delete on fanout.leases to :"relay_role";
grant insert, delete on fanout.positions to :"relay_role";
grant insert, update, delete on fanout.parked to :"relay_role";
grant insert, update, delete on fanout.members to :"relay_role";

commit;

-- Optional: lets the relay report the age of a transaction that has been open for long, not only its process id.
--   grant pg_read_all_stats to fanout_relay;
