"""What a `person` node asks: a task of its own, beside the event that the node waits for.

Rules kept here: whichever comes first ends the wait, the task or the event; a task outlives checkpoints and changes of
version, and is withdrawn when its token leaves the node without it. A log that was written before nodes had tasks goes
on without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.core.codec import codec_for, encode
from perdure.core.events import ChildSettled, Received
from perdure.core.failures import child_failed
from perdure.core.records import PERSON
from perdure.core.replay import Replay
from perdure.errors import TaskExpired
from perdure.flows.graph.events import read
from perdure.flows.graph.state import Token
from perdure.flows.person import Asked
from perdure.flows.schema import Schema
from perdure.flows.task import VERSION, Order

#: The patch that logs take whose person nodes have tasks.
PATCH = "perdure.person"
_TASK = 0  # the place in `got` of a token where the number of its task is
_SPEC = Asked(codec_for(Any))


async def task_done(
    running: Replay, token: Token, order: Callable[[], Order], event: str, form: Schema | None, roles: Sequence[str]
) -> Any:
    """What a person hands in, to the task or as the event, who may do so, once it fits the form."""
    while True:
        task = _name(_opened(running, token, order))
        wanted: dict[str, Callable[[Raw], Any]] = {event: lambda payload: read(payload, event, form)}
        if task:
            wanted[task] = msgspec.json.decode
        received, value = await running.receive(wanted, {})
        if received.id == task:
            outcome = _outcome(received)
            if form is None or not form.check(outcome):
                return outcome
            # The version of the definition has changed since it was asked, and its form: it is asked once more.
        elif reason := _refused(received, event, roles):
            running.reject(received, reason)
        else:
            return value


def withdraw(running: Replay, token: Token) -> None:
    """The token leaves its node: whatever is still asked is asked no more."""
    if token.kind == "person" and (ref := token.got.get(_TASK)):
        running.withdraw(ref)


def _opened(running: Replay, token: Token, order: Callable[[], Order]) -> int:
    """The number of the task that is open for a token, begun if there is none; 0 in a log without tasks."""
    ref: int = token.got.get(_TASK, 0)
    if ref in running.lasting:
        return ref
    if not running.patched(PATCH):
        return 0
    ref = token.got[_TASK] = running.begin_lasting(_SPEC, VERSION, Raw(encode(order())))
    return ref


def _name(ref: int) -> str:
    """The id of the event that brings the outcome; nobody can send one with a slash."""
    return f"/child:{ref}" if ref else ""


def _outcome(received: Received) -> Any:
    told = msgspec.json.decode(received.payload, type=ChildSettled)
    if told.error is None:
        return msgspec.json.decode(told.result)
    if told.error.type == TaskExpired.__name__:
        raise TaskExpired(told.error.message)
    raise child_failed(told.error, PERSON)


def _refused(received: Received, event: str, roles: Sequence[str]) -> str:
    """Why this sender may not do the task. Whoever needs a role has to say who it is: the log answers for it."""
    if received.name != event:
        return "this name is the engine's own"
    if roles and set(roles).isdisjoint(received.roles):
        return f"only {' or '.join(roles)} may send it"
    return "it does not say who sent it (by=…)" if roles and not received.by else ""
