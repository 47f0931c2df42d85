"""What must be true of every log, whatever happened while it was written.

`check_log` takes the complete log of one execution and raises an AssertionError that names the broken invariant. It
serves the contract suites, simulations and anybody who wants to look at a log with suspicion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar, get_args

from perdure.core import events
from perdure.core.events import (
    NUMBERS,
    TYPES,
    ActionSettled,
    ActionStarted,
    Cancelled,
    CancelRequested,
    ChildSettled,
    Completed,
    EventReceived,
    Failed,
    Paused,
    Redriven,
    Resumed,
    Started,
    TakenOver,
    TimerCancelled,
    TimerFired,
)
from perdure.core.records import Row

E = TypeVar("E")
Deed: TypeAlias = Started | EventReceived | CancelRequested | Paused | Resumed | Redriven
_DEEDS: tuple[type[Deed], ...] = get_args(Deed)
TERMINAL = frozenset({NUMBERS[Completed], NUMBERS[Failed], NUMBERS[Cancelled]})


def check_log(rows: Sequence[Row], key: str = "") -> None:
    """Raise an AssertionError if the log breaks an invariant.

    >>> check_log([Row(1, NUMBERS[Completed], b"{}", at=0), Row(3, NUMBERS[Resumed], b"{}", at=0)], "acme/order-1")
    Traceback (most recent call last):
    AssertionError: I3, acme/order-1: versions are not 1..2 but 1, 3
    """
    where = f", {key}" if key else ""
    for name, check in CHECKS:
        complaint = check(rows)
        if complaint:
            raise AssertionError(f"{name}{where}: {complaint}")


def check_who(rows: Sequence[Row], key: str = "") -> None:
    """Raise an AssertionError if somebody did something to an execution and the log does not say who.

    What happened under a hold was written by a worker, and names it, unless it names who asked for it.
    Not part of `check_log`: logs of before each letter had a sender, and each row a writer, are good logs.
    """
    where = f", {key}" if key else ""
    for row, event in (found for kind in _DEEDS for found in _of(rows, kind)):
        if isinstance(event, Started):
            by_itself = bool(event.parent) or ":" in event.workflow  # children, and what is the engine's own
        else:
            by_itself = isinstance(event, Resumed) and row.message_id is None  # the time of a pause is over
        if not event.by and not by_itself:
            raise AssertionError(f"I23{where}: version {row.version}, {type(event).__name__}, does not say who did it")
    for row in rows:
        kind = TYPES.get(row.type % 1000)  # None is one of a newer release
        if row.fence and kind not in (None, TakenOver) and not events.writer(row):
            if not getattr(events.read(row), "by", ""):
                name = kind.__name__ if kind else ""
                raise AssertionError(f"I23{where}: version {row.version}, {name}, does not say which worker wrote it")


def _dense(rows: Sequence[Row]) -> str:
    versions = [row.version for row in rows]
    if versions == list(range(1, len(rows) + 1)):
        return ""
    return f"versions are not 1..{len(rows)} but {', '.join(map(str, versions))}"


def _fences_rise(rows: Sequence[Row]) -> str:
    for before, after in pairwise(rows):
        if after.fence < before.fence:
            return f"version {after.version} has fence {after.fence}, below the {before.fence} before it"
    return ""


def _messages_once(rows: Sequence[Row]) -> str:
    return _twice([row.message_id for row in rows if row.message_id is not None], "message {} was folded {} times")


def _actions_settle_once(rows: Sequence[Row]) -> str:
    return _twice([event.ref for _, event in _of(rows, ActionSettled)], "action {} was settled {} times")


def _children_settle_once(rows: Sequence[Row]) -> str:
    return _twice([event.ref for _, event in _of(rows, ChildSettled)], "child {} was settled {} times")


def _timers_fire_once(rows: Sequence[Row]) -> str:
    fired = list(_of(rows, TimerFired))
    cancelled = {event.ref: row.version for row, event in _of(rows, TimerCancelled)}
    for row, event in fired:
        if row.at < event.due:
            return f"timer {event.ref} fired at {row.at}, before it was due at {event.due}"
        if cancelled.get(event.ref, row.version) < row.version:
            return f"timer {event.ref} fired at version {row.version}, after it was cancelled"
    return _twice([event.ref for _, event in fired], "timer {} fired {} times")


def _nothing_after_the_end(rows: Sequence[Row]) -> str:
    for row in rows[:-1]:
        if row.type % 1000 in TERMINAL:
            return f"the log goes on after the terminal event at version {row.version}"
    return ""


def _nothing_starts_while_paused(rows: Sequence[Row]) -> str:
    paused = False
    for row in rows:
        number = row.type % 1000
        if number in (NUMBERS[Paused], NUMBERS[Resumed]):
            paused = number == NUMBERS[Paused]
        elif paused and number == NUMBERS[ActionStarted]:
            return f"an action was started at version {row.version} while the execution was paused"
    return ""


CHECKS = (
    ("I3", _dense),
    ("I5", _fences_rise),
    ("I1", _messages_once),
    ("I8", _actions_settle_once),
    ("I10", _timers_fire_once),
    ("I11", _nothing_after_the_end),
    ("I13", _nothing_starts_while_paused),
    ("I22", _children_settle_once),
)


def _of(rows: Sequence[Row], kind: type[E]) -> Iterator[tuple[Row, E]]:
    for row in rows:
        if row.type % 1000 == NUMBERS[kind]:
            event = events.read(row)
            assert isinstance(event, kind)
            yield row, event


def _twice(names: Sequence[object], text: str) -> str:
    return "; ".join(text.format(name, times) for name, times in Counter(names).items() if times > 1)
