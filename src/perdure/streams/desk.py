"""Streams that go through a broker: each opening has a desk, with all that belongs to it, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.streams.health import Health


class Sender(Protocol):
    @property
    def lost(self) -> int: ...


class Desk(Protocol):
    @property
    def health(self) -> Health: ...
    @property
    def sender(self) -> Sender: ...
    async def open(self) -> None: ...
    async def leave(self) -> None:
        """Say goodbye to a broker that is there."""

    async def close(self) -> None:
        """Let go of everything, also of what was opened by half."""

    async def listen(self, key: str) -> None: ...
    def publish(self, hints: Sequence[Hint]) -> None: ...
    async def receive(self, limit: int) -> Sequence[Hint]: ...
    def ack(self, hints: Sequence[Hint]) -> None: ...


D = TypeVar("D", bound=Desk)


class DeskStream(Generic[D]):
    """A Stream whose desk does everything; without one there is nobody to tell, and nothing to lose."""

    _desk: D | None = None

    def _new_desk(self, me: str, queues: Sequence[str]) -> D:
        raise NotImplementedError

    async def open(self, me: str, queues: Sequence[str]) -> None:
        desk = self._new_desk(me, queues)
        try:
            await desk.open()
        except BaseException:
            await desk.close()
            raise
        self._desk = desk

    async def close(self) -> None:
        desk, self._desk = self._desk, None
        if desk is not None:
            try:
                await desk.leave()
            finally:
                await desk.close()

    @property
    def carries(self) -> bool:
        return self._desk is not None and not self._desk.health.trouble

    @property
    def trouble(self) -> str:
        return "" if self._desk is None else self._desk.health.trouble

    @property
    def lost(self) -> int:
        """What could not be sent since the stream was opened."""
        return 0 if self._desk is None else self._desk.sender.lost

    async def listen(self, key: str) -> None:
        if self._desk is not None:
            await self._desk.listen(key)

    async def publish(self, hints: Sequence[Hint]) -> None:
        if self._desk is not None:
            self._desk.publish(hints)

    async def receive(self, limit: int) -> Sequence[Hint]:
        if self._desk is None:
            raise UsageError("the stream is not open: nothing can be received")
        return await self._desk.receive(limit)

    async def ack(self, hints: Sequence[Hint]) -> None:
        if self._desk is not None:
            self._desk.ack(hints)
