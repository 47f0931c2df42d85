-- The verbs again, with one way left to go: from each key to its row, by the index of the keys. The rows of open
-- executions come and go, so what the planner knows of these tables may be of a moment at which they were empty; then
-- to read a whole index seems as good as to look a key up in it, and a plan that was made so stays while the table
-- fills: a group of hundreds read all that was open, once for each of its keys. Rules kept here, beside those of the
-- verbs before:
--
-- * keys alone are looked for with `= any (keys)`;
-- * keys with values are joined with `= any (array[u.k])`, for which a plan has to begin with the array;
-- * where the columns of an index would be enough of an answer, `offset 0` keeps the look-up apart, key by key;
-- * `coalesce` and `num_nulls` hide a condition that would be an invitation to read a partial index as a whole;
-- * who wants the first rows asks for the order of all columns of the one index, so that no other has it to offer;
-- * no bitmaps: they are made of any index, have no order to lock in, and cannot stop after the first rows;
-- * what is locked in order is sorted by the keys of the array, for an index has an order to offer, too.
--
-- Answers and locks are what they were. May be run again.

-- Only for what goes from lot to lot, and says so in these words: who wants the earliest rows does not sort those of all
-- lots, and who goes from lot to lot does not read the list of all that waits.
drop index if exists wakes_turns;
create index wakes_turns on wakes (queue, definition, lot, due) where due is not null and num_nulls(holder) = 1;
drop index if exists messages_turns;
create index messages_turns on messages (queue, lot, due) where due is not null and seq > 0;

-- Starts executions; answers the keys that were there before, with their shas. `floor` is the highest fence that the
-- rows bring along: the first token is above it, and above every token of an execution that had this key long ago.
-- `places` is the order of the starts, which is that of a lane. Whatever was published is served under one word.
create or replace function start(
  keys text[], tenants text[], workflows text[], definitions text[], queues text[], statuses text[], shas text[],
  parents text[], refs bigint[], lanes text[], bases bigint[], states bytea[], results bytea[], floors bigint[],
  places bigint[], row_keys text[], versions bigint[], types smallint[], datas bytea[], ats bigint[], fences bigint[],
  ids text[], grace bigint)
returns table (old_key text, old_sha text)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
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
    return query select h.key, h.sha from heads h where h.key = any (old);
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

-- Puts mail into mailboxes. The share lock keeps the execution from ending before this mail is committed; it does not
-- keep anybody from holding or parking it. What was not inserted comes with what it met: the sha in the mailbox, the
-- version in the log, the queue of an execution that has ended.
create or replace function send(keys text[], ids text[], shas text[], datas bytea[], grace bigint)
returns table (place bigint, fresh boolean, queue text, holder text, sha text, version bigint)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  now bigint;
  put text[];
begin
  perform 1 from wakes w where w.key = any (keys) order by w.key for key share;
  now := now_us();
  with made as (
    insert into messages (key, id, queue, due, sha, data)
      select w.key, u.i, w.queue, now + grace, u.s, u.d
      from unnest(keys, ids, shas, datas) with ordinality u(k, i, s, d, n) join wakes w on w.key = any (array[u.k])
      where not exists (select 1 from events e where e.key = u.k and e.message_id = u.i offset 0)
      order by u.k, u.n
      on conflict (key, id) do nothing returning key, id)
    select coalesce(array_agg(made.key || ' ' || made.id), '{}') into put from made;
  if cardinality(put) = cardinality(keys) then
    return query
      select u.n, true, w.queue, case when w.due > now then w.holder end, null::text, null::bigint
      from unnest(keys) with ordinality u(k, n) join wakes w on w.key = any (array[u.k]);
  else
    return query
      select u.n, u.k || ' ' || u.i = any (put), coalesce(w.queue, h.queue), case when w.due > now then w.holder end,
             m.sha, e.version
      from unnest(keys, ids) with ordinality u(k, i, n)
      left join lateral (select * from wakes w where w.key = u.k offset 0) w on true
      left join lateral (select * from heads h where h.key = u.k offset 0) h on true
      left join lateral (select * from messages m where m.key = u.k and m.id = u.i offset 0) m on true
      left join lateral (select * from events e where e.key = u.k and e.message_id = u.i offset 0) e on true;
  end if;
end $$;

