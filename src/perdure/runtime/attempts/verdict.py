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
    """Another attempt, or none before somebody has looked, or the end; `key` is that of the call."""
    how = asked.spec.how
    number, kind = asked.attempts + 1, kind_here(asked, error)
    failure = watch.hide_in_error(describe(error, number, kind), tenant_of(key))
    least = left_alone(error) if kind == "external" else 0
    ref, name, args = asked.ref, asked.spec.name, asked.args
    again = how.retry.again(number - asked.spent, kind, now - asked.timed, key, asked.free, least)
    if again is not None and not how.at_most_once and not past_deadline(asked, now + again.delay):
        return ev.ActionAttempted(ref, name, args, number, failure, now + again.delay, began, again.free, worker=worker)
    if kind != "permanent" and waits_for_a_person(asked):
        return ev.ActionAttempted(ref, name, args, number, failure, now, began, asked.free, worker=worker, spent=True)
    return ev.ActionSettled(ref, name, args, ev.NULL, failure, number, began, worker)


def waits_for_a_person(asked: Asked) -> bool:
    """Whether its execution gets stuck when no attempt is left. One that nobody awaits any more just fails."""
    how = asked.spec.how
    return bool(how.retry.spent == "stuck") and not (how.at_most_once or asked.unwanted)


def spent(event: ev.ActionAttempted) -> str:
    """Why an execution is stuck after this."""
    error = event.error
    return (
        f"the attempts of {event.name} (command {event.ref}) are spent: {event.attempt} were made, and at last it"
        f" failed with {error.type}: {error.message}"
    )


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
    left: int = max(asked.timed + how.deadline - now, 0)
    return left if how.timeout is None else min(how.timeout, left)


def past_deadline(asked: Asked, time: int) -> bool:
    deadline: int | None = asked.spec.how.deadline
    return deadline is not None and time >= asked.timed + deadline


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
