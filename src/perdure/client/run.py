"""A handle on one execution behind the HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import httpx
import msgspec
from msgspec import Raw, Struct

from perdure.client import sending
from perdure.client.door import Door, path_of, span
from perdure.core import events as ev
from perdure.core.codec import Codec
from perdure.core.durations import Duration, micros
from perdure.core.entries import Entry
from perdure.core.reasons import Why
from perdure.core.records import ENDED, ShownStatus, key_of
from perdure.errors import ExecutionCancelled, ExecutionFailed, ExecutionStuck, MigrationRefused, PerdureError
from perdure.http.forms import (
    Accepted,
    CancelIn,
    EventIn,
    ExecutionOut,
    ForkIn,
    MigrateIn,
    PauseIn,
    ResumeIn,
    RetryIn,
    StartedOut,
    StateOut,
)
from perdure.runtime.callers.paging import LogPage
from perdure.runtime.callers.sending import NewEvent
from perdure.runtime.callers.whereabouts import EventStatus

R_co = TypeVar("R_co", covariant=True)
#: Seconds for which one request waits for the end.
_WAIT = 20.0
_PAGE = 1000
_SOON = 0.05


class _Ended(Struct):
    status: ShownStatus
    result: Raw = Raw(b"null")
    error: Raw = Raw(b"null")


class RemoteRun(Generic[R_co]):
    """One execution. Made by `client.start` and `client.get`; holds nothing, so it is cheap and always current."""

    def __init__(self, door: Door, id: str, returns: Codec[Any] | None = None) -> None:
        self._door = door
        self._returns = returns
        self.id = id
        self._path = path_of("executions", id)

    def __repr__(self) -> str:
        return f"RemoteRun({self.id!r})"

    # Asking.

    async def head(self) -> ExecutionOut:
        return await self._door.get(self._path, ExecutionOut)

    async def status(self) -> ShownStatus:
        return (await self.head()).status

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end: the result, or ExecutionFailed, ExecutionCancelled, ExecutionStuck.

        A server that restarts meanwhile is waited for.
        """
        async with asyncio.timeout(None if timeout is None else micros(timeout) / 1e6):
            while True:
                told = await self._door.get(f"{self._path}/result", _Ended, _WAIT, wait=f"{_WAIT:g}s")
                if told.status in ENDED:
                    return self._ended(told)
                if told.status == "stuck":
                    await self._still_stuck()

    async def _still_stuck(self) -> None:
        if (await self.head()).mail:  # perhaps it was tried again just now
            await asyncio.sleep(_SOON)
            return
        raise ExecutionStuck(str(await self.why()), key_of("", self.id))

    def _ended(self, told: _Ended) -> R_co:
        key = key_of("", self.id)
        if told.status == "completed":
            value: R_co = self._returns.decode(told.result) if self._returns else msgspec.json.decode(told.result)
            return value
        error = msgspec.json.decode(told.error, type=ev.Error)
        if told.status == "cancelled":
            raise ExecutionCancelled(f"{self.id} was cancelled: {error.message}", key)
        details = msgspec.json.decode(error.details)
        raise ExecutionFailed(f"{self.id} failed: {error.type}: {error.message}", key, error.type, details)

    async def until(self, *statuses: ShownStatus, timeout: Duration | None = None) -> ShownStatus:
        """Wait for one of these statuses. For people and tests; it looks rather than listens.

        Of one that is not running it means as well that it has come to rest: nothing is left to do about what has come.
        """
        pause = _SOON
        async with asyncio.timeout(None if timeout is None else micros(timeout) / 1e6):
            while not ((head := await self.head()).status in statuses and (head.status == "running" or head.rests)):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 1.0)
        return head.status

    async def log(self, after: int = 0, until: int | None = None) -> list[Entry]:
        """The events of the log, readable."""
        return [entry async for entry in self.entries(after, until)]

    async def entries(self, after: int = 0, until: int | None = None) -> AsyncIterator[Entry]:
        """The same, one by one: a log of any length needs the memory of one page."""
        page = await self.log_page(after, until, limit=_PAGE)
        while True:
            for entry in page.events:
                yield entry
            if page.next is None:
                return
            page = await self.log_page(limit=_PAGE, cursor=page.next)

    async def entry(self, version: int) -> Entry:
        """The event of the log at a version."""
        return await self._door.get(f"{self._path}/log/{version}", Entry)

    async def log_page(
        self, after: int | None = None, until: int | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> LogPage:
        """At most so many events, and a cursor for those that follow. A cursor carries `after` and `until`."""
        return await self._door.get(f"{self._path}/log", LogPage, after=after, until=until, limit=limit, cursor=cursor)

    async def follow(self, after: int = 0) -> AsyncIterator[Entry]:
        """The events of the log after this version, and then each as it comes, until the execution has ended.

        A connection that breaks is made anew, and goes on after the last event.
        """
        while True:
            try:
                async with self._door.flow(f"{self._path}/stream", after) as answer:
                    name = ""
                    async for line in answer.aiter_lines():
                        if line.startswith("event: "):
                            name = line[7:]
                        elif line.startswith("data: "):
                            if name == "end":
                                return
                            entry = msgspec.json.decode(line[6:], type=Entry)
                            after = entry.version
                            yield entry
            except httpx.TransportError:
                pass
            await self.head()  # waits for the server, and raises if it cannot be reached

    async def state(self, at: int | datetime | None = None) -> StateOut:
        """What the log says at a version, at a time, or now."""
        return await self._door.get(f"{self._path}/state", StateOut, at=at)

    async def why(self) -> Why:
        """What it waits for, since when, and who holds it."""
        return await self._door.get(f"{self._path}/why", Why)

    async def event(self, id: str) -> EventStatus:
        """What has become of an event that was sent: pending, processing, completed or failed."""
        return await self._door.get(path_of("executions", self.id, "events", id), EventStatus)

    async def cloudevent(self, id: str | int) -> dict[str, Any]:
        """An event that was sent, by its id, or any event of the log, by its version, as a CloudEvent in its JSON form.

        One that came as such leaves as it came; one of the engine's own is of the type `perdure.log.NAME`.
        """
        path = f"{self._path}/log/{id}" if isinstance(id, int) else path_of("executions", self.id, "events", id)
        return await self._door.get(path, dict[str, Any], form="structured")

    async def diagram(self, form: Literal["svg", "mermaid"] = "svg") -> str:
        """Its definition as a picture, or as a text that others draw, with where it is marked; not of code."""
        return await self._door.text(f"{self._path}/diagram", form=form)

    # Doing.

    async def send(
        self, name: str, payload: Any = None, *, id: str | None = None, validate: Literal["later", "now"] = "later"
    ) -> str:
        """Send an event; gives its id. The same id twice is one event."""
        body = EventIn(name, payload, id or self._door.new_id())
        return (await self._door.post(f"{self._path}/events", body, Accepted, validate=validate)).id

    async def send_all(self, events: Sequence[NewEvent]) -> list[str | PerdureError]:
        """Send many events, up to 1,000 in one write: the id of each, or why it is not accepted."""
        return await sending.send_all(self._door, self.id, events)

    async def pause(self, *, until: datetime | None = None, reason: str = "") -> None:
        """Start no more actions. Those that run may finish and are recorded."""
        await self._door.do(f"{self._path}/pause", PauseIn(reason, until))

    async def resume(self, *, at: datetime | None = None, reason: str = "") -> None:
        """Go on after a pause, now or at a time."""
        await self._door.do(f"{self._path}/resume", ResumeIn(reason, at))

    async def cancel(self, reason: str = "", *, timeout: Duration | None = None, now: bool = False) -> None:
        """Ask the workflow to stop; its clean-up and undos run first, unless it has to be now."""
        await self._door.do(f"{self._path}/cancel", CancelIn(reason, span(timeout), now))

    async def retry(self, *, reason: str = "", id: str | None = None) -> RemoteRun[R_co]:
        """Try again from where it failed or got stuck; gives the execution that does. An id twice is one retry."""
        made = await self._door.post(f"{self._path}/retry", RetryIn(reason, id or self._copy()), StartedOut)
        return RemoteRun(self._door, made.id, self._returns)

    async def fork(
        self,
        *,
        at: int | None = None,
        edit: Mapping[int, Any] | None = None,
        id: str | None = None,
        reason: str = "",
    ) -> RemoteRun[R_co]:
        """Start a new execution from a prefix of this one's log, with edited results or payloads by version.

        The same id twice is one fork.
        """
        edits = {str(version): value for version, value in (edit or {}).items()}
        body = ForkIn(at, edits, id or self._copy())
        made = await self._door.post(f"{self._path}/fork", body, StartedOut, reason=reason)
        return RemoteRun(self._door, made.id, self._returns)

    def _copy(self) -> str:
        """The id of a copy, chosen here, so that a request whose answer got lost makes no second one."""
        return f"{self.id}~{self._door.new_id()[-8:]}"

    async def migrate(self, version: int, *, reason: str = "", timeout: Duration | None = None) -> None:
        """Go on with another version of its published definition; returns when that has happened.

        MigrationRefused says why it keeps its version. After a TimeoutError the wish stays, and a worker may grant it.
        """
        async with asyncio.timeout(None if timeout is None else micros(timeout) / 1e6):
            while not await self._migrated(version, reason):
                pause = _SOON
                while (await self.head()).mail:  # it is durable, and no worker has read it yet
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, 1.0)

    async def _migrated(self, version: int, reason: str) -> bool:
        """Whether it has happened, as far as one request waits for it."""
        try:
            return await self._ask_to_migrate(version, reason)
        except MigrationRefused:
            # A wish that was sent again because its answer got lost is refused when it has come true already.
            return await self._ask_to_migrate(version, reason)

    async def _ask_to_migrate(self, version: int, reason: str) -> bool:
        body, wait = MigrateIn(version), f"{_WAIT:g}s"
        answer = await self._door.ask("POST", f"{self._path}/migrate", body, patience=_WAIT, reason=reason, wait=wait)
        return answer.status_code == 200
