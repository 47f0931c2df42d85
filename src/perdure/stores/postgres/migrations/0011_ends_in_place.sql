-- An execution that completes changes its head in place: no index has a column that this changes, so none of them is
-- written again, and a page has room for the new version beside the old. Hence two lists move. Those that neither are
-- open nor have completed have a mark in their heads, and are found by it; those that are open and held by nobody are
-- found among the wake rows. May be run again.

alter table heads set (fillfactor = 45);
alter table heads add column if not exists mark text collate "C";

create or replace function mark_head() returns trigger language plpgsql as $$
begin
  new.mark := nullif(nullif(new.status, 'open'), 'completed');
  return new;
end $$;

drop trigger if exists mark_head on heads;
create trigger mark_head before insert or update of status on heads for each row
  when (new.mark is distinct from nullif(nullif(new.status, 'open'), 'completed')) execute function mark_head();

update heads set status = status where status not in ('open', 'completed') and mark is null;
create index if not exists heads_mark on heads (mark, tenant, started_at, key) where mark is not null;
drop index if exists heads_status;

alter table wakes add column if not exists started_at bigint;
update wakes w set started_at = h.started_at from heads h where h.key = w.key and w.started_at is null;
create index if not exists wakes_waiting on wakes (lot, started_at, key) where holder is null;
-- Said with a case, like that of the heads, so that a page of those that wait is read off the index.
alter policy one_tenant on wakes
  using (case when starts_with(key, (select seen_prefix())) then true else false end)
  with check (case when starts_with(key, (select seen_prefix())) then true else false end);

-- Starts executions; answers the keys that were there before, with their shas. `floor` is the highest fence that the
-- rows bring along: the first token is above it, and above every token of an execution that had this key long ago.
-- `places` is the order of the starts, which is that of a lane. Whatever was published is served under one word.
create or replace function start(
  keys text[], tenants text[], workflows text[], definitions text[], queues text[], statuses text[], shas text[],
  parents text[], refs bigint[], lanes text[], bases bigint[], states bytea[], results bytea[], floors bigint[],
  places bigint[], row_keys text[], versions bigint[], types smallint[], datas bytea[], ats bigint[], fences bigint[], ids text[],
  grace bigint)
returns table (old_key text, old_sha text)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  now bigint := now_us();
  fresh int;
  old text[] := '{}';
begin
  with made as (
    insert into heads (key, tenant, workflow, definition, queue, status, sha, parent, parent_ref, base, state, result,
                       started_at, changed_at)
      select k, t, w, d, q, s, h, p, r, b, st, re, now, now
      from unnest(keys, tenants, workflows, definitions, queues, statuses, shas, parents, refs, bases, states, results)
           u(k, t, w, d, q, s, h, p, r, b, st, re)
      on conflict (key) do nothing returning key)
    select count(*), array_agg(made.key) into fresh, old from made;
  if fresh = cardinality(keys) then
    old := '{}';
  else
    select array_agg(k) into old from unnest(keys) k where old is null or k <> all (old);
    return query select h.key, h.sha from unnest(old) u(k) join heads h on h.key = u.k;
    if fresh = 0 then
      return;
    end if;
  end if;
  insert into wakes (key, queue, definition, started_at, due, token, lane, born)
    select k, q, case when d ^@ 'published:' then 'published:' else d end, now, now + grace, greatest(now, f), l,
           greatest(now, f, 1 + (select max(w.born) from wakes w where l is not null and w.lane = l)) + n
    from unnest(keys, queues, definitions, floors, lanes, statuses, places) u(k, q, d, f, l, s, n)
    where s not in ('completed', 'failed', 'cancelled') and k <> all (old);
  insert into events (key, version, type, data, at, fence, message_id)
    select k, v, t, d, a, f, i from unnest(row_keys, versions, types, datas, ats, fences, ids) u(k, v, t, d, a, f, i)
    where k <> all (old);
end $$;