-- Holds, bars former holders, reads. What comes back: 0 a hold (n token, kind lapses, a definition, b queue, c status,
-- d parent, at its ref), 1 a row of a log (n version, kind type, a message id), 2 a mail (a id, b sha), 3 busy (a
-- holder), 4 queued, 5 given back at this very moment: ask again. A key that does not come back is gone. What others
-- hold is not locked, so that nobody's park waits for this.
create or replace function hold(
  keys text[], known_versions bigint[], known_tokens bigint[], me text, lease bigint, taken_over smallint,
  progress smallint[])
returns table (what smallint, key text, n bigint, kind int, at bigint, fence bigint, a text, b text, c text, d text,
               data bytea)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  now bigint := now_us();
  there text[];
  unclean boolean[];
  known bigint[];
  line text[];
  held text[] := '{}';
  tokens bigint[];
  lapsed int[];
  after bigint[];
  waiting text[] := '{}';
  counted int;
begin
  select array_agg(q.key), array_agg(q.unclean), array_agg(q.known), array_agg(distinct q.lane)
      filter (where q.lane is not null) into there, unclean, known, line
    from (select w.key, w.holder is not null or w.lapses > 0 as unclean,
                 case when w.token = u.t then u.v end as known, w.lane
          from unnest(keys, known_versions, known_tokens) u(k, v, t) join wakes w on w.key = any (array[u.k])
          where coalesce(w.holder is null or w.holder = me or w.due <= now, false)
          order by u.k collate "C" for no key update of w) q;
  if line is not null then
    -- Two that think themselves the first of a lane, because neither saw the other start, come here one by one.
    perform pg_advisory_xact_lock(hashtextextended(l, 0)) from (select l from unnest(line) l order by l) q;
  end if;
  now := now_us();
  if there is not null then
    with taken as (
      update wakes w set holder = me, token = w.token + 1, due = now + lease, hints = 0,
             lapses = w.lapses + (w.holder <> me and w.holder is not null)::int,
             born = case when w.lane is null then w.born else 0 end
        from unnest(there, unclean, known) u(k, dirty, v)
        where w.key = any (array[u.k]) and (w.lane is null or not exists (
                select 1 from wakes f where f.lane = w.lane and (f.born, f.key) < (w.born, w.key)))
        returning w.key, w.token, w.lapses, u.dirty, u.v)
      select coalesce(array_agg(t.key), '{}'), array_agg(t.token), array_agg(t.lapses), array_agg(t.dirty),
             array_agg(t.v)
        into held, tokens, lapsed, unclean, after from taken t;
  end if;
  if cardinality(held) < cardinality(there) then
    -- They wait for their lane. Their mail must not wake them either, before the end of another makes them due.
    select array_agg(k) into waiting from unnest(there) k where k <> all (held);
    update wakes w set due = null, hints = 0 where w.key = any (waiting);
    update messages m set due = null where m.key = any (waiting);
  end if;
  if cardinality(held) + cardinality(waiting) < cardinality(keys) then
    return query
      select case when w.holder is not null and w.due > now then 3 else 5 end::smallint, w.key, null::bigint,
             null::int, null::bigint, null::bigint, w.holder, null, null, null, null::bytea
      from wakes w where w.key = any (keys) and w.key <> all (held) and w.key <> all (waiting);
  end if;
  if true = any (unclean) then
    for i in 1 .. cardinality(held) loop
      if unclean[i] then
        counted := take_over(held[i], me, tokens[i], lapsed[i], taken_over, progress);
        if counted is null then
          -- Somebody is still writing. The others are held; this one has another try in a second, and because of its
          -- lapse it does not count as clean.
          update wakes w set holder = null, due = now + 1000000, lapses = greatest(w.lapses, 1) where w.key = held[i];
          waiting := waiting || held[i];
          held[i] := null;
        else
          lapsed[i] := counted;
        end if;
      end if;
    end loop;
  end if;
  return query
    select 4::smallint, u.k, null::bigint, null::int, null::bigint, null::bigint, null, null, null, null, null::bytea
    from unnest(waiting) u(k);
  return query
    select 0::smallint, h.key, u.t, u.l, h.parent_ref,
           case when line is not null then
             (select case when w.lane is not null then 1::bigint end from wakes w where w.key = h.key) end,
           h.definition, h.queue, h.status, h.parent,
           null::bytea
    from unnest(held, tokens, lapsed) u(k, t, l) join heads h on h.key = any (array[u.k]);
  return query
    select 1::smallint, e.key, e.version, e.type::int, e.at, e.fence, e.message_id, null, null, null, e.data
    from unnest(held, after) u(k, v) join heads h on h.key = any (array[u.k])
    cross join lateral (select * from events e where e.key = u.k and e.version > coalesce(u.v, h.base - 1)
                        order by e.version) e;
  return query
    select 2::smallint, m.key, null::bigint, null::int, null::bigint, null::bigint, m.id, m.sha, null, null, m.data
    from unnest(held) u(k)
    cross join lateral (select * from messages m where m.key = u.k and not exists (
                          select 1 from events e where e.key = m.key and e.message_id = m.id offset 0)
                        order by m.seq) m;
