"""Fills a store with finished executions: copies, under other keys, of one that the engine has run and ended.

Everything in them is what the store itself wrote, except that their keys are older than any key that is made today, as
those of old executions are. The caller lets the server tidy up afterwards.
"""

from __future__ import annotations

from bench.servers import Servers

#: One step each. Sorted by key as they come, as they would have been written in the course of time.
_FILL = """
with template as (
  select h.* from {schema}.heads h where h.workflow = 'w1' and h.status = 'completed' order by h.key limit 1
), made as (
  insert into {schema}.heads (parent_ref, base, started_at, changed_at, key, tenant, workflow, definition, queue,
                              status, sha, parent, state, waits, result)
    select h.parent_ref, h.base, h.started_at - $1::bigint + n, h.changed_at - $1 + n,
           h.tenant || '/0' || lpad(to_hex(n), 22, '0'), h.tenant, h.workflow, h.definition, h.queue, h.status, h.sha,
           h.parent, h.state, h.waits, h.result
    from generate_series(1, $1::bigint) n cross join template h
)
insert into {schema}.events (version, fence, at, type, key, message_id, data)
  select e.version, e.fence, e.at - $1 + n, e.type, t.tenant || '/0' || lpad(to_hex(n), 22, '0'), e.message_id, e.data
  from template t cross join generate_series(1, $1) n
  cross join lateral (select * from {schema}.events e where e.key = t.key and n is not null order by e.version) e
"""


async def fill(servers: Servers, schema: str, count: int) -> None:
    connection = await servers.connect()
    try:
        await connection.execute(_FILL.format(schema=schema), count)
    finally:
        await connection.close()
