-- The group commit and the search for what is due. The rules are those of the verbs before.

-- Everything that a group of executions writes, or nothing: if one of them has to be refused, nothing is written and
-- the refusals come back as (execution, answer); the caller repeats the rest. 'busy' is an end that met a sender. Only a park that is refused because mail
-- waits lets the others, and its own rows, through: it comes back as (execution, 'park').
--
-- `careful` looks at the log before it writes. Without it an occupied version is found by the primary key: the error
-- 23505 tells the caller to come back with care. Either way the last insert decides.
create function commit_group(
  row_keys text[], versions bigint[], types smallint[], datas bytea[], ats bigint[], fences bigint[], ids text[],
  park_keys text[], park_tokens bigint[], park_done int[], park_statuses text[], park_dues bigint[],
  park_states bytea[], park_waits bytea[],
  end_keys text[], end_tokens bigint[], end_done int[], end_statuses text[], end_states bytea[], end_results bytea[],
  fired_keys text[], fired_dues bigint[],
  done_keys text[], done_ids text[],
  status_keys text[], statuses text[],
  base_keys text[], bases bigint[],
  careful boolean)
returns table (execution text, answer text)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  now bigint;
  mine text[] := '{}';
  ours text[] := '{}';
  found_ids int;
  maybe text[];
  waiting text[] := '{}';
  lanes text[];
  refused boolean := false;
begin
  if park_keys <> '{}' then
    select coalesce(array_agg(q.key), '{}') into mine
      from (select w.key from unnest(park_keys, park_tokens) u(k, t) join wakes w on w.key = u.k
            where w.token = u.t and w.holder is not null order by w.key for no key update of w) q;
    if cardinality(mine) < cardinality(park_keys) then
      refused := true;
      return query select k, 'stale' from unnest(park_keys) k where k <> all (mine);
    end if;
  end if;
  if end_keys <> '{}' then
    -- A sender's lock keeps us out, and its transaction may be a long one of somebody else's: that is no reason for the
    -- whole group to wait. Mail is on its way to this execution.
    select coalesce(array_agg(q.key), '{}') into ours
      from (select w.key from unnest(end_keys, end_tokens) u(k, t) join wakes w on w.key = u.k
            where w.token = u.t and w.holder is not null for update of w skip locked) q;
    if cardinality(ours) < cardinality(end_keys) then
      refused := true;
      return query
        select u.k, case when w.key is null then 'stale' else 'busy' end
        from unnest(end_keys, end_tokens) u(k, t)
        left join wakes w on w.key = u.k and w.token = u.t and w.holder is not null
        where u.k <> all (ours);
    end if;
  end if;
  now := now_us();
  if exists (select 1 from unnest(fired_dues) due where due > now) then
    refused := true;
    return query select k, 'early' from unnest(fired_keys, fired_dues) u(k, due) where due > now;
  end if;
  if done_keys <> '{}' then
    select count(*) into found_ids
      from (select 1 from unnest(done_keys, done_ids) u(k, i) join messages m on m.key = u.k and m.id = u.i
            order by m.key, m.id for update of m) q;
    if found_ids < cardinality(done_keys) then
      refused := true;
      return query
        select distinct u.k, 'stale' from unnest(done_keys, done_ids) u(k, i)
        where not exists (select 1 from messages m where m.key = u.k and m.id = u.i);
    end if;
  end if;
  if careful then
    return query
      select u.k, 'stale' from unnest(row_keys, versions) u(k, v)
        join events e on e.key = u.k and e.version = u.v
      union
      select u.k, 'stale' from unnest(row_keys, ids) u(k, i) join events e on e.key = u.k and e.message_id = u.i;
    refused := refused or found;
  end if;
  -- New statements, hence new snapshots: they see every sender that came before the locks above.
  select array_agg(u.k) into maybe from unnest(park_keys || end_keys, park_done || end_done) u(k, n)
    where (select count(*) from messages m where m.key = u.k) > u.n;
  if maybe is not null then
    select coalesce(array_agg(k), '{}') into waiting from unnest(maybe) k where exists (
      select 1 from messages m where m.key = k
        and not exists (select 1 from events e where e.key = k and e.message_id = m.id)
        and not exists (select 1 from unnest(done_keys, done_ids) u(a, b) where u.a = k and u.b = m.id)
        and not exists (select 1 from unnest(row_keys, ids) u(a, b) where u.a = k and u.b = m.id));
    return query select k, 'mail' from unnest(end_keys) k where k = any (waiting);
    refused := refused or found;
  end if;
  if refused then
    return;
  end if;

  -- Decided: from here on nothing is refused, except by the log itself.
  if end_keys <> '{}' then
    with gone as (delete from wakes w using unnest(end_keys) u(k) where w.key = u.k returning w.lane)
      select array_agg(gone.lane) filter (where gone.lane is not null) into lanes from gone;
    if lanes is not null then
      for i in 1 .. cardinality(lanes) loop
        update wakes w set due = now where w.holder is null and w.key = (
          select f.key from wakes f where f.lane = lanes[i] order by f.born, f.key limit 1);
      end loop;
    end if;
    delete from messages m using unnest(end_keys) u(k) where m.key = u.k;
  end if;
  if park_keys <> '{}' then
    update wakes w set holder = null, lapses = 0, hints = 0, due = u.d
      from unnest(park_keys, park_dues) u(k, d) where w.key = u.k and u.k <> all (waiting);
  end if;
  if done_keys <> '{}' then
    delete from messages m using unnest(done_keys, done_ids) u(k, i) where m.key = u.k and m.id = u.i;
  end if;
  if park_keys <> '{}' then
    update heads h set status = u.s, state = coalesce(u.st, h.state), waits = u.w, changed_at = now
      from unnest(park_keys, park_statuses, park_states, park_waits) u(k, s, st, w) where h.key = u.k;
  end if;
  if end_keys <> '{}' then
    update heads h set status = u.s, state = coalesce(u.st, h.state), waits = null, result = u.r, changed_at = now
      from unnest(end_keys, end_statuses, end_states, end_results) u(k, s, st, r) where h.key = u.k;
  end if;
  if status_keys <> '{}' then
    update heads h set status = u.s from unnest(status_keys, statuses) u(k, s) where h.key = u.k;
  end if;
  if base_keys <> '{}' then
    update heads h set base = u.b from unnest(base_keys, bases) u(k, b) where h.key = u.k and h.base < u.b;
  end if;
  insert into events (key, version, type, data, at, fence, message_id)
    select k, v, t, d, a, f, i from unnest(row_keys, versions, types, datas, ats, fences, ids) u(k, v, t, d, a, f, i);
  return query select k, 'park' from unnest(park_keys) k where k = any (waiting);
