"""How a client asks: requests that are repeated until they are answered, and problems that become errors again.

Rules kept here: a request that may be repeated is repeated, after a server that is busy, restarts or cannot be reached,
for as long as the client is patient; whoever asks chooses ids before, so that repeating does nothing twice. What the
server refuses is raised as the error that the embedded application would raise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import UNSET

from perdure import errors
from perdure.core.codec import encode
from perdure.core.records import key_of
from perdure.errors import OutcomeUnknown, PerdureError, RequestRefused, StoreUnavailable
from perdure.flows.bound import Problem as Mistake
from perdure.http.problems import Problem
from perdure.runtime.names import Names

T = TypeVar("T")
#: Answers that say: not now.
_LATER = (429, 502, 503, 504)
_FIRST, _LONGEST = 0.1, 3.0
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
        headers = {"accept": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, into: type[T], patience: float = 0.0, **query: Any) -> T:
        """Ask; `patience` is how long the server may take over it by itself."""
        return msgspec.json.decode(await self._ask("GET", path, query, None, patience), type=into)

    async def post(self, path: str, body: Any, into: type[T], *, repeat: bool = True, **query: Any) -> T:
        """Do; `repeat` says that doing it twice is doing it once."""
        return msgspec.json.decode(await self._ask("POST", path, query, body, 0.0, repeat), type=into)

    async def do(self, path: str, body: Any, *, method: str = "POST") -> None:
        """Do something that has no answer; twice is once."""
        await self._ask(method, path, {}, body, 0.0)

    async def _ask(
        self, method: str, path: str, query: Mapping[str, Any], body: Any, wait: float, repeat: bool = True
    ) -> bytes:
        data = None if body is None else encode(body)
        asked = {name: _said(value) for name, value in query.items() if value is not None and value is not UNSET}
        headers = {} if data is None else {"content-type": "application/json"}
        loop = asyncio.get_running_loop()
        until, pause, sent = loop.time() + self._patience, _FIRST, False
        while True:
            delay = 0.0
            try:
                answer = await self._http.request(
                    method, path, params=asked, content=data, headers=headers, timeout=self._timeout + wait
                )
                if answer.status_code < 400:
                    return answer.content
                failed = problem_of(answer)
                if answer.status_code not in _LATER:
                    raise failed
                delay = _delay(answer)
                may_repeat = repeat or answer.status_code == 429
            except httpx.TransportError as error:
                sent = sent or not isinstance(error, _NEVER_SENT)
                failed = self._lost(error, sent and method != "GET")
                may_repeat = repeat or not sent
            pause = min(pause * 2, _LONGEST)
            delay = max(delay, pause * random.uniform(0.5, 1.0))
            if not may_repeat or loop.time() + delay > until:
                raise failed
            await asyncio.sleep(delay)

    def _lost(self, error: httpx.TransportError, unknown: bool) -> PerdureError:
        why = str(error) or type(error).__name__
        if unknown:
            return OutcomeUnknown(f"{self.url} did not answer ({why}): it may or may not have happened; repeat it")
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


def _said(value: Any) -> str:
    said = msgspec.to_builtins(value)
    return str(said).lower() if isinstance(said, bool) else str(said)


def _delay(answer: httpx.Response) -> float:
    said = answer.headers.get("retry-after", "")
    return float(said) if said.isdecimal() else 0.0


def problem_of(answer: httpx.Response) -> PerdureError:
    """The error that a problem is: of the class that its title names, where that is one of ours."""
    try:
        told = msgspec.json.decode(answer.content, type=Problem)
    except msgspec.MsgspecError:
        text = f"{answer.request.url} answered {answer.status_code}: {answer.text[:200]}"
        return StoreUnavailable(text) if answer.status_code >= 500 else RequestRefused(text, answer.status_code)
    kind = getattr(errors, told.title, None)
    if not (isinstance(kind, type) and issubclass(kind, PerdureError)):
        if answer.status_code >= 500:
            return StoreUnavailable(told.detail)
        return RequestRefused(told.detail, told.status, told.type)
    error = kind.__new__(kind)
    error.args = (told.detail,)
    if issubclass(kind, errors.ExecutionError):
        error.key = key_of("", told.execution) if told.execution else ""  # type: ignore[attr-defined]
    if told.problems:
        error.problems = msgspec.convert(told.problems, list[Mistake])  # type: ignore[attr-defined]
    return error
