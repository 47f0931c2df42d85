"""Searches: a query becomes one statement. Only fixed text enters it; what the caller gave travels as parameters."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from itertools import starmap

from perdure.core.records import Head, Query

_HEAD = """
select h.key, h.workflow, h.definition, h.queue, h.status,
  (select max(version) from events e where e.key = h.key), h.sha, h.parent, h.parent_ref, h.state, h.waits, h.result,
  h.started_at, h.changed_at, iif(w.due > :now, w.holder, null), w.due, coalesce(w.lapses, 0),
  (select count(*) from messages m where m.key = h.key), substr(w.lane, length(h.tenant) + 2),
  coalesce(w.token, 0), h.base
from heads h left join wakes w on w.key = h.key
where """


def heads(db: sqlite3.Connection, condition: str, values: Mapping[str, object]) -> list[Head]:
    return list(starmap(Head, db.execute(_HEAD + condition, values)))


def condition(query: Query, now: int) -> tuple[str, dict[str, object]]:
    """The where clause of a search and its values; only fixed text enters the statement."""
    values: dict[str, object] = {"now": now, "tenant": query.tenant, "limit": query.limit}
    parts = ["h.tenant = :tenant" if query.tenant is not None else "true"]
    if query.status in ("running", "waiting"):
        held = "(w.holder is not null and w.due > :now)"
        parts.append(f"h.status = 'open' and {held if query.status == 'running' else 'not ' + held}")
    elif query.status is not None:
        parts.append("h.status = :status")
        values["status"] = query.status
    if query.cursor is not None:
        parts.append("(h.started_at, h.key) < (:cursor_at, :cursor_key)")
        values["cursor_at"], values["cursor_key"] = query.cursor
    if not query.inner:
        parts.append("instr(h.workflow, ':') = 0")
    for name, value, part in (
        ("workflow", query.workflow, "h.workflow = :workflow"),
        ("parent", query.parent, "h.parent = :parent"),
        ("after", query.after, "h.started_at >= :after"),
        ("before", query.before, "h.started_at < :before"),
    ):
        if value is not None:
            parts.append(part)
            values[name] = value
    for number, (field, wanted) in enumerate(query.fields.items()):
        parts.append(_field(f"field{number}", wanted))
        values[f"field{number}"] = field
        values[f"field{number}_value"] = wanted
    return " and ".join(parts) + " order by h.started_at desc, h.key desc limit :limit", values


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
