-- Optional: retention of a partitioned outbox (claim mode Snapshot) by dropping whole partitions. Run once per database by the owner of schema
-- fanout, with psql, after 00-fanout.sql:
--
--   psql -v ON_ERROR_STOP=1 -f 20-partitions.sql <database>
--
-- Then let the owner of the outbox call it regularly (pg_cron, a CronJob), as often as partitions end:
--
--   select fanout.drop_published_partition('public.outbox', interval '1 day');
--
-- It drops at most one partition, the first by name that is not empty, whose rows are all older than that and published by
-- every topic that wants them, and wanted by at least one; it returns the partition's name, or null. Where an open
-- transaction has written to the partition or reads it, it gives up after 100 ms: a drop that waits would make every insert
-- wait behind it. Give the FanoutTopic a retentionSeconds beyond the interval, so that relays don't delete the same rows one
-- by one.

\set ON_ERROR_STOP on

create function fanout.drop_published_partition(outbox regclass, keep interval) returns text
language plpgsql
set lock_timeout = '100ms'
as $$
declare
  part regclass;
  name text;
  mine text := (select format('%I.%I', n.nspname, c.relname)
                  from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = outbox);
  wanted text;
  unpublished text;
  found boolean;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'fanout.drop_published_partition must run in read committed: it has to see what commits meanwhile';
  end if;
  -- Rows some topic wants, and rows some range of such a topic has not published.
  select string_agg('(' || m.rows || ')', ' or '), string_agg(r.rows, ' or ')
    into wanted, unpublished
    from fanout.topics t
   cross join lateral (select coalesce(string_agg(format('o.%I = %L', key, value), ' and '), 'true') as rows
                         from jsonb_each_text(t.match)) m
   cross join lateral (select string_agg(format(
           '(%s and o.shard >= %s and o.shard < %s and not (o.xid < pg_snapshot_xmax(%L) and pg_visible_in_snapshot(o.xid, %L)))',
           m.rows, g.lo, g.hi, coalesce(p.old, '1:1:'), coalesce(p.old, '1:1:')), ' or ') as rows
          from fanout.ranges g
          left join lateral (select old from fanout.positions where range_id = g.id
                              order by term desc, seq desc limit 1) p on true
         where g.topic_id = t.id) r
   where replace(t.source_table, '"', '') = replace(mine, '"', '');
  if wanted is null or unpublished is null then
    return null;
  end if;
  for part in select relid from pg_partition_tree(outbox) where isleaf and relid <> outbox order by relid::regclass::text loop
    name := part::text;
    begin
      -- Nobody inserts into it any more from here on, and whoever did has ended: what is true now stays true.
      execute format('lock table %s in share row exclusive mode', part);
      execute format(
        'select exists (select from %1$s) and not exists (select from %1$s o where o.created_at >= clock_timestamp() - $1 or not (%2$s) or %3$s)',
        part, wanted, unpublished) into found using keep;
      if found then
        execute format('drop table %s', part);
        return name;
      end if;
    exception when lock_not_available then
      -- At the next call.
      null;
    end;
  end loop;
  return null;
end $$;
comment on function fanout.drop_published_partition is 'Drops the first partition of an outbox that is published and old; gives up where it would have to wait.';
revoke execute on function fanout.drop_published_partition from public;
