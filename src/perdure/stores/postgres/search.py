"""Searches: a query becomes one statement. Only fixed text enters it; what the caller gave travels as parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from perdure.core.records import Head, Query, labelled, labels_wanted

#: `offset 0` keeps the look-up of the wake row apart: wakes come and go, and a plan that was made for none of them must
#: not read all of them later.
_HEAD = """
select h.key, h.workflow, h.definition, h.queue, h.status,
  (select max(e.version) from {schema}.events e where e.key = h.key), h.sha, h.parent, h.parent_ref,
  h.state, h.waits, h.result, h.started_at, h.changed_at,
  case when w.due > n.now then w.holder end, w.due, coalesce(w.lapses, 0),
  (select count(*) from {schema}.messages m where m.key = h.key), substr(w.lane, length(h.tenant) + 2),
  coalesce(w.token, 0), h.base, (select array_agg(l.label) from {schema}.labels l where l.key = h.key)
from (select {schema}.now_us() as now offset 0) n, {schema}.heads h
  left join lateral (select * from {schema}.wakes w where w.key = h.key offset 0) w on true
where """
#: The rows of a label are in the order of the answer. `offset 0` keeps the planner from beginning anywhere else: it
#: cannot know how few rows the policies leave out, and would rather read and sort all that have the label.
_BY_LABEL = """
select x.* from {schema}.labels l{joins} cross join lateral ({heads} offset 0) x
where {places} order by l.started_at desc, l.key desc limit {limit}"""

#: What runs is held, which few are among all that are open: those are read off an index, and put into their order.
_RUNNING = """
select x.* from (select w.key from {schema}.wakes w where w.holder is not null{own} offset 0) held
  cross join lateral ({heads} offset 0) x
order by x.started_at desc, x.key desc limit {limit}"""

#: What waits is open and nobody's: read off an index, in its order. Those whose holder is late are few, and come to it;
#: of the others that are held, nothing but the wake row is looked at.
_WAITING = """
select y.* from (
  (select x.* from {schema}.wakes o cross join lateral ({heads} h.key = o.key and {parts} offset 0) x
   where o.holder is null{lot}{places} order by o.started_at desc, o.key desc limit {limit})
  union all
  (select x.* from (select w.key from {schema}.wakes w where w.holder is not null{own}
                      and coalesce(w.due <= (select {schema}.now_us()), true) offset 0) late
     cross join lateral ({heads} h.key = late.key and {parts}{here} offset 0) x)) y
order by y.started_at desc, y.key desc limit {limit}"""

_AS_WELL = """
  cross join lateral (select 1 from {schema}.labels o
    where o.label = {label} and o.started_at = l.started_at and o.key = l.key offset 0) o{n}"""


def head_statement(schema: str) -> str:
    return _HEAD.format(schema=schema) + "h.key = $1"


def read_head(row: Sequence[Any]) -> Head:
    *told, labels = row
    return Head(*told) if labels is None else labelled(Head(*told), labels)


#: Nearly all are. With a bare comparison the planner expects nearly none, and reads all of them for one page.
_OF_USERS = "case when position(':' in h.workflow) = 0 then true else false end"
_COUNTS = "h.status = 'open' and h.parent is null and position(':' in h.workflow) = 0"
_BEGUN = (
    "(w.holder is not null or h.waits is not null"
    " or (select max(e.version) from {schema}.events e where e.key = h.key) > 1)"
)


def begun_statement(schema: str) -> str:
    """The tenant is in the keys. Said of the heads as well, it would lead to their lists by tenant."""
    return (
        f"select count(*) from (select 1 from {schema}.wakes w cross join lateral (select 1 from {schema}.heads h"
        f" where h.key = w.key and {_COUNTS} and {_BEGUN.format(schema=schema)} offset 0) h"
        " where w.key > $1 || '/' and w.key < $1 || '0' limit $2) few"
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
        parts.append(_OF_USERS)
    if query.fields:
        parts.append(f"{schema}.published(h.state) @> {value(json.dumps(query.fields))}::jsonb")
    if labels := [value(label) for label in labels_wanted(query)]:
        return _by_label(query, schema, parts, labels, value), values
    if query.status == "waiting":
        return _waiting(query, schema, parts, value), values
    parts += _places("h", query, value)
    if query.status == "running":
        return _running(query, schema, parts, value), values
    order = f" order by h.started_at desc, h.key desc limit {value(query.limit)}"
    return _HEAD.format(schema=schema) + " and ".join(parts) + order, values


def _waiting(query: Query, schema: str, parts: list[str], value: Callable[[Any], str]) -> str:
    return _WAITING.format(
        schema=schema,
        heads=_HEAD.format(schema=schema),
        parts=_checked(parts),
        lot="" if query.tenant is None else f" and o.lot = hashtext({value(query.tenant)})",
        own=_own(query, value),
        places="".join(f" and {part}" for part in _places("o", query, value)),
        here="".join(f" and {part}" for part in _places("h", query, value)),
        limit=value(query.limit),
    )


def _checked(parts: list[str]) -> str:
    """The conditions for a head that was found by its key: none of them may lead to a list of heads instead."""
    return f"coalesce({' and '.join(parts)}, false)"


def _own(query: Query, value: Callable[[Any], str]) -> str:
    """The keys of a tenant lie between a slash and the character after it."""
    if query.tenant is None:
        return ""
    return f" and w.key > {value(f'{query.tenant}/')} and w.key < {value(f'{query.tenant}0')}"


def _running(query: Query, schema: str, parts: list[str], value: Callable[[Any], str]) -> str:
    own = _own(query, value)
    heads = f"{_HEAD.format(schema=schema)}h.key = held.key and {_checked(parts)}"
    return _RUNNING.format(schema=schema, own=own, heads=heads, limit=value(query.limit))


def _by_label(query: Query, schema: str, parts: list[str], labels: list[str], value: Callable[[Any], str]) -> str:
    """The first label leads, the others are looked up."""
    joins = "".join(_AS_WELL.format(schema=schema, label=label, n=n) for n, label in enumerate(labels[1:], 1))
    heads = f"{_HEAD.format(schema=schema)}h.key = l.key and {_checked(parts)}"
    places = " and ".join([f"l.label = {labels[0]}", *_places("l", query, value)])
    return _BY_LABEL.format(schema=schema, joins=joins, heads=heads, places=places, limit=value(query.limit))


def _places(table: str, query: Query, value: Callable[[Any], str]) -> list[str]:
    """Where in the order the answer begins and ends."""
    parts = []
    if query.after is not None:
        parts.append(f"{table}.started_at >= {value(query.after)}")
    if query.before is not None:
        parts.append(f"{table}.started_at < {value(query.before)}")
    if query.cursor is not None:
        at, key = query.cursor
        parts.append(f"({table}.started_at, {table}.key) < ({value(at)}, {value(key)})")
    return parts


def _status(status: str) -> str:
    """A status is one of a few words, and written out it lets the planner use the index of those that few have."""
    held = "(w.holder is not null and w.due > n.now)"
    match status:
        case "running":
            return f"h.status = 'open' and {held}"
        case "waiting":
            return f"h.status = 'open' and not coalesce({held}, false)"
        case "completed":
            return "h.status = 'completed'"
        case "paused" | "stuck" | "failed" | "cancelled":
            return f"h.mark = '{status}'"
        case _:
            return "false"
