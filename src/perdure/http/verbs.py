"""What handlers share: the execution that a path names, waiting for it, ids from idempotency keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure.core.durations import micros
from perdure.core.records import Head, ShownStatus
from perdure.errors import EventConflict, ExecutionExists
from perdure.http.problems import Refused
from perdure.http.route import Call
from perdure.runtime.run import Run

#: The longest time for which an answer is kept waiting.
LONGEST = 60_000_000
RESTING: tuple[ShownStatus, ...] = ("waiting", "paused", "stuck", "completed", "failed", "cancelled")
_HEADER = "idempotency-key"
#: Characters of such a key.
LONGEST_KEY = 255


def run_of(call: Call[Any, Any]) -> Run[Any]:
    id = call.path["id"]
    if not (id.isprintable() and len(id) < 1000):
        raise Refused(400, "Bad Id", "this cannot be the id of an execution")
    return call.app.get(id, call.tenant)


def is_version(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def where(id: str) -> str:
    return f"/v1/executions/{id}"


def seconds_of(wait: str) -> float:
    length = micros(wait)
    if length > LONGEST:
        raise Refused(400, "Too Long", "an answer is kept waiting for at most 60 seconds")
    return length / 1e6


async def settled(call: Call[Any, Any], run: Run[Any], wait: str | None) -> Head | None:
    """Its head at rest, or at its end, if it gets there within the time of the request, or else of the deployment."""
    limit = min(call.app.settings.api_wait, LONGEST / 1e6) if wait is None else seconds_of(wait)
    if not limit:
        return None
    try:
        return await call.leaving.bounds(run.head_at(*RESTING, timeout=limit))
    except TimeoutError:
        return None


def from_idempotency_key(call: Call[Any, Any], what: str) -> str | None:
    """The id that a key stands for: the same for the same key, route and tenant, and nobody's by chance."""
    key = call.headers.get(_HEADER)
    if key is None:
        return None
    if not 1 <= len(key) <= LONGEST_KEY:
        raise Refused(400, "Bad Idempotency Key", f"an Idempotency-Key has 1 to {LONGEST_KEY} characters")
    return "key-" + hashlib.sha256(f"{what}\n{call.tenant}\n{key}".encode()).hexdigest()[:40]


@contextmanager
def key_is_for(call: Call[Any, Any], what: str, id: str | None) -> Iterator[None]:
    """Whoever uses a key again for something else is told so; whoever gave an `id` is told of what has that id."""
    try:
        yield
    except (EventConflict, ExecutionExists) as error:
        if id or _HEADER not in call.headers:
            raise
        detail = f"this Idempotency-Key was used before, with another {what}: give another key"
        raise Refused(422, "Idempotency Key Reused", detail) from error
