"""The API in a process: an ASGI server around it, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import uvicorn

from perdure.http.api import api
from perdure.http.auth import Authenticator, check_bind
from perdure.runtime.app import Perdure


class Server(uvicorn.Server):
    """Says where it listens, once it does."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends it; that is the end asked for, not a failure."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


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
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        stack.push_async_callback(authenticator.close)
        if working:
            await stack.enter_async_context(app.working())
        config = uvicorn.Config(
            api(app, authenticator),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            loop="none",
            timeout_graceful_shutdown=10,
        )
        await Server(config, ready).serve()
