-- Lists of executions are read off an index, newest first, also where the policy of the heads is asked. It is said with a
-- case because of what the planner makes of it: of a bare condition it expects that hardly any row fits, and would read
-- and sort all executions of a tenant for one page of them.
alter policy one_tenant on heads
  using (case when starts_with(key, (select seen_prefix())) then true else false end)
  with check (case when starts_with(key, (select seen_prefix())) then true else false end);
