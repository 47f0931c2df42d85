-- What is held: few rows among all that wait. A list of the executions that run is read off it, however many others are
-- open.
create index wakes_held on wakes (key) where holder is not null;
