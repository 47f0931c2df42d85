"""A real server on a free port, and clients of several people.

A credential is `TENANT:USER:ROLE,ROLE`, so that a test can say who calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from perdure import Client, Perdure
from perdure.errors import Unauthenticated
from perdure.http import serving
from perdure.http.auth import Authenticator
from perdure.http.caller import Caller, caller_of


class Words:
    """Takes credentials at their word."""

    async def caller(self, credential: str) -> Caller:
        parts = credential.split(":")
        if len(parts) != 3:
            raise Unauthenticated("this is no credential")
        tenant, user, roles = parts
        return caller_of(tenant, user, roles.split(","), "test")


class Served:
    """An application behind an address, and those who call."""

    def __init__(self, app: Perdure, address: str, stack: AsyncExitStack) -> None:
        self.app = app
        self.address = address
        self._stack = stack

    async def client(
        self, who: str = "acme:ann:admin", transport: httpx.AsyncBaseTransport | None = None, patience: float = 10.0
    ) -> Client:
        made = Client(self.address, who, transport=transport, patience=patience)
        return await self._stack.enter_async_context(made)


@asynccontextmanager
async def served(working: bool = True) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(Perdure("memory://"))
        if working:
            await stack.enter_async_context(app.working())
        listening = serving.listening(app, Authenticator(tokens=Words()), "127.0.0.1", 0)
        address = await stack.enter_async_context(listening)
        yield Served(app, address, await stack.enter_async_context(AsyncExitStack()))


def run(main: Callable[[Served, Client], Awaitable[None]], working: bool = True) -> None:
    """The test with a server, and the client of an administrator of `acme`."""

    async def everything() -> None:
        async with asyncio.timeout(60), served(working) as place:
            await main(place, await place.client())

    asyncio.run(everything())
