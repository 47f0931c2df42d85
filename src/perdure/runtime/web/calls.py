"""Calls of documents, made: over the application's own way out, with credentials, redirects and descriptions of APIs.

Rules kept here: every address, also one that a redirect leads to, is looked at by `outbound`; whatever goes wrong is
told as problem details; only what certainly never left is External, and so tried again by the action; an answer that
repeats a credential is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure.core.calls import HttpCall, OpenApiCall, problem
from perdure.core.encoding import digest
from perdure.errors import (
    ActionError,
    AnswerLate,
    External,
    InvalidValue,
    OutboundRefused,
    Permanent,
    SecretExposed,
    Unreachable,
)
from perdure.flows import calls as actions  # noqa: F401 - every worker has them, whatever it has seen
from perdure.flows.current import Attempt
from perdure.flows.reading import description, read
from perdure.runtime.web.credentials import Credentials, House, Issuing, Kept, answered
from perdure.runtime.web.operations import placed
from perdure.runtime.web.outbound import Reply
from perdure.runtime.web.requests import Known, Wire, output_of, shown_address, wire_of

#: Redirects of one call; how long a description of an API is kept (microseconds), and how many of them are.
HOPS, KEPT_FOR, DOCUMENTS = 5, 60_000_000, 20
#: A shorter value could not be told from other text.
_SHORTEST = 4


class Calls:
    """See the module."""

    def __init__(self, house: House, description_bytes: int) -> None:
        self._house = house
        self._issuing = Issuing(house)
        self._documents = Kept(DOCUMENTS)
        self._most = description(description_bytes)

    async def http(self, call: HttpCall, attempt: Attempt) -> Any:
        with _told():
            return await self._call(call, attempt)

    async def openapi(self, call: OpenApiCall, attempt: Attempt) -> Any:
        with _told():
            return await self._call(placed(await self._description(call, attempt), call), attempt)

    async def _call(self, call: HttpCall, attempt: Attempt) -> Any:
        known = Known({name: await asyncio.to_thread(attempt.reveal, name) for name in call.secrets})
        credentials = await self._issuing.credentials(call.authentication, known, attempt)
        wire = wire_of(call, known, attempt.key).with_headers(credentials.headers)
        reply = await self._follow(wire, call.redirect, credentials)
        if reply.status == 401:
            self._issuing.forget(credentials)
        for value in (*known.values.values(), *credentials.guarded):
            if len(value) >= _SHORTEST and value.encode() in reply.body:
                raise SecretExposed(
                    f"the answer of {shown_address(call.uri)} repeats a credential of the call and was not written"
                )
        return output_of(call, wire, reply)

    async def _follow(self, wire: Wire, redirect: bool, credentials: Credentials) -> Reply:
        reply = await self._send(wire)
        if credentials.digest is not None and (more := answered(reply, credentials.digest, wire)) is not None:
            wire = wire.with_headers(more)
            reply = await self._send(wire)
        for _ in range(HOPS):
            following = wire.moved(reply) if redirect else None
            if following is None:
                return reply
            wire = following
            try:
                reply = await self._send(wire)
            except Unreachable as error:  # but the first request was sent
                raise External(str(error)) from error
        if not redirect or wire.moved(reply) is None:
            return reply
        text = f"{shown_address(wire.url)} leads on and on: {HOPS} redirects are followed"
        raise Permanent(text, problem("communication", text))

    async def _send(self, wire: Wire) -> Reply:
        return await self._house.outbound.request(wire.method, wire.url, wire.headers, wire.body)

    async def _description(self, call: OpenApiCall, attempt: Attempt) -> Any:
        """The description of an API, as plain values."""
        now, key = self._house.clock.now(), digest(attempt.tenant, call.document)
        if call.access is None and (kept := self._documents.get(key, now)) is not None:
            return kept
        wanted = HttpCall("GET", call.document, {"accept": "application/json, application/yaml, */*;q=0.5"})
        known = Known({name: await asyncio.to_thread(attempt.reveal, name) for name in call.secrets})
        credentials = await self._issuing.credentials(call.access, known, attempt)
        wire = wire_of(wanted, known, "").with_headers(credentials.headers)
        reply = await self._follow(wire, True, credentials)
        if reply.status != 200:
            output_of(wanted, wire, reply)
        found = await asyncio.to_thread(read, reply.body, "the description of the API", self._most)
        if call.access is None:
            self._documents.put(key, found, now + KEPT_FOR)
        return found


@contextmanager
def _told() -> Iterator[None]:
    """Failures as problem details."""
    try:
        yield
    except OutboundRefused as error:
        raise _problem(Permanent, "configuration", error) from error
    except InvalidValue as error:
        raise _problem(Permanent, "validation", error) from error
    except Unreachable as error:
        raise _problem(External, "communication", error) from error
    except AnswerLate as error:
        raise _problem(Permanent, "timeout", error) from error
    except External as error:
        raise _problem(Permanent, "communication", error) from error


def _problem(kind: type[ActionError], what: str, error: Exception) -> ActionError:
    return kind(str(error), problem(what, str(error)))
