"""Many callers, one write: whatever is ready goes into the next call. No timer, no minimum size."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar, cast

from perdure.core.behalf import for_everybody
from perdure.runtime.parting import in_parts

Q = TypeVar("Q")
A = TypeVar("A")


class _Place(NamedTuple, Generic[Q, A]):
    item: Q
    future: asyncio.Future[A]
    since: float


class Batch(Generic[Q, A]):
    """`await batch.put(item)` gives the item's answer; while one call is under way the next one fills up."""

    def __init__(self, write: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], limit: int = 400) -> None:
        self._write = write
        self._limit = limit
        self._waiting: list[_Place[Q, A]] = []
        self._flight: list[_Place[Q, A]] = []  # what is being written
        self._task: asyncio.Task[None] | None = None

    async def put(self, item: Q) -> A:
        return await self._placed(item)

    async def put_all(self, items: Sequence[Q]) -> list[A]:
        """Many of one caller, also in more than one call. Where some fail, the others are written all the same."""
        answers = await asyncio.gather(*map(self._placed, items), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return cast("list[A]", answers)

    def _placed(self, item: Q) -> asyncio.Future[A]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._waiting.append(_Place(item, future, loop.time()))
        if self._task is None or self._task.done():
            # It writes for all, and not only on behalf of whoever comes first.
            self._task = asyncio.create_task(self._flush(), name="perdure-batch", context=for_everybody())
        return future

    def __len__(self) -> int:
        """How many have no answer yet."""
        return len(self._flight) + len(self._waiting)

    @property
    def age(self) -> float:
        """For how many seconds the oldest of them has waited."""
        oldest = next(iter(self._flight or self._waiting), None)
        return 0.0 if oldest is None else asyncio.get_running_loop().time() - oldest.since

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            self._flight = batch
            try:
                await self._put_all(batch)
            finally:
                self._flight = []

    async def _put_all(self, batch: Sequence[_Place[Q, A]]) -> None:
        rest = deque(batch)
        try:
            async for answers in in_parts(self._write, [place.item for place in batch]):
                for answer in answers:
                    future = rest.popleft().future
                    if future.done():
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(_copy(answer))
                    else:
                        future.set_result(answer)
        except BaseException as error:
            for place in rest:
                if not place.future.done():
                    place.future.set_exception(_copy(error))
            raise


def _copy(error: BaseException) -> BaseException:
    """One instance per caller: a shared exception would collect everybody's traceback."""
    if isinstance(error, asyncio.CancelledError):
        return asyncio.CancelledError()
    try:
        copy = type(error)(*error.args)
    except TypeError:
        return error
    copy.__cause__ = error
    return copy
