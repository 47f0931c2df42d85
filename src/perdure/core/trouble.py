"""Why an execution failed or is stuck, as problem details (RFC 9457), with the place of the task that failed.

A document fails with problem details of its own, which stay as they are. What others failed with becomes one: its type
follows from the class of the error. The place is a pointer: `/nodes/ship` of a graph, `/actions/3/charge` of what has
actions (the number of the command, and the name, as in the key of the call), `/children/3/order-1.3`. Where the
workflow's own code raised, there is no task, and `where` has the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.events import ActionSettled, ChildSettled, Error, Event, NodeSettled, Stuck

URN = "urn:perdure:problem:"
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: The status of a failure that is not its own problem: as documents have it for the same.
_STATUS = {"TimeoutError": 408, "SecretNotFound": 403}


class Trouble(Struct, frozen=True, omit_defaults=True):
    """Problem details; `kind` and `where` as in the error that the log has."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    kind: str = ""
    where: str = ""


def stuck(event: Stuck) -> Trouble:
    return Trouble(f"{URN}execution-stuck", "ExecutionStuck", 500, event.reason, event.place, event.cause)


def is_problem(details: Any) -> bool:
    return isinstance(details, dict) and isinstance(details.get("type"), str) and isinstance(details.get("status"), int)


def name_of(error: str) -> str:
    """The type of a problem, by the class of the error; for ever the same.

    >>> name_of("CardDeclined")
    'urn:perdure:problem:card-declined'
    """
    return f"{URN}{_WORDS.sub('-', error).lower()}"


def failed(error: Error, news: Sequence[Event]) -> Trouble:
    """What an execution failed with; `news` is what its log has from the bad news on that it failed for."""
    details: Any = msgspec.json.decode(error.details)
    at = next(_places(news), "")
    if is_problem(details):
        title, detail = str(details.get("title") or error.type), str(details.get("detail") or error.message)
        at = str(details.get("instance") or at)
        return Trouble(details["type"], title, details["status"], detail, at, error.kind, error.where)
    status = _STATUS.get(error.type, 500)
    return Trouble(name_of(error.type), error.type, status, error.message, at, error.kind, error.where)


def _places(news: Sequence[Event]) -> Iterator[str]:
    """The task that failed: the first node, the innermost of those around it, or whatever the bad news is about."""
    for one in news:
        if isinstance(one, NodeSettled) and one.status == "failed":
            yield one.node if one.node.startswith("/") else f"/nodes/{one.node}"
    match news:
        case [ActionSettled(ref=ref, name=name, error=Error()), *_]:
            yield f"/actions/{ref}/{name}"
        case [ChildSettled(ref=ref, id=id, error=Error()), *_]:
            yield f"/children/{ref}/{id}"
        case _:
            pass
