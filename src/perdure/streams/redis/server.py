"""One line to Redis or to a Redis Cluster, with the few verbs that are needed here, and why they failed.

Rules kept here: every call ends within the timeout of its line; nothing is repeated behind the caller's back; a line
that was hung up, or is on another event loop by now, connects anew with the next call. Who hangs up does not cut others
short: the last one to use a line closes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from perdure.streams.redis.wires import Command, Wires, Word

#: What a call raises when Redis could not do it.
FAILURES = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
#: What no waiting mends.
REFUSALS = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)
#: How long to wait for a connection to be made.
CONNECT = 2.0
#: Connections to one node of a cluster: each stream that is read has one, and the driver has a limit of its own.
ANY = 2**31 - 1


class Server:
    """A line to the server at `url`; `redis+cluster://` and `rediss+cluster://` are clusters."""

    def __init__(self, url: str, timeout: float) -> None:
        scheme, _, rest = url.partition("://")
        self.cluster = scheme.endswith("+cluster")
        self._url = f"{scheme.removesuffix('+cluster')}://{rest}"
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()
        parts = urlsplit(self._url)
        self.place = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"

    def _begin(self) -> None:
        self._wires = Wires(self._url, self._timeout, _options(self._timeout))
        self._client: RedisCluster | None = None
        self._users: Counter[RedisCluster] = Counter()
        self._connecting = asyncio.Lock()

    def _here(self) -> None:
        """What was connected on an earlier event loop can neither be used nor closed on this one."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            if self._loop is not None:
                self._begin()
            self._loop = loop

    async def call(self, *command: Word, key: str | None = None, **parsing: bool) -> Any:
        """Do one command. A command whose key is not its first word needs the key named, for clusters.

        `parsing` are the driver's options for reading the answer.
        """
        self._here()
        if not self.cluster:
            [answer] = await self._wires.ask([command], **parsing)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        client = self._client or await self._connect()
        if key is not None:
            node = client.get_node_from_key(key)
            return await self._use(client, client.execute_command(*command, target_nodes=node, **parsing))
        return await self._use(client, client.execute_command(*command, **parsing))

    async def many(self, commands: Sequence[Command]) -> list[Any]:
        """Do many commands in one round trip; where one failed, its answer is the error."""
        self._here()
        if not self.cluster:
            return await self._wires.ask(commands)
        client = self._client or await self._connect()
        pipeline: Any = client.pipeline()
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await self._use(client, pipeline.execute(raise_on_error=False))
        return answers

    async def listener(self) -> Any:
        """A connection to subscribe on; in a cluster news is told to every node, so any of them will do."""
        self._here()
        if not self.cluster:
            return self._wires.make()
        node = (self._client or await self._connect()).get_random_node()
        return self._wires.make(host=node.host, port=node.port)

    async def hang_up(self) -> None:
        """Close what is not in use. It does not fail: it is what is done about failures."""
        self._here()
        await self._wires.close()
        client, self._client = self._client, None
        if client is not None:
            await self._close_unused(client)

    async def _use(self, client: RedisCluster, asked: Awaitable[Any]) -> Any:
        """Ask. A client that is closed under a call, while it connects, fails in ways of its own or is never closed."""
        self._users[client] += 1
        try:
            return await _heeding_cancel(asked)
        finally:
            self._users[client] -= 1
            if client is not self._client:
                await self._close_unused(client)

    async def _close_unused(self, client: RedisCluster) -> None:
        if not self._users[client]:
            del self._users[client]
            with suppress(*FAILURES):
                await client.aclose()

    async def _connect(self) -> RedisCluster:
        async with self._connecting:
            if self._client is None:
                self._client = await self._clustered()
            return self._client

    async def _clustered(self) -> RedisCluster:
        # A cluster that has moved a slot answers with the new place; following it is the one repetition.
        limits = {"socket_timeout": self._timeout, "retry": Retry(NoBackoff(), 1), "max_connections": ANY}
        client = RedisCluster.from_url(self._url, **_options(self._timeout), **limits)
        try:
            await client.initialize()
        except BaseException:
            await client.aclose()
            raise
        return client


def _options(timeout: float) -> dict[str, Any]:
    return {
        "protocol": 2,  # the shape of answers that every version of the driver knows
        "socket_connect_timeout": min(timeout, CONNECT),
        "socket_keepalive": True,
    }


async def _heeding_cancel(asked: Awaitable[Any]) -> Any:
    """Python 3.11 swallows a cancel that meets the end of a write: it is not forgotten."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    answer = await asked
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return answer


async def end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended, for one that misses a cancel goes into the next blocked read."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.05)


def vanished(error: BaseException) -> bool:
    """Whether a stream or its group is gone: somebody flushed or deleted it, or it expired."""
    return isinstance(error, exceptions.ResponseError) and str(error).startswith(("NOGROUP", "UNBLOCKED"))


def misused(error: BaseException) -> bool:
    """Whether a key of ours holds something that is not ours."""
    return isinstance(error, exceptions.ResponseError) and str(error).startswith("WRONGTYPE")


def refused(error: BaseException) -> bool:
    """Whether the server does not let us in."""
    return isinstance(
        error, exceptions.AuthenticationError | exceptions.AuthorizationError | exceptions.NoPermissionError
    )


def explain(error: BaseException, place: str) -> str:
    """A sentence on what is wrong, and what to do where something can be done."""
    match error:
        case _ if vanished(error):
            return f"the streams in Redis at {place} have vanished; they are made anew"
        case _ if misused(error):
            return f"a key of Perdure in Redis at {place} holds something else: delete it, or use another prefix"
        case _ if refused(error):
            return f"Redis at {place} refuses us ({error}): mend the name, the password or the rights"
        case exceptions.OutOfMemoryError():
            return f"Redis at {place} has no memory left: raise maxmemory, or find out what fills it"
        case exceptions.ReadOnlyError():
            return f"Redis at {place} is a replica and cannot be written"
        case exceptions.AskError():  # also a MOVED
            return f"Redis at {place} is a node of a cluster: write redis+cluster:// in its address"
        case exceptions.TimeoutError():
            return f"Redis at {place} does not answer"
        case exceptions.ConnectionError() | OSError():
            return f"Redis at {place} cannot be reached ({error})"
        case _:
            return f"Redis at {place} answers with an error ({error})"