end $$;

-- Mail from one execution to others, in the transaction of its commit. No lock on their wake rows: two that end into
-- each other would wait for each other. Mail that loses against an end is found, and dropped, when it is due.
create function post(keys text[], mail_ids text[], shas text[], datas bytea[], grace bigint) returns void
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  insert into messages (key, id, queue, due, sha, data)
    select w.key, u.i, w.queue, now_us() + grace, u.s, u.d
    from unnest(keys, mail_ids, shas, datas) with ordinality u(k, i, s, d, n) join wakes w on w.key = u.k
    where not exists (select 1 from events e where e.key = u.k and e.message_id = u.i)
    order by u.k, u.n
    on conflict (key, id) do nothing;
end $$;

-- The same with children and with mail to others. They follow the rows, so that a commit that is refused has none.
create function commit_family(
  row_keys text[], versions bigint[], types smallint[], datas bytea[], ats bigint[], fences bigint[], ids text[],
  park_keys text[], park_tokens bigint[], park_done int[], park_statuses text[], park_dues bigint[],
  park_states bytea[], park_waits bytea[],
  end_keys text[], end_tokens bigint[], end_done int[], end_statuses text[], end_states bytea[], end_results bytea[],
  fired_keys text[], fired_dues bigint[],
  done_keys text[], done_ids text[],
  status_keys text[], statuses text[],
  base_keys text[], bases bigint[],
  careful boolean,
  child_keys text[], tenants text[], workflows text[], definitions text[], queues text[], child_statuses text[],
  shas text[], parents text[], refs bigint[], lanes text[], child_bases bigint[], states bytea[], results bytea[],
  floors bigint[], places bigint[],
  child_row_keys text[], child_versions bigint[], child_types smallint[], child_datas bytea[], child_ats bigint[],
  child_fences bigint[], child_ids text[],
  mail_keys text[], mail_ids text[], mail_shas text[], mail_datas bytea[],
  grace bigint)
