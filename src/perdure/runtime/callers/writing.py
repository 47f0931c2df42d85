"""Starts and mail on their way into the store: those of many callers share one write, and hints follow it.

A write that is part of a caller's transaction goes on the caller's connection, alone and without a hint: nobody could
see yet what the hint is about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from perdure.core.records import Hint, Mail, Sent, Start, Started, is_external
from perdure.errors import UsageError
from perdure.ports import Joining, Store, Stream
from perdure.runtime.callers.batch import Batch
from perdure.runtime.external.watch import news_of_task
from perdure.runtime.telemetry.metrics import Counter

Q = TypeVar("Q")
A = TypeVar("A")

#: Letters, or starts, of one caller that share a transaction.
MOST = 1000


class Writes:
    """`grace` tells how long new work may wait for its hint to arrive; `group` how many share one write."""

    starts: Batch[Start, Started]
    sends: Batch[Mail, Sent]

    def __init__(self, store: Store, stream: Stream, grace: Callable[[], int], group: int) -> None:
        self._store = store
        self._stream = stream
        self._grace = grace
        self._group = group
        self.accepted = Counter(
            "perdure_accepted_total",
            "what this process has written for callers: executions started, and messages (events, and requests such as"
            " cancel); what was there already is not counted again",
            "what",
            ("execution", "message"),
        )
        self.open()

    def open(self) -> None:
        """Begin anew: what waited on an event loop that is gone is gone with it."""
        self.starts = Batch(self._write_starts, self._group)
        self.sends = Batch(self._write_sends, self._group)

    def crowded(self, most: int, patience: float) -> str:
        """Why nobody should add to what waits for the store; empty while there is no reason."""
        if (waiting := self.waiting) >= most:
            return f"{waiting:,} writes wait for the store"
        age = max(self.starts.age, self.sends.age)
        return f"a write has waited for {age:.1f} s for the store" if age > patience else ""

    @property
    def waiting(self) -> int:
        """How many starts and messages wait for the store."""
        return len(self.starts) + len(self.sends)

    def joining(self) -> Joining:
        """The store, as one that writes in a transaction of the caller's."""
        if not isinstance(self._store, Joining):
            raise UsageError("connection= needs a store on PostgreSQL, the database of that connection")
        return self._store

    async def send_all(self, letters: Sequence[Mail]) -> list[Sent]:
        """Letters of one caller. Few share a write with those of others; many have writes of their own."""
        if len(letters) <= self._group:
            return await self.sends.put_all(letters)
        return await self.send_in_order(letters)

    async def send_in_order(self, letters: Sequence[Mail]) -> list[Sent]:
        """Letters of one caller for one mailbox: none is written after one that could not be."""
        return await _by_parts(self._write_sends, letters)

    async def start_all(self, starts: Sequence[Start]) -> list[Started]:
        """Starts of one caller. Few share a write with those of others; many have writes of their own."""
        if len(starts) <= self._group:
            return await self.starts.put_all(starts)
        return await _by_parts(self._write_starts, starts)

    async def _write_starts(self, starts: Sequence[Start]) -> Sequence[Started]:
        answers = await self._store.start(starts, self._grace())
        self.accepted.add("execution", answers.count("created"))
        fresh = [
            news_of_task(start) if is_external(start.queue) else Hint(start.key, start.queue)
            for start, answer in zip(starts, answers, strict=True)
            if answer == "created"
        ]
        await self._stream.publish(fresh)
        return answers

    async def _write_sends(self, letters: Sequence[Mail]) -> Sequence[Sent]:
        answers = await self._store.send(letters, self._grace())
        self.accepted.add("message", sum(sent.answer == "accepted" for sent in answers))
        hints = {
            letter.key: Hint(letter.key, sent.queue, sent.holder)
            for letter, sent in zip(letters, answers, strict=True)
            if sent.answer == "accepted" and not is_external(sent.queue)
        }
        await self._stream.publish(list(hints.values()))
        return answers


async def _by_parts(write: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], items: Sequence[Q]) -> list[A]:
    answers: list[A] = []
    for first in range(0, len(items), MOST):
        answers += await write(items[first : first + MOST])
    return answers
