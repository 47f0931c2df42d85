"""Health and metrics over HTTP, on a port of their own.

Runs in the thread beside the worker's loop, so it answers also when that loop does not. Rules kept here: it reads and
never changes anything; a request is small and quick or it is refused; the store is asked at most once a second however
often somebody asks us; nothing of a payload is ever shown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from perdure.core.records import Backlog
from perdure.errors import SettingsError
from perdure.ports import Stream
from perdure.runtime.telemetry.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger("perdure.health")
#: Seconds: how long the store may take, how often it is asked, and how old an answer about its queues may be.
LIMIT, EVERY, BACKLOG_EVERY = 2.0, 1.0, 5.0
#: What a request may take: bytes of its head, seconds until it is complete, connections at once.
HEAD, PATIENCE, CONNECTIONS = 8192, 5.0, 64
#: Never the key of an execution: ids are not empty.
NOBODY = "/"

Status = Literal["ready", "degraded", "live", "stalled"]


class Report(Struct, frozen=True):
    """ready: all is well. degraded: works, but slower. live: takes no work now. stalled: its loop stands still."""

    status: Status
    reasons: list[str]
    worker: str
    holds: int
    attempts: int
    encrypted: bool = False  # whether there is a key ring


class Answering(Protocol):
    """The part of a store that tells whether it answers."""

    async def head(self, key: str) -> Any: ...


class Asked(Answering, Protocol):
    """The part of a store that is asked here."""

    async def now(self) -> int: ...
    async def backlog(self) -> list[Backlog]: ...


class Floor(Protocol):
    """What this needs of the worker."""

    me: str
    metrics: Metrics
    draining: bool

    @property
    def residents(self) -> Mapping[str, object]: ...


class Pulse(Protocol):
    """For how long the worker's loop has stood still."""

    @property
    def stalled(self) -> float: ...


class Probe:
    """Whether a store answers. Its clock would not do: stores tell the time without a look at what they keep."""

    def __init__(self, store: Answering) -> None:
        self._store = store
        self._probing = asyncio.Lock()
        self._at = float("-inf")
        self._trouble = ""

    async def trouble(self) -> str:
        """Why it does not; empty if it does."""
        async with self._probing:
            if time.monotonic() - self._at >= EVERY:
                answer = await _limited(self._store.head(NOBODY))
                self._trouble = "" if answer is None else str(answer)
                self._at = time.monotonic()
            return self._trouble


class Checks:
    """How the worker is, and why."""

    def __init__(self, floor: Floor, stream: Stream, store: Asked, pulse: Pulse) -> None:
        self._floor = floor
        self._stream = stream
        self._store = store
        self._pulse = pulse
        self._probe = Probe(store)
        self._counted_at = float("-inf")

    def live(self) -> bool:
        return not self._pulse.stalled

    async def report(self) -> Report:
        floor = self._floor
        stalled = self._pulse.stalled
        unreachable = "" if stalled else await self._probe.trouble()  # a store without a twin needs that loop
        reasons = {
            f"event loop: it has not run for {stalled:.0f} s": bool(stalled),
            f"store: {unreachable}": bool(unreachable),
            "draining": floor.draining,
            f"stream: {self._stream.trouble}": bool(self._stream.trouble),
        }
        status: Status = "ready"
        if stalled:
            status = "stalled"
        elif unreachable or floor.draining:
            status = "live"
        elif self._stream.trouble:
            status = "degraded"
        running = int(floor.metrics.attempts.read())
        told = [text for text, so in reasons.items() if so]
        sealed = getattr(self._stream, "seals", None) is not None  # with the stream everything is
        return Report(status, told, floor.me, len(floor.residents), running, sealed)

    async def metrics(self) -> str:
        """With what waits in the queues, unless the store cannot tell."""
        if time.monotonic() - self._counted_at >= BACKLOG_EVERY:
            self._counted_at = time.monotonic()
            backlogs, now = await _limited(self._store.backlog()), await _limited(self._store.now())
            if isinstance(backlogs, list) and isinstance(now, int):
                self._floor.metrics.waiting(backlogs, now)
            else:
                self._floor.metrics.waiting([], 0)
        return self._floor.metrics.text()


async def _limited(asking: Awaitable[Any]) -> Any:
    """The answer, or the error that came instead."""
    try:
        async with asyncio.timeout(LIMIT):
            return await asking
    except TimeoutError:
        return TimeoutError(f"no answer within {LIMIT:g} s")
    except Exception as error:
        return error


class Responder:
    """As much of an HTTP/1.1 server as a probe and a scraper need: GET, one answer, and the connection is closed."""

    def __init__(self, checks: Checks, me: str) -> None:
        self._checks = checks
        self._me = me
        self._server: asyncio.Server | None = None
        self._busy = 0

    async def open(self, address: str) -> int:
        """Gives the port, which may have been left to the system."""
        host, port = parse(address)
        try:
            self._server = await asyncio.start_server(self._serve, host or None, port, limit=HEAD)
        except OSError as error:
            raise SettingsError(
                f"health checks cannot be answered on {address}: {error.strerror or error}; choose another address, or"
                " leave `health` empty"
            ) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        log.info("health and metrics on http://%s:%s", host or "0.0.0.0", bound, extra={"worker": self._me})
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._busy += 1
        try:
            if self._busy <= CONNECTIONS:
                async with asyncio.timeout(PATIENCE):
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                async with asyncio.timeout(PATIENCE):
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a request, or not one that anybody waits for
        finally:
            self._busy -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(400, "this is not HTTP/1.1\n")
        if words[0] != "GET":
            return _response(405, "only GET\n", extra="Allow: GET\r\n")
        match words[1].partition("?")[0]:
            case "/live":
                return _response(200, "live\n") if self._checks.live() else _response(503, "stalled\n")
            case "/ready":
                report = await self._checks.report()
                return _response(_code(report), "".join(f"{line}\n" for line in (report.status, *report.reasons)))
            case "/health":
                report = await self._checks.report()
                return _response(_code(report), msgspec.json.encode(report).decode(), "application/json")
            case "/metrics":
                return _response(200, await self._checks.metrics(), CONTENT_TYPE)
            case _:
                return _response(404, "there are /live, /ready, /health and /metrics\n")


_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def _code(report: Report) -> int:
    return 200 if report.status in ("ready", "degraded") else 503


def _response(code: int, body: str, kind: str = "text/plain; charset=utf-8", extra: str = "") -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
        f"Cache-Control: no-store\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode() + data


def parse(address: str) -> tuple[str, int]:
    """Host and port of an address; the host may be left out, and is then every one of this machine.

    >>> parse("127.0.0.1:9464"), parse(":9464"), parse("[::1]:0")
    (('127.0.0.1', 9464), ('', 9464), ('::1', 0))
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"health is an address such as 127.0.0.1:9464, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def shifted(address: str, by: int) -> str:
    """The address of another worker of the same host: its port is `by` higher. A free port (0) stays one.

    >>> shifted("127.0.0.1:9464", 2)
    '127.0.0.1:9466'
    """
    _, port = parse(address)
    if port + by > 65535:
        raise SettingsError(f"there is no port {port} + {by} for the health of worker process {by + 1}")
    return f"{address.rpartition(':')[0]}:{port + by if port else 0}"
