"""HTTP on a socket, impatient: whoever connects has to say what they want within a time, and in few bytes.

The server beneath waits for the rest of a request for as long as the other side likes, and keeps headers of any length.
Rules kept here: a connection that does not complete the headers of its next request in time is closed; headers that are
too long are refused before they are complete; what is no HTTP at all is answered with a problem like any other mistake.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from perdure.http.edge import HEADER_BYTES
from perdure.http.problems import MEDIA, Refused, problem_of


class Impatient(HttpToolsProtocol):
    """`patience` is set by a subclass, as `impatient` makes them: seconds for the headers of a request."""

    patience = 15.0
    _waiting: asyncio.TimerHandle | None = None
    _heading = True  # the headers of the next request are not complete
    _bytes = 0  # of what has come of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._heading:
            self._bytes += len(data)
        super().data_received(data)
        if self._heading and self._bytes > HEADER_BYTES and not self.transport.is_closing():
            self._refuse(Refused(400, "Not HTTP", "this is no HTTP, or its headers are too large"))

    def on_headers_complete(self) -> None:
        parser: Any = self.parser
        if parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("another version of HTTP")  # the parser takes it for a mistake of the sender
        self._heading, self._bytes = False, 0
        self._unwatch()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._heading = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """The time runs while a request has not begun; it does not begin anew with every byte."""
        if self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(self.patience, self._give_up)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self._heading or self.transport.is_closing():
            return
        if self._bytes:  # something came, but not all of it
            self._refuse(Refused(408, "Too Slow", f"the headers did not arrive within {self.patience:g} seconds"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refused(400, "Not HTTP", "this is no HTTP, or its headers are too large"))

    def _refuse(self, error: Refused) -> None:
        problem, _ = problem_of(error, "")
        body = msgspec.json.encode(problem)
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: {MEDIA}\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()


def impatient(seconds: float) -> type[Impatient]:
    return type("Impatient", (Impatient,), {"patience": seconds})
