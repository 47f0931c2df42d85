"""`Perdure`: the application object, client and embedded worker in one.

It is a thin face: the work is done in the modules that it imports, each of which is told what it needs. `run` is the
one blocking door; everything else is async.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypeVar, TypeVarTuple, overload

from msgspec import Raw, structs, to_builtins

from perdure.core import cloudevents, letters as mail, patches
from perdure.core.callbacks import Callback, Ended
from perdure.core.calls import HttpCall, OpenApiCall
from perdure.core.cloudevents import CloudEvent, Envelope
from perdure.core.codec import digest, encode
from perdure.core.durations import Duration, seconds
from perdure.core.records import End, Head, Row, ShownStatus, key_of
from perdure.core.view import State
from perdure.errors import PerdureError, StoreUnavailable, UsageError
from perdure.flows.current import Attempt
from perdure.flows.described import Described
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.ports import KeyRing, Locks, Store, Stream
from perdure.runtime import backends, interrupts
from perdure.runtime.callers import finding
from perdure.runtime.callers.ends import Ends
from perdure.runtime.callers.finding import Page
from perdure.runtime.callers.heads import Heads
from perdure.runtime.callers.listening import Listener
from perdure.runtime.callers.retrying import fork_point
from perdure.runtime.callers.routing import Routed, Router
from perdure.runtime.callers.sending import NewEvent, Sends
from perdure.runtime.callers.starting import Starts, forked
from perdure.runtime.callers.states import States
from perdure.runtime.callers.workflows import Workflows
from perdure.runtime.callers.writing import Writes
from perdure.runtime.checks import checked_id, checked_labels, checked_name, checked_tenant
from perdure.runtime.clock import Clock
from perdure.runtime.cursors import Cursors
from perdure.runtime.definitions.catalog import Catalog
from perdure.runtime.definitions.definitions import Definitions
from perdure.runtime.definitions.published import Published
from perdure.runtime.external.external import ExternalTasks
from perdure.runtime.managing import dead as letters
from perdure.runtime.managing.audit import Audit
from perdure.runtime.managing.bulk import Bulk
from perdure.runtime.managing.dead import DeadPage, Handled
from perdure.runtime.managing.keeping import Keeper
from perdure.runtime.managing.locks import Lock, News, StoreLocks
from perdure.runtime.managing.mending import redrive_mended
from perdure.runtime.managing.noting import noted
from perdure.runtime.managing.schedules import Schedules
from perdure.runtime.managing.tasks import Tasks
from perdure.runtime.managing.tenants import Tenants
from perdure.runtime.names import Names
from perdure.runtime.run import Run
from perdure.runtime.sealing import sealed
from perdure.runtime.secrets.sources import Secrets, Source
from perdure.runtime.settings import Settings, load
from perdure.runtime.web import callbacks
from perdure.runtime.web.calls import Calls
from perdure.runtime.web.hooks import Hooks
from perdure.runtime.web.outbound import Outbound
from perdure.runtime.web.sinks import Sink, Sinks
from perdure.runtime.work.worker import Worker

R = TypeVar("R")
#: How long a lock is waited for, when an application is closed, whose taker was cancelled; in seconds.
_FAREWELL = 2.0
Ts = TypeVarTuple("Ts")

patches.install()


class Perdure:
    """An application on a store.

    `Perdure("sqlite:///orders.db")` keeps everything in one file; `Perdure("memory://")` forgets it at exit.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        stream: str | Stream | None = None,
        tenant: str | None = None,
        settings: Settings | None = None,
        secrets: str | Source | None = None,
        keyring: str | KeyRing | None = None,
        **options: Any,
    ) -> None:
        url = store if isinstance(store, str) else None
        hints = stream if isinstance(stream, str) else None
        places = secrets if isinstance(secrets, str) else None
        named = keyring if isinstance(keyring, str) else None
        ring = None if isinstance(keyring, str) else keyring
        self.settings = settings or load(
            store=url, stream=hints, tenant=tenant, secrets=places, keyring=named, **options
        )
        self.store, self.stream, warm = sealed(
            self.settings, ring, *backends.chosen(store, stream, self.settings), backends.warm(self.settings)
        )
        self.clock = Clock(self.store)
        self._names = Names()
        self.tenant = checked_tenant(self.settings.tenant)
        self.worker: Worker | None = None
        #: Where the secrets lie that actions, webhooks and callbacks name.
        self.secrets = Secrets(self.settings.secrets, self.tenant, secrets if callable(secrets) else None)
        self._locks: dict[str, Locks] = {}
        self._keeper = Keeper()
        backends.locks(self.settings, self.tenant)  # a wrong setting is said at once
        #: Where pages of lists and logs go on.
        self.cursors = Cursors(self.store, self.settings.page)
        self.heads = Heads(self.store, warm, self.settings.warm, self.clock.now)
        self.states = States(self._rows, self.settings.cache, warm, self.settings.warm)
        self.published = Published(self.store)
        #: Workflows that are data, published at run time.
        self.definitions = Definitions(self)
        #: Actions that workers in other languages run.
        self.external = ExternalTasks(self)
        #: How addresses that others name are called.
        self.outbound = Outbound(
            self.settings.outbound_host_names,
            self.settings.outbound_private,
            connect=self.settings.outbound_connect,
            total=self.settings.outbound_timeout,
            most=self.settings.outbound_bytes,
        )
        self._calls = Calls(self, self.settings.description_bytes)
        #: Webhooks: calls from outside whose credential is a signature.
        self.hooks = Hooks(self)
        #: Who did what.
        self.audit = Audit(self)
        #: Executions that start by the clock.
        self.schedules = Schedules(self)
        #: One thing done to many executions.
        self.bulk = Bulk(self)
        #: Tenants that are suspended, or have a quota.
        self.tenants = Tenants(self)
        #: Tasks for people: what workflows ask of a person.
        self.tasks = Tasks(self)
        self._opened: asyncio.AbstractEventLoop | None = None
        self._opened_by: int | None = None
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._ends = Ends(self.settings.grace)
        self._listener = Listener(self.stream, self._ends)
        self._writes = Writes(self.store, self.stream, self._grace, self.settings.group)
        catalog = Catalog(self.store)
        self._workflows = Workflows(self.store, self.published, catalog, self.open)
        most, actor = self.settings.payload_bytes, self.settings.actor
        self._starts = Starts(self._writes, self._workflows, self.stream, self._ends, self._hears, most, actor)
        self._sends = Sends(self._writes, self._workflows, self.store, most, actor)
        self._router = Router(self.store, self.published, catalog, self._starts, self._sends, self._writes, self.clock)
        self._sinks: Sinks = getattr(self, "_sinks", None) or Sinks()  # kept when it is connected anew

    # Opening and closing.

    async def open(self) -> None:
        """Connect; done by the first call if you do not, once for all that come at the same time."""
        loop = asyncio.get_running_loop()
        if self._opened is loop:
            return
        if self._opening is None or self._opening[0] is not loop:
            self._opening = loop, asyncio.Lock()
        async with self._opening[1]:
            if self._opened is not loop:
                await self._open()

    async def _open(self) -> None:
        if self._opened_by not in (None, os.getpid()):
            raise UsageError(
                "this application was open when its process forked: open it after the fork, in each process"
            )
        await self.store.open()
        try:
            await self.stream.open(self.me, [])
            await self.clock.sync()
        except BaseException:
            await self.stream.close()
            await self.store.close()
            raise
        self._listener.begin()
        self._writes.open()
        self._opened, self._opened_by = asyncio.get_running_loop(), os.getpid()

    async def close(self) -> None:
        if self._opened is None:
            return
        self.external.close()
        await self._listener.hang_up()
        self._ends.close()
        await self.states.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._keeper.calm()
        for locks in self._locks.values():
            await locks.close()
        await self.store.close()
        self._opened = self._opened_by = None

    async def __aenter__(self) -> Perdure:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def working(
        self, queues: Sequence[str] | None = None, *, drain: float | None = None
    ) -> AsyncIterator[Worker]:
        """Run a worker inside this process for as long as the block lasts.

        At the end it waits for running actions, for at most `drain` seconds, and gives everything back.
        """
        await self.open()
        if self.worker is not None:
            raise UsageError("this application already has a worker in this process")
        await self._listener.hang_up()
        await self.stream.open(self.me, list(queues or self.settings.queue_names))
        settings = structs.replace(self.settings, queues=",".join(queues)) if queues else self.settings
        worker = Worker(
            self.me, self.store, self.stream, registry, settings, self.clock, self, self.published, self._ends.came
        )
        try:
            await worker.start()
            self.worker = worker
            mend = redrive_mended(self.store, self.post, self.me, self.settings.grace)
            mending = asyncio.create_task(mend, name="perdure-mend")
            try:
                yield worker
            finally:
                self.worker = None
                mending.cancel()
                await asyncio.gather(mending, return_exceptions=True)
        finally:
            await worker.stop(drain)
            await self.stream.close()
            await self.stream.open(self.me, [])
            self._listener.begin()

    def run(self, workflow: Callable[[*Ts], Coroutine[Any, Any, R]], *args: *Ts, id: str | None = None) -> R:
        """The one blocking door: work in this process until the execution has ended, and return its result.

        An execution of this id that was interrupted goes on where it was.
        """
        interrupts.refuse_inside("app.run()")

        async def main() -> R:
            async with self, self.working(drain=1):
                return await (await self.start(workflow, *args, id=id)).result()

        return interrupts.run(main())

    # Starting and sending.

    @overload
    async def start(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, R]],
        *args: *Ts,
        id: str | None = None,
        lane: str | None = None,
        connection: Any = None,
        tenant: str | None = None,
        by: str = "",
        callback: Callback | None = None,
        correlation: str | None = None,
        tags: Sequence[str] = (),
    ) -> Run[R]: ...
    @overload
    async def start(
        self,
        workflow: str,
        *args: Any,
        version: int | None = None,
        id: str | None = None,
        lane: str | None = None,
        connection: Any = None,
        tenant: str | None = None,
        by: str = "",
        callback: Callback | None = None,
        correlation: str | None = None,
        tags: Sequence[str] = (),
    ) -> Run[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *args takes any arguments
        self,
        workflow: Callable[..., Coroutine[Any, Any, Any]] | str,
        *args: Any,
        version: int | None = None,
        id: str | None = None,
        lane: str | None = None,
        connection: Any = None,
        tenant: str | None = None,
        by: str = "",
        callback: Callback | None = None,
        correlation: str | None = None,
        tags: Sequence[str] = (),
    ) -> Run[Any]:
        """Start an execution. Idempotent by id: the same workflow and input give the same run.

        A name stands for a workflow of this process, or else for a definition that was published: its newest version
        that is not deprecated, or the `version` that is asked for. Executions of one `lane` run one at a time, in the
        order of their starts. With a `connection` (asyncpg) to the same PostgreSQL it is started in the transaction of
        that connection: both happen or neither. With a `callback` the end is posted to its URL, signed. It is found
        by its `correlation` id, which others may have as well and its children inherit, and by its `tags`.
        """
        home = self._tenant(tenant)
        wish = None if callback is None else callbacks.check(self, callback)
        labels = checked_labels(correlation, tags)
        definition = await self._workflows.wanted(workflow, version, home)
        input = Raw(definition.signature.encode(args, {}))
        key = key_of(home, checked_id(id or self.new_id()))
        if self._opened is not asyncio.get_running_loop():
            await self.open()
        created = await self._starts.start(definition, input, key, self.clock.now(), by, lane, connection, wish, labels)
        return Run(self, key, definition.signature.returns, created and self._ends.expects(key))

    async def start_by_name(
        self,
        name: str,
        input: Any,
        *,
        version: int | None = None,
        id: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        by: str = "",
        callback: Callback | None = None,
        correlation: str | None = None,
        tags: Sequence[str] = (),
    ) -> Run[Any]:
        """Like `start` with a name; `input` is the JSON of the arguments, a list."""
        home = self._tenant(tenant)
        wish = None if callback is None else callbacks.check(self, callback)
        labels = checked_labels(correlation, tags)
        definition = await self._workflows.wanted(name, version, home)
        key = key_of(home, checked_id(id or self.new_id()))
        raw = Raw(encode(input))
        await self.open()
        await self._starts.start(definition, raw, key, self.clock.now(), by, lane, None, wish, labels)
        return Run(self, key, definition.signature.returns)

    async def start_raw(
        self, workflow: str, version: int | str | None, input: Raw, id: str, tenant: str, by: str
    ) -> None:
        definition = await self._workflows.wanted(workflow, version, tenant)
        key = key_of(tenant, checked_id(id))
        await self.open()
        await self._starts.start(definition, input, key, self.clock.now(), by)

    async def workflow(self, name: str, version: int | None = None, *, tenant: str | None = None) -> Workflow[..., Any]:
        """What a start by this name begins with: the newest of the code of this process, or else of what was published.

        NotRegistered if there is none; it names what comes near.
        """
        return await self._workflows.wanted(name, version, self._tenant(tenant))

    async def find_definition(self, tenant: str, name: str, version: int | str | None) -> dict[str, Any]:
        found = await self._workflows.wanted(name, version, tenant)
        told: dict[str, Any] = {"version": found.version, "hash": found.hash, "queue": found.queue}
        return told | ({"listens": to_builtins(found.listens)} if found.listens else {})

    def find_secret(self, tenant: str, name: str) -> str:
        return self.secrets.find(tenant, name)

    async def send(
        self,
        id: str,
        name: str,
        payload: Any = None,
        *,
        event_id: str | None = None,
        connection: Any = None,
        by: str = "",
        roles: Sequence[str] = (),
        validate: Literal["later", "now"] = "later",
        attributes: Mapping[str, str | int | bool] | None = None,
        tenant: str | None = None,
    ) -> str:
        """Send an event to an execution; gives its id. Accepted means durable: it will be applied exactly once.

        With a `connection` (asyncpg) to the same PostgreSQL it is sent in the transaction of that connection.
        A machine judges an event when its turn comes; with `validate="now"` one that it certainly does not take, in
        the state in which it rests, is refused at once. `roles` are those of the sender, `attributes` those of the
        CloudEvent that it came as.
        """
        key = key_of(self._tenant(tenant), id)
        await self.open()
        raw = await self._sends.payload(key, name, payload, by, roles)
        if validate == "now":
            await self._sends.judge(key, name, by, roles)
        chosen = checked_id(event_id or self.new_id(), "event id")
        more = dict(attributes or {})
        letter = mail.EventLetter(name, raw, by, str(more.get("source", "")), tuple(roles), more)
        await self.open()  # it may have been closed meanwhile
        await self._sends.post(key, chosen, letter, digest(name, bytes(raw)), connection)
        return chosen

    async def send_all(
        self,
        id: str,
        events: Sequence[NewEvent],
        *,
        by: str = "",
        roles: Sequence[str] = (),
        tenant: str | None = None,
    ) -> list[str | PerdureError]:
        """Send many events to one execution, up to 1,000 in one write: the id of each, or why it is not accepted."""
        await self.open()
        return await self._sends.post_all(key_of(self._tenant(tenant), id), events, by, roles, self.new_id)

    async def send_raw(self, tenant: str, id: str, name: str, payload: Raw, event_id: str, by: str) -> None:
        key = key_of(tenant, id)
        await self.post(key, event_id, mail.EventLetter(name, payload, by), digest(name, bytes(payload)))

    async def cancel_raw(self, tenant: str, id: str, reason: str, mail_id: str, by: str) -> None:
        await self.post(key_of(tenant, id), mail_id, mail.CancelLetter(reason, by))

    async def post(
        self, key: str, id: str, letter: mail.Letter, sha: str = "", connection: Any = None
    ) -> Literal["accepted", "duplicate"]:
        """Put a letter into a mailbox, or say why that cannot be."""
        await self.open()
        return await self._sends.post(key, id, letter, sha, connection)

    # Events that leave.

    def sink(self, fn: Sink | None = None, *, types: Sequence[str] = ()) -> Any:
        """Decorate an `async def` that takes a CloudEvent: it gets what workflows emit, or only events of these types.

        An event that a sink does not take (it raises) is delivered again later, to all of them, with the same id.
        """
        add = self._sinks.adding(types)
        return add if fn is None else add(fn)

    async def deliver(self, event: CloudEvent) -> None:
        await self._sinks.deliver(event)

    async def call_back(self, callback: Callback, ended: Ended) -> int:
        return await callbacks.tell(self, callback, ended)

    async def call_http(self, call: HttpCall, attempt: Attempt) -> Any:
        return await self._calls.http(call, attempt)

    async def call_openapi(self, call: OpenApiCall, attempt: Attempt) -> Any:
        return await self._calls.openapi(call, attempt)

    # Events that come, for whoever listens.

    async def route(
        self,
        event: CloudEvent | Mapping[str, Any],
        *,
        by: str = "",
        roles: Sequence[str] = (),
        tenant: str | None = None,
    ) -> Routed:
        """Bring a CloudEvent to all executions that listen for it, and start those that begin with it.

        It may be the JSON form of one, with attributes of any kind. The same `source` and `id` twice is one event: who
        was woken or started by it is named again, and nothing happens. See `Listen` and `On`.
        """
        return (await self.route_all([cloudevents.of(event)], by=by, roles=roles, tenant=tenant))[0]

    async def route_all(
        self, events: Sequence[Envelope], *, by: str = "", roles: Sequence[str] = (), tenant: str | None = None
    ) -> list[Routed]:
        """The same for many, with as few writes."""
        await self.open()
        return await self._router.route(self._tenant(tenant), events, by, roles)

    # Finding.

    def get(self, id: str, tenant: str | None = None) -> Run[Any]:
        """A handle on an execution by its id."""
        return Run(self, key_of(self._tenant(tenant), id))

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
        tenant: str | None = None,
        published: Mapping[str, str | int | float | bool | None] | None = None,
        **fields: str | int | float | bool | None,
    ) -> Page:
        """Executions by status, workflow, start time, correlation id, tags and published fields, newest first, by page.

        Of several tags all must be there. `find(stage="paid")` looks for a published field, `published={"status":
        "paid"}` for one whose name is taken.
        """
        await self.open()
        query = finding.query_of(
            self._tenant(tenant),
            status=status,
            workflow=workflow,
            after=after,
            before=before,
            parent=parent,
            labels=checked_labels(correlation, (tag,) if isinstance(tag, str) else tag),
            fields={**fields, **(published or {})},
        )
        return await finding.find(self.store, self.cursors, "find", query, limit, cursor)

    async def described(self, key: str, state: State) -> Described:
        """The definition of an execution, if it is data."""
        return await self._workflows.described(key, state)

    async def running(self, head: Head) -> str:
        """Which definition an execution runs now: a published one may have gone on with another version."""
        return await self._workflows.running(head)

    # Locks.

    def lock(
        self,
        name: str,
        *,
        lease: Duration = 30.0,
        wait: Duration = 0.0,
        most: Duration | None = None,
        tenant: str | None = None,
    ) -> Lock:
        """A lock of this name, for `async with`: `async with app.lock("printer-3", wait="10s") as lock: …`.

        It is taken within `wait` or raises LockTaken; renewed while the block runs, but for no longer than `most`; if
        it is lost the block is cancelled and LockLost raised. `lock.fence` rises with every acquisition.
        """
        home = self._tenant(tenant)
        checked = checked_name(name, "name of a lock")
        limit = None if most is None else seconds(most)
        news = News(home, self.stream, self.news, self.no_news)
        locks = self._locks.get(home)
        if locks is None:
            locks = self._locks[home] = backends.locks(self.settings, home) or StoreLocks(self.store, home)
        return Lock(locks, self._keeper, checked, self.me, seconds(lease), seconds(wait), limit, news, self.open)

    # Dead letters.

    async def dead(
        self,
        *,
        cause: str | None = None,
        workflow: str | None = None,
        oldest: bool = False,
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> DeadPage:
        """Stuck executions, those that got stuck last first, page by page; with `oldest` the other way round."""
        return await letters.page(self, letters.Which((), cause, workflow, self._tenant(tenant)), oldest, limit, cursor)

    @noted("system.redrive")
    async def redrive(
        self,
        *ids: str,
        cause: str | None = None,
        workflow: str | None = None,
        all: bool = False,
        dry_run: bool = False,
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Handled:
        """Try stuck executions again: these, those of a cause or workflow, or all.

        Each is tried once for each time that it got stuck, however often and by how many it is asked for.
        """
        which = letters.which(ids, cause, workflow, all, self._tenant(tenant))
        return await letters.redrive(self, which, dry_run, reason, by, progress)

    @noted("system.purge")
    async def purge(
        self,
        *ids: str,
        cause: str | None = None,
        workflow: str | None = None,
        all: bool = False,
        dry_run: bool = False,
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Handled:
        """Give stuck executions up: they end as cancelled. Nothing is deleted, their logs stay."""
        which = letters.which(ids, cause, workflow, all, self._tenant(tenant))
        return await letters.purge(self, which, dry_run, reason, by, progress)

    # Copies of logs.

    async def fork(self, run: Run[R], at: int | None, edit: Mapping[int, Any], id: str | None, by: str) -> Run[R]:
        if at is None and id is not None:
            at = await fork_point(self.store, run, checked_id(id))
        queue, rows = await forked(run, at, edit, by or self.settings.actor)
        key = key_of(run.key.partition("/")[0], checked_id(id or f"{run.id}~{self.new_id()[-8:]}"))
        await self._starts.begin(await self._starts.copied(key, rows, queue))
        return Run(self, key, run._returns)

    @noted("executions.import")
    async def adopt(
        self,
        rows: Sequence[Any],
        id: str,
        queue: str = "default",
        tenant: str | None = None,
        *,
        reason: str = "",
        by: str = "",
    ) -> Run[Any]:
        """Import a log as a new execution; an ended one stays ended."""
        await self.open()
        key = key_of(self._tenant(tenant), checked_id(id))
        await self._starts.begin(await self._starts.copied(key, rows, queue))
        return Run(self, key)

    # News.

    def news(self, key: str, looks: int = 0) -> asyncio.Future[End | None]:
        """Done when the execution has ended, as far as this process hears of it; with the end if it is our own.

        Without it, when it is time to look: the later, the more `looks` there were before.
        """
        self._listener.listen()
        return self._ends.of(key, looks)

    def no_news(self, key: str, future: asyncio.Future[End | None]) -> None:
        self._ends.leave(key, future)

    def hear(self, key: str, tell: Callable[[End | None], None]) -> None:
        """Tell of all news of this name, for as long as the application is open."""
        self._listener.listen()
        self._ends.watch(key, tell)

    def _hears(self) -> bool:
        return self.worker is not None or self._listener.listens

    async def _rows(self, key: str, after: int, until: int | None) -> AsyncIterator[Row]:
        async for row in Run[Any](self, key).rows(after, until):
            yield row

    # Small things.

    @property
    def me(self) -> str:
        """The name of this process, which nobody else has."""
        return self._names.me

    def new_id(self) -> str:
        """Unique in space and time, and rising, so that new rows of an index lie together."""
        return self._names.new_id()

    def _grace(self) -> int:
        """How long new work may wait for its hint to arrive; no time where hints say only that there is work."""
        return int(self.settings.grace * 1e6) if self.stream.carries else 0

    def refuse_crowd(self) -> None:
        """Raise StoreUnavailable while starts and events pile up before the store: for those who can come again."""
        if self._opened is not None and (
            why := self._writes.crowded(self.settings.api_writes, self.settings.api_patience)
        ):
            raise StoreUnavailable(f"{why}; nothing was written; try again")

    @property
    def writes(self) -> Writes:
        """Starts and messages on their way into the store."""
        return self._writes

    def _tenant(self, tenant: str | None) -> str:
        return self.tenant if tenant is None else checked_tenant(tenant)


__all__ = ["Page", "Perdure"]
