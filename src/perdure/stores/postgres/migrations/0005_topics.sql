-- What open executions listen for. It has a table of its own, for wake rows change all the time and these do not; the
-- wake row knows whether there is anything to take away at its end, so the ends of others cost nothing.
alter table wakes add column listens boolean not null default false;

create table topics (
  topic text collate "C" not null,
  key text collate "C" not null,
  primary key (topic, key)
);

create index topics_key on topics (key);

create function stop_listening() returns trigger language plpgsql
set search_path from current
as $$
begin
  delete from topics t where t.key = old.key;
  return null;
end $$;

create trigger stop_listening after delete on wakes for each row when (old.listens) execute function stop_listening();

-- Roles that run workers already need the new table, too.
do $$
declare
  worker text;
begin
  for worker in
    select distinct a.grantee::regrole::text from pg_class c, aclexplode(c.relacl) a
    where c.oid = 'wakes'::regclass and a.privilege_type = 'INSERT' and a.grantee not in (0, c.relowner)
  loop
    execute format('grant select, insert, delete on topics to %s', worker);
  end loop;
end $$;

-- Begins to listen, in the transaction of the start. The sha tells an execution that was started so from another that
-- had the key before; one that has ended is left alone.
create function listen(keys text[], shas text[], names text[]) returns void language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  update wakes w set listens = true
    from (select distinct k, s from unnest(keys, shas) u(k, s)) u, heads h
    where w.key = u.k and h.key = u.k and h.sha = u.s;
  insert into topics (topic, key)
    select u.t, w.key from unnest(keys, shas, names) u(k, s, t)
    join heads h on h.key = u.k and h.sha = u.s join wakes w on w.key = u.k
    order by u.t, u.k on conflict do nothing;
end $$;

create function listening(names text[], most int, behind text) returns table (topic text, key text)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
    select u.t, f.key from unnest(names) u(t)
    cross join lateral (select o.key from topics o where o.topic = u.t and o.key > behind order by o.key limit most) f;
end $$;

-- One tenant's, as all tables with keys.
alter table topics enable row level security;
alter table topics force row level security;
create policy one_tenant on topics using (starts_with(key, (select seen_prefix())))
  with check (starts_with(key, (select seen_prefix())));
