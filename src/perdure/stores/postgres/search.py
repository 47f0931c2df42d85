"""Searches: a query becomes one statement. Only fixed text enters it; what the caller gave travels as parameters."""

from __future__ import annotations

import json
from typing import Any

from perdure.core.records import ENDED, Query

_HEAD = """
select h.key, h.workflow, h.definition, h.queue, h.status,
  (select max(e.version) from {schema}.events e where e.key = h.key), h.sha, h.parent, h.parent_ref,
  h.state, h.waits, h.result, h.started_at, h.changed_at,
  case when w.due > n.now then w.holder end, w.due, coalesce(w.lapses, 0),
  (select count(*) from {schema}.messages m where m.key = h.key), substr(w.lane, length(h.tenant) + 2),
  coalesce(w.token, 0), h.base
from (select {schema}.now_us() as now offset 0) n, {schema}.heads h left join {schema}.wakes w on w.key = h.key
where """


def head_statement(schema: str) -> str:
    return _HEAD.format(schema=schema) + "h.key = $1"


_COUNTS = "h.status = 'open' and h.parent is null and position(':' in h.workflow) = 0"
_BEGUN = (
    "(w.holder is not null or h.waits is not null"
    " or (select max(e.version) from {schema}.events e where e.key = h.key) > 1)"
)


def begun_statement(schema: str) -> str:
    return (
        f"select count(*) from (select 1 from {schema}.heads h join {schema}.wakes w on w.key = h.key"
        f" where h.tenant = $1 and {_COUNTS} and {_BEGUN.format(schema=schema)} limit $2) few"
    )


def fresh_statement(schema: str) -> str:
    """One key after the other, by the indexes: tables that are young have no statistics, and a join would read all."""
    return (
        "select u.k from unnest($1::text[]) u(k) where"
        f" (select {_COUNTS} and not {_BEGUN.format(schema=schema)}"
        f" from {schema}.heads h, {schema}.wakes w where h.key = u.k and w.key = u.k)"
    )


def extent_statement(schema: str) -> str:
    longest = f"(select max(e.version) from {schema}.events e where e.key = h.key)"
    return (
        f"select count(*), coalesce(sum({longest}), 0)::bigint from {schema}.heads h"
        " where h.tenant = $1 and h.workflow = $2"
    )


def statement(query: Query, schema: str) -> tuple[str, list[Any]]:
    """The statement of a search and its parameters."""
    values: list[Any] = []

    def value(given: Any) -> str:
        values.append(given)
        return f"${len(values)}"

    parts = ["true"]
    if query.tenant is not None:
        parts.append(f"h.tenant = {value(query.tenant)}")
    if query.status is not None:
        parts.append(_status(query.status))
    if query.workflow is not None:
        parts.append(f"h.workflow = {value(query.workflow)}")
    if query.parent is not None:
        parts.append(f"h.parent = {value(query.parent)}")
    if not query.inner:
        parts.append("position(':' in h.workflow) = 0")
    if query.after is not None:
        parts.append(f"h.started_at >= {value(query.after)}")
    if query.before is not None:
        parts.append(f"h.started_at < {value(query.before)}")
    if query.cursor is not None:
        at, key = query.cursor
        parts.append(f"(h.started_at, h.key) < ({value(at)}, {value(key)})")
    if query.fields:
        parts.append(f"{schema}.published(h.state) @> {value(json.dumps(query.fields))}::jsonb")
    order = f" order by h.started_at desc, h.key desc limit {value(query.limit)}"
    return _HEAD.format(schema=schema) + " and ".join(parts) + order, values


def _status(status: str) -> str:
    """A status is one of a few words, and written out it lets the planner use the index without completed rows."""
    held = "(w.holder is not null and w.due > n.now)"
    match status:
        case "running":
            return f"h.status = 'open' and {held}"
        case "waiting":
            return f"h.status = 'open' and not coalesce({held}, false)"
        case "paused" | "stuck":
            return f"h.status = '{status}'"
        case _ if status in ENDED:
            return f"h.status = '{status}'"
        case _:
            return "false"
