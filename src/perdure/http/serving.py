"""The API in a process: an ASGI server around it, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import uvicorn

from perdure.errors import UsageError
from perdure.http.api import api
from perdure.http.auth import Authenticator, check_bind
from perdure.http.protocol import impatient
from perdure.runtime.app import Perdure

#: Seconds that requests get to be answered when the server ends.
GRACE = 3


class Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(app: Perdure, authenticator: Authenticator, host: str, port: int) -> AsyncIterator[str]:
    """Serve an open application for as long as the block lasts; gives the address. Port 0 is any that is free."""
    check_bind(host, authenticator)
    bound = _bound(host, port)
    served = api(app, authenticator)
    config = uvicorn.Config(
        served,
        log_config=None,
        access_log=False,
        server_header=False,
        loop="none",
        http=impatient(app.settings.api_deadline),
        timeout_graceful_shutdown=GRACE,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve([bound]), name="perdure-serve")
    number = bound.getsockname()[1]
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{number}"
    finally:
        served.leaving.say()
        app.external.close()  # who waits for tasks is answered, and can ask elsewhere
        server.should_exit = True
        await serving
        bound.close()
        await authenticator.close()


def _bound(host: str, port: int) -> socket.socket:
    """Bound and listening, so that whoever is told the address can connect at once."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # The protocol is named, or else connections do not send small packets at once.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    return UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port")


async def run(
    app: Perdure,
    authenticator: Authenticator,
    host: str,
    port: int,
    *,
    working: bool = False,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; with `working` a worker of the same code runs beside it."""
    check_bind(host, authenticator)
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, told.set)
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            if working:
                await stack.enter_async_context(app.working())
            ready(await stack.enter_async_context(listening(app, authenticator, host, port)))
            await told.wait()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
