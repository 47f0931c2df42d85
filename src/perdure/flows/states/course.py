"""One execution of a workflow of states: what its expressions see, what it has done, and what runs beside its path.

An execution has one path from state to state. Beside it run branches that a parallel state no longer waits for, calls
that nobody waits for, and children that end with it. The first two are paths of the execution too: it is over when none
is left, unless it is terminated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TypeAlias

from perdure.core.replay import Replay
from perdure.flows.document.course import Course as Noting

Kind: TypeAlias = Literal["branch", "call", "child"]


class Course(Noting):
    """See the module. What it notes in the log, it notes as a document does."""

    def __init__(self, running: Replay, see: Mapping[str, Any], done: list[str], known: dict[str, Any]) -> None:
        super().__init__(running, None, None, None, {})
        self.names = see
        self.done = done  # states that were completed and can be compensated, in order
        self.known = known  # what events that came before had in common
        self.data: Any = None  # what the state that is open was given
        self.event: dict[str, Any] | None = None  # it was started by, and nobody took yet
        self._beside: list[tuple[Kind, asyncio.Task[Any]]] = []

    @property
    def alone(self) -> bool:
        """Whether nothing runs beside its path."""
        return all(task.done() for _, task in self._beside)

    @property
    def paths(self) -> list[asyncio.Task[Any]]:
        """The other paths that are not at their end."""
        return [task for kind, task in self._beside if kind != "child" and not task.done()]

    def beside(self, kind: Kind, task: asyncio.Task[Any]) -> None:
        """Let something run on beside the path."""
        self._beside = [(one, other) for one, other in self._beside if not other.done()]
        self._beside.append((kind, task))

    def begin(self, kind: Kind, work: Coroutine[Any, Any, Any]) -> None:
        self.beside(kind, spawn(work))

    async def stop(self, *kinds: Kind) -> None:
        """End what runs beside the path, all of it or what is of these kinds."""
        await cancelled(self, [task for kind, task in self._beside if not kinds or kind in kinds])

    async def paths_end(self) -> None:
        """Wait until no other path is left, then end the children that end with it."""
        while left := self.paths:  # one may have begun another
            await asyncio.wait(left)
        await self.stop()


async def cancelled(course: Noting, tasks: list[asyncio.Task[Any]]) -> None:
    """End tasks, and wait until they have."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left and not course.running.loop.closed:
        await asyncio.wait(left)


def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task whose error may be of no interest to anybody: it is in the log."""
    task = asyncio.create_task(work)
    task.add_done_callback(_seen)
    return task


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
