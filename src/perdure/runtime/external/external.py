"""`app.external`: actions that are run by workers in any language, which ask for them and say what became of them.

    tasks = await app.external.poll("node", limit=10)            # waits until there are some
    beat = await app.external.heartbeat(tasks[0].token)          # begins the lease anew; tells of a cancel
    await app.external.complete(tasks[0].token, {"paid": True})  # or fail(token, "CardDeclined", "no funds")

Rules kept here: a task is an execution that is held in the name of its token, so any process can take what its worker
says, and none has to remember anything; what comes from somebody who is no longer its worker is dropped and counted; a
tenant is given its own tasks only, and its tokens are good for nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Raw, Struct

from perdure.core import events as ev
from perdure.core.codec import encode
from perdure.core.durations import Duration, micros, seconds
from perdure.core.loop import turns
from perdure.core.moments import moment
from perdure.core.records import (
    ACTION,
    ENDED,
    Head,
    Held,
    Row,
    external_queue,
    is_external,
    tenant_of,
)
from perdure.errors import NotRegistered, TaskLost, TaskNotFound, UsageError
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.runtime.checks import checked_size
from perdure.runtime.external.handing import ExternalTask, Handing, Wish
from perdure.runtime.external.task import Task, Told
from perdure.runtime.external.ticket import Ticket, read_ticket
from perdure.runtime.external.watch import Watch, news_key
from perdure.runtime.settings import Settings
from perdure.runtime.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: The shortest and the longest lease, in microseconds.
SHORTEST, LONGEST = 1_000_000, 3_600_000_000
#: Tasks that are given out at once.
MOST = 100
#: The longest name of a worker.
LONGEST_WORKER = 100
#: A queue for which nobody asked for so many seconds is forgotten.
_IDLE = 60.0
_PAGE = 1000


class Beat(Struct, frozen=True):
    """The answer to a heartbeat: whether to stop, and until when the task stays with its worker."""

    cancelled: bool
    until: datetime | None = None


class ExternalTasks:
    """See the module. Methods take the `tenant` whose tasks are meant; else the application's."""

    def __init__(self, app: Perdure) -> None:
        self._app = app
        self._own_metrics = Metrics()
        self._watches: dict[tuple[str, str], Watch] = {}
        self._handing = Handing(app, self)

    # What tasks need of whoever holds them.

    @property
    def me(self) -> str:
        return self._app.me

    @property
    def settings(self) -> Settings:
        return self._app.settings

    @property
    def metrics(self) -> Metrics:
        """Those of the worker in this process, if there is one, for they are the ones that are shown."""
        return self._own_metrics if self._app.worker is None else self._app.worker.metrics

    def use(self, workflow: Workflow[..., Any]) -> None:
        registry.use(workflow)

    # The verbs.

    async def poll(
        self,
        queue: str,
        *,
        actions: Sequence[str] | None = None,
        limit: int = 1,
        wait: Duration = "30s",
        worker: str = "",
        lease: Duration = "30s",
        tenant: str | None = None,
        listens: Callable[[], Awaitable[bool]] | None = None,
    ) -> list[ExternalTask]:
        """Ask for tasks of a queue, all or those of some actions, and wait until there are some; none is an answer.

        A task is its worker's for the time of the lease; a heartbeat begins it anew. `listens` is asked before a task
        is given out: whether whoever asked is still there.
        """
        home = self._app._tenant(tenant)
        wish = _checked(queue, actions, limit, worker, micros(lease))
        await self._app.open()
        until = asyncio.get_running_loop().time() + seconds(wait)
        watch = await self._watch(home, queue)
        watch.waiting += 1
        try:
            while True:
                bell = watch.bell
                if watch.closed or (listens is not None and not await listens()):
                    return []
                if given := await self._handing.take(watch, wish):
                    return given
                watch.used = asyncio.get_running_loop().time()
                if (left := until - watch.used) <= 0:
                    return []
                await watch.rest(bell, wish.definitions, left)
                await self._hear(home, queue, watch)  # a worker of this process may have come or gone
        finally:
            watch.waiting -= 1

    async def heartbeat(self, token: str, details: Any = None, *, tenant: str | None = None) -> Beat:
        """Say that a task is being done, with details that survive a crash. Raises TaskLost if it is another's."""
        data = None if details is None else Raw(encode(details))
        task, ticket = await self._held("heartbeat", token, tenant)
        now, asked = self._app.clock.now(), task.open
        try:
            if asked is None:
                await self._handing.part(task)
                return Beat(cancelled=True)
            if data is not None:
                task.progressed(asked, checked_size(data, self.settings.payload_bytes, "progress"), now)
            wanted = min(max(ticket.lease, SHORTEST), LONGEST)  # what a token says is no more than a wish
            lease = task.lease(asked, wanted, now)
            commit = task.keep()
            if commit is not None and not await self._handing.write([(task, commit)]):
                self._late("heartbeat", ticket.key)
            if not await self._app.store.renew([(task.key, task.token)], lease):
                self._late("heartbeat", ticket.key)
        finally:
            task.drop()
        return Beat(cancelled=False, until=moment(now + lease))

    async def complete(self, token: str, result: Any = None, *, tenant: str | None = None) -> None:
        """Give the result. One that does not fit what was declared is InvalidValue, and the task stays."""
        task, ticket = await self._held("complete", token, tenant)
        await self._settle("complete", task, ticket, lambda asked, now: task.succeeded(asked, result, now))

    async def fail(
        self,
        token: str,
        type: str,
        message: str = "",
        *,
        retry: bool = True,
        after: Duration | None = None,
        details: Any = None,
        tenant: str | None = None,
    ) -> None:
        """Say that a task failed. Its retry policy decides about another attempt, unless `retry` is False.

        `after` is how long at least to wait. An error whose name is that of a class in `fatal`, `raises` or `errors` of
        the action is one of that class.
        """
        least = 0.0 if after is None else seconds(after)
        data = checked_size(Raw(encode(details)), self.settings.payload_bytes, "the details of an error")
        task, ticket = await self._held("fail", token, tenant)

        def failed(asked: Any, now: int) -> ev.Event:
            error = Told.of(asked, ev.Error(type, message or type, details=data), retry, least)
            return task.failed(asked, error, now)

        await self._settle("fail", task, ticket, failed)

    # Taking what workers say.

    async def _held(self, said: str, token: str, tenant: str | None) -> tuple[Task, Ticket]:
        """The task, as the store has it, if it is still that of whoever has this token."""
        home, ticket = self._app._tenant(tenant), read_ticket(token)
        await self._app.open()
        if ticket is None or tenant_of(ticket.key) != home:
            raise _not_found()
        head = await self._app.store.head(ticket.key)
        if head is None or not is_external(head.queue):
            raise _not_found()
        if head.status in ENDED or not ticket.holds(head.holder):
            self._late(said, ticket.key, head)
        action = registry.external_of(head.definition)
        rows = await self._rows(head.key)
        if any(row.fence > head.token for row in rows):  # it was taken over since the first look
            self._late(said, ticket.key)
        letters = (await self._app.store.mail([head.key])).get(head.key, [])
        held = Held(
            head.key,
            head.token,
            head.definition,
            head.queue,
            head.lapses,
            head.status,
            rows,
            letters,
            head.parent,
            head.parent_ref,
        )
        task = Task(self, held, action)
        with turns():
            task.wake(self._app.clock.now())
        return task, ticket

    async def _rows(self, key: str) -> list[Row]:
        rows: list[Row] = []
        while part := await self._app.store.read(key, rows[-1].version if rows else 0, None, _PAGE):
            rows += part
        return rows

    async def _settle(self, said: str, task: Task, ticket: Ticket, settle: Callable[[Any, int], ev.Event]) -> None:
        try:
            asked = task.open
            if asked is None:  # cancelled: the mail says so
                await self._handing.part(task)
                self._late(said, ticket.key)
            with turns():
                event = settle(asked, self._app.clock.now())
            if not await self._handing.part(task):
                self._late(said, ticket.key)
            self.metrics.attempted(event)
        finally:
            task.drop()

    def _late(self, said: str, key: str, head: Head | None = None) -> NoReturn:
        self.metrics.late.add(said)
        if head is not None and head.status in ENDED:
            why = f"it has ended ({head.status})"
        else:
            why = "its lease was over before there was a heartbeat, or its workflow no longer wants it"
        raise TaskLost(f"this task is no longer yours: {why}; what you said was dropped, ask for another", key)

    # Hearing of new tasks.

    async def _watch(self, tenant: str, queue: str) -> Watch:
        now = asyncio.get_running_loop().time()
        for place, old in list(self._watches.items()):
            if not old.waiting and now - old.used > _IDLE:
                del self._watches[place]
                self._app._ends.unwatch(news_key(*place))
        watch = self._watches.get((tenant, queue))
        if watch is None:
            name = external_queue(tenant, queue)
            watch = self._watches[tenant, queue] = Watch(self._app.store, self._app.clock, name, self.settings.probe)
        watch.used = now
        await self._hear(tenant, queue, watch)
        return watch

    async def _hear(self, tenant: str, queue: str, watch: Watch) -> None:
        key = news_key(tenant, queue)
        await self._app.stream.listen(key)
        self._app.hear(key, watch.came)

    def close(self) -> None:
        """Whoever waits is answered at once."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        self._handing.overdue.close()


def _not_found() -> TaskNotFound:
    return TaskNotFound("this is not the token of an external task of this tenant: give back what poll gave, unchanged")


def _checked(queue: str, actions: Sequence[str] | None, limit: int, worker: str, lease: int) -> Wish:
    known = registry.external(queue)
    wanted = {one: action for one, action in known.items() if actions is None or action.name in actions}
    missing = sorted(set(actions or ()) - {action.name for action in wanted.values()})
    if missing or not wanted:
        have = ", ".join(sorted(one.removeprefix(ACTION) for one in known)) or "none"
        what = f"{', '.join(missing)} " if missing else ""
        raise NotRegistered(f"this process knows no external action {what}of queue {queue!r}; it knows: {have}")
    if not 1 <= limit <= MOST:
        raise UsageError(f"limit is from 1 to {MOST}, not {limit}")
    if not SHORTEST <= lease <= LONGEST:
        raise UsageError("a lease is from one second to one hour: a longer task gives heartbeats")
    if len(worker) > LONGEST_WORKER or not worker.isprintable():
        raise UsageError(f"the name of a worker has at most {LONGEST_WORKER} characters, all of them printable")
    return Wish(wanted, limit, worker, lease)
