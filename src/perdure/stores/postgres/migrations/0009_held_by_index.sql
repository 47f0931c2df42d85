-- What is held: few rows among all that wait. A list of the executions that run is read off it, however many others are
-- open. May be run again.
create index if not exists wakes_held on wakes (key) where holder is not null;
