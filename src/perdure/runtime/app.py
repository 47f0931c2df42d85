"""`Perdure`: the application object, client and embedded worker in one.

Starts and sends of many callers share one write. `run` is the one blocking door; everything else is async.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, TypeVarTuple, overload

import msgspec
from msgspec import Raw, structs

from perdure.core import copies, events as ev, letters as mail, patches, summary
from perdure.core.cloudevents import CloudEvent
from perdure.core.codec import digest, encode
from perdure.core.durations import Duration, seconds
from perdure.core.records import (
    PUBLISHED,
    TENANT,
    End,
    Head,
    Hint,
    Mail,
    Query,
    Row,
    Sent,
    ShownStatus,
    Start,
    Started,
    key_of,
)
from perdure.core.view import State
from perdure.errors import (
    EventConflict,
    EventRefused,
    ExecutionEnded,
    ExecutionExists,
    ExecutionNotFound,
    InvalidValue,
    LimitReached,
    NotRegistered,
    StoreError,
    UsageError,
)
from perdure.flows.described import Described
from perdure.flows.machine import Machine
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.ports import Joining, Locks, Store, Stream
from perdure.runtime import dead as letters, urls
from perdure.runtime.batch import Batch
from perdure.runtime.clock import Clock
from perdure.runtime.dead import DeadPage, Handled
from perdure.runtime.definitions import Definitions
from perdure.runtime.ends import Ends
from perdure.runtime.locks import Lock, News, StoreLocks
from perdure.runtime.pair import Pair
from perdure.runtime.published import Published, ref_of
from perdure.runtime.run import Run
from perdure.runtime.settings import Settings, load
from perdure.runtime.states import States
from perdure.runtime.worker import Worker, end_of

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@~-]{0,199}")
_LOCK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@~/-]{0,199}")
_TENANT = re.compile(TENANT)
#: Executions whose workflow an application keeps in mind.
_REMEMBERED = 10_000

Sink: TypeAlias = Callable[[CloudEvent], Awaitable[None]]

log = logging.getLogger("perdure.app")
patches.install()


class Page(msgspec.Struct, frozen=True):
    """Executions found, newest first; `next` is the cursor of the page that follows, if there is one."""

    heads: list[Head]
    next: str | None = None


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
        **options: Any,
    ) -> None:
        url = store if isinstance(store, str) else None
        hints = stream if isinstance(stream, str) else None
        self.settings = settings or load(store=url, stream=hints, tenant=tenant, **options)
        self.store, self.stream = self._connect(store, stream)
        self.clock = Clock(self.store)
        self._be_born()
        _apps.add(self)
        self.tenant = _checked(_TENANT, self.settings.tenant, "tenant")
        self.worker: Worker | None = None
        self._locks: dict[str, Locks] = {}
        urls.locks(self.settings, self.tenant)  # a wrong setting is said at once
        self.states = States(self._rows, self.settings.cache, urls.warm(self.settings), self.settings.warm)
        self.published = Published(self.store)
        #: Workflows that are data, published at run time.
        self.definitions = Definitions(self)
        self._opened: asyncio.AbstractEventLoop | None = None
        self._opened_by: int | None = None
        self._listener: asyncio.Task[None] | None = None
        self._definitions: OrderedDict[str, str] = OrderedDict()
        self._ends = Ends(self.settings.grace)
        self._sinks: list[tuple[frozenset[str], Sink]] = getattr(self, "_sinks", [])  # kept when it is connected anew

    def _connect(self, store: str | Store | None, stream: str | Stream | None) -> tuple[Store, Stream]:
        if store is not None and not isinstance(store, str):
            if stream is None or isinstance(stream, str):
                raise UsageError("an own store needs an own stream: Perdure(store, stream=MemoryStream())")
            return store, stream
        chosen, own = urls.connect(self.settings.store)
        if stream is not None and not isinstance(stream, str):
            return chosen, stream
        return chosen, Pair(urls.stream(self.settings), own) if self.settings.stream else own

    def _be_born(self) -> None:
        """Take names that nobody else has, not even a process of the same number on a host of the same name."""
        self.me = f"{socket.gethostname()[:32]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._nonce, self._ids = uuid.uuid4().hex[:8], 0

    # Opening and closing.

    async def open(self) -> None:
        """Connect; done by the first call if you do not."""
        if self._opened is asyncio.get_running_loop():
            return
        if self._opened_by not in (None, os.getpid()):
            raise UsageError(
                "this application was open when its process forked: open it after the fork, in each process"
            )
        self._opened_by = os.getpid()
        await self.store.open()
        await self.stream.open(self.me, [])
        await self.clock.sync()
        self._starts: Batch[Start, Started] = Batch(self._write_starts, self.settings.group)
        self._sends: Batch[Mail, Sent] = Batch(self._write_sends, self.settings.group)
        self._opened = asyncio.get_running_loop()

    async def close(self) -> None:
        if self._opened is None:
            return
        await self._hang_up()
        self._ends.close()
        await self.states.close()
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
        await self._hang_up()
        await self.stream.open(self.me, list(queues or self.settings.queue_names))
        settings = structs.replace(self.settings, queues=",".join(queues)) if queues else self.settings
        worker = Worker(
            self.me,
            self.store,
            self.stream,
            registry,
            settings,
            self.clock,
            self,
            self.published,
            self._ends.came,
        )
        await worker.start()
        self.worker = worker
        mending = asyncio.create_task(self._redrive_mended(), name="perdure-mend")
        try:
            yield worker
        finally:
            self.worker = None
            mending.cancel()
            await asyncio.gather(mending, return_exceptions=True)
            await worker.stop(drain)
            await self.stream.close()
            await self.stream.open(self.me, [])

    def run(self, workflow: Callable[[*Ts], Coroutine[Any, Any, R]], *args: *Ts, id: str | None = None) -> R:
        """The one blocking door: work in this process until the execution has ended, and return its result.

        An execution of this id that was interrupted goes on where it was.
        """

        async def main() -> R:
            async with self, self.working(drain=1):
                return await (await self.start(workflow, *args, id=id)).result()

        return asyncio.run(main())

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
    ) -> Run[Any]:
        """Start an execution. Idempotent by id: the same workflow and input give the same run.

        A name stands for a workflow of this process, or else for a definition that was published: its newest version
        that is not deprecated, or the `version` that is asked for. Executions of one `lane` run one at a time, in the
        order of their starts. With a `connection` (asyncpg) to the same PostgreSQL it is started in the transaction of
        that connection: both happen or neither.
        """
        home = self._tenant(tenant)
        definition = await self._wanted(workflow, version, home)
        input = Raw(definition.signature.encode(args, {}))
        key = key_of(home, _checked(_ID, id or self.new_id(), "execution id"))
        created = await self._start(definition, input, key, by, lane, connection)
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
    ) -> Run[Any]:
        """Like `start` with a name; `input` is the JSON of the arguments, a list."""
        home = self._tenant(tenant)
        definition = await self._wanted(name, version, home)
        key = key_of(home, _checked(_ID, id or self.new_id(), "execution id"))
        await self._start(definition, Raw(encode(input)), key, by, lane)
        return Run(self, key, definition.signature.returns)

    async def start_raw(self, workflow: str, version: int | None, input: Raw, id: str, tenant: str) -> None:
        definition = await self._wanted(workflow, version, tenant)
        await self._start(definition, input, key_of(tenant, _checked(_ID, id, "execution id")), "")

    async def find_definition(self, tenant: str, name: str, version: int | None) -> dict[str, Any]:
        found = await self._wanted(name, version, tenant)
        return {"version": found.version, "hash": found.hash, "queue": found.queue}

    async def _wanted(self, workflow: Any, version: int | None, tenant: str) -> Workflow[..., Any]:
        """The workflow itself, or that of a name: in this process, or else published."""
        if isinstance(workflow, Workflow):
            if version not in (None, workflow.version):
                raise UsageError(f"{workflow.definition} is given, but version {version} is asked for: give its name")
            found: Workflow[..., Any] = workflow
            return found
        if not isinstance(workflow, str):
            raise UsageError("start() takes a workflow: decorate the function with @workflow; or a name")
        try:
            return registry.workflow(workflow, version)
        except NotRegistered as error:
            await self.open()
            if (published := await self.published.named(tenant, workflow, version)) is None:
                raise NotRegistered(f"{error}; and no such definition was published for tenant {tenant!r}") from None
            return published

    async def _start(
        self,
        definition: Workflow[..., Any],
        input: Raw,
        key: str,
        by: str,
        lane: str | None = None,
        connection: Any = None,
    ) -> bool:
        if self._opened is not asyncio.get_running_loop():
            await self.open()
        args, kwargs = definition.signature.decode(input)
        if isinstance(definition, Described):
            definition.check_input(next(iter((*args, *kwargs.values())), None))
        if not definition.hash:
            registry.use(definition)
        self._limit(input, f"the input of {definition.name}")
        first = ev.Started(definition.name, definition.version, input, by, hash=definition.hash)
        start = summary.begin(key, first, definition.queue, self.clock.now())
        if lane is not None:
            start = structs.replace(start, lane=_checked(_LOCK, lane, "lane"))
        if connection is None and (self.worker is not None or self._listener is not None):
            await self.stream.listen(key)
            self._ends.expect(key)
        created = await self._begin(start, connection)
        if created:
            self._remember(key, start.definition)
        else:
            self._ends.forget(key)
        return created

    async def _begin(self, start: Start, connection: Any = None) -> bool:
        """Whether it is new; the same start again is not."""
        if connection is None:
            answer = await self._starts.put(start)
        else:
            [answer] = await self._joining().start_in(connection, [start], 0)
        if answer == "conflict":
            raise ExecutionExists(
                f"{start.key} exists already, of another workflow or with another input: choose another id, or start it"
                " with the same input to get that run",
                start.key,
            )
        return answer == "created"

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
        tenant: str | None = None,
    ) -> str:
        """Send an event to an execution; gives its id. Accepted means durable: it will be applied exactly once.

        With a `connection` (asyncpg) to the same PostgreSQL it is sent in the transaction of that connection.
        A machine judges an event when its turn comes; with `validate="now"` one that it certainly does not take, in
        the state in which it rests, is refused at once. `roles` are those of the sender.
        """
        key = key_of(self._tenant(tenant), id)
        await self.open()
        raw = await self._payload(key, name, payload, by, roles)
        self._limit(raw, f"the payload of {name}")
        if validate == "now":
            await self._judge(key, name, by, roles)
        chosen = _checked(_ID, event_id or self.new_id(), "event id")
        letter = mail.EventLetter(name, raw, by, roles=tuple(roles))
        await self.post(key, chosen, letter, digest(name, bytes(raw)), connection)
        return chosen

    async def _judge(self, key: str, name: str, by: str, roles: Sequence[str]) -> None:
        """Refuse what a machine that rests in its state does not take. One that is at work may be elsewhere soon."""
        head = await self.store.head(key)
        if head is None or head.holder is not None or head.mail or head.status != "open" or not head.state:
            return
        found = await self._declared(key, await self._current(key, head.definition))
        state = msgspec.json.decode(head.state).get("state")
        if isinstance(found, Machine) and isinstance(state, str) and (reason := found.refuses(state, name, by, roles)):
            raise EventRefused(f"{key} does not take {name}: {reason}", key)

    async def send_raw(self, tenant: str, id: str, name: str, payload: Raw, event_id: str) -> None:
        key = key_of(tenant, id)
        await self.post(key, event_id, mail.EventLetter(name, payload), digest(name, bytes(payload)))

    async def cancel_raw(self, tenant: str, id: str, reason: str, mail_id: str) -> None:
        await self.post(key_of(tenant, id), mail_id, mail.CancelLetter(reason))

    async def post(
        self, key: str, id: str, letter: mail.Letter, sha: str = "", connection: Any = None
    ) -> Literal["accepted", "duplicate"]:
        """Put a letter into a mailbox, or say why that cannot be."""
        await self.open()
        sealed = Mail(key, id, mail.seal(letter), sha)
        if connection is None:
            sent = await self._sends.put(sealed)
        else:
            [sent] = await self._joining().send_in(connection, [sealed], 0)
        answer = sent.answer
        if sent.version and isinstance(letter, mail.EventLetter):
            answer = await self._compare(key, sent.version, letter)
        match answer:
            case "conflict":
                raise EventConflict(f"{key}: event {id!r} was sent before with another name or payload", key)
            case "ended":
                raise ExecutionEnded(f"{key} has ended and takes no more events; `perdure show` tells how", key)
            case "missing":
                raise ExecutionNotFound(f"there is no execution {key}", key)
            case "accepted" | "duplicate":
                return answer

    async def _compare(self, key: str, version: int, letter: mail.EventLetter) -> Literal["duplicate", "conflict"]:
        """Whether a duplicate says the same as the event in the log."""
        [row] = await self.store.read(key, version - 1, version)
        there = ev.read(row)
        if not isinstance(there, ev.EventReceived):
            return "conflict"
        same = (there.name, bytes(there.payload)) == (letter.name, bytes(letter.payload))
        return "duplicate" if same else "conflict"

    async def _payload(self, key: str, name: str, payload: Any, by: str = "", roles: Sequence[str] = ()) -> Raw:
        """Checked against the workflow's declaration, where it declares its events."""
        raw = Raw(encode(payload))
        definition = await self._definition(key)
        try:
            _check_payload(await self._declared(key, definition), key, name, raw, by, roles)
        except (InvalidValue, EventRefused):
            if (current := await self._current(key, definition)) == definition:
                raise
            self._remember(key, current)
            _check_payload(await self._declared(key, current), key, name, raw, by, roles)
        return raw

    async def described(self, key: str, state: State) -> Described:
        """The definition of an execution, if it is data."""
        found = await self._declared(key, state.definition)
        if not isinstance(found, Described):
            raise UsageError(f"{key} is of {state.definition or 'no workflow'}, which is code: only data can be drawn")
        return found

    async def _current(self, key: str, definition: str) -> str:
        """What was published may have been replaced by another version since it began; only the log knows."""
        return (await self.states.at(key, None)).definition if definition.startswith(PUBLISHED) else definition

    async def _declared(self, key: str, definition: str) -> Workflow[..., Any] | None:
        if not definition.startswith(PUBLISHED):
            return registry.find(definition)
        return await self.published.one(ref_of(key, definition))

    async def _definition(self, key: str) -> str:
        """Which workflow an execution runs. Code never changes its version, so it is asked for once."""
        if (known := self._definitions.get(key)) is not None:
            return known
        head = await self.store.head(key)
        if head is None:
            return ""
        self._remember(key, head.definition)
        return head.definition

    def _remember(self, key: str, definition: str) -> None:
        if len(self._definitions) >= _REMEMBERED:
            self._definitions.popitem(last=False)
        self._definitions[key] = definition

    def _joining(self) -> Joining:
        if not isinstance(self.store, Joining):
            raise UsageError("connection= needs a store on PostgreSQL, the database of that connection")
        return self.store

    # Events that leave.

    def sink(self, fn: Sink | None = None, *, types: Sequence[str] = ()) -> Any:
        """Decorate an `async def` that takes a CloudEvent: it gets what workflows emit, or only events of these types.

        An event that a sink does not take (it raises) is delivered again later, to all of them, with the same id.
        """

        def add(sink: Sink) -> Sink:
            self._sinks.append((frozenset(types), sink))
            return sink

        return add if fn is None else add(fn)

    async def deliver(self, event: CloudEvent) -> None:
        for types, sink in self._sinks:
            if not types or event.type in types:
                await sink(event)

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
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
        published: Mapping[str, str | int | float | bool | None] | None = None,
        **fields: str | int | float | bool | None,
    ) -> Page:
        """Executions by status, workflow, start time and published fields, newest first, page by page.

        `find(stage="paid")` looks for a published field; `published={"status": "paid"}` for one whose name is taken.
        """
        await self.open()
        if not 1 <= limit <= 1000:
            raise UsageError("limit must be between 1 and 1000")
        home = self._tenant(tenant)
        query = Query(
            tenant=home,
            status=status,
            workflow=workflow,
            parent=None if parent is None else key_of(home, parent),
            inner=parent is not None or workflow is not None or status == "stuck",
            after=None if after is None else int(after.timestamp() * 1e6),
            before=None if before is None else int(before.timestamp() * 1e6),
            fields={**fields, **(published or {})},
            limit=limit + 1,
            cursor=_read_cursor(cursor, home),
        )
        heads = await self.store.find(query)
        if len(heads) <= limit:
            return Page(heads)
        last = heads[limit - 1]
        return Page(heads[:limit], f"{last.started_at}-{last.key.partition('/')[2]}")

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
        checked = _checked(_LOCK, name, "name of a lock")
        limit = None if most is None else seconds(most)
        news = News(home, self.stream, self.news, self.no_news)
        locks = self._locks.get(home)
        if locks is None:
            locks = self._locks[home] = urls.locks(self.settings, home) or StoreLocks(self.store, home)
        return Lock(locks, checked, self.me, seconds(lease), seconds(wait), limit, news, self.open)

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
        head = await run.head()
        if at is not None and not at >= 1:
            raise UsageError("versions begin at 1")
        rows = [row async for row in run.rows(0, at)]
        edits = {version: Raw(encode(value)) for version, value in edit.items()}
        prefix = copies.prefix(rows, edits, f"{run.key}@{rows[-1].version if rows else 0}")
        key = key_of(run.key.partition("/")[0], _checked(_ID, id or f"{run.id}~{self.new_id()[-8:]}", "execution id"))
        await self._adopt(key, head, prefix)
        return Run(self, key, run._returns)

    async def adopt(self, rows: Sequence[Any], id: str, queue: str = "default", tenant: str | None = None) -> Run[Any]:
        """Import a log as a new execution; an ended one stays ended."""
        await self.open()
        key = key_of(self._tenant(tenant), _checked(_ID, id, "execution id"))
        await self._begin(copies.as_start(key, rows, queue))
        return Run(self, key)

    async def _adopt(self, key: str, head: Head, rows: Sequence[Any]) -> None:
        await self._begin(copies.as_start(key, rows, head.queue))

    # News and writing.

    def news(self, key: str) -> asyncio.Future[End | None]:
        """Done when the execution has ended, as far as this process hears of it; with the end if it is our own."""
        if self.worker is None and self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="perdure-listen")
        return self._ends.of(key)

    def no_news(self, key: str, future: asyncio.Future[End | None]) -> None:
        self._ends.leave(key, future)

    async def _hang_up(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        await self.stream.close()

    async def _listen(self) -> None:
        while True:
            for hint in await self.stream.receive(1000):
                if hint.ended:
                    self._ends.came(hint.key, end_of(hint))

    async def _write_starts(self, starts: Sequence[Start]) -> Sequence[Started]:
        answers = await self.store.start(starts, self._grace)
        fresh = [
            Hint(start.key, start.queue) for start, answer in zip(starts, answers, strict=True) if answer == "created"
        ]
        await self.stream.publish(fresh)
        return answers

    async def _write_sends(self, letters: Sequence[Mail]) -> Sequence[Sent]:
        answers = await self.store.send(letters, self._grace)
        await self.stream.publish(
            [
                Hint(letter.key, sent.queue, sent.holder)
                for letter, sent in zip(letters, answers, strict=True)
                if sent.answer == "accepted"
            ]
        )
        return answers

    async def _redrive_mended(self) -> None:
        """Stuck executions whose workflow has other code now than when they got stuck are tried again."""
        while True:
            try:
                return await self._redrive_each()
            except StoreError as error:
                log.warning("cannot look for stuck executions: %s; trying again", error, extra={"worker": self.me})
                await asyncio.sleep(self.settings.grace)

    async def _redrive_each(self) -> None:
        cursor: tuple[int, str] | None = None
        while heads := await self.store.find(Query(tenant=None, status="stuck", limit=100, cursor=cursor)):
            for head in heads:
                stuck = msgspec.json.decode(head.waits or b"{}").get("stuck") or {}
                found = registry.find(head.definition)
                if found is not None and stuck.get("code") not in (None, "", found.fingerprint):
                    letter = mail.RedriveLetter("the workflow's code has changed")
                    await self.post(head.key, letters.redrive_id(head), letter)
            cursor = (heads[-1].started_at, heads[-1].key)

    async def _rows(self, key: str, after: int, until: int | None) -> AsyncIterator[Row]:
        async for row in Run[Any](self, key).rows(after, until):
            yield row

    # Small things.

    def new_id(self) -> str:
        """Unique in space and time, and rising, so that new rows of an index lie together."""
        self._ids += 1
        return f"{time.time_ns() // 1_000_000:011x}{self._nonce}{self._ids:04x}"

    @property
    def _grace(self) -> int:
        """How long new work may wait for its hint to arrive; no time where hints say only that there is work."""
        return int(self.settings.grace * 1e6) if self.stream.carries else 0

    def _tenant(self, tenant: str | None) -> str:
        return self.tenant if tenant is None else _checked(_TENANT, tenant, "tenant")

    def _limit(self, data: Raw, what: str) -> None:
        size = len(bytes(data))
        if size > self.settings.payload_bytes:
            raise LimitReached(
                f"{what} has {size:,} bytes, more than {self.settings.payload_bytes:,}: send a reference to the data,"
                " or raise payload_bytes"
            )


#: All applications of this process. A fork would give two processes one name, and one lease to both.
_apps: weakref.WeakSet[Perdure] = weakref.WeakSet()


def _after_fork() -> None:
    for app in list(_apps):
        app._be_born()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _checked(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise UsageError(
            f"{text[:80]!r} cannot serve as {what}: it takes letters, digits and"
            f" {'_-' if what == 'tenant' else '_.:@~-'}, and is at most {64 if what == 'tenant' else 200} long"
        )
    return text


def _check_payload(
    declared: Workflow[..., Any] | None, key: str, name: str, payload: Raw, by: str, roles: Sequence[str]
) -> None:
    if declared is not None and declared.events:
        if name not in declared.events:
            names = ", ".join(declared.events)
            raise InvalidValue(f"{declared.definition} takes no event {name!r}; it takes: {names}")
        declared.events[name].decode(payload)
    if isinstance(declared, Machine) and (reason := declared.refuses("", name, by, roles)):
        raise EventRefused(f"{key} does not take {name}: {reason}", key)


def _read_cursor(cursor: str | None, tenant: str) -> tuple[int, str] | None:
    if cursor is None:
        return None
    at, _, id = cursor.partition("-")
    if not at.isdecimal() or not id:
        raise UsageError(f"{cursor!r} is not a cursor that find() gave")
    return int(at), key_of(tenant, id)


__all__ = ["Page", "Perdure"]
