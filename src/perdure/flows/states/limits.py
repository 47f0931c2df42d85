"""Timeouts: those of the workflow hold for its states, actions and branches unless they have their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from perdure.flows.document.terms import Length
from perdure.flows.states.course import Course
from perdure.flows.states.reader import StatesReader

_FIELDS = {
    "stateExecTimeout": "state",
    "actionExecTimeout": "action",
    "branchExecTimeout": "branch",
    "eventTimeout": "event",
}


class Limits(Struct, frozen=True):
    """How long things may take; None is for ever."""

    state: Length | None = None
    action: Length | None = None
    branch: Length | None = None
    event: Length | None = None

    def read(self, reader: StatesReader, body: Any, at: str, keys: Sequence[str]) -> Limits:
        """Those that hold where these are written."""
        found = reader.object(body, at, keys)
        changes = {}
        for key in keys:
            if key in _FIELDS and key in found:
                changes[_FIELDS[key]] = _total(reader, found[key], f"{at}/{key}")
        return structs.replace(self, **changes)


def _total(reader: StatesReader, value: Any, at: str) -> Length | None:
    if not isinstance(value, dict):
        return reader.duration(value, at)
    body = reader.object(value, at, ("single", "total"), ("total",))
    if "single" in body:
        fix = "`total` limits the state, actionExecTimeout each try of an action"
        reader.wrong(f"{at}/single", "a state is not tried again as a whole, only its actions are", fix)
    return reader.duration(body.get("total"), f"{at}/total")


def seconds(limit: Length | None, data: Any, course: Course, since: float | None = None) -> float | None:
    """How long that is from now on, or from another time of the loop on."""
    start = course.now if since is None else course.running.began + round(since * 1e6)
    return None if limit is None else limit.of(data, course.names, start) / 1e6
