"""Hints between processes that share a PostgreSQL database: LISTEN and NOTIFY on one connection of its own.

A notification takes a lock on the whole database when it commits, so there are few: work for a queue is only a nudge,
the same for everybody who serves it, and what is published while one statement is under way goes into the next. Rules
kept here: what this process serves itself never leaves it; publishing never waits and never raises; after a lost
connection everybody here is told to look, because nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import asyncpg
import msgspec
from msgspec import Struct

from perdure.core.behalf import for_everybody
from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.streams.inbox import Inbox

#: PostgreSQL takes payloads below 8,000 bytes.
PAYLOAD = 7_500
#: What waits to be sent while the server is away; beyond it the oldest are dropped.
WAITING = 10_000
#: Seconds of quiet after which the connection is tried.
QUIET = 30.0
#: Seconds without an answer after which the connection counts as lost.
SILENCE = 10
#: What the driver raises; the last but one it says of a connection that the server has just ended.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

log = logging.getLogger("perdure.streams")


class _Note(Struct, frozen=True, array_like=True):
    """What a notification says: queues to look at, then hints for workers, ends of executions and other news."""

    queues: list[str]
    hints: list[Hint]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Note).decode


class PostgresStream:
    """A Stream over the channel of a schema; an empty notification, as SQL can send, tells everybody to look."""

    def __init__(self, dsn: str, channel: str) -> None:
        self._dsn = dsn
        self._channel = channel
        self._inbox: Inbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._queues: dict[str, None] = {}  # to be nudged elsewhere
        self._hints: dict[Hint, None] = {}  # to be sent
        self._nudged: set[str] = set()  # queues whose nudge waits in the inbox
        self._bell = asyncio.Event()
        self._trouble = ""

    async def open(self, me: str, queues: Sequence[str]) -> None:
        self._inbox = Inbox(me, queues)
        listening = asyncio.Event()
        self._task = asyncio.create_task(
            self._carry(self._inbox, listening), name="perdure-notify", context=for_everybody()
        )
        await listening.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.close()

    @property
    def carries(self) -> bool:
        return False

    @property
    def trouble(self) -> str:
        return self._trouble

    async def listen(self, key: str) -> None:
        pass  # every end is told to everybody

    async def publish(self, hints: Sequence[Hint]) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        for hint in hints:
            here = inbox.wants(hint) and not hint.away
            if here:
                inbox.put(hint)
            if hint.ended or hint.news or (hint.to is not None and not here):
                self._hints[hint] = None
            elif hint.to is None and not here:
                self._queues[hint.queue] = None
        while len(self._hints) > WAITING:
            del self._hints[next(iter(self._hints))]
        if self._hints or self._queues:
            self._bell.set()

    async def receive(self, limit: int) -> Sequence[Hint]:
        if self._inbox is None:
            raise UsageError("the stream is not open: nothing can be received")
        hints = await self._inbox.take(limit)
        for hint in hints:
            if not hint.key and not hint.news:
                self._nudged.discard(hint.queue)
        return hints

    async def ack(self, hints: Sequence[Hint]) -> None:
        pass

    # The connection

    async def _carry(self, inbox: Inbox, listening: asyncio.Event) -> None:
        """Listen and send, for as long as the stream is open, over one connection after the other."""
        pause = 0.1
        while True:
            try:
                async with _connected(self._dsn) as connection:
                    connection.add_termination_listener(self._ended)
                    async with asyncio.timeout(SILENCE):
                        await connection.add_listener(self._channel, self._arrived)
                    if listening.is_set():
                        log.info("hints get through again")
                        self._look(inbox.queues)
                    self._trouble, pause = "", 0.1
                    listening.set()
                    while not connection.is_closed():
                        await self._send(connection)
                    raise ConnectionError("the connection has ended")
            except FAILURES as error:
                if not self._trouble:
                    log.warning("hints do not get through, which makes things slower: %s", error)
                self._trouble = f"{type(error).__name__}: {error}"
            except Exception:
                log.exception("carrying hints broke; going on")
                self._trouble = "carrying hints broke; the log has the error"
            listening.set()
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 5.0)

    async def _send(self, connection: Any) -> None:
        """Wait for something to send, or for a long quiet, and send all there is in one statement."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET):
                await self._bell.wait()
        self._bell.clear()
        queues, self._queues = list(self._queues), {}
        hints, self._hints = list(self._hints), {}
        async with asyncio.timeout(SILENCE):
            await connection.execute(
                "select pg_notify($1, payload) from unnest($2::text[]) payload",
                self._channel,
                list(payloads(queues, hints)),
            )

    def _ended(self, connection: Any) -> None:
        self._bell.set()

    def _arrived(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        inbox = self._inbox
        if inbox is None or pid == connection.get_server_pid():
            return
        if not payload:
            self._look(inbox.queues)
            return
        try:
            note = _decode(payload)
        except msgspec.MsgspecError as error:
            log.warning("a notification on %s cannot be read: %s", channel, error)
            return
        self._look(inbox.queues.intersection(note.queues))
        for hint in note.hints:
            if inbox.wants(hint):
                inbox.put(hint)

    def _look(self, queues: Iterable[str]) -> None:
        """Tell our own worker to look at these queues, unless it is told already."""
        assert self._inbox is not None
        for queue in queues:
            if queue not in self._nudged:
                self._nudged.add(queue)
                self._inbox.put(Hint("", queue))


@contextlib.asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Any]:
    connection: Any = await asyncpg.connect(
        dsn, timeout=SILENCE, server_settings={"application_name": "perdure hints", "jit": "off"}
    )
    try:
        yield connection
    finally:
        # Nothing is lost with it, so nobody waits for a polite end.
        connection.terminate()


def payloads(queues: Sequence[str], hints: Sequence[Hint]) -> Iterable[str]:
    """Notifications for all of it, each short enough. A hint that is too long by itself is dropped."""
    while queues or hints:
        size, took_queues, took_hints = 20, 0, 0
        for queue in queues:
            size += len(_encode(queue)) + 1
            if size > PAYLOAD:
                break
            took_queues += 1
        for hint in hints:
            size += len(_encode(hint)) + 1
            if size > PAYLOAD:
                break
            took_hints += 1
        if took_queues or took_hints:
            yield _encode(_Note(list(queues[:took_queues]), list(hints[:took_hints]))).decode()
        else:
            took_queues, took_hints = (1, 0) if queues else (0, 1)
        queues, hints = queues[took_queues:], hints[took_hints:]
