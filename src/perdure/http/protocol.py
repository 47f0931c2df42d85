"""HTTP on a socket, impatient: whoever connects has to say what they want within a time.

The server beneath waits for the rest of a request for as long as the other side likes. Rules kept here: a connection
that does not complete the headers of its next request in time is closed; what is no HTTP at all is answered with a
problem like any other mistake.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.http.problems import MEDIA, Refused, problem_of


class Impatient(H11Protocol):
    """`patience` is set by a subclass, as `impatient` makes them: seconds for the headers of a request."""

    patience = 15.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """The time runs while a request has not begun; it does not begin anew with every byte."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(self.patience, self._give_up)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:  # something came, but not all of it
            self._refuse(Refused(408, "Too Slow", f"the headers did not arrive within {self.patience:g} seconds"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refused(400, "Not HTTP", "this is no HTTP, or its headers are too large"))

    def _refuse(self, error: Refused) -> None:
        problem, _ = problem_of(error, "")
        body = msgspec.json.encode(problem)
        headers = [("content-type", MEDIA), ("content-length", str(len(body))), ("connection", "close")]
        parts: list[Any] = [h11.Response(status_code=error.status, headers=headers), h11.Data(body), h11.EndOfMessage()]
        self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))
        self.transport.close()


def impatient(seconds: float) -> type[Impatient]:
    return type("Impatient", (Impatient,), {"patience": seconds})
