"""Hints between processes that share a PostgreSQL database: LISTEN and NOTIFY on one connection of its own.

A notification takes a lock on the whole database when it commits, so there are few: what is published while one
statement is under way goes into the next. Rule kept here: after a lost connection everybody here is told to look,
because nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import asyncpg

from perdure.core.behalf import for_everybody
from perdure.streams.board import Board, BoardStream, Note, encode

#: PostgreSQL takes payloads below 8,000 bytes.
PAYLOAD = 7_500
#: Seconds of quiet after which the connection is tried.
QUIET = 30.0
#: Seconds without an answer after which the connection counts as lost.
SILENCE = 10
#: What the driver raises; the last but one it says of a connection that the server has just ended.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

log = logging.getLogger("perdure.streams")


class PostgresStream(BoardStream):
    """A Stream over the channel of a schema; an empty notification, as SQL can send, tells everybody to look."""

    def __init__(self, dsn: str, channel: str) -> None:
        self._dsn = dsn
        self._channel = channel
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

    async def open(self, me: str, queues: Sequence[str]) -> None:
        self._board = Board(me, queues)
        listening = asyncio.Event()
        self._task = asyncio.create_task(
            self._carry(self._board, listening), name="perdure-notify", context=for_everybody()
        )
        await listening.wait()

    async def close(self) -> None:
        if self._board is not None and not self._trouble:
            await self._board.farewell()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        board, self._board = self._board, None
        if board is not None:
            board.close()

    @property
    def trouble(self) -> str:
        return self._trouble

    # The connection

    async def _carry(self, board: Board, listening: asyncio.Event) -> None:
        """Listen and send, for as long as the stream is open, over one connection after the other."""
        pause = 0.1
        while True:
            try:
                async with _connected(self._dsn) as connection:
                    connection.add_termination_listener(lambda _: board.bell.set())
                    async with asyncio.timeout(SILENCE):
                        await connection.add_listener(self._channel, self._arrived)
                    if listening.is_set():
                        log.info("hints get through again")
                        board.look()
                    self._trouble = ""
                    listening.set()
                    while not connection.is_closed():
                        await self._send(connection, board)
                        pause = 0.1
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

    async def _send(self, connection: Any, board: Board) -> None:
        """Wait for something to send, or for a long quiet, and send all there is in one statement."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET):
                await board.bell.wait()
        try:
            async with asyncio.timeout(SILENCE):
                await connection.execute(
                    "select pg_notify($1, payload) from unnest($2::text[]) payload",
                    self._channel,
                    list(payloads(board.take())),
                )
        finally:
            board.sent()

    def _arrived(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        board = self._board
        if board is None or pid == connection.get_server_pid():
            return
        if payload:
            board.arrived(payload)
        else:
            board.look()


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


def payloads(note: Note) -> Iterable[str]:
    """Notifications for all of it, each short enough. A hint that is too long by itself is dropped."""
    queues, hints = note.queues, note.hints
    while queues or hints:
        size, took_queues, took_hints = 20, 0, 0
        for queue in queues:
            size += len(encode(queue)) + 1
            if size > PAYLOAD:
                break
            took_queues += 1
        for hint in hints:
            size += len(encode(hint)) + 1
            if size > PAYLOAD:
                break
            took_hints += 1
        if took_queues or took_hints:
            yield encode(Note(queues[:took_queues], hints[:took_hints])).decode()
        else:
            took_queues, took_hints = (1, 0) if queues else (0, 1)
        queues, hints = queues[took_queues:], hints[took_hints:]
