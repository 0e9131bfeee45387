-- Schema fanout from version 1 to version 2: parked rows are released or dropped by their column action, ranges split and
-- merge. Run by the owner of the database, with psql, before the relays of the new version start; those of the old one go on working:
--
--   psql -v ON_ERROR_STOP=1 -v relay_role=fanout_relay -f upgrade/2-parked-actions.sql <database>

\set ON_ERROR_STOP on
\if :{?relay_role}
\else
  \set relay_role fanout_relay
\endif

begin;

alter table fanout.parked add column action text check (action in ('Release', 'Drop'));
create index on fanout.parked (range_id, key, id) where reason is not null and action is null;
create index on fanout.parked (range_id) where action is not null;
comment on column fanout.parked.action is 'For people to set: Release publishes the row once more, Drop gives it up; then what is held behind it goes on. Null again where it still can not be published.';
alter table fanout.parked alter column event_id type text;
alter table fanout.parked alter constraint parked_range_id_fkey deferrable;
grant update on fanout.parked to :"relay_role";
alter table fanout.ranges add column predecessors bigint[] not null default '{}';
comment on column fanout.ranges.predecessors is 'Ids of the ranges that were split or merged into this one.';
grant delete on fanout.ranges, fanout.leases to :"relay_role";
insert into fanout.schema_version (version) values (2);

commit;
