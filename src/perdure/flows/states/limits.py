"""Timeouts: those of the workflow hold for its states, actions and branches unless they have their own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import Struct, structs

from perdure.flows.document.faults import fault
from perdure.flows.document.terms import Length, See
from perdure.flows.states.reader import StatesReader

T = TypeVar("T")
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


async def limited(after: float | None, what: str, at: str, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; a fault if it takes longer than this many seconds."""
    limit = asyncio.timeout(after)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise fault("timeout", f"{what} took longer than {after:g} s", at) from None


def seconds(limit: Length | None, data: Any, see: See) -> float | None:
    return None if limit is None else limit.of(data, see) / 1e6
