"""The end of a server, for answers that take their time: they do not make it wait.

Rules kept here: who waits for something that may be long is told at once when the server ends, and asks another one, or
this one when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from perdure.http.problems import Refused

T = TypeVar("T")


class Leaving:
    """Whether the server is about to end. It belongs to the event loop of the first who asks."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._said = False

    def say(self) -> None:
        self._said = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def future(self) -> asyncio.Future[None]:
        """Done when the server ends. Not to be cancelled: it is everybody's."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self._said:
                self._future.set_result(None)
        return self._future

    async def bounds(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Its result, or 503 if the server ends first."""
        task = asyncio.create_task(waiting)
        try:
            both: list[asyncio.Future[Any]] = [task, self.future()]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Refused(503, "Leaving", "this server is about to end: ask again", {"Retry-After": "1"})
            return task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
