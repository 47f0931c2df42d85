-- What open executions listen for. The wake row knows whether there is anything to take away at its end.

alter table wakes add column listens integer not null default 0;

create table topics (
  topic text not null,
  key text not null,
  primary key (topic, key)
) without rowid;

create index topics_key on topics (key);
