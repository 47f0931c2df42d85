-- The verbs that write. They are plpgsql on purpose: every statement inside sees what was committed before it began,
-- so a check that follows a lock is true. Rules kept here:
--
-- * locks are taken in the order wakes, messages, heads, events, each sorted by key;
-- * whoever decides over an execution's end or hold has locked its wake row in an earlier statement;
-- * an array is joined with a table by an index, never with another array. Tables that are young have no statistics,
--   so the planner is told: generic plans, no scans of whole tables, no hash and no merge joins.

-- Starts executions; answers the keys that were there before, with their shas. `floor` is the highest fence that the
-- rows bring along: the first token is above it, and above every token of an execution that had this key long ago.
-- `places` is the order of the starts, which is that of a lane. Whatever was published is served under one word.
create function start(
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
  insert into wakes (key, queue, definition, due, token, lane, born)
    select k, q, case when d ^@ 'published:' then 'published:' else d end, now + grace, greatest(now, f), l, greatest(now, f,
             1 + (select max(w.born) from wakes w where l is not null and w.lane = l)) + n
    from unnest(keys, queues, definitions, floors, lanes, statuses, places) u(k, q, d, f, l, s, n)
    where s not in ('completed', 'failed', 'cancelled') and k <> all (old);
  insert into events (key, version, type, data, at, fence, message_id)
    select k, v, t, d, a, f, i from unnest(row_keys, versions, types, datas, ats, fences, ids) u(k, v, t, d, a, f, i)
    where k <> all (old);
end $$;

-- Puts mail into mailboxes. The share lock keeps the execution from ending before this mail is committed; it does not
-- keep anybody from holding or parking it. What was not inserted comes with what it met: the sha in the mailbox, the
-- version in the log, the queue of an execution that has ended.
create function send(keys text[], ids text[], shas text[], datas bytea[], grace bigint)
returns table (place bigint, fresh boolean, queue text, holder text, sha text, version bigint)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
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
      from unnest(keys, ids, shas, datas) with ordinality u(k, i, s, d, n) join wakes w on w.key = u.k
      where not exists (select 1 from events e where e.key = u.k and e.message_id = u.i)
      order by u.k, u.n
      on conflict (key, id) do nothing returning key, id)
    select coalesce(array_agg(made.key || ' ' || made.id), '{}') into put from made;
  if cardinality(put) = cardinality(keys) then
    return query
      select u.n, true, w.queue, case when w.due > now then w.holder end, null::text, null::bigint
      from unnest(keys) with ordinality u(k, n) join wakes w on w.key = u.k;
  else
    return query
      select u.n, u.k || ' ' || u.i = any (put), coalesce(w.queue, h.queue), case when w.due > now then w.holder end,
             m.sha, e.version
      from unnest(keys, ids) with ordinality u(k, i, n)
      left join wakes w on w.key = u.k
      left join heads h on h.key = u.k
      left join messages m on m.key = u.k and m.id = u.i
      left join events e on e.key = u.k and e.message_id = u.i;
  end if;
end $$;

-- Writes a TakenOver row behind whatever a former holder wrote, and waits for what it is still writing, but not for
-- long: its transaction may be one of somebody else's. Answers the lapses that count (progress since the last take-over
-- leaves one), or nothing if there was no getting in.
create function take_over(k text, me text, token bigint, lapsed int, taken_over smallint, progress smallint[])
returns int language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off
set lock_timeout = '500ms'
as $$
declare
  counted int;
  newest smallint;
begin
  loop
    newest := null;
    select e.type % 1000 into newest from events e
      where e.key = k and (e.type % 1000 = taken_over % 1000 or e.type % 1000 = any (progress))
      order by e.version desc limit 1;
    counted := case when newest = any (progress) then least(lapsed, 1) else lapsed end;
    begin
      insert into events (key, version, type, data, at, fence)
        select k, max(e.version) + 1, taken_over,
               convert_to(format('{"holder":%s,"lapses":%s}', to_json(me), counted), 'UTF8'), now_us(), token
        from events e where e.key = k
        on conflict do nothing;
    exception when lock_not_available then
      return null;
    end;
    exit when found;
  end loop;
  if counted <> lapsed then
    update wakes set lapses = counted where key = k;
  end if;
  return counted;
end $$;

