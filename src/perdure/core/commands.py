"""What the code of a workflow has asked for and not yet got, and how a recorded command compares with an asked one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from perdure.core import events as ev


class Limits(Struct, frozen=True):
    """What one execution may ask of a worker."""

    commands_per_turn: int = 10_000
    steps_per_turn: int = 1_000_000
    events_per_replay: int = 100_000
    payload_bytes: int = 1_000_000
    transitions_per_event: int = 100


class RestartWith(BaseException):
    """How a workflow ends in order to begin again with other arguments."""

    def __init__(self, input: Raw, undos: list[ev.Owed] | None = None) -> None:
        super().__init__()
        self.input = input
        self.undos = undos or []


class Halt(BaseException):
    """Unwinds workflow code whose replay has failed; the reason is kept by the replay."""


class Spec(Protocol):
    """What a replay needs to know of an action or child workflow."""

    @property
    def name(self) -> str: ...
    def decode_result(self, result: Raw, /) -> Any: ...
    def failure(self, error: ev.Error, /) -> BaseException: ...
    def same_args(self, recorded: Raw, asked: Raw, /) -> bool: ...


class Asked(Struct, eq=False):
    """An action or child that the code waits for."""

    ref: int
    spec: Any  # a Spec: msgspec cannot name a protocol
    args: Raw
    at: int  # when it was asked for
    future: asyncio.Future[Any]
    attempts: int = 0
    due: int = 0  # of the next attempt
    free: int = 0  # of the attempts that were not spent before, those that the retry policy does not count
    spent: int = 0  # of the attempts, those that an earlier budget of the retry policy was spent on
    since: int = 0  # when its time began, if not when it was asked for
    put_off: int = 0  # how often in a row an open circuit put it off
    started: bool = False
    worker: str = ""  # that started it
    apart: bool = False  # an execution of its own runs it
    unwanted: bool = False  # nobody awaits it any more: it runs on so that it can be undone
    progress: Raw | None = None
    settled: int = 0  # version of the row that settled it
    result: Raw = ev.NULL

    @property
    def timed(self) -> int:
        """The moment from which its limits of time count."""
        return self.since or self.at


class Undo(Struct, eq=False):
    """What compensates an action that succeeded."""

    spec: Any
    args: Raw
    result: Raw
    version: int


class Waiter(Struct, eq=False):
    """Code that waits for one of several external events."""

    wanted: Mapping[str, Callable[[Raw], Any]]
    match: Mapping[str, Any]
    future: asyncio.Future[Any]
    since: int
    test: Callable[[ev.Received], bool] | None = None

    def takes(self, event: ev.Received) -> bool:
        if event.name not in self.wanted or (self.test is not None and not self.test(event)):
            return False
        if not self.match:
            return True
        payload = msgspec.json.decode(event.payload)
        return isinstance(payload, dict) and all(
            name in payload and payload[name] == value for name, value in self.match.items()
        )


def command_of(event: ev.Event) -> tuple[str, str, Raw | None]:
    """The kind, name and arguments of the command that an event with a ref is about."""
    match event:
        case ev.ActionProgressed():
            return "action", "", None
        case (
            ev.ActionScheduled() | ev.ActionStarted() | ev.ActionAttempted() | ev.ActionSettled() | ev.ActionCancelled()
        ):
            return "action", event.name, event.args
        case ev.ChildStarted():
            return "child", event.workflow, event.input
        case ev.ChildSettled():
            return "child", "", None
        case ev.Marked():
            return "record", "", None
        case ev.TimerStarted() | ev.TimerFired() | ev.TimerCancelled():
            return "timer", "", None
        case _:
            return type(event).__name__, "", None


def short(raw: Raw, limit: int = 120) -> str:
    text = bytes(raw).decode(errors="replace")
    return text if len(text) <= limit else text[: limit - 1] + "…"
