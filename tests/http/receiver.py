"""A receiver of webhooks: a real server on the loopback that keeps what it gets and answers what it is told to."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec import Struct


class Got(Struct, frozen=True):
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """`answers` are statuses, or whole answers in bytes; the last is given for ever."""

    def __init__(self, answers: list[int | bytes]) -> None:
        self.answers = answers
        self.got: list[Got] = []
        self.port = 0
        self.asked_for: list[str | None] = []  # the names by which TLS asked for us
        self._news = asyncio.Condition()
        self.open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"

    async def until(self, count: int) -> list[Got]:
        async with self._news:
            await self._news.wait_for(lambda: len(self.got) >= count)
        return self.got

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            answer = self.answers[min(len(self.got), len(self.answers) - 1)]
            if isinstance(answer, int):
                answer = f"HTTP/1.1 {answer} Said\r\ncontent-length: 2\r\n\r\nok".encode()
            async with self._news:
                self.got.append(Got(line, headers, body))
                self._news.notify_all()
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever called has had enough
        finally:
            await closed(writer)
            self.open.discard(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def receiving(*answers: int | bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers) or [200])
    if tls is not None:
        tls.sni_callback = lambda _, name, __: receiver.asked_for.append(name)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver
        while receiver.open:  # what a caller broke off is soon noticed here
            await asyncio.sleep(0.01)
