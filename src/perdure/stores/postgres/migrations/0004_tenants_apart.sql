-- Every row is of one tenant, the part of its key before the first slash, and a session sees and writes only rows of
-- the tenant that it has set:
--
--   set perdure.tenant = 'acme';
--
-- The engine's own sessions, whose groups are of many tenants, have set it to '*'. A session that has set nothing sees
-- nothing and writes nothing. That holds for the owner of the tables as well (force), but not for superusers and roles
-- with bypassrls. May be run again.

-- What the keys begin with that this session sees: '' is true of all of them, null of none. Workers from before this
-- migration set no tenant, and go on while they are replaced: they are known by the names of their sessions. Who may
-- choose the name of a session may choose its tenant just as well.
create or replace function seen_prefix() returns text language sql stable as $$
  select case current_setting('perdure.tenant', true)
    when '*' then ''
    else coalesce(
      nullif(current_setting('perdure.tenant', true), '') || '/',
      case when current_setting('application_name')
             in ('perdure commits', 'perdure holds', 'perdure calls', 'perdure transactions') then '' end)
  end
$$;

-- The question is put in a select of its own, so that it is asked once for a statement and not for every row.
do $$
declare
  one text;
begin
  foreach one in array array['heads', 'events', 'wakes', 'messages'] loop
    execute format('alter table %I enable row level security', one);
    execute format('alter table %I force row level security', one);
    execute format('drop policy if exists one_tenant on %I', one);
    execute format(
      'create policy one_tenant on %I using (starts_with(key, (select seen_prefix())))'
      ' with check (starts_with(key, (select seen_prefix())))', one);
  end loop;
end $$;
