"""Connections to one Redis, without the driver's pool: it asks a connection before each use whether it is well, and
makes a task of each write, which together take longer than the call itself.

Rules kept here: a connection is used by one call at a time; one that a call left in the middle is closed; one that the
server has closed meanwhile is not used again; one that was given up while it was in use is closed by whoever uses it;
to give up connections does not fail, for whoever does it has met a failure already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Word: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Word, ...]


class Wires:
    """As many connections to the server at `url` as are used at once; a call ends within `timeout` seconds."""

    def __init__(self, url: str, timeout: float, options: dict[str, Any]) -> None:
        # The limit of time is kept here, around a whole call.
        self._client: Redis = Redis.from_url(url, **options, socket_timeout=None, retry=Retry(NoBackoff(), 0))
        self._timeout = timeout
        self._free: list[Any] = []  # the driver's own type differs between its versions

    def make(self, **instead: Any) -> Any:
        """A connection for whoever keeps it, and closes it; perhaps to another place."""
        pool = self._client.connection_pool
        return pool.connection_class(**{**pool.connection_kwargs, **instead})

    async def ask(self, commands: Sequence[Command], **parsing: bool) -> list[Any]:
        """The answers, all in one round trip; where a command failed, its answer is the error."""
        free = self._free
        wire = await self._well(free) or self.make()
        whole = False
        try:
            async with asyncio.timeout(self._timeout):
                await wire.send_packed_command(wire.pack_commands(commands), check_health=False)
                answers = [await self._answer(wire, command, parsing) for command in commands]
            whole = True
        except TimeoutError as error:
            raise exceptions.TimeoutError(f"no answer in {self._timeout:g} s") from error
        finally:
            if whole and free is self._free:
                free.append(wire)
            else:
                await wire.disconnect(nowait=True)
        return answers

    async def _well(self, free: list[Any]) -> Any:
        """One that can be used again, if there is one. No question is asked: the end of a stream is known here."""
        while free:
            wire = free.pop()
            if not wire._reader.at_eof():
                return wire
            await wire.disconnect(nowait=True)
        return None

    async def _answer(self, wire: Any, command: Command, parsing: dict[str, bool]) -> Any:
        try:
            return await self._client.parse_response(wire, str(command[0]), **parsing)
        except exceptions.ResponseError as error:
            return error

    async def close(self) -> None:
        """Those in use are closed after it."""
        free, self._free = self._free, []
        for wire in free:
            # Where the loop is late, the driver finds that closing takes too long: it is closed nevertheless.
            with suppress(exceptions.RedisError, OSError):
                await wire.disconnect()
