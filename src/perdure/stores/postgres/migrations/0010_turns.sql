-- Tenants take turns wherever in a flood of another their rows lie. Each has a lot, by which its rows are found among all
-- that wait; of what is held there is no such list, for that changes with every hold. May be run again.

alter table wakes add column if not exists
  lot int not null generated always as (hashtext(split_part(key, '/', 1))) stored;
alter table messages add column if not exists
  lot int not null generated always as (hashtext(split_part(key, '/', 1))) stored;

create index if not exists wakes_turns on wakes (queue, definition, lot, due) where due is not null and holder is null;
create index if not exists messages_turns on messages (queue, lot, due) where due is not null;

-- The earliest rows of each tenant: from lot to lot, beginning anywhere, round until the first comes again. Each step is
-- one look into the index; where there are very many lots, some are visited, and others the next time.
create or replace function wakes_of_each(wanted text, served text, until bigint, near int)
returns table (key text, due bigint, lot int)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  anywhere int := floor(random() * 4294967296)::bigint - 2147483648;
begin
  return query
  with recursive lots (lot, first, visit) as (
    select l.lot, l.lot, 1 from (select coalesce(
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and w.holder is null and w.lot >= anywhere order by w.lot limit 1),
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and w.holder is null order by w.lot limit 1)) as lot) l
      where l.lot is not null
    union all
    select l.lot, t.first, t.visit + 1 from lots t cross join lateral (select coalesce(
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and w.holder is null and w.lot > t.lot order by w.lot limit 1),
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and w.holder is null order by w.lot limit 1)) as lot) l
      where t.visit < 500 and l.lot <> t.first)
  select c.key, c.due, l.lot from lots l
    cross join lateral (select w.key, w.due from wakes w
                        where w.queue = wanted and w.definition = served and w.lot = l.lot and w.due <= until
                          and w.holder is null
                        order by w.due limit (select greatest(1, near / count(*)) from lots)) c;
end $$;

-- The same of mail.
create or replace function mail_of_each(wanted text, served text[], until bigint, near int)
returns table (key text, due bigint, lot int)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  anywhere int := floor(random() * 4294967296)::bigint - 2147483648;
begin
  return query
  with recursive lots (lot, first, visit) as (
    select l.lot, l.lot, 1 from (select coalesce(
        (select m.lot from messages m where m.queue = wanted and m.due is not null and m.lot >= anywhere
           order by m.lot limit 1),
        (select m.lot from messages m where m.queue = wanted and m.due is not null order by m.lot limit 1)) as lot) l
      where l.lot is not null
    union all
    select l.lot, t.first, t.visit + 1 from lots t cross join lateral (select coalesce(
        (select m.lot from messages m where m.queue = wanted and m.due is not null and m.lot > t.lot
           order by m.lot limit 1),
        (select m.lot from messages m where m.queue = wanted and m.due is not null order by m.lot limit 1)) as lot) l
      where t.visit < 500 and l.lot <> t.first)
  select c.key, c.due, l.lot from lots l
    cross join lateral (select w.key, m.due from messages m join wakes w on w.key = m.key
                        where m.queue = wanted and m.lot = l.lot and m.due <= until and w.definition = any (served)
                        order by m.due limit (select greatest(1, near / count(*)) from lots)) c;
end $$;

-- What is due, for hinting: the earliest rows, and where more is due than was looked at, the earliest of each tenant.
-- Tenants take turns, and who is first is drawn anew each time; what another claim has locked is left to it.
create or replace function claim(queues text[], definitions text[], most int, grace bigint)
returns table (key text, queue text, holder text)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  now bigint := now_us();
  near int := 4 * most;
  chosen text[];
  woken text[];
  mailed text[];
  orphans text[];
begin
  select array_agg(o.key) into orphans
    from unnest(queues) q
    cross join lateral (select m.key from messages m where m.queue = q and m.due <= now order by m.due limit near) o
    where not exists (select 1 from wakes w where w.key = o.key);
  with early as (
    select q, d, c.key, c.due, c.lot from unnest(queues) q cross join unnest(definitions) d
      cross join lateral (select w.key, w.due, w.lot from wakes w
                          where w.queue = q and w.definition = d and w.due <= now order by w.due limit near) c),
  mail as (
    select q, c.key, c.due, c.lot from unnest(queues) q
      cross join lateral (select w.key, m.due, m.lot from messages m join wakes w on w.key = m.key
                          where m.queue = q and m.due <= now and w.definition = any (definitions)
                          order by m.due limit near) c),
  due as (
    select early.key, early.due, early.lot from early
    union all
    select mail.key, mail.due, mail.lot from mail
    union all
    select c.key, c.due, c.lot
      from (select early.q, early.d from early group by early.q, early.d having count(*) = near) f
      cross join lateral wakes_of_each(f.q, f.d, now, near) c
    union all
    select c.key, c.due, c.lot from (select mail.q from mail group by mail.q having count(*) = near) f
      cross join lateral mail_of_each(f.q, definitions, now, near) c),
  turns as (
    select f.key, row_number() over (partition by f.lot order by f.due, f.key) as turn
    from (select due.key, due.lot, min(due.due) as due from due group by due.key, due.lot) f)
  select array_agg(q.key) into chosen
    from (select w.key from turns t join wakes w on w.key = t.key order by t.turn, random() limit most
          for no key update of w skip locked) q;
  -- Between the search and the lock another claim may have hinted a row: only what is still due counts.
  with hinted as (
    update wakes w
      set lapses = w.lapses + (w.holder is not null)::int, token = w.token + (w.holder is not null)::int,
          holder = null, due = now + grace * (1 << least(w.hints, 5)), hints = w.hints + 1
      from unnest(chosen) u(k) where w.key = u.k and w.due <= now returning w.key)
    select coalesce(array_agg(hinted.key), '{}') into woken from hinted;
  with hinted as (
    update messages m set due = now + grace from unnest(chosen) u(k) where m.key = u.k and m.due <= now returning m.key)
    select coalesce(array_agg(hinted.key), '{}') into mailed from hinted;
  if orphans is not null then
    -- Nobody will ever fold them: their execution has ended.
    delete from messages m using unnest(orphans) u(k)
      where m.key = u.k and not exists (select 1 from wakes w where w.key = m.key);
  end if;
  return query
    select w.key, w.queue, case when w.due > now then w.holder end
    from unnest(chosen) with ordinality u(k, n) join wakes w on w.key = u.k
    where cardinality(woken) = cardinality(chosen) or u.k = any (woken) or u.k = any (mailed) order by u.n;
end $$;
