"""One execution of a document: its context, what its expressions see, what it notes in the log, and where it stands.

Where it stands is told by data alone between two tasks of the main list, and while one of them waits for a time or for
events: then nothing else is under way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Raw, Struct, structs

from perdure.core.events import NodeSettled, NodeStarted
from perdure.core.moments import moment
from perdure.core.records import id_of
from perdure.core.replay import Replay
from perdure.flows.described import check_rest, encoded

#: What `$runtime` says: the version is that of what expressions can rely on, not of a release.
RUNTIME = {"name": "perdure", "version": "1", "metadata": {}}
#: The pointer of a task of the main list.
_MAIN = re.compile(r"/do/[0-9]+/[^/]*")


class Scope(Struct, frozen=True):
    """What is around a task: variables of the document, and which round of which loops it is in."""

    names: Mapping[str, Any] = {}
    base: str = ""  # the pointer of the loop around it
    shown: str = ""  # the same with its round

    def path(self, at: str) -> str:
        """Where a task is, for the log: its pointer with the rounds in it."""
        return self.shown + at[len(self.base) :]

    def round(self, at: str, number: int, names: Mapping[str, Any]) -> Scope:
        return Scope({**self.names, **names}, at, f"{self.path(at)}[{number}]")

    def with_names(self, **names: Any) -> Scope:
        return Scope({**self.names, **names}, self.base, self.shown)


class Open(Struct, frozen=True, omit_defaults=True):
    """A task of the main list that waits. Times are in microseconds, as those of the log."""

    kind: str
    given: Any
    began: int
    deadline: int | None = None  # of its timeout
    due: int = 0  # when a wait is over
    heard: dict[str, Any] = {}  # what a listen has taken so far


class Position(Struct, frozen=True, omit_defaults=True):
    """Where an execution stands: before a task of the main list, or in it."""

    task: str
    value: Any
    context: Any
    input: Any
    open: Open | None = None


class Course:
    """See the module."""

    def __init__(self, running: Replay, definition: Any, input: Any, context: Any, secrets: Mapping[str, str]) -> None:
        self.running = running
        self.input = input  # as it came
        self.context = context
        self.settled = 0  # since the last checkpoint
        self.rested = False  # since the last checkpoint: a circle without any rest is no progress
        self.standing: Position | None = None  # the task of the main list that it is in
        self.resumed: Open | None = None  # that task, if a position said that it waits, until it goes on
        self._turn, self._notes = running.version, 0
        self._always = {
            "secrets": secrets,
            "runtime": RUNTIME,
            "workflow": {
                "id": id_of(running.key),
                "definition": definition,
                "input": input,
                "startedAt": _moment(running.began),
            },
        }

    def see(self, name: str, at: str, body: Any, raw: Any, scope: Scope, began: int) -> dict[str, Any]:
        """What the expressions of a task see before its input is made."""
        task = {"name": name, "reference": at, "definition": body, "input": raw, "startedAt": _moment(began)}
        return {**self._always, "context": self.context, "task": task, **scope.names}

    @property
    def about(self) -> dict[str, Any]:
        """What the expressions of the workflow itself see."""
        return {**self._always, "context": self.context}

    @property
    def now(self) -> int:
        return self.running.began + round(self.running.loop.now * 1e6)

    @contextmanager
    def resting(self, at: str, due: int = 0, heard: dict[str, Any] | None = None) -> Iterator[None]:
        """While a task waits; one of the main list tells where the execution stands."""
        standing = self.standing
        if standing is None or standing.open is None or not _MAIN.fullmatch(at) or self.running.orphans:
            yield
            return
        waiting = structs.replace(standing.open, due=due, heard=heard or {})
        self.running.position = lambda: structs.replace(standing, context=self.context, open=waiting)
        try:
            yield
        finally:
            self.running.position = None

    def take_up(self) -> Open | None:
        """What is known of the task that goes on, once."""
        resumed, self.resumed = self.resumed, None
        return resumed

    def note(self, event: NodeStarted) -> None:
        self.running.note(event)

    def settle(self, event: NodeSettled) -> None:
        self.settled += 1
        self._notes += 1
        if self._turn != self.running.version:
            self._turn, self._notes, self.rested = self.running.version, 0, True
        check_rest(self.running, self._notes, f"task {event.node}")
        self.running.note(event)

    def encoded(self, value: Any, node: str) -> Raw:
        return encoded(self.running, value, f"task {node}")


def _moment(micros: int) -> dict[str, Any]:
    epoch = {"seconds": micros // 1_000_000, "milliseconds": micros // 1_000}
    return {"iso8601": moment(micros).isoformat(timespec="milliseconds").replace("+00:00", "Z"), "epoch": epoch}
