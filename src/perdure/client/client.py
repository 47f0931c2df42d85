"""`Client`: the verbs of `Perdure`, over HTTP.

    async with Client("https://workflows.example.com", token=key) as client:
        run = await client.start(fulfil, order, id="order-17")
        print(await run.result())

Rules kept here: ids are chosen before anything is sent, so a request that is repeated because its answer got lost does
nothing twice. The user and the tenant are those of the token.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypeVar, TypeVarTuple, overload

import httpx
import msgspec

from perdure.client.definitions import RemoteDefinitions
from perdure.client.door import Door
from perdure.client.run import RemoteRun
from perdure.core.callbacks import Callback
from perdure.core.records import ShownStatus
from perdure.flows.workflow import Workflow
from perdure.http.forms import ExecutionsOut, StartedOut, StartIn
from perdure.http.system import HealthOut, WhichIn
from perdure.runtime.dead import DeadPage, Handled

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Client:
    """A client of the API at `url`; `token` is an API key or a token of your identity provider.

    A request waits `timeout` seconds for its answer. If the server is busy or cannot be reached it is repeated, for
    `patience` seconds.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._door = Door(url, token, timeout, patience, transport)
        #: Workflows that are data, published at run time.
        self.definitions = RemoteDefinitions(self._door)

    async def close(self) -> None:
        await self._door.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # Starting and sending.

    @overload
    async def start(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, R]],
        *args: *Ts,
        id: str | None = None,
        lane: str | None = None,
        callback: Callback | None = None,
    ) -> RemoteRun[R]: ...
    @overload
    async def start(
        self,
        workflow: str,
        *args: Any,
        version: int | None = None,
        id: str | None = None,
        lane: str | None = None,
        callback: Callback | None = None,
    ) -> RemoteRun[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *args takes any arguments
        self,
        workflow: Callable[..., Coroutine[Any, Any, Any]] | str,
        *args: Any,
        version: int | None = None,
        id: str | None = None,
        lane: str | None = None,
        callback: Callback | None = None,
    ) -> RemoteRun[Any]:
        """Start an execution of a workflow of the server, by its name, or by its code where that is at hand.

        Idempotent by id: the same workflow and input give the same run. With a `callback` the end is posted to its
        URL, signed.
        """
        name, returns, given = str(workflow), None, list(args)
        if isinstance(workflow, Workflow):
            name, version, returns = workflow.name, workflow.version, workflow.signature.returns
            given = msgspec.json.decode(workflow.signature.encode(args, {}))
        body = StartIn(name, args=given, version=version, id=id or self._door.new_id(), lane=lane, callback=callback)
        made = await self._door.post("/v1/executions", body, StartedOut)
        return RemoteRun(self._door, made.id, returns)

    async def send(
        self,
        id: str,
        name: str,
        payload: Any = None,
        *,
        event_id: str | None = None,
        validate: Literal["later", "now"] = "later",
    ) -> str:
        """Send an event to an execution; gives its id. Accepted means durable: it will be applied exactly once."""
        return await self.get(id).send(name, payload, id=event_id, validate=validate)

    # Finding.

    def get(self, id: str) -> RemoteRun[Any]:
        """A handle on an execution by its id."""
        return RemoteRun(self._door, id)

    async def find(
        self,
        *,
        status: ShownStatus | None = None,
        workflow: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        parent: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ExecutionsOut:
        """Executions by status, workflow and start time, newest first, page by page."""
        return await self._door.get(
            "/v1/executions",
            ExecutionsOut,
            status=status,
            workflow=workflow,
            after=after,
            before=before,
            parent=parent,
            limit=limit,
            cursor=cursor,
        )

    # Dead letters.

    async def dead(
        self,
        *,
        cause: str | None = None,
        workflow: str | None = None,
        oldest: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> DeadPage:
        """Stuck executions, those that got stuck last first, page by page; with `oldest` the other way round."""
        return await self._door.get(
            "/v1/dead", DeadPage, cause=cause, workflow=workflow, oldest=oldest, limit=limit, cursor=cursor
        )

    async def redrive(
        self,
        *ids: str,
        cause: str | None = None,
        workflow: str | None = None,
        all: bool = False,
        dry_run: bool = False,
        reason: str = "",
    ) -> Handled:
        """Try stuck executions again: these, those of a cause or workflow, or all."""
        which = WhichIn(list(ids), cause, workflow, all, dry_run, reason)
        return await self._door.post("/v1/dead/redrive", which, Handled)

    async def purge(
        self,
        *ids: str,
        cause: str | None = None,
        workflow: str | None = None,
        all: bool = False,
        dry_run: bool = False,
        reason: str = "",
    ) -> Handled:
        """Give stuck executions up: they end as cancelled. Nothing is deleted, their logs stay."""
        which = WhichIn(list(ids), cause, workflow, all, dry_run, reason)
        return await self._door.post("/v1/dead/purge", which, Handled)

    # The server.

    async def health(self) -> HealthOut:
        """How the server is; raises StoreUnavailable if it cannot serve requests."""
        return await self._door.get("/health/ready", HealthOut)
