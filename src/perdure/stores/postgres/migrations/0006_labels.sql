-- What executions are found by, from their start on and for ever: `TENANT/c:CORRELATION` and `TENANT/t:TAG`. The newest of
-- a label lie together at the end of the index, so a page of them is read off it, however many there are. The table is
-- beside the heads because those are written again and again, and these never; whoever has no labels pays nothing.
create table labels (
  started_at bigint not null,
  label text collate "C" not null,
  key text collate "C" not null,
  primary key (label, started_at, key)
);

create index labels_key on labels (key);

-- One tenant's, as all tables with keys. It is said with a case because of what the planner makes of it: of a bare
-- condition it expects that hardly any row fits, and would read and sort all rows of a label for one page of them.
alter table labels enable row level security;
alter table labels force row level security;
create policy one_tenant on labels
  using (case when starts_with(key, (select seen_prefix())) then true else false end)
  with check (case when starts_with(key, (select seen_prefix())) then true else false end);

-- Roles that run workers already need the new table, too.
do $$
declare
  worker text;
begin
  for worker in
    select distinct a.grantee::regrole::text from pg_class c, aclexplode(c.relacl) a
    where c.oid = 'wakes'::regclass and a.privilege_type = 'INSERT' and a.grantee not in (0, c.relowner)
  loop
    execute format('grant select, insert on labels to %s', worker);
  end loop;
end $$;

-- In the transaction of the start. The sha tells an execution that was started so from another that had the key before.
create function label(keys text[], shas text[], names text[]) returns void language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  insert into labels (label, started_at, key)
    select u.l, h.started_at, h.key from unnest(keys, shas, names) u(k, s, l)
    join heads h on h.key = u.k and h.sha = u.s
    on conflict do nothing;
end $$;

-- `start`, and then `label` with the last three parameters, in one round trip.
create function start_labelled(
  text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[], bigint[], bytea[], bytea[], bigint[],
  bigint[], text[], bigint[], smallint[], bytea[], bigint[], bigint[], text[],
  bigint, text[], text[], text[])
returns table (old_key text, old_sha text)
language plpgsql
set search_path from current
as $$
begin
  return query select * from start(
      $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23);
  perform label($24, $25, $26);
end $$;

-- `commit_family`, and then `label` with the last three parameters. What is refused writes no heads, and so no labels.
create function commit_labelled(
  text[], bigint[], smallint[], bytea[], bigint[], bigint[], text[], text[], bigint[], int[], text[], bigint[],
  bytea[], bytea[], text[], bigint[], int[], text[], bytea[], bytea[], text[], bigint[], text[], text[], text[],
  text[], text[], bigint[], boolean, text[], text[], text[], text[], text[], text[], text[], text[], bigint[],
  text[], bigint[], bytea[], bytea[], bigint[], bigint[], text[], bigint[], smallint[], bytea[], bigint[],
  bigint[], text[], text[], text[], text[], bytea[], bigint,
  text[], text[], text[])
returns table (execution text, answer text)
language plpgsql
set search_path from current
as $$
begin
  return query select * from commit_family(
      $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
      $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44,
      $45, $46, $47, $48, $49, $50, $51, $52, $53, $54, $55, $56);
  perform label($57, $58, $59);
end $$;