-- Holds, bars former holders, reads. What comes back: 0 a hold (n token, kind lapses, a definition, b queue, c status,
-- d parent, at its ref), 1 a row of a log (n version, kind type, a message id), 2 a mail (a id, b sha), 3 busy
-- (a holder), 4 queued, 5 given back at this very moment: ask again. A key that does not come back is gone. What others
-- hold is not locked, so that nobody's park waits for this.
create function hold(
  keys text[], known_versions bigint[], known_tokens bigint[], me text, lease bigint, taken_over smallint,
  progress smallint[])
returns table (what smallint, key text, n bigint, kind int, at bigint, fence bigint, a text, b text, c text, d text,
               data bytea)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
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
          from unnest(keys, known_versions, known_tokens) u(k, v, t) join wakes w on w.key = u.k
          where w.holder is null or w.holder = me or w.due <= now
          order by w.key for no key update of w) q;
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
        where w.key = u.k and (w.lane is null or not exists (
                select 1 from wakes f where f.lane = w.lane and (f.born, f.key) < (w.born, w.key)))
        returning w.key, w.token, w.lapses, u.dirty, u.v)
      select coalesce(array_agg(t.key), '{}'), array_agg(t.token), array_agg(t.lapses), array_agg(t.dirty),
             array_agg(t.v)
        into held, tokens, lapsed, unclean, after from taken t;
  end if;
  if cardinality(held) < cardinality(there) then
    -- They wait for their lane. Their mail must not wake them either, before the end of another makes them due.
    select array_agg(k) into waiting from unnest(there) k where k <> all (held);
    update wakes w set due = null, hints = 0 from unnest(waiting) u(k) where w.key = u.k;
    update messages m set due = null from unnest(waiting) u(k) where m.key = u.k;
  end if;
  if cardinality(held) + cardinality(waiting) < cardinality(keys) then
    return query
      select case when w.holder is not null and w.due > now then 3 else 5 end::smallint, w.key, null::bigint,
             null::int, null::bigint, null::bigint, w.holder, null, null, null, null::bytea
      from unnest(keys) u(k) join wakes w on w.key = u.k where u.k <> all (held) and u.k <> all (waiting);
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
             (select 1::bigint from wakes w where w.key = h.key and w.lane is not null) end,
           h.definition, h.queue, h.status, h.parent,
           null::bytea
    from unnest(held, tokens, lapsed) u(k, t, l) join heads h on h.key = u.k;
  return query
    select 1::smallint, e.key, e.version, e.type::int, e.at, e.fence, e.message_id, null, null, null, e.data
    from unnest(held, after) u(k, v) join heads h on h.key = u.k
    cross join lateral (select * from events e where e.key = u.k and e.version > coalesce(u.v, h.base - 1)
                        order by e.version) e;
  return query
    select 2::smallint, m.key, null::bigint, null::int, null::bigint, null::bigint, m.id, m.sha, null, null, m.data
    from unnest(held) u(k)
    cross join lateral (select * from messages m where m.key = u.k and not exists (
                          select 1 from events e where e.key = m.key and e.message_id = m.id) order by m.seq) m;
end $$;

create function renew(keys text[], tokens bigint[], lease bigint) returns setof text language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  mine text[];
  now bigint;
begin
  select array_agg(q.key) into mine
    from (select w.key from unnest(keys, tokens) u(k, t) join wakes w on w.key = u.k
          where w.token = u.t and w.holder is not null order by w.key for no key update of w) q;
  now := now_us();
  return query update wakes w set due = now + lease from unnest(mine) u(k) where w.key = u.k returning w.key;
end $$;

create function release(keys text[], tokens bigint[]) returns void language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  mine text[];
begin
  select array_agg(q.key) into mine
    from (select w.key from unnest(keys, tokens) u(k, t) join wakes w on w.key = u.k
          where w.token = u.t and w.holder is not null order by w.key for no key update of w) q;
  update wakes w set holder = null, due = now_us() from unnest(mine) u(k) where w.key = u.k;
end $$;

-- Mailboxes in the order of arrival, without what is in the log already: a message that was sent again while it was
-- being folded may still lie here.
create function unread(keys text[]) returns table (key text, id text, data bytea, sha text) language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
    select m.key, m.id, m.data, m.sha from unnest(keys) u(k) join messages m on m.key = u.k
    where not exists (select 1 from events e where e.key = m.key and e.message_id = m.id) order by m.seq;
end $$;
