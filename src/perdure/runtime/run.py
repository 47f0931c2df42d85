"""A handle on one execution: what its owner can do to it and ask about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Raw

from perdure.core import events as ev, letters as mail, view
from perdure.core.codec import Codec
from perdure.core.durations import Duration, micros
from perdure.core.entries import Entry, entry
from perdure.core.moments import to_micros
from perdure.core.reasons import Why, awaited, rests, why
from perdure.core.records import ENDED, Head, Row, ShownStatus, Status, id_of
from perdure.errors import (
    EventNotFound,
    ExecutionCancelled,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionStuck,
    PerdureError,
    Undecodable,
    UsageError,
)
from perdure.flows.diagram import Diagram
from perdure.runtime.callers import clouds, paging, retrying, whereabouts
from perdure.runtime.callers.paging import LogPage
from perdure.runtime.callers.sending import NewEvent
from perdure.runtime.callers.standing import stands, stuck_ones
from perdure.runtime.callers.whereabouts import EventStatus
from perdure.runtime.execution import migration
from perdure.runtime.managing import tenants
from perdure.runtime.managing.noting import noted

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

R_co = TypeVar("R_co", covariant=True)
_PAGE = 1000
#: Seconds between two looks at a log that is followed.
_SOON, _SELDOM = 0.02, 1.0
_RESTARTED = ev.NUMBERS[ev.Restarted]


def _own(run: Run[Any], _: Mapping[str, Any]) -> tuple[str, str]:
    return run.id, run._tenant


class Run(Generic[R_co]):
    """One execution. Made by `app.start` and `app.get`; holds nothing, so it is cheap and always current."""

    def __init__(self, app: Perdure, key: str, returns: Codec[Any] | None = None, fresh: bool = False) -> None:
        self._app = app
        self._returns = returns
        self._fresh = fresh  # just made: no use in looking whether it has ended
        self.key = key

    @property
    def id(self) -> str:
        return id_of(self.key)

    def __repr__(self) -> str:
        return f"Run({self.key!r})"

    # Asking.

    async def head(self) -> Head:
        head = await self._app.heads.of(self.key)
        if head is None:
            raise ExecutionNotFound(f"there is no execution {self.id!r}; `perdure list` shows those that are", self.key)
        return head

    async def status(self) -> ShownStatus:
        return (await self.head()).shown

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end: the result, or ExecutionFailed, ExecutionCancelled, ExecutionStuck."""
        status, result, waits = await self._settled(timeout)
        raw = result or b"null"
        if status == "completed":
            value: R_co = self._returns.decode(Raw(raw)) if self._returns is not None else msgspec.json.decode(raw)
            return value
        if status == "stuck":
            reason = msgspec.json.decode(waits or b"{}").get("stuck") or {}
            raise ExecutionStuck(f"{self.id} is stuck ({reason.get('cause')}): {reason.get('reason')}", self.key)
        error = msgspec.json.decode(raw, type=ev.Error)
        if status == "cancelled":
            raise ExecutionCancelled(f"{self.id} was cancelled: {error.message}", self.key)
        details = msgspec.json.decode(error.details)
        raise ExecutionFailed(f"{self.id} failed: {error.type}: {error.message}", self.key, error.type, details)

    async def _settled(self, timeout: Duration | None) -> tuple[Status, bytes | None, bytes | None]:
        """Status, result and, if it is stuck, why; without a look at the store if our own worker ends it."""
        if timeout is None:
            return await self._end()
        async with asyncio.timeout(micros(timeout) / 1e6):
            return await self._end()

    async def _end(self) -> tuple[Status, bytes | None, bytes | None]:
        looks = 0
        while True:
            news = self._app.news(self.key, looks)
            try:
                if not self._fresh:
                    await self._app.stream.listen(self.key)
                    head = await self.head()
                    if head.status in ENDED or (head.status == "stuck" and not head.mail):
                        return head.status, head.result, head.waits
                self._fresh = False
                if (end := await news) is not None:
                    return end.status, end.result, None
                looks = 0 if self._app.stream.trouble else looks + 1
            finally:
                self._app.no_news(self.key, news)

    async def until(self, *statuses: ShownStatus, timeout: Duration | None = None) -> ShownStatus:
        """Wait for one of these statuses. For people and tests; it looks rather than listens.

        `waiting` means that it has come to rest: begun, parked, with no mail to be folded. Nor do `paused` and `stuck`
        count while there is mail, which may change that.
        """
        return (await self.head_at(*statuses, timeout=timeout)).shown

    async def head_at(self, *statuses: ShownStatus, timeout: Duration | None = None) -> Head:
        """The head with which `until` is satisfied; a later one may tell of something else again."""
        pause = 0.005
        async with asyncio.timeout(None if timeout is None else micros(timeout) / 1e6):
            while (head := await self.head()).shown not in statuses or not (head.shown == "running" or rests(head)):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.25)
        return head

    async def rows(self, after: int = 0, until: int | None = None) -> AsyncIterator[Row]:
        """The log as it is stored, page by page."""
        while page := await self._app.store.read(self.key, after, until, _PAGE):
            for row in page:
                yield row
            after = page[-1].version
            if len(page) < _PAGE:
                return

    async def since_restart(self) -> list[Row]:
        """The rows that a worker would replay: from the newest Restarted on."""
        rows: list[Row] = []
        async for row in self.rows():
            if row.type % 1000 == _RESTARTED:
                rows.clear()
            rows.append(row)
        return rows

    async def log(self, after: int = 0, until: int | None = None) -> list[Entry]:
        """The events of the log, readable."""
        return [entry async for entry in self.entries(after, until)]

    async def entries(self, after: int = 0, until: int | None = None) -> AsyncIterator[Entry]:
        """The same, one by one: a log of any length needs the memory of one page."""
        last = after
        async for row in self.rows(after, until):
            last = row.version
            yield entry(row)
        if last == 0:
            await self.head()

    async def entry(self, version: int) -> Entry:
        """The event of the log at a version."""
        await self._app.open()
        rows = await self._app.store.read(self.key, version - 1, version, 1) if 0 < version < paging.BEYOND else []
        if not rows:
            raise EventNotFound(f"the log of {self.id} ends at {(await self.head()).version}: no {version}", self.key)
        return entry(rows[0])

    async def log_page(
        self, after: int | None = None, until: int | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> LogPage:
        """At most so many events, and a cursor for those that follow. A cursor carries `after` and `until`."""
        return await paging.page(self._app, self.key, after, until, limit, cursor)

    async def follow(self, after: int = 0) -> AsyncIterator[Entry]:
        """The events of the log after this version, and then each as it comes, until the execution has ended.

        It looks rather than listens: soon again after something came, then less often, up to once a second.
        """
        pause = _SOON
        while True:
            head = await self.head()
            if head.version > after:
                pause = _SOON
                async for row in self.rows(after, head.version):
                    yield entry(row)
                after = head.version
            if head.status in ENDED:
                return
            await self._sleep(pause)
            pause = min(pause * 1.5, _SELDOM)

    async def _sleep(self, pause: float) -> None:
        """For this long, or until it has ended as far as this process hears of it."""
        news = self._app.news(self.key)
        try:
            await asyncio.wait([news], timeout=pause)
        finally:
            self._app.no_news(self.key, news)

    async def state(self, at: int | datetime | None = None) -> view.State:
        """What the log says at a version, at a time, or now: status, published fields, what is open."""
        until = at if isinstance(at, int) else None
        moment = to_micros(at) if isinstance(at, datetime) else None
        if isinstance(at, datetime) and at.tzinfo is None:
            raise UsageError("state(at=…) needs a time with a time zone")
        if until is not None and until < 1:
            raise UsageError("versions begin at 1")
        if moment is None:
            folded = await self._app.states.at(self.key, until)
        else:
            folded = view.State(key=self.key)
            async for row in self.rows():
                if row.at > moment:
                    break
                folded = view.fold(folded, row)
        if folded.version == 0:
            await self.head()
            if moment is None and (folded := await self._app.states.at(self.key, until)).version == 0:
                raise Undecodable(f"the log of {self.key} is gone: restore the store from a backup")
        return folded

    async def why(self) -> Why:
        """What it waits for, since when, and who holds it."""
        head = await self.head()
        kept = await tenants.keeps(self._app.store, head)
        now = await stands(self._app, self, head)
        stuck = await stuck_ones(self._app, self.key, awaited(head, now))
        return why(head, await self.state(), self._app.clock.now(), kept, now, stuck)

    async def event(self, id: str) -> EventStatus:
        """What has become of an event that was sent: pending, processing, completed or failed."""
        await self._app.open()
        return await whereabouts.status(self._app.store, self.key, id)

    async def cloudevent(self, id: str | int) -> dict[str, Any]:
        """An event that was sent, by its id, or any event of the log, by its version, as a CloudEvent in its JSON form.

        One that came as such leaves as it came; one of the engine's own is of the type `perdure.log.NAME`.
        """
        await self._app.open()
        if isinstance(id, int):
            return clouds.of_entry(self.key, await self.entry(id))
        return clouds.of_sent(self.key, await whereabouts.sent(self._app.store, self.key, id))

    async def diagram(self) -> Diagram:
        """Its definition as a picture, with where it is marked; not of code."""
        state = await self.state()
        definition = await self._app.described(self.key, state)
        return definition.diagram(definition.marks(state))

    # Doing.

    async def send(
        self,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        by: str = "",
        roles: Sequence[str] = (),
        validate: Literal["later", "now"] = "later",
        attributes: Mapping[str, str | int | bool] | None = None,
    ) -> str:
        """Send an event; gives its id. The same id twice is one event. See `Perdure.send`."""
        return await self._app.send(
            self.id,
            name,
            payload,
            event_id=id,
            by=by,
            roles=roles,
            validate=validate,
            attributes=attributes,
            tenant=self._tenant,
        )

    async def send_all(
        self, events: Sequence[NewEvent], *, by: str = "", roles: Sequence[str] = ()
    ) -> list[str | PerdureError]:
        """Send many events: the id of each, or why it is not accepted. See `Perdure.send_all`."""
        return await self._app.send_all(self.id, events, by=by, roles=roles, tenant=self._tenant)

    @noted("executions.pause", _own)
    async def pause(self, *, until: datetime | None = None, reason: str = "", by: str = "") -> None:
        """Start no more actions. Those that run may finish and are recorded. Survives restarts."""
        await self._mail("pause", mail.PauseLetter(_micros(until), reason, by))

    @noted("executions.resume", _own)
    async def resume(self, *, at: datetime | None = None, reason: str = "", by: str = "") -> None:
        """Go on after a pause, now or at a time."""
        await self._mail("resume", mail.ResumeLetter(_micros(at), reason, by))

    @noted("executions.cancel", _own)
    async def cancel(
        self, reason: str = "", *, timeout: Duration | None = None, now: bool = False, by: str = ""
    ) -> None:
        """Ask the workflow to stop. Its clean-up and undos run, for at most `timeout`; with `now` they do not."""
        limit = 0 if timeout is None else max(1, micros(timeout))
        await self._mail("cancel", mail.CancelLetter(reason, by, limit, now))

    @noted("executions.retry", _own)
    async def retry(self, *, reason: str = "", id: str | None = None, by: str = "") -> Run[R_co]:
        """Try again from where it failed.

        A stuck execution goes on itself. A failed or cancelled one has ended; a new execution, with this id if one is
        given, takes over its log up to the point of failure, and is returned. The same id twice is one retry.
        """
        return await retrying.retry(self._app, self, reason, id, by)

    @noted("executions.fork", _own)
    async def fork(
        self,
        *,
        at: int | None = None,
        edit: Mapping[int, Any] | None = None,
        id: str | None = None,
        reason: str = "",
        by: str = "",
    ) -> Run[R_co]:
        """Start a new execution from a prefix of this one's log, with edited results or payloads by version.

        The same id twice is one fork, also if this execution has gone on in between.
        """
        return await self._app.fork(self, at, edit or {}, id, by)

    @noted("executions.migrate", _own)
    async def migrate(self, version: int, *, reason: str = "", by: str = "", timeout: Duration | None = None) -> None:
        """Go on with another version of its published definition; returns when that has happened.

        It must be at rest, and stand where the other version can go on; otherwise it keeps its version and
        MigrationRefused says why.
        """
        await migration.migrate(self._app, self, version, by, timeout)

    async def _mail(self, what: str, letter: mail.Letter) -> None:
        await self._app.post(self.key, f"/{what}:{self._app.new_id()}", letter)

    @property
    def _tenant(self) -> str:
        return self.key.partition("/")[0]


def _micros(moment: datetime | None) -> int:
    if moment is None:
        return 0
    if moment.tzinfo is None:
        raise UsageError("a time needs a time zone: datetime.now(timezone.utc) + timedelta(hours=1)")
    return to_micros(moment)
