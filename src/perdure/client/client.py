"""`Client`: the verbs of `Perdure`, over HTTP.

    async with Client("https://workflows.example.com", token=key) as client:
        run = await client.start(fulfil, order, id="order-17")
        print(await run.result())

Rules kept here: ids are chosen before anything is sent, so a request that is repeated because its answer got lost does
nothing twice. The user and the tenant are those of the token.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypeVar, TypeVarTuple, overload

import httpx
import msgspec

from perdure.client import sending
from perdure.client.audit import RemoteAudit
from perdure.client.bulk import RemoteBulk
from perdure.client.definitions import RemoteDefinitions
from perdure.client.door import Door, path_of
from perdure.client.external import RemoteExternalTasks
from perdure.client.hooks import RemoteHooks
from perdure.client.keys import RemoteKeys
from perdure.client.run import RemoteRun
from perdure.client.schedules import RemoteSchedules
from perdure.client.starting import named
from perdure.client.tasks import RemoteTasks
from perdure.core import cloudevents
from perdure.core.callbacks import Callback
from perdure.core.cloudevents import CloudEvent, Envelope
from perdure.core.records import ShownStatus
from perdure.errors import PerdureError
from perdure.http.forms import ExecutionsOut, StartedOut, StartIn
from perdure.http.overview import LockOut, WorkersOut
from perdure.http.quota import QuotaOut
from perdure.http.system import HealthOut, WhichIn
from perdure.http.workflows import WorkflowListed, WorkflowOut, WorkflowsOut
from perdure.runtime.callers.routing import Routed
from perdure.runtime.callers.sending import NewEvent
from perdure.runtime.checks import checked_labels
from perdure.runtime.managing.dead import DeadPage, Handled
from perdure.runtime.managing.locks import LockState
from perdure.runtime.managing.overview import Stats, WorkerSeen

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
        #: Actions that workers in other languages run, or that a process without a store does.
        self.external = RemoteExternalTasks(self._door)
        #: Webhooks: calls from outside whose credential is a signature.
        self.hooks = RemoteHooks(self._door)
        #: Who did what.
        self.audit = RemoteAudit(self._door)
        #: Executions that start by the clock.
        self.schedules = RemoteSchedules(self._door)
        #: One thing done to many executions.
        self.bulk = RemoteBulk(self._door)
        #: Tasks for people: what workflows ask of a person.
        self.tasks = RemoteTasks(self._door)
        #: API keys of the tenant.
        self.keys = RemoteKeys(self._door)

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
        correlation: str | None = None,
        tags: Sequence[str] = (),
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
        correlation: str | None = None,
        tags: Sequence[str] = (),
    ) -> RemoteRun[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *args takes any arguments
        self,
        workflow: Callable[..., Coroutine[Any, Any, Any]] | str,
        *args: Any,
        version: int | None = None,
        id: str | None = None,
        lane: str | None = None,
        callback: Callback | None = None,
        correlation: str | None = None,
        tags: Sequence[str] = (),
    ) -> RemoteRun[Any]:
        """Start an execution of a workflow of the server, by its name, or by its code where that is at hand.

        Idempotent by id: the same workflow and input give the same run. With a `callback` the end is posted to its
        URL, signed. It is found by its `correlation` id, which others may have as well, and by its `tags`.
        """
        labels = checked_labels(correlation, tags)
        wanted, chosen = named(workflow, args), id or self._door.new_id()
        number = version if wanted.version is None else wanted.version
        body = StartIn(
            wanted.name,
            args=wanted.args,
            version=number,
            id=chosen,
            lane=lane,
            callback=callback,
            correlation=correlation,
            tags=list(labels.tags),
        )
        made = await self._door.post(path_of("executions"), body, StartedOut)
        return RemoteRun(self._door, made.id, wanted.returns)

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

    async def send_all(self, id: str, events: Sequence[NewEvent]) -> list[str | PerdureError]:
        """Send many events to one execution, up to 1,000 in one write: the id of each, or why it is not accepted."""
        return await sending.send_all(self._door, id, events)

    async def route(self, event: CloudEvent | Mapping[str, Any]) -> Routed:
        """Bring a CloudEvent to all executions that listen for it, and start those that begin with it.

        It may be the JSON form of one. The same `source` and `id` twice is one event.
        """
        return (await self.route_all([cloudevents.of(event)]))[0]

    async def route_all(self, events: Sequence[Envelope]) -> list[Routed]:
        """The same for many, with as few writes."""
        return await sending.route_all(self._door, events)

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
        correlation: str | None = None,
        tag: str | Sequence[str] = (),
        limit: int = 50,
        cursor: str | None = None,
        published: Mapping[str, str | int | float | bool | None] | None = None,
        **fields: str | int | float | bool | None,
    ) -> ExecutionsOut:
        """Executions by status, workflow, start time, correlation id, tags and published fields, newest first, by page.

        Of several tags all must be there. `find(stage="paid")` looks for a published field, `published={"status":
        "paid"}` for one whose name is taken.
        """
        wanted = {**fields, **(published or {})}
        asked: dict[str, Any] = {f"field.{name}": msgspec.json.encode(value).decode() for name, value in wanted.items()}
        return await self._door.get(
            path_of("executions"),
            ExecutionsOut,
            status=status,
            workflow=workflow,
            after=after,
            before=before,
            parent=parent,
            correlation=correlation,
            tag=[tag] if isinstance(tag, str) else tag,
            limit=limit,
            cursor=cursor,
            **asked,
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
            path_of("dead"), DeadPage, cause=cause, workflow=workflow, oldest=oldest, limit=limit, cursor=cursor
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
        return await self._door.post(path_of("dead", "redrive"), which, Handled)

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
        return await self._door.post(path_of("dead", "purge"), which, Handled)

    # The whole.

    async def stats(
        self, *, workflow: str | None = None, after: datetime | None = None, before: datetime | None = None
    ) -> Stats:
        """How many executions there are by status and workflow, and how long they took."""
        return await self._door.get(path_of("stats"), Stats, workflow=workflow, after=after, before=before)

    async def workers(self) -> list[WorkerSeen]:
        """The workers that hold executions of the tenant now; one without work is not seen."""
        return (await self._door.get(path_of("workers"), WorkersOut)).workers

    async def quota(self) -> QuotaOut:
        """What the tenant may have running, and has, and whether it is suspended."""
        return await self._door.get(path_of("quota"), QuotaOut)

    async def workflow(self, name: str, version: int | None = None) -> WorkflowOut:
        """What a start by this name begins with, what that takes, and an example of it."""
        return await self._door.get(path_of("workflows", name), WorkflowOut, version=version)

    async def workflows(self) -> list[WorkflowListed]:
        """The workflows of the server's code; those that were published are among the `definitions`."""
        return (await self._door.get(path_of("workflows"), WorkflowsOut)).workflows

    async def lock(self, name: str) -> LockState | None:
        """Who holds a lock now, under which fence, since when and until when. It takes none."""
        found = await self._door.get(path_of("locks"), LockOut, name=name)
        if found.fence is None or found.until is None:
            return None
        return LockState(found.name, found.holder, found.fence, found.until, found.since, found.age)

    async def metrics(self) -> str:
        """What the process of the server counts, with its worker if it has one, as Prometheus reads it."""
        return await self._door.text(path_of("metrics"))

    async def health(self) -> HealthOut:
        """How the server is; raises StoreUnavailable if it cannot serve requests."""
        return await self._door.get("/health/ready", HealthOut)