end $$;

create or replace function renew(keys text[], tokens bigint[], lease bigint) returns setof text language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  mine text[];
  now bigint;
begin
  select array_agg(q.key) into mine
    from (select w.key from unnest(keys, tokens) u(k, t) join wakes w on w.key = any (array[u.k])
          where w.token = u.t and num_nonnulls(w.holder) > 0
          order by u.k collate "C" for no key update of w) q;
  now := now_us();
  return query update wakes w set due = now + lease where w.key = any (mine) returning w.key;
end $$;

create or replace function release(keys text[], tokens bigint[]) returns void language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  mine text[];
begin
  select array_agg(q.key) into mine
    from (select w.key from unnest(keys, tokens) u(k, t) join wakes w on w.key = any (array[u.k])
          where w.token = u.t and num_nonnulls(w.holder) > 0
          order by u.k collate "C" for no key update of w) q;
  update wakes w set holder = null, due = now_us() where w.key = any (mine);
end $$;

-- Mailboxes in the order of arrival, without what is in the log already: a message that was sent again while it was
-- being folded may still lie here.
create or replace function unread(keys text[]) returns table (key text, id text, data bytea, sha text)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  return query
    select m.key, m.id, m.data, m.sha from unnest(keys) u(k)
    cross join lateral (select * from messages m where m.key = u.k offset 0) m
    where not exists (select 1 from events e where e.key = m.key and e.message_id = m.id offset 0) order by m.seq;
end $$;

