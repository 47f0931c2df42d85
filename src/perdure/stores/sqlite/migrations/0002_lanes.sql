-- Executions of one lane run one at a time, in the order of their starts.

alter table wakes add column lane text;
alter table wakes add column born integer not null default 0;

create index wakes_lane on wakes (lane, born, key) where lane is not null;
