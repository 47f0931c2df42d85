-- The tables. Times are microseconds since the epoch by the clock of this database; a due time that is null never
-- comes. Keys compare as bytes: that is the order in which Python sorts them, and the fastest.

-- The clock that decides what is due. Tests replace this function in their schema.
create function now_us() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- What people look at: one row per execution, written at start, park and end. Its version is read from the log.
create table heads (
  parent_ref bigint,
  base bigint not null,
  started_at bigint not null,
  changed_at bigint not null,
  key text collate "C" not null primary key,
  tenant text collate "C" not null,
  workflow text collate "C" not null,
  definition text collate "C" not null,
  queue text collate "C" not null,
  status text collate "C" not null,
  sha text collate "C" not null,
  parent text collate "C",
  state bytea,
  waits bytea,
  result bytea
) with (fillfactor = 80);

create index heads_time on heads (tenant, started_at, key);
create index heads_find on heads (tenant, workflow, started_at, key);
-- Nearly all rows are completed, and those are found by time: leaving them out makes an end cheaper.
create index heads_status on heads (status, tenant, started_at, key) where status <> 'completed';
create index heads_parent on heads (parent, started_at, key) where parent is not null;

-- The log. Its primary key is the only check of a step.
create table events (
  version bigint not null,
  fence bigint not null,
  at bigint not null,
  type smallint not null,
  key text collate "C" not null,
  message_id text collate "C",
  data bytea not null,
  primary key (key, version)
);

-- No message enters a log twice.
create unique index events_message on events (key, message_id) where message_id is not null;

create function events_only_grow() returns trigger language plpgsql as $$
begin
  raise exception 'a log is never changed: % on events is refused', tg_op using errcode = 'insufficient_privilege',
    hint = 'The owner of the table can disable the trigger events_only_grow, for retention, inside one transaction.';
end $$;

create trigger events_only_grow before update or delete or truncate on events
  for each statement execute function events_only_grow();

-- One row per execution that has not ended: when to look at it next, and who holds it. Held: due is the end of the
-- lease. The one of a lane that has begun has born 0, so whoever starts later, and however, comes after it.
create table wakes (
  due bigint,
  token bigint not null,
  born bigint not null,
  lapses int not null default 0,
  hints int not null default 0,
  key text collate "C" not null primary key,
  queue text collate "C" not null,
  definition text collate "C" not null,
  holder text collate "C",
  lane text collate "C"
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

create index wakes_due on wakes (queue, definition, due) where due is not null;
create index wakes_lane on wakes (lane, born, key) where lane is not null;

-- Mailboxes. Every message is due by itself, so a lost hint only delays it.
create table messages (
  seq bigint generated always as identity,
  due bigint,
  key text collate "C" not null,
  id text collate "C" not null,
  queue text collate "C" not null,
  sha text collate "C" not null,
  data bytea not null,
  primary key (key, id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

create index messages_due on messages (queue, due) where due is not null;

-- The published state as a value to search in; nothing where it cannot be read, for no store looks into what it keeps.
create function published(state bytea) returns jsonb language plpgsql immutable as $$
begin
  return convert_from(state, 'UTF8')::jsonb;
exception when others then
  return null;
end $$;
