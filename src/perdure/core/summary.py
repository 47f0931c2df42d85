"""The rows beside a log, made from what the log says: how an execution begins, what it waits for, how it ended."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from perdure.core import events as ev
from perdure.core.codec import digest
from perdure.core.places import NOWHERE
from perdure.core.records import Start, Status, definition_of, id_of
from perdure.core.replay import Replay

_encode = msgspec.json.encode
#: `why` names this many of each kind.
_SHOWN = 20
#: Of events that wait to be taken.
_RANGES = 1000


def begin(key: str, first: ev.Started, queue: str, at: int, parent_ref: int | None = None) -> Start:
    """A new execution. Workflow, input, callback, correlation id and tags make two starts the same start."""
    told = [] if first.callback is None else [_encode(first.callback)]
    if first.correlation or first.tags:
        told.append(_encode([first.correlation, first.tags]))
    return Start(
        key,
        first.workflow,
        definition_of(first.workflow, first.version, first.hash),
        queue,
        digest(first.workflow, bytes(first.input), *told),
        (ev.row(first, 1, at),),
        first.parent or None,
        parent_ref,
        correlation=first.correlation or None,
        tags=first.tags,
    )


def ended(outcome: ev.Event | None) -> tuple[Status, bytes, ev.Error | None]:
    """Status, result and error of an outcome; the result of what did not succeed is its error."""
    match outcome:
        case ev.Completed():
            return "completed", bytes(outcome.result), None
        case ev.Failed():
            return "failed", _encode(outcome.error), outcome.error
        case ev.Cancelled():
            error = ev.Error("Cancelled", outcome.reason or "it was cancelled")
            return "cancelled", _encode(error), error
        case _:
            raise TypeError(f"{outcome!r} is not the end of an execution")


def _ranges(versions: list[int]) -> list[list[int]]:
    """Numbers as ranges, for they mostly lie together; the last one of too many takes in all the rest."""
    ranges: list[list[int]] = []
    for version in sorted(versions):
        if ranges and (version <= ranges[-1][1] + 1 or len(ranges) == _RANGES):
            ranges[-1][1] = version
        else:
            ranges.append([version, version])
    return ranges


def result_of(outcome: ev.Event | None) -> Raw:
    return outcome.result if isinstance(outcome, ev.Completed) else ev.NULL


def rests(replay: Replay, version: int) -> dict[str, Any]:
    """What is kept beside an execution at rest: what it waits for, and what became of its events up to this version."""
    found = waits(replay) | {"through": version}
    if kept := [*replay.buffer, *replay.kept_back()]:
        found["kept"] = _ranges([event.version for event in kept])
    if replay.taking:
        found["taking"] = replay.taking
    return found


def waits(replay: Replay) -> dict[str, Any]:
    """What `why` shows of an execution that is not in memory."""
    found: dict[str, Any] = {"at": [place for place in replay.places() if place != NOWHERE]}
    if replay.waiters:
        found["events"] = [
            {"names": list(waiter.wanted), "match": waiter.match, "since": waiter.since}
            for waiter in replay.waiters[:_SHOWN]
        ]
    if replay.loop.timers:
        timers = sorted((replay.due_of(one), replay.set_at(one)) for one in replay.loop.timers.values())[:_SHOWN]
        found["timers"], found["timers_set"] = [due for due, _ in timers], [since for _, since in timers]
    if replay.children:
        found["children"] = [
            {"id": f"{id_of(replay.key)}.{ref}", "since": asked.at}
            for ref, asked in list(replay.children.items())[:_SHOWN]
        ]
    if replay.actions:
        found["actions"] = [
            {
                "name": asked.spec.name,
                "ref": ref,
                "attempts": asked.attempts,
                "due": asked.due,
                "since": asked.at,
                "apart": f"{id_of(replay.key)}.{ref}" if asked.apart else "",
            }
            for ref, asked in list(replay.actions.items())[:_SHOWN]
        ]
    if replay.paused is not None:
        found["paused"], found["paused_at"] = replay.paused, replay.paused_at
    if replay.cancel is not None:
        found["cancel"] = replay.cancel
    return found
