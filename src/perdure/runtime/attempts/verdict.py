"""What follows one try of an action: the event that goes into the log, decided from values alone.

Whoever runs the action, here or elsewhere, the same rules say what its result must be, whether there is another try and
when, and how long a try may take.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from perdure.core import events as ev
from perdure.core.commands import Asked
from perdure.core.failures import Kind, describe, kind_of
from perdure.core.records import tenant_of
from perdure.core.retry import left_alone
from perdure.errors import InvalidValue, LimitReached
from perdure.flows.action import Action
from perdure.runtime.secrets.watching import watch


def succeeded(asked: Asked, result: Raw, began: int, worker: str) -> ev.ActionSettled:
    return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, result, None, asked.attempts + 1, began, worker)


def failed(asked: Asked, error: BaseException, key: str, began: int, now: int, worker: str) -> ev.Event:
    """Another attempt, or the end; `key` is that of the call."""
    how = asked.spec.how
    number, kind = asked.attempts + 1, kind_here(asked, error)
    failure = watch.hide_in_error(describe(error, number, kind), tenant_of(key))
    least = left_alone(error) if kind == "external" else 0
    again = how.retry.again(number, kind, now - asked.at, key, asked.free, least)
    if again is None or how.at_most_once or past_deadline(asked, now + again.delay):
        return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, ev.NULL, failure, number, began, worker)
    due = now + again.delay
    name = asked.spec.name
    return ev.ActionAttempted(asked.ref, name, asked.args, number, failure, due, began, again.free, worker=worker)


def unknown(asked: Asked) -> ev.Event:
    """An at_most_once action was begun, and nobody knows how it ended."""
    error = ev.Error(
        "Unknown",
        f"{asked.spec.name} was started and may have taken effect, but its worker died before it could say so;"
        " at_most_once forbids a second try",
    )
    return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, ev.NULL, error, 1, worker=asked.worker)


def kind_here(asked: Asked, error: BaseException) -> Kind:
    return kind_of(error, asked.spec.how.errors, asked.spec.how.retry.fatal)


def limit(asked: Asked, now: int) -> int | None:
    """What is left for an attempt that begins now, by its own timeout and by the deadline of all."""
    how = asked.spec.how
    if how.deadline is None:
        timeout: int | None = how.timeout
        return timeout
    left: int = max(asked.at + how.deadline - now, 0)
    return left if how.timeout is None else min(how.timeout, left)


def past_deadline(asked: Asked, time: int) -> bool:
    deadline: int | None = asked.spec.how.deadline
    return deadline is not None and time >= asked.at + deadline


def storable(action: Action[..., Any], result: Any, most: int) -> Raw:
    """The result as the log keeps it; refused if it is too large, or something else than was declared."""
    returns = action.signature.returns
    data = returns.encode(result)
    if len(data) > most:
        raise LimitReached(
            f"{action.name} returned {len(data):,} bytes, more than {most:,}: return a reference to the data, or raise"
            " payload_bytes"
        )
    try:
        returns.decode(data)
    except InvalidValue as error:
        raise InvalidValue(f"{action.name} returned something else than it declares: {error}") from error
    return Raw(data)
