"""Whether a head is what a query looks for, for stores that compare here what their server cannot compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.core.records import Head, Query, tenant_of


def place(head: Head) -> tuple[int, str]:
    """Where it stands in the order of a search."""
    return head.started_at, head.key


def fits(head: Head, query: Query) -> bool:
    """Whether all that the query says is true of it; how many are wanted is not asked here."""
    return (
        query.tenant in (None, tenant_of(head.key))
        and (query.status is None or head.shown == query.status)
        and (query.inner or ":" not in head.workflow)
        and (query.workflow is None or head.workflow == query.workflow)
        and (query.parent is None or head.parent == query.parent)
        and (query.after is None or head.started_at >= query.after)
        and (query.before is None or head.started_at < query.before)
        and (query.cursor is None or place(head) < query.cursor)
        and query.correlation in (None, head.correlation)
        and set(query.tags) <= set(head.tags)
        and publishes(head.state, query.fields)
    )


def publishes(state: bytes | None, fields: Mapping[str, object]) -> bool:
    """Whether the published state is an object with these values; True and 1 are different values in JSON.

    >>> publishes(b'{"n":1}', {"n": 1}), publishes(b'{"n":1}', {"n": True}), publishes(None, {})
    (True, False, True)

    What is no JSON has no values: one that cannot be read must not fail a search for others.

    >>> publishes(b"?", {"n": 1})
    False
    """
    if not fields:
        return True
    if state is None:
        return False
    try:
        published: Any = msgspec.json.decode(state)
    except msgspec.MsgspecError:
        return False
    return isinstance(published, dict) and all(
        name in published and published[name] == value and isinstance(published[name], bool) == isinstance(value, bool)
        for name, value in fields.items()
    )