-- Everything that a group of executions writes, or nothing: if one of them has to be refused, nothing is written and
-- the refusals come back as (execution, answer); the caller repeats the rest. 'busy' is an end that met a sender. Only
-- a park that is refused because mail waits lets the others, and its own rows, through: it comes back as (execution,
-- 'park').
--
-- `careful` looks at the log before it writes. Without it an occupied version is found by the primary key: the error
-- 23505 tells the caller to come back with care. Either way the last insert decides.
create or replace function commit_group(
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
set enable_bitmapscan = off
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
      from (select w.key from unnest(park_keys, park_tokens) u(k, t) join wakes w on w.key = any (array[u.k])
            where w.token = u.t and num_nonnulls(w.holder) > 0
            order by u.k collate "C" for no key update of w) q;
    if cardinality(mine) < cardinality(park_keys) then
      refused := true;
      return query select k, 'stale' from unnest(park_keys) k where k <> all (mine);
    end if;
  end if;
  if end_keys <> '{}' then
    -- A sender's lock keeps us out, and its transaction may be a long one of somebody else's: that is no reason for the
    -- whole group to wait. Mail is on its way to this execution.
    select coalesce(array_agg(q.key), '{}') into ours
      from (select w.key from unnest(end_keys, end_tokens) u(k, t) join wakes w on w.key = any (array[u.k])
            where w.token = u.t and num_nonnulls(w.holder) > 0 for update of w skip locked) q;
    if cardinality(ours) < cardinality(end_keys) then
      refused := true;
      return query
        select u.k, case when w.key is null then 'stale' else 'busy' end
        from unnest(end_keys, end_tokens) u(k, t)
        left join lateral (select w.key from wakes w
                           where w.key = u.k and w.token = u.t and w.holder is not null offset 0) w on true
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
      from (select 1 from unnest(done_keys, done_ids) u(k, i) join messages m on m.key = any (array[u.k]) and m.id = u.i
            order by u.k collate "C", u.i collate "C" for update of m) q;
    if found_ids < cardinality(done_keys) then
      refused := true;
      return query
        select distinct u.k, 'stale' from unnest(done_keys, done_ids) u(k, i)
        where not exists (select 1 from messages m where m.key = u.k and m.id = u.i offset 0);
    end if;
  end if;
  if careful then
    return query
      select u.k, 'stale' from unnest(row_keys, versions) u(k, v)
        where exists (select 1 from events e where e.key = u.k and e.version = u.v offset 0)
      union
      select u.k, 'stale' from unnest(row_keys, ids) u(k, i)
        where exists (select 1 from events e where e.key = u.k and e.message_id = u.i offset 0);
    refused := refused or found;
  end if;
  -- New statements, hence new snapshots: they see every sender that came before the locks above.
  select array_agg(u.k) into maybe from unnest(park_keys || end_keys, park_done || end_done) u(k, n)
    where (select count(*) from messages m where m.key = u.k) > u.n;
  if maybe is not null then
    select coalesce(array_agg(k), '{}') into waiting from unnest(maybe) k where exists (
      select 1 from messages m where m.key = k
        and not exists (select 1 from events e where e.key = k and e.message_id = m.id offset 0)
        and not exists (select 1 from unnest(done_keys, done_ids) u(a, b) where u.a = k and u.b = m.id)
        and not exists (select 1 from unnest(row_keys, ids) u(a, b) where u.a = k and u.b = m.id) offset 0);
    return query select k, 'mail' from unnest(end_keys) k where k = any (waiting);
    refused := refused or found;
  end if;
  if refused then
    return;
  end if;

  -- Decided: from here on nothing is refused, except by the log itself.
  if end_keys <> '{}' then
    with gone as (delete from wakes w where w.key = any (end_keys) returning w.lane)
      select array_agg(gone.lane) filter (where gone.lane is not null) into lanes from gone;
    if lanes is not null then
      for i in 1 .. cardinality(lanes) loop
        update wakes w set due = now where num_nulls(w.holder) > 0 and w.key = (
          select f.key from wakes f where f.lane = lanes[i] order by f.born, f.key limit 1);
      end loop;
    end if;
    delete from messages m where m.key = any (end_keys);
  end if;
  if park_keys <> '{}' then
    update wakes w set holder = null, lapses = 0, hints = 0, due = u.d
      from unnest(park_keys, park_dues) u(k, d) where w.key = any (array[u.k]) and u.k <> all (waiting);
  end if;
  if done_keys <> '{}' then
    delete from messages m using unnest(done_keys, done_ids) u(k, i)
      where m.key = any (array[u.k]) and m.id = u.i;
  end if;
  if park_keys <> '{}' then
    update heads h set status = u.s, state = coalesce(u.st, h.state), waits = u.w, changed_at = now
      from unnest(park_keys, park_statuses, park_states, park_waits) u(k, s, st, w)
      where h.key = any (array[u.k]);
  end if;
  if end_keys <> '{}' then
    update heads h set status = u.s, state = coalesce(u.st, h.state), waits = null, result = u.r, changed_at = now
      from unnest(end_keys, end_statuses, end_states, end_results) u(k, s, st, r)
      where h.key = any (array[u.k]);
  end if;
  if status_keys <> '{}' then
    update heads h set status = u.s from unnest(status_keys, statuses) u(k, s) where h.key = any (array[u.k]);
  end if;
  if base_keys <> '{}' then
    update heads h set base = u.b from unnest(base_keys, bases) u(k, b)
      where h.key = any (array[u.k]) and h.base < u.b;
  end if;
  insert into events (key, version, type, data, at, fence, message_id)
    select k, v, t, d, a, f, i from unnest(row_keys, versions, types, datas, ats, fences, ids) u(k, v, t, d, a, f, i);
  return query select k, 'park' from unnest(park_keys) k where k = any (waiting);
end $$;

-- Mail from one execution to others, in the transaction of its commit. No lock on their wake rows: two that end into
-- each other would wait for each other. Mail that loses against an end is found, and dropped, when it is due.
create or replace function post(keys text[], mail_ids text[], shas text[], datas bytea[], grace bigint) returns void
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
begin
  insert into messages (key, id, queue, due, sha, data)
    select w.key, u.i, w.queue, now_us() + grace, u.s, u.d
    from unnest(keys, mail_ids, shas, datas) with ordinality u(k, i, s, d, n) join wakes w on w.key = any (array[u.k])
    where not exists (select 1 from events e where e.key = u.k and e.message_id = u.i offset 0)
    order by u.k, u.n
    on conflict (key, id) do nothing;
end $$;

-- The earliest rows of each tenant: from lot to lot, beginning anywhere, round until the first comes again. Each step is
-- one look into the index; where there are very many lots, some are visited, and others the next time.
create or replace function wakes_of_each(wanted text, served text, until bigint, near int)
returns table (key text, due bigint, lot int)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  anywhere int := floor(random() * 4294967296)::bigint - 2147483648;
begin
  return query
  with recursive lots (lot, first, visit) as (
    select l.lot, l.lot, 1 from (select coalesce(
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and num_nulls(w.holder) = 1 and w.lot >= anywhere order by w.lot limit 1),
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and num_nulls(w.holder) = 1 order by w.lot limit 1)) as lot) l
      where l.lot is not null
    union all
    select l.lot, t.first, t.visit + 1 from lots t cross join lateral (select coalesce(
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and num_nulls(w.holder) = 1 and w.lot > t.lot order by w.lot limit 1),
        (select w.lot from wakes w where w.queue = wanted and w.definition = served and w.due is not null
           and num_nulls(w.holder) = 1 order by w.lot limit 1)) as lot) l
      where t.visit < 500 and l.lot <> t.first)
  select c.key, c.due, l.lot from lots l
    cross join lateral (select w.key, w.due from wakes w
                        where w.queue = wanted and w.definition = served and w.due is not null
                          and num_nulls(w.holder) = 1 and w.lot >= l.lot and (w.lot, w.due) <= (l.lot, until)
                        order by w.lot, w.due limit (select greatest(1, near / count(*)) from lots)) c;
