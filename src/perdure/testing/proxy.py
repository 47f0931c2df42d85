"""A wire that can be cut: a TCP proxy between a client and a server, for tests of what a lost connection does.

async with Proxy("127.0.0.1", 5432) as proxy:
    connect_to(proxy.port)
    proxy.cut("reply")  # the next request gets through, its answer does not
"""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias

Cut: TypeAlias = Literal["request", "reply"]
_CHUNK = 1 << 16


class Proxy:
    """Passes everything on until it is told otherwise."""

    def __init__(self, host: str, port: int, at: int = 0) -> None:
        self._host = host
        self._port = port
        self._here = at  # any free port, if it is none
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: Cut | None = None
        self._at = b""
        self._through = asyncio.Event()
        self._through.set()
        self.delay = 0.0  # seconds before every chunk is passed on
        self.cuts = 0  # how often it was cut

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._here)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.sever()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self, where: Cut, at: bytes = b"") -> None:
        """End the connection at the next request that has these bytes: before it is passed on, or at its answer."""
        self._cut, self._at = where, at

    def swallow(self) -> None:
        """Pass nothing on any more, and say nothing: a network that has gone."""
        self._through.clear()

    def heal(self) -> None:
        self._through.set()

    def sever(self) -> None:
        """End all connections at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            away, there = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, writer, there)
        self._writers.update((writer, there))
        for task in (
            asyncio.create_task(link.pump(reader, there, requests=True)),
            asyncio.create_task(link.pump(away, writer, requests=False)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._ends = near, far
        self._reply_lost = False

    async def pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, requests: bool) -> None:
        proxy = self._proxy
        try:
            while data := await source.read(_CHUNK):
                if proxy.delay:
                    await asyncio.sleep(proxy.delay)
                await proxy._through.wait()
                if requests and proxy._cut is not None and proxy._at in data:
                    self._reply_lost = proxy._cut == "reply"
                    proxy._cut = None
                    proxy.cuts += 1
                    if not self._reply_lost:
                        break
                elif not requests and self._reply_lost:
                    break
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            for end in self._ends:
                end.transport.abort()
                proxy._writers.discard(end)
