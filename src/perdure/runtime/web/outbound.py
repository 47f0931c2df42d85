"""`Outbound`: HTTP calls to addresses that strangers name.

    answer = await Outbound(hosts=["*.example.com"]).request("POST", "https://hooks.example.com/in", body=b"{}")

Rules kept here: where it connects is decided in `addresses`, once, and TLS still asks for the host by its name; nothing
is followed (an answer that leads elsewhere is an answer), nothing is unpacked, no proxy of the environment is used;
everything has a limit, of time or of bytes; headers that frame a request or sign it are ours alone. What must not be
sent raises OutboundRefused; what may go better next time raises External: Unreachable if nothing was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from perdure.core import signing
from perdure.core.tracing import HEADER
from perdure.errors import AnswerLate, External, OutboundRefused, Unreachable, UsageError
from perdure.flows.current import traceparent
from perdure.runtime.web.addresses import Resolve, Target, addresses_of, resolve_here, target_of

if TYPE_CHECKING:
    import h11

#: Seconds until there is a connection, and for the whole call; bytes of an answer.
CONNECT, TOTAL, MOST = 3.0, 30.0, 2_000_000
#: Of the addresses of a host, so many are tried.
_TRIES = 3
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE = re.compile(r"[\x20-\x7e\t]{0,8000}")
#: Those that say where a request begins, ends and goes, and how long a connection lives.
_OURS = {
    *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"),
    *("accept-encoding", "proxy-authorization", "proxy-authenticate", "proxy-connection"),
    *signing.HEADERS,
}


class Reply(Struct, frozen=True):
    """An answer as it came; the body is as long as it was sent, and not unpacked."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers if known == name.lower()), "")


class Outbound:
    """`resolve` and `tls` are for those who have a resolver or certificates of their own."""

    def __init__(
        self,
        hosts: Sequence[str] = (),
        private: bool = False,
        *,
        resolve: Resolve = resolve_here,
        tls: ssl.SSLContext | None = None,
        connect: float = CONNECT,
        total: float = TOTAL,
        most: int = MOST,
    ) -> None:
        self._hosts = tuple(hosts)
        self._private = private
        self._resolve = resolve
        self._tls = tls
        self._connect_within = connect
        self._total = total
        self._most = most

    def check(self, url: str) -> None:
        """Refuse what can be seen to be wrong before anything is resolved."""
        target_of(url, self._hosts, self._private)

    async def request(
        self,
        method: Method,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        signature: Mapping[str, str] | None = None,
    ) -> Reply:
        """Call, and give the answer whatever its status is; `signature` is what `signing.sign` made."""
        target = target_of(url, self._hosts, self._private)
        sent = [*_checked(headers or {}).items(), *(signature or {}).items()]
        if (trace := traceparent()) and all(name.lower() != HEADER for name, _ in sent):
            sent.append((HEADER, trace))
        try:
            async with asyncio.timeout(self._total):
                async with self._connected(target) as (reader, writer):
                    return await self._exchange(reader, writer, method, target, sent, body)
        except TimeoutError:
            raise AnswerLate(f"{target.host} took longer than {self._total:g} s to answer (outbound_timeout)") from None
        except (OSError, EOFError) as error:  # ssl.SSLError is an OSError
            raise External(f"the call to {target.host} broke off: {error or type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def _connected(self, target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            async with asyncio.timeout(self._connect_within):
                reader, writer = await self._connect(target)
        except TimeoutError:
            raise Unreachable(
                f"{target.host} cannot be reached within {self._connect_within:g} s (outbound_connect)"
            ) from None
        try:
            yield reader, writer
        finally:
            # Not closed in order: whoever answers slowly, or does not stop, would keep us.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _connect(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To one of the addresses that were looked at; the name is only for TLS."""
        context = (self._tls or _context()) if target.tls else None
        name = target.host if target.tls else None
        failure: OSError | None = None
        for address in (await addresses_of(target, self._private, self._resolve))[:_TRIES]:
            try:
                return await asyncio.open_connection(address, target.port, ssl=context, server_hostname=name)
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
        raise Unreachable(f"{target.authority} cannot be reached: {failure}") from failure

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: Method,
        target: Target,
        headers: Sequence[tuple[str, str]],
        body: bytes,
    ) -> Reply:
        h11 = _h11()
        http = h11.Connection(h11.CLIENT)
        framing = [("host", target.authority), ("content-length", str(len(body))), ("connection", "close")]
        request = h11.Request(
            method=method, target=target.path, headers=[*framing, ("accept-encoding", "identity"), *headers]
        )
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(part) or b"")
        await writer.drain()
        try:
            return await self._reply(http, reader, target.host)
        except h11.RemoteProtocolError as error:
            raise External(f"{target.host} does not speak HTTP: {error}") from error

    async def _reply(self, http: h11.Connection, reader: asyncio.StreamReader, host: str) -> Reply:
        h11 = _h11()
        status, body = 0, bytearray()
        headers: tuple[tuple[str, str], ...] = ()
        while True:
            event: Any = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._most:
                    raise External(f"the answer of {host} has more than {self._most:,} bytes (outbound_bytes)")
            elif isinstance(event, h11.EndOfMessage):
                return Reply(status, headers, bytes(body))
            elif not isinstance(event, h11.InformationalResponse):
                raise External(f"{host} hung up before it had answered")


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise OutboundRefused(
                f"the header {name[:80]!r} cannot be sent: it has characters that headers cannot have"
            )
        if name.lower() in _OURS:
            raise OutboundRefused(f"the header {name!r} cannot be set: it is the engine's own")
    return dict(headers)


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _h11() -> Any:
    try:
        import h11
    except ImportError:
        raise UsageError("outgoing calls need h11: pip install 'perdure[http]'") from None
    return h11