returns table (execution text, answer text)
language plpgsql
set search_path from current
as $$
declare
  one record;
begin
  for one in select * from commit_group(
    row_keys, versions, types, datas, ats, fences, ids,
    park_keys, park_tokens, park_done, park_statuses, park_dues, park_states, park_waits,
    end_keys, end_tokens, end_done, end_statuses, end_states, end_results,
    fired_keys, fired_dues, done_keys, done_ids, status_keys, statuses, base_keys, bases, careful)
  loop
    execution := one.execution;
    answer := one.answer;
    return next;
  end loop;
  if answer is null or answer = 'park' then
    if child_keys <> '{}' then
      perform start(
        child_keys, tenants, workflows, definitions, queues, child_statuses, shas, parents, refs, lanes, child_bases,
        states, results, floors, places, child_row_keys, child_versions, child_types, child_datas, child_ats,
        child_fences, child_ids, grace);
    end if;
    if mail_keys <> '{}' then
      perform post(mail_keys, mail_ids, mail_shas, mail_datas, grace);
    end if;
  end if;
end $$;

-- What is due, for hinting. Tenants take turns among the earliest few and the latest few; what another claim has
-- locked is left to it.
create function claim(queues text[], definitions text[], most int, grace bigint)
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
  with due as (
    select c.key, c.due from unnest(queues) q cross join unnest(definitions) d
      cross join lateral (select w.key, w.due from wakes w
                          where w.queue = q and w.definition = d and w.due <= now order by w.due limit near) c
    union all
    select c.key, c.due from unnest(queues) q cross join unnest(definitions) d
      cross join lateral (select w.key, w.due from wakes w
                          where w.queue = q and w.definition = d and w.due <= now order by w.due desc limit near) c
    union all
    select c.key, c.due from unnest(queues) q
      cross join lateral (select w.key, m.due from messages m join wakes w on w.key = m.key
                          where m.queue = q and m.due <= now and w.definition = any (definitions)
                          order by m.due limit near) c
    union all
    select c.key, c.due from unnest(queues) q
      cross join lateral (select w.key, m.due from messages m join wakes w on w.key = m.key
                          where m.queue = q and m.due <= now and w.definition = any (definitions)
                          order by m.due desc limit near) c),
  turns as (
    select f.key, f.due, row_number() over (partition by split_part(f.key, '/', 1) order by f.due, f.key) as turn
    from (select due.key, min(due.due) as due from due group by due.key) f)
  select array_agg(q.key) into chosen
    from (select w.key from turns t join wakes w on w.key = t.key order by t.turn, t.due, t.key limit most
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

-- The earliest due time of any wake row or mail that these definitions can serve.
create function next_due(queues text[], definitions text[]) returns table (due bigint) language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query select min(c.due) from (
    select f.due from unnest(queues) q cross join unnest(definitions) d
      cross join lateral (select w.due from wakes w where w.queue = q and w.definition = d and w.due is not null
                          order by w.due limit 1) f
    union all
    select f.due from unnest(queues) q
      cross join lateral (select m.due from messages m join wakes w on w.key = m.key
                          where m.queue = q and m.due is not null and w.definition = any (definitions)
                          order by m.due limit 1) f) c;
end $$;

-- What is due per queue, counted up to a limit: what matters is whether there is much to do, not how much exactly.
create function backlog() returns table (queue text, waiting bigint, oldest bigint) language plpgsql stable
set search_path from current
as $$
#variable_conflict use_column
declare
  now bigint := now_us();
begin
  return query select f.queue, count(*), min(f.due) from (
    select w.queue, w.due from wakes w where w.due <= now and w.queue <> ''
    union all
    select m.queue, m.due from messages m where m.due <= now
    limit 10000) f group by f.queue order by f.queue;
end $$;
