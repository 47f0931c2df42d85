"""What the tests of the RabbitMQ adapter share: streams that are closed again, and a look from outside."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pamqp import commands

from perdure.core.records import Hint
from perdure.streams.rabbitmq import RabbitStream
from perdure.streams.rabbitmq.address import read_address
from perdure.streams.rabbitmq.names import Names
from perdure.streams.rabbitmq.wire import FAILURES, Letter, Wire
from perdure.testing.servers.rabbitmq import new_prefix

ONE = Hint("acme/one", "default")
TWO = Hint("acme/two", "default")


class World:
    """Streams of one prefix on one broker, and a connection beside them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = new_prefix()
        self.names = Names(self.prefix)
        self._opened: list[RabbitStream] = []
        self._line: Wire | None = None

    async def open(self, me: str, *queues: str, url: str = "", **options: Any) -> RabbitStream:
        stream = RabbitStream(url or self.url, **{"prefix": self.prefix, **options})
        await stream.open(me, queues)
        self._opened.append(stream)
        return stream

    async def die(self, stream: RabbitStream) -> None:
        """As if the process had been killed: it says goodbye to nobody."""
        desk, stream._desk = stream._desk, None
        assert desk is not None
        await desk.close()

    async def close(self) -> None:
        for stream in self._opened:
            await stream.close()
        if self._line is not None:
            await self._line.close()

    # From outside

    async def line(self) -> Wire:
        if self._line is None or self._line.ended.done():
            self._line = Wire(read_address(self.url), self, 60)
            await self._line.open()
            await self._line.ask(commands.Confirm.Select())
        return self._line

    async def ask(self, *calls: Any) -> list[Any]:
        return await (await self.line()).ask(*calls)

    async def waiting(self, queue: str = "default") -> int:
        """Messages that nobody has been given."""
        [found] = await self.ask(commands.Queue.Declare(queue=self.names.queue(queue), passive=True))
        return int(found.message_count)

    async def there(self, name: str) -> bool:
        try:
            await self.ask(commands.Queue.Declare(queue=name, passive=True))
        except FAILURES:
            return False
        return True

    async def post(self, word: str, body: bytes, queue: str | None = None) -> list[Letter]:
        return await (await self.line()).fly(self.names.exchange, [Letter(word, body, queue)])

    def arrived(self, consumer: str, tag: int, body: bytes) -> None:
        pass

    def blocked(self, reason: str) -> None:
        pass


def play(url: str, body: Callable[[World], Awaitable[None]], limit: float = 40) -> None:
    async def scenario() -> None:
        world = World(url)
        try:
            await asyncio.wait_for(body(world), limit)
        finally:
            await world.close()

    asyncio.run(scenario())


async def got(stream: RabbitStream, count: int = 1, limit: float = 20) -> list[Hint]:
    """Receive and ack so many hints that are not just a call to look."""
    hints: list[Hint] = []
    async with asyncio.timeout(limit):
        while len(hints) < count:
            received = await stream.receive(count)
            await stream.ack(received)
            hints += [hint for hint in received if hint.key]
    return hints


async def told_to_look(stream: RabbitStream, queue: str = "default", limit: float = 20) -> list[Hint]:
    """Wait for the call to look, and return what came until then."""
    came: list[Hint] = []
    async with asyncio.timeout(limit):
        while Hint("", queue) not in came:
            came += await stream.receive(100)
    return came


async def until(true: Callable[[], Any], limit: float = 20) -> None:
    """Wait for something that the adapter does by itself."""
    deadline = time.monotonic() + limit
    while True:
        answer = true()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


def certificate_for_loopback(folder: Path) -> tuple[Path, Path]:
    """A certificate that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "perdure tests")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    there = folder / "certificate.pem", folder / "key.pem"
    there[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    there[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return there
