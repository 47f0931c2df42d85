"""How a process without a worker hears that executions have ended; a worker hears of it by itself."""

from __future__ import annotations

import asyncio

from perdure.core.behalf import for_everybody
from perdure.ports import Stream
from perdure.runtime.callers.ends import Ends, end_of


class Listener:
    """Listens from the first question about an end on, until it hangs up."""

    def __init__(self, stream: Stream, ends: Ends) -> None:
        self._stream = stream
        self._ends = ends
        self._task: asyncio.Task[None] | None = None
        self._free = False  # the stream is open, and no worker reads it

    @property
    def listens(self) -> bool:
        return self._task is not None

    def begin(self) -> None:
        """The stream is open on this event loop, and nobody else reads it: whoever waits from now on may listen."""
        self._free, self._task = True, None

    def listen(self) -> None:
        if self._free and self._task is None:
            self._task = asyncio.create_task(self._hear(), name="perdure-listen", context=for_everybody())

    async def hang_up(self) -> None:
        """Stop, and close the stream; nobody listens before it is begun anew."""
        self._free = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._stream.close()

    async def _hear(self) -> None:
        while True:
            for hint in await self._stream.receive(1000):
                if hint.ended:
                    self._ends.came(hint.key, end_of(hint))
