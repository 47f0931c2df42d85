-- Times are integer microseconds; a due time that is null never comes.

-- What people look at: one row per execution, written at start, park and end. Its version is read from the log.
create table heads (
  key text not null primary key,
  tenant text not null,
  workflow text not null,
  definition text not null,
  queue text not null,
  status text not null,
  sha text not null,
  parent text,
  parent_ref integer,
  base integer not null,
  state blob,
  waits blob,
  result blob,
  started_at integer not null,
  changed_at integer not null
) without rowid;

create index heads_time on heads (tenant, started_at);
create index heads_find on heads (tenant, workflow, started_at);
create index heads_status on heads (tenant, status, started_at);
create index heads_parent on heads (parent, started_at) where parent is not null;

-- The log. A rowid table on purpose: rows go to the end of the table and only the small index entries are scattered,
-- so a group of steps dirties far fewer pages than a table clustered by (key, version) would.
create table events (
  key text not null,
  version integer not null,
  type integer not null,
  data blob not null,
  at integer not null,
  fence integer not null,
  message_id text,
  primary key (key, version)
);

-- No message enters a log twice.
create unique index events_message on events (key, message_id) where message_id is not null;

-- One row per execution that has not ended: when to look at it next, and who holds it.
create table wakes (
  key text not null primary key,
  queue text not null,
  definition text not null,
  due integer,
  token integer not null,
  holder text,
  lapses integer not null default 0,
  hints integer not null default 0
) without rowid;

create index wakes_due on wakes (queue, definition, due) where due is not null;

-- Mailboxes. Every message is due by itself, so a lost hint only delays it. kind 1: mail for an execution.
create table messages (
  seq integer primary key,
  key text not null,
  id text not null,
  kind integer not null default 1,
  queue text not null,
  due integer not null,
  sha text not null,
  data blob not null,
  unique (key, id)
);

create index messages_due on messages (queue, due);
