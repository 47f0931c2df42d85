"""`app.tasks`: what workflows ask of people. Found, claimed, given back, passed on and completed here.

A task is an execution of `person:`. Rules kept here: what is asked of a task is an event, durable before anything else,
and the answer is the verdict that the task's own log gives, so of two people who claim at once exactly one is told that
it is theirs; nothing of it needs a worker in this process. A value that does not fit the form is refused before it is
sent, with all that is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import events as ev, letters as mail
from perdure.core.codec import digest, encode
from perdure.core.durations import Duration, micros
from perdure.core.moments import moment
from perdure.core.records import PERSON, Head, id_of, key_of
from perdure.errors import EventRefused, ExecutionEnded, ExecutionNotFound, FormInvalid
from perdure.flows.bound import Problem
from perdure.flows.person import Assigned, people
from perdure.flows.task import ANYONE, Order, first_shown, form_of, read_order, role_flag, user_flag
from perdure.runtime.callers import finding
from perdure.runtime.callers.showing import whole
from perdure.runtime.checks import checked_id, checked_size, checked_tenant
from perdure.runtime.cursors import Purpose
from perdure.runtime.managing.noting import noted

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

TaskStatus: TypeAlias = Literal["open", "claimed", "completed", "expired", "cancelled"]
#: How long a verb waits for the verdict unless it is told.
PATIENCE = "5s"
_Fields: TypeAlias = dict[str, str | int | float | bool | None]
_LONGEST_PAUSE = 0.25


class Task(Struct, frozen=True):
    """A task. `form`, `data` and `value` are only in what `get` gives."""

    id: str
    name: str
    status: TaskStatus
    created_at: datetime
    changed_at: datetime
    title: str = ""
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    claimed_by: str = ""
    completed_by: str = ""
    priority: int = 0
    due: datetime | None = None
    execution: str | None = None  # that waits for it
    form_version: str = ""
    form: Any = None
    data: Any = None
    value: Any = None


class TaskPage(Struct, frozen=True):
    """Tasks, newest first; `next` is the cursor of the page that follows, if there is one."""

    tasks: list[Task]
    next: str | None = None


class Tasks:
    """The tasks of an application, per tenant."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    # Looking.

    async def list(
        self,
        *,
        name: str | None = None,
        status: TaskStatus | None = None,
        assignee: str | None = None,
        role: str | None = None,
        claimed_by: str | None = None,
        execution: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> TaskPage:
        """Tasks by name, status, who may do them, who has claimed them, and the execution that waits; newest first."""
        fields: _Fields = {}
        if assignee is not None:
            fields[user_flag(assignee)] = True
        if role is not None:
            fields[role_flag(role)] = True
        if claimed_by is not None:
            fields["claimed_by"] = claimed_by
        return await self._pages([fields], name, status, execution, limit, cursor, tenant)

    async def mine(
        self,
        by: str,
        roles: Sequence[str] = (),
        *,
        name: str | None = None,
        status: Literal["open", "claimed", "completed"] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> TaskPage:
        """What this person can do now: tasks that nobody has claimed yet and that are for them, and those they have.

        With a status only those; `completed` gives the tasks that this person has completed.
        """
        flags = [user_flag(by), *map(role_flag, sorted(set(roles))), ANYONE]
        free: list[_Fields] = [{"state": "open", flag: True} for flag in flags]
        match status:
            case "completed":
                wanted: list[_Fields] = [{"completed_by": by}]
            case "claimed":
                wanted = [{"claimed_by": by}]
            case "open":
                wanted = free
            case _:
                wanted = [*free, {"state": "claimed", "claimed_by": by}]
        return await self._pages(wanted, name, status, None, limit, cursor, tenant)

    async def get(self, id: str, *, tenant: str | None = None) -> Task:
        """One task, with its form, its data and what was filled in."""
        key = self._key(id, tenant)
        head, order = await self._found(key)
        # What the head shows of an execution that is at work may be of before the newest event of its log.
        state = await self._app.states.at(key, None)
        task = _task(head, state.published or first_shown(order, head.started_at))
        value = state.result if task.status == "completed" else None
        changed = moment(state.at)
        return structs.replace(task, form=order.form, data=order.data, value=value, changed_at=changed)

    # Doing.

    async def claim(
        self,
        id: str,
        *,
        by: str,
        roles: Sequence[str] = (),
        event_id: str | None = None,
        wait: Duration = PATIENCE,
        tenant: str | None = None,
    ) -> Task:
        """Take a task for oneself: of several who try, one has it, and the others get EventRefused."""
        return await self._tell(self._key(id, tenant), "claim", None, by, roles, event_id, wait)

    async def release(
        self,
        id: str,
        *,
        by: str,
        roles: Sequence[str] = (),
        event_id: str | None = None,
        wait: Duration = PATIENCE,
        tenant: str | None = None,
    ) -> Task:
        """Give a task back that one has claimed."""
        return await self._tell(self._key(id, tenant), "release", None, by, roles, event_id, wait)

    @noted("tasks.assign")
    async def assign(
        self,
        id: str,
        to: Assigned,
        *,
        reason: str = "",
        by: str = "",
        roles: Sequence[str] = (),
        event_id: str | None = None,
        wait: Duration = PATIENCE,
        tenant: str | None = None,
    ) -> Task:
        """Let others do it, instead of those who could before; a claim is over with that."""
        return await self._tell(self._key(id, tenant), "assign", people(to), by, roles, event_id, wait)

    async def complete(
        self,
        id: str,
        value: Any = None,
        *,
        by: str = "",
        roles: Sequence[str] = (),
        event_id: str | None = None,
        wait: Duration = PATIENCE,
        tenant: str | None = None,
    ) -> Task:
        """Hand in what the form asks for; FormInvalid says all that does not fit. The same once more is the same."""
        key = self._key(id, tenant)
        _, order = await self._found(key)
        _check_form(order, value)
        return await self._tell(key, "complete", value, by, roles, event_id, wait)

    # Inside.

    def _key(self, id: str, tenant: str | None) -> str:
        return key_of(self._app.tenant if tenant is None else checked_tenant(tenant), id)

    async def _found(self, key: str) -> tuple[Head, Order]:
        await self._app.open()
        head = await self._app.store.head(key)
        if head is None or head.workflow != PERSON:
            raise ExecutionNotFound(f"there is no task {id_of(key)!r}; `perdure tasks list` shows those that are", key)
        return head, await self._order(key)

    async def _order(self, key: str) -> Order:
        [row] = await self._app.store.read(key, 0, 1)
        first = ev.read(row)
        assert isinstance(first, ev.Started)
        return read_order(first.input)

    async def _pages(
        self,
        wanted: Sequence[_Fields],
        name: str | None,
        status: TaskStatus | None,
        execution: str | None,
        limit: int,
        cursor: str | None,
        tenant: str | None,
    ) -> TaskPage:
        """The first of all that fit one of these; each search has the same order, so one cursor serves all."""
        app, home = self._app, self._app._tenant(tenant)
        await app.open()
        more = {} if name is None else {"task": name}
        if status not in (None, "cancelled"):
            more["state"] = status
        sought: list[_Fields] = [{**fields, **more} for fields in wanted]
        purpose = Purpose(home, "tasks", {"status": status, "execution": execution, "fields": sought})
        limit, place = await finding.begin(app.cursors, purpose, limit, cursor)
        heads: dict[str, Head] = {}
        goes_on = False
        for fields in sought:
            stage: Literal["cancelled"] | None = "cancelled" if status == "cancelled" else None
            query = finding.query_of(home, status=stage, workflow=PERSON, parent=execution, fields=fields)
            found, goes_further = await finding.look(app.store, query, limit, place)
            heads |= {head.key: head for head in found}
            goes_on = goes_on or goes_further
        ordered = sorted(heads.values(), key=lambda head: (head.started_at, head.key), reverse=True)
        kept = ordered[:limit]
        tasks = [await self._listed(head) for head in kept]
        goes_on = goes_on or len(ordered) > limit
        behind = await app.cursors.write(purpose, finding.place_of(kept[-1])) if goes_on else None
        return TaskPage([task for task in tasks if status in (None, task.status)], behind)

    async def _listed(self, head: Head) -> Task:
        found = await whole(self._app.store, head)
        return _task(found, msgspec.json.decode(found.state or b"{}"))

    async def _tell(
        self, key: str, name: str, payload: Any, by: str, roles: Sequence[str], event_id: str | None, wait: Duration
    ) -> Task:
        """Send an event, and wait for what the task makes of it."""
        app = self._app
        await self._found(key)
        if not by and (roles or name == "claim"):
            raise EventRefused(f"task {id_of(key)} does not take it: it does not say who sends {name} (by=…)", key)
        raw = checked_size(Raw(encode(payload)), app.settings.payload_bytes, f"the payload of {name}")
        chosen = checked_id(event_id or app.new_id(), "event id")
        letter = mail.EventLetter(name, raw, by or app.settings.actor, roles=tuple(roles))
        try:
            await app.post(key, chosen, letter, digest(name, bytes(raw)))
        except ExecutionEnded:
            return await self._too_late(key, chosen, letter)
        try:
            async with asyncio.timeout(micros(wait) / 1e6):
                judged = await self._judged(key, chosen)
        except TimeoutError:
            raise TimeoutError(
                f"{name} of task {id_of(key)} is durable and will be judged, but no worker has done so yet"
            ) from None
        return await self._shown(key) if judged else await self._too_late(key, chosen, letter)

    async def _judged(self, key: str, event_id: str) -> bool:
        """Wait for the verdict: whether there is one, for a task may end before it comes to an event."""
        after, pause = 0, 0.005
        while True:
            rows = await self._app.store.read(key, after)
            for row in rows:
                match ev.read(row):
                    case ev.StateChanged(id=id) if id == event_id:
                        return True
                    case ev.EventRejected(id=id, reason=reason) if id == event_id:
                        raise EventRefused(f"task {id_of(key)} does not take it: {reason}", key)
                    case ev.Completed() | ev.Failed() | ev.Cancelled():
                        return False
                    case _:
                        pass
                after = row.version
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    async def _too_late(self, key: str, event_id: str, letter: mail.EventLetter) -> Task:
        """It has ended: well, if this is what ended it, or what says the same again; or else that is an error."""
        if await self._judged(key, event_id):
            return await self._shown(key)
        task = await self._shown(key)
        same = letter.name == "complete" and task.status == "completed" and task.completed_by == letter.by
        if same and task.value == msgspec.json.decode(letter.payload):
            return task
        whom = f" by {task.completed_by}" if task.completed_by else ""
        raise ExecutionEnded(f"task {task.id} was {task.status}{whom} and takes nothing more", key)

    async def _shown(self, key: str) -> Task:
        return await self.get(id_of(key), tenant=key.partition("/")[0])


def _check_form(order: Order, value: Any) -> None:
    form = form_of(order)
    plain = msgspec.json.decode(encode(value))
    faults = [] if form is None else sorted(form.faults(plain))
    if faults:
        problems = [Problem(place or "value", message) for place, message in faults]
        raise FormInvalid(f"{order.name} is not filled in as its form asks", problems)


def _task(head: Head, shown: Mapping[str, Any]) -> Task:
    # One that was cancelled by force could not say so.
    status: Any = "cancelled" if head.status == "cancelled" else shown["state"]
    return Task(
        id_of(head.key),
        shown["task"],
        status,
        moment(head.started_at),
        moment(head.changed_at),
        shown["title"],
        tuple(shown["users"]),
        tuple(shown["roles"]),
        shown["claimed_by"],
        shown["completed_by"],
        shown["priority"],
        None if shown["due"] is None else moment(shown["due"]),
        None if head.parent is None else id_of(head.parent),
        shown["form"],
    )
