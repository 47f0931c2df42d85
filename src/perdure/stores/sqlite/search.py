"""Searches: a query becomes one statement. Only fixed text enters it; what the caller gave travels as parameters."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.records import Head, Query, labelled, labels_wanted

_HEAD = """
select h.key, h.workflow, h.definition, h.queue, h.status,
  (select max(version) from events e where e.key = h.key), h.sha, h.parent, h.parent_ref, h.state, h.waits, h.result,
  h.started_at, h.changed_at, iif(w.due > :now, w.holder, null), w.due, coalesce(w.lapses, 0),
  (select count(*) from messages m where m.key = h.key), substr(w.lane, length(h.tenant) + 2),
  coalesce(w.token, 0), h.base, (select json_group_array(l.label) from labels l where l.key = h.key)
from {source}
where """
_PLAIN = "heads h left join wakes w on w.key = h.key"
#: A search by labels begins with the first of them, whatever else it asks for: its rows are in the order of the answer.
_BY_LABEL = "labels first cross join heads h on h.key = first.key left join wakes w on w.key = h.key"
#: One for what runs begins with what is held, which few are among all that are open.
_RUNNING = "wakes w indexed by wakes_held cross join heads h on h.key = w.key"
_HELD = "(w.holder is not null and w.due > :now)"
_LABELLED = (
    "exists (select 1 from labels l where l.label = :label{number} and l.started_at = first.started_at"
    " and l.key = first.key)"
)
#: Every tenant there is, by one step of an index for each: so a search in all of them is as many searches in one, where
#: it would otherwise read the rows of all executions.
_ANY_TENANT = (
    "h.tenant in (with recursive t (name) as (select min(tenant) from heads union all"
    " select (select min(tenant) from heads where tenant > t.name) from t where t.name is not null) select name from t)"
)


def heads(db: sqlite3.Connection, condition: str, values: Mapping[str, object]) -> list[Head]:
    return [_head(row) for row in db.execute(statement(condition, values), values)]


def statement(condition: str, values: Mapping[str, object]) -> str:
    source = _BY_LABEL if "label0" in values else _RUNNING if "running" in values else _PLAIN
    return _HEAD.format(source=source) + condition


def _head(row: Sequence[Any]) -> Head:
    *told, labels = row
    return Head(*told) if labels == "[]" else labelled(Head(*told), json.loads(labels))


def condition(query: Query, now: int) -> tuple[str, dict[str, object]]:
    """The where clause of a search and its values; only fixed text enters the statement."""
    values: dict[str, object] = {"now": now, "tenant": query.tenant, "limit": query.limit}
    parts = ["h.tenant = :tenant" if query.tenant is not None else _ANY_TENANT]
    labels = labels_wanted(query)
    values |= {f"label{number}": label for number, label in enumerate(labels)}
    parts += [_LABELLED.format(number=number) if number else "first.label = :label0" for number in range(len(labels))]
    place = "first" if labels else "h"
    if query.status in ("running", "waiting"):
        parts.append(f"h.status = 'open' and {_HELD if query.status == 'running' else 'not ' + _HELD}")
        if query.status == "running" and query.tenant is not None:
            parts.append("w.key > :tenant || '/' and w.key < :tenant || '0'")  # the character after the slash
        values |= {"running": True} if query.status == "running" else {}
    elif query.status is not None:
        parts.append("h.status = :status")
        values["status"] = query.status
    if query.cursor is not None:
        parts.append(f"({place}.started_at, {place}.key) < (:cursor_at, :cursor_key)")
        values["cursor_at"], values["cursor_key"] = query.cursor
    if not query.inner:
        parts.append("instr(h.workflow, ':') = 0")
    for name, value, part in (
        ("workflow", query.workflow, "h.workflow = :workflow"),
        ("parent", query.parent, "h.parent = :parent"),
        ("after", query.after, f"{place}.started_at >= :after"),
        ("before", query.before, f"{place}.started_at < :before"),
    ):
        if value is not None:
            parts.append(part)
            values[name] = value
    for number, (field, wanted) in enumerate(query.fields.items()):
        parts.append(_field(f"field{number}", wanted))
        values[f"field{number}"] = field
        values[f"field{number}_value"] = wanted
    return " and ".join(parts) + f" order by {place}.started_at desc, {place}.key desc limit :limit", values


def _field(name: str, wanted: str | int | float | bool | None) -> str:
    """A published field equals a value; types of JSON are kept apart, so True is not 1."""
    match wanted:
        case None | True | False:
            fits = f"j.type = '{json.dumps(wanted)}'"
        case str():
            fits = f"j.type = 'text' and j.value = :{name}_value"
        case _:
            fits = f"j.type in ('integer', 'real') and j.value = :{name}_value"
    state = "cast(h.state as text)"
    return f"json_valid({state}) and exists (select 1 from json_each({state}) j where j.key = :{name} and {fits})"