end $$;

-- The same of mail.
create or replace function mail_of_each(wanted text, served text[], until bigint, near int)
returns table (key text, due bigint, lot int)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  anywhere int := floor(random() * 4294967296)::bigint - 2147483648;
begin
  return query
  with recursive lots (lot, first, visit) as (
    select l.lot, l.lot, 1 from (select coalesce(
        (select m.lot from messages m where m.queue = wanted and m.due is not null and m.seq > 0 and m.lot >= anywhere
           order by m.lot limit 1),
        (select m.lot from messages m where m.queue = wanted and m.due is not null and m.seq > 0
           order by m.lot limit 1)) as lot) l
      where l.lot is not null
    union all
    select l.lot, t.first, t.visit + 1 from lots t cross join lateral (select coalesce(
        (select m.lot from messages m where m.queue = wanted and m.due is not null and m.seq > 0 and m.lot > t.lot
           order by m.lot limit 1),
        (select m.lot from messages m where m.queue = wanted and m.due is not null and m.seq > 0
           order by m.lot limit 1)) as lot) l
      where t.visit < 500 and l.lot <> t.first)
  select c.key, c.due, l.lot from lots l
    cross join lateral (select m.key, m.due from messages m
                        cross join lateral (select 1 from wakes w where w.key = m.key
                                            and w.definition = any (served) offset 0) w
                        where m.queue = wanted and m.due is not null and m.seq > 0
                          and m.lot >= l.lot and (m.lot, m.due) <= (l.lot, until)
                        order by m.lot, m.due limit (select greatest(1, near / count(*)) from lots)) c;
end $$;

