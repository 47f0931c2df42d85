-- What executions are found by, from their start on and for ever: `TENANT/c:CORRELATION` and `TENANT/t:TAG`. The newest of
-- a label lie together at the end, so a page of them is read off the index, however many there are.

create table labels (
  label text not null,
  started_at integer not null,
  key text not null,
  primary key (label, started_at, key)
) without rowid;

create index labels_key on labels (key);
