"""Connections to one Redis, so many at most, and scripts that run over them.

Rules kept here: a connection is used by one call at a time; one that a call left in the middle is closed; every call
ends within its time; nothing is repeated behind the caller's back, but for a script that the server did not know, of
which nothing was done.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from perdure.errors import OutcomeUnknown, StoreError
from perdure.stores.redis.address import Address
from perdure.stores.redis.trouble import FAILURES, lost, meaning, unreachable, word_of

Word: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Word, ...]

#: The number of the layout that the scripts are written for.
LAYOUT = 1
#: What goes before each script. A writer with a first line as theirs is refused as a whole where memory is full, where
#: the disk fails and on a replica; without one it would break at its first write. To keep a lease takes no room.
_WRITES = ("shared", "writing")
_PARTS: dict[str, tuple[str, ...]] = dict.fromkeys(("start", "send", "hold", "commit"), _WRITES)
_FLAGS = {"renew": " flags=allow-oom", "release": " flags=allow-oom"}
WRITERS = frozenset({*_PARTS, *_FLAGS, "claim", "open"})


@cache
def script(name: str) -> str:
    """The text of a script; those that only read say so, and run also where nothing can be written."""
    folder = files("perdure.stores.redis") / "scripts"
    parts = () if name == "open" else _PARTS.get(name, ("shared",))
    flags = _FLAGS.get(name, "") if name in WRITERS else " flags=no-writes"
    return f"#!lua{flags}\n" + "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (*parts, name))


@cache
def digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Wires:
    """At most `limit` connections to the server of an address."""

    def __init__(self, address: Address, limit: int) -> None:
        self._address = address
        # The limit of time is kept here, around a whole call.
        self._client: Redis = Redis.from_url(
            address.url,
            protocol=2,  # the shape of answers that every version of the driver knows
            socket_timeout=None,
            socket_connect_timeout=address.timeout,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        self._free: list[Any] = []  # the driver's own type differs between its versions
        self._places = asyncio.Semaphore(limit)
        self._closed = False

    async def run(self, name: str, *words: Word, wait: Sequence[Command] = ()) -> Any:
        """Run a script; `wait` is what the server is asked for before it is taken for done."""
        text, rest = script(name), (1, self._address.keys, *words)
        writes = name in WRITERS
        [answer, *told] = await self.ask([("EVALSHA", digest(text), *rest), *wait], writes)
        if word_of(answer) == "NOSCRIPT":  # a server that has restarted, or that sees it for the first time
            [answer, *told] = await self.ask([("EVAL", text, *rest), *wait], writes)
        for one in (answer, *told):
            if isinstance(one, exceptions.RedisError):
                raise meaning(one, self._address.place, writes, LAYOUT) from one
        if told:
            self._confirmed(told[-1])
        return answer

    def _confirmed(self, told: int | Sequence[int]) -> None:
        """WAIT answers how many replicas have it; WAITAOF how many files here, and there."""
        have = told if isinstance(told, int) else told[-1]
        if have < self._address.replicas:
            raise OutcomeUnknown(
                f"{self._address.place}: the write was done there, but only {have} of {self._address.replicas} replicas"
                " confirmed it in time, so a failover may lose it; repeat the call with the same ids, and look after"
                " the replicas (they need an append-only file as well)"
            )

    async def ask(self, commands: Sequence[Command], writes: bool) -> list[Any]:
        """The answers, all in one round trip; where the server refused a command, its answer is the error."""
        async with self._places:
            wire = await self._well() or await self._connected()
            whole = False
            try:
                async with asyncio.timeout(self._address.timeout):
                    await wire.send_packed_command(wire.pack_commands(commands), check_health=False)
                    answers = [await _answer(wire) for _ in commands]
                whole = True
            except (TimeoutError, *FAILURES) as error:
                raise meaning(error, self._address.place, writes, LAYOUT) from error
            finally:
                if whole and not self._closed:
                    self._free.append(wire)
                else:
                    await wire.disconnect(nowait=True)
            return answers

    async def plain(self, *commands: Command) -> list[Any]:
        """Commands that only read, none of which may fail."""
        answers = await self.ask(commands, writes=False)
        for one in answers:
            if isinstance(one, exceptions.RedisError):
                raise meaning(one, self._address.place, False, LAYOUT) from one
        return answers

    async def _connected(self) -> Any:
        pool = self._client.connection_pool
        wire: Any = pool.connection_class(**pool.connection_kwargs)
        try:
            async with asyncio.timeout(self._address.timeout):
                await wire.connect()
        except (TimeoutError, *FAILURES) as error:
            await wire.disconnect(nowait=True)
            raise unreachable(error, self._address.place) from error
        except BaseException:
            await wire.disconnect(nowait=True)
            raise
        return wire

    async def _well(self) -> Any:
        """One that can be used again, if there is one. No question is asked: the end of a stream is known here."""
        while self._free:
            wire = self._free.pop()
            if not wire._reader.at_eof() and wire._reader.exception() is None:
                return wire
            await wire.disconnect(nowait=True)
        return None

    async def close(self) -> None:
        """Those in use, and those that calls under way still make, are closed after it."""
        self._closed = True
        while self._free:
            await self._free.pop().disconnect()


async def _answer(wire: Any) -> Any:
    try:
        return await wire.read_response()
    except exceptions.RedisError as error:
        if lost(error):
            raise
        return error


def closed(place: str) -> StoreError:
    return StoreError(f"{place}: the store is not open: await store.open() first, and do not use it after close()")