-- What is due, for hinting: the earliest rows, and where more is due than was looked at, the earliest of each tenant.
-- Tenants take turns, and who is first is drawn anew each time; what another claim has locked is left to it.
create or replace function claim(queues text[], definitions text[], most int, grace bigint)
returns table (key text, queue text, holder text)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
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
    where not exists (select 1 from wakes w where w.key = o.key offset 0);
  with early as (
    select q, d, c.key, c.due, c.lot from unnest(queues) q cross join unnest(definitions) d
      cross join lateral (select w.key, w.due, w.lot from wakes w
                          where w.queue = q and w.definition = d and w.due <= now order by w.due limit near) c),
  mail as (
    select q, c.key, c.due, c.lot from unnest(queues) q
      cross join lateral (select m.key, m.due, m.lot from messages m
                          cross join lateral (select 1 from wakes w where w.key = m.key
                                              and w.definition = any (definitions) offset 0) w
                          where m.queue = q and m.due <= now
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
    from (select w.key from (select turns.key from turns order by turns.turn, random()) t
          cross join lateral (select w.key from wakes w where w.key = t.key for no key update skip locked) w
          limit most) q;
  -- Between the search and the lock another claim may have hinted a row: only what is still due counts.
  with hinted as (
    update wakes w
      set lapses = w.lapses + (w.holder is not null)::int, token = w.token + (w.holder is not null)::int,
          holder = null, due = now + grace * (1 << least(w.hints, 5)), hints = w.hints + 1
      where w.key = any (chosen) and coalesce(w.due, now + 1) <= now returning w.key)
    select coalesce(array_agg(hinted.key), '{}') into woken from hinted;
  with hinted as (
    update messages m set due = now + grace
      where m.key = any (chosen) and coalesce(m.due, now + 1) <= now returning m.key)
    select coalesce(array_agg(hinted.key), '{}') into mailed from hinted;
  if orphans is not null then
    -- Nobody will ever fold them: their execution has ended.
    delete from messages m
      where m.key = any (orphans) and not exists (select 1 from wakes w where w.key = m.key offset 0);
  end if;
  return query
    select w.key, w.queue, case when w.due > now then w.holder end
    from unnest(chosen) with ordinality u(k, n) join wakes w on w.key = any (array[u.k])
    where cardinality(woken) = cardinality(chosen) or u.k = any (woken) or u.k = any (mailed) order by u.n;
end $$;

-- The earliest due time of any wake row or mail that these definitions can serve.
create or replace function next_due(queues text[], definitions text[]) returns table (due bigint)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  return query select min(c.due) from (
    select f.due from unnest(queues) q cross join unnest(definitions) d
      cross join lateral (select w.due from wakes w where w.queue = q and w.definition = d and w.due is not null
                          order by w.due limit 1) f
    union all
    select f.due from unnest(queues) q
      cross join lateral (select m.due from messages m
                          cross join lateral (select 1 from wakes w where w.key = m.key
                                              and w.definition = any (definitions) offset 0) w
                          where m.queue = q and m.due is not null
                          order by m.due limit 1) f) c;
end $$;

-- Begins to listen, in the transaction of the start. The sha tells an execution that was started so from another that
-- had the key before; one that has ended is left alone.
create or replace function listen(keys text[], shas text[], names text[]) returns void language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
begin
  update wakes w set listens = true where w.key = any (array(
    select u.k from unnest(keys, shas) u(k, s)
    where exists (select 1 from heads h where h.key = u.k and h.sha = u.s offset 0)));
  insert into topics (topic, key)
    select u.t, u.k from unnest(keys, shas, names) u(k, s, t)
    where exists (select 1 from heads h where h.key = u.k and h.sha = u.s offset 0)
      and exists (select 1 from wakes w where w.key = u.k offset 0)
    order by u.t, u.k on conflict do nothing;
end $$;

-- In the transaction of the start. The sha tells an execution that was started so from another that had the key
-- before.
create or replace function label(keys text[], shas text[], names text[]) returns void language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
begin
  insert into labels (label, started_at, key)
    select u.l, h.started_at, h.key from unnest(keys, shas, names) u(k, s, l)
    join heads h on h.key = any (array[u.k]) and h.sha = u.s
    on conflict do nothing;
end $$;

create or replace function listening(names text[], most int, behind text) returns table (topic text, key text)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  return query
    select u.t, f.key from unnest(names) u(t)
    cross join lateral (select o.key from topics o where (o.topic, o.key) > (u.t, behind) and o.topic <= u.t
                        order by o.topic, o.key limit most) f;
end $$;

-- What is due per queue. Of each definition in a queue it is counted up to a limit: what matters is whether there is
-- much to do, not how much exactly. From one to the next by the index, however many wait for a time that is far off.
create or replace function backlog() returns table (queue text, waiting bigint, oldest bigint) language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  now bigint := now_us();
begin
  return query
  with recursive kinds (queue, definition) as (
    (select w.queue, w.definition from wakes w where w.due is not null and w.queue > ''
       order by w.queue, w.definition limit 1)
    union all
    select n.queue, n.definition from kinds k
      cross join lateral (select w.queue, w.definition from wakes w
                          where w.due is not null and (w.queue, w.definition) > (k.queue, k.definition)
                          order by w.queue, w.definition limit 1) n),
  boxes (queue) as (
    (select m.queue from messages m where m.due is not null and m.queue >= '' order by m.queue limit 1)
    union all
    select n.queue from boxes b
      cross join lateral (select m.queue from messages m where m.due is not null and m.queue > b.queue
                          order by m.queue limit 1) n)
  select f.queue, count(*), min(f.due) from (
    select k.queue, c.due from kinds k
      cross join lateral (select w.due from wakes w
                          where w.queue = k.queue and w.definition = k.definition and w.due <= now
                          order by w.due limit 10000) c
    union all
    select b.queue, c.due from boxes b
      cross join lateral (select m.due from messages m where m.queue = b.queue and m.due <= now
                          order by m.due limit 10000) c) f
    group by f.queue order by f.queue;
end $$;
