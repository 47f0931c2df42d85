"""Which execution or which attempt the running code belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Raw

from perdure.core.callbacks import Callback, Ended
from perdure.core.calls import HttpCall, OpenApiCall
from perdure.core.cloudevents import CloudEvent
from perdure.core.loop import turning
from perdure.core.replay import Replay
from perdure.core.tracing import Trace, here
from perdure.errors import UsageError


class Client(Protocol):
    """What a running action may do to other executions: the engine's own actions need it."""

    async def start_raw(
        self, workflow: str, version: int | str | None, input: Raw, id: str, tenant: str, by: str
    ) -> None: ...
    async def send_raw(self, tenant: str, id: str, name: str, payload: Raw, event_id: str, by: str) -> None: ...
    async def find_definition(self, tenant: str, name: str, version: int | str | None) -> dict[str, Any]: ...
    async def cancel_raw(self, tenant: str, id: str, reason: str, mail_id: str, by: str) -> None: ...
    async def deliver(self, event: CloudEvent) -> None: ...
    async def call_back(self, callback: Callback, ended: Ended) -> int: ...
    async def call_http(self, call: HttpCall, attempt: Attempt) -> Any: ...
    async def call_openapi(self, call: OpenApiCall, attempt: Attempt) -> Any: ...
    def find_secret(self, tenant: str, name: str) -> str: ...


class Attempt(Protocol):
    """One try of an action, as the action sees it."""

    fence: int
    connection: Any

    @property
    def execution(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def asked_at(self) -> int: ...
    @property
    def progress(self) -> Any: ...
    @property
    def version(self) -> int | None: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def client(self) -> Client: ...
    def unwanted(self) -> bool: ...
    def beat(self, details: Any) -> None: ...
    def reveal(self, name: str) -> str: ...


attempt: ContextVar[Attempt] = ContextVar("perdure_attempt")


def execution() -> Replay | None:
    """The execution whose code is running, if any."""
    loop = turning()
    if loop is None:
        return None
    found: Replay = loop.execution
    return found


def inside(what: str) -> Replay:
    """The execution whose code is running; raises outside of workflows."""
    found = execution()
    if found is None:
        raise UsageError(f"{what} works only inside a running workflow")
    return found


def this_attempt(what: str) -> Attempt:
    try:
        return attempt.get()
    except LookupError:
        raise UsageError(f"{what} works only inside a running action") from None


def traceparent() -> str:
    """What goes with whatever the running code starts, sends and calls: as it was said, or as the action has it."""
    said = here()
    if said is None:
        running = attempt.get(None)
        return "" if running is None else str(running.trace)
    return "" if said.made else str(said)
