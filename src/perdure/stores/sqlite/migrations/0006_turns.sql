-- Tenants take turns wherever in a flood of another their rows lie: what waits is found by tenant as well. Of what is held
-- there is no such list, for that changes with every hold.
create index wakes_turns on wakes (queue, definition, substr(key, 1, instr(key, '/') - 1), due)
  where due is not null and holder is null;
create index messages_turns on messages (queue, substr(key, 1, instr(key, '/') - 1), due);
