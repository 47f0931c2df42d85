"""How a client asks: requests that are repeated until they are answered, and problems that become errors again.

Rules kept here: a request that may be repeated is repeated, after a server that is busy, restarts or cannot be reached,
for as long as the client is patient; whoever asks chooses ids before, so that repeating does nothing twice. What the
server refuses is raised as the error that the embedded application would raise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload
from urllib.parse import quote

import httpx
import msgspec
from msgspec import UNSET

from perdure import errors
from perdure.core.codec import encode
from perdure.core.durations import Duration, micros
from perdure.core.records import key_of
from perdure.core.tracing import HEADER
from perdure.errors import InvalidValue, OutcomeUnknown, PerdureError, RequestRefused, StoreUnavailable
from perdure.flows.bound import Problem as Mistake
from perdure.flows.current import traceparent
from perdure.http.problems import Problem
from perdure.runtime.names import Names

T = TypeVar("T")
_JSON = "application/json"
#: What stands for itself in a header.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
#: Answers that say: not now.
_LATER = (429, 502, 503, 504)
_FIRST, _LONGEST = 0.1, 3.0
#: Errors that say all that is wrong.
_WITH_PROBLEMS = (errors.DefinitionInvalid, errors.FormInvalid, errors.MigrationRefused)
#: Nothing was written if one of these happened.
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Door:
    """Requests to one API with one credential."""

    def __init__(
        self, url: str, token: str | None, timeout: float, patience: float, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self.url = url.rstrip("/")
        self.new_id = Names().new_id
        self._timeout = timeout
        self._patience = patience
        headers = {"accept": _JSON}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, into: type[T], patience: float = 0.0, **query: Any) -> T:
        """Ask; `patience` is how long the server may take over it by itself."""
        return _read(await self.ask("GET", path, patience=patience, **query), into)

    async def text(self, path: str, **query: Any) -> str:
        """Ask for something as it is, be it JSON or not."""
        return (await self.ask("GET", path, **query)).text

    async def post(
        self,
        path: str,
        body: Any,
        into: type[T],
        *,
        repeat: bool = True,
        media: str = _JSON,
        patience: float = 0.0,
        reason: str = "",
        **query: Any,
    ) -> T:
        """Do; `repeat` says that doing it twice is doing it once, `reason` is for the audit."""
        said: dict[str, Any] = {"repeat": repeat, "media": media, "patience": patience, "reason": reason}
        return _read(await self.ask("POST", path, body, **said, **query), into)

    async def put(self, path: str, body: Any, into: type[T], *, reason: str = "") -> T:
        return _read(await self.ask("PUT", path, body, reason=reason), into)

    async def patch(self, path: str, body: Any, into: type[T], *, reason: str = "") -> T:
        return _read(await self.ask("PATCH", path, body, reason=reason), into)

    async def delete(self, path: str, into: type[T], *, reason: str = "") -> T:
        return _read(await self.ask("DELETE", path, reason=reason), into)

    async def do(self, path: str, body: Any = None, *, reason: str = "") -> None:
        """Do something whose answer says nothing; twice is once."""
        await self.ask("POST", path, body, reason=reason)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        repeat: bool = True,
        media: str = _JSON,
        patience: float = 0.0,
        reason: str = "",
        **query: Any,
    ) -> httpx.Response:
        """The answer, if it is a good one; all others are raised."""
        data = None if body is None else encode(body)
        asked = {name: _said(value) for name, value in query.items() if value is not None and value is not UNSET}
        headers = {} if data is None else {"content-type": media}
        if reason:
            headers["x-reason"] = quote(reason, safe=_PLAIN)
        if trace := traceparent():
            headers[HEADER] = trace
        loop = asyncio.get_running_loop()
        until, pause, sent = loop.time() + self._patience, _FIRST, False
        while True:
            delay = 0.0
            try:
                answer = await self._http.request(
                    method, path, params=asked, content=data, headers=headers, timeout=self._timeout + patience
                )
                if answer.status_code < 400:
                    return answer
                failed = problem_of(answer)
                if answer.status_code not in _LATER:
                    raise failed
                delay = _delay(answer)
                may_repeat = repeat or answer.status_code == 429
            except httpx.TransportError as error:
                sent = sent or not isinstance(error, _NEVER_SENT)
                failed = self._lost(error, sent and method != "GET", repeat)
                may_repeat = repeat or not sent
            pause = min(pause * 2, _LONGEST)
            delay = max(delay, pause * random.uniform(0.5, 1.0))
            if not may_repeat or loop.time() + delay > until:
                raise failed
            await asyncio.sleep(delay)

    def _lost(self, error: httpx.TransportError, unknown: bool, repeat: bool) -> PerdureError:
        why = str(error) or type(error).__name__
        if unknown:
            then = "repeat it" if repeat else "look before you repeat it"
            return OutcomeUnknown(f"{self.url} did not answer ({why}): it may or may not have happened; {then}")
        return StoreUnavailable(f"{self.url} cannot be reached ({why}): is `perdure serve` running there?")

    @asynccontextmanager
    async def flow(self, path: str, last: int) -> AsyncIterator[httpx.Response]:
        """An answer that goes on."""
        headers = {"last-event-id": str(last), "accept": "text/event-stream"}
        timeout = httpx.Timeout(self._timeout, read=self._timeout + 30)
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.status_code >= 400:
                await answer.aread()
                raise problem_of(answer)
            yield answer


def _said(value: Any) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(one) for one in value]  # the parameter is repeated
    said = msgspec.to_builtins(value)
    return str(said).lower() if isinstance(said, bool) else str(said)


def _delay(answer: httpx.Response) -> float:
    said = answer.headers.get("retry-after", "")
    return float(said) if said.isdecimal() else 0.0


def path_of(*parts: str) -> str:
    """The path of these parts, each as it is; one that would lead elsewhere is refused."""
    for part in parts:
        if part in ("", ".", ".."):
            raise InvalidValue(f"{part!r} cannot be an id or a name")
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


@overload
def span(length: Duration) -> str: ...
@overload
def span(length: None) -> None: ...
@overload
def span(length: Duration | None) -> str | None: ...
def span(length: Duration | None) -> str | None:
    """A duration as the API reads it."""
    return length if length is None or isinstance(length, str) else f"{micros(length)}us"


def _read(answer: httpx.Response, into: type[T]) -> T:
    return msgspec.json.decode(answer.content, type=into)


def problem_of(answer: httpx.Response) -> PerdureError:
    """The error that an answer is."""
    try:
        told = msgspec.json.decode(answer.content, type=Problem)
    except msgspec.MsgspecError:
        text = f"{answer.request.url} answered {answer.status_code}: {answer.text[:200]}"
        return StoreUnavailable(text) if answer.status_code >= 500 else RequestRefused(text, answer.status_code)
    return error_of(told)


def error_of(told: Problem) -> PerdureError:
    """The error that a problem is: of the class that its title names, where that is one of ours."""
    kind = getattr(errors, told.title, None)
    if not (isinstance(kind, type) and issubclass(kind, PerdureError)):
        return (
            StoreUnavailable(told.detail) if told.status >= 500 else RequestRefused(told.detail, told.status, told.type)
        )
    error = kind.__new__(kind)
    error.args = (told.detail,)
    match error:
        case errors.ExecutionError():
            error.key = key_of("", told.execution) if told.execution else ""
        case errors.ExpressionError():
            error.position = None
        case _:
            pass
    if isinstance(error, _WITH_PROBLEMS):
        error.problems = msgspec.convert(told.problems, list[Mistake])
    return error
