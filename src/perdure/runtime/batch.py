"""Many callers, one write: whatever is ready goes into the next call. No timer, no minimum size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from perdure.errors import KeyringError

Q = TypeVar("Q")
A = TypeVar("A")


class Batch(Generic[Q, A]):
    """`await batch.put(item)` gives the item's answer; while one call is under way the next one fills up."""

    def __init__(self, write: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], limit: int = 400) -> None:
        self._write = write
        self._limit = limit
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._task: asyncio.Task[None] | None = None

    async def put(self, item: Q) -> A:
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush(), name="perdure-batch")
        return await future

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            await self._put_all(batch)

    async def _put_all(self, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._write([item for item, _ in batch])
        except BaseException as error:
            if isinstance(error, KeyringError) and len(batch) > 1:
                # One of them could not be sealed, so none was written: each for itself.
                for one in batch:
                    await self._put_all([one])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(_copy(error))
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


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
