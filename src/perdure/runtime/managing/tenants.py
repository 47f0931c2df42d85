"""`Tenants`: those that are suspended, and those that have a quota. What is started and sent is kept, and waits.

    await app.tenants.suspend("acme", "the invoice of May", by="ada")
    await app.tenants.resume("acme")
    await app.tenants.limit("acme", running=100)

What is known of a tenant is a log without code, as that of an API key, under a home of the engine's own. Rules kept
here: the record is a function of its log; workers are told at once, and look by themselves now and then, so that a word
that gets lost only costs time. A suspended tenant is not locked out: that is what its credentials are for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from perdure.core import events as ev
from perdure.core.moments import moment
from perdure.core.reasons import Reason
from perdure.core.records import ENDED, Head, Hint, Query, Row, Start, id_of, key_of, tenant_of
from perdure.errors import UsageError
from perdure.ports import Store
from perdure.runtime.checks import checked_tenant
from perdure.runtime.managing.noting import noted
from perdure.runtime.managing.publishing import Deed, Desk, Ledger

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: The workflow of such a log, and its home: a tenant that nobody can have.
TENANT = "tenant:"
HOME = "tenants:"
#: What workers are told when something has changed.
NEWS = "tenants:"
_PAGE = 500
_RECEIVED = ev.NUMBERS[ev.EventReceived]


class Act(Struct, frozen=True, omit_defaults=True):
    reason: str = ""
    running: int | None = None


class Record(Struct, frozen=True):
    """A tenant as the head of its log shows it."""

    suspended: bool = False
    reason: str = ""
    by: str = ""
    at: int = 0
    running: int | None = None  # its quota


class Suspension(Struct, frozen=True):
    """A tenant whose executions rest."""

    tenant: str
    since: datetime
    reason: str = ""
    by: str = ""


class Standing(Struct, frozen=True):
    """A tenant that is suspended or has a quota: how many executions may run, and who said so last, when and why."""

    tenant: str
    suspended: bool
    running: int | None
    since: datetime
    reason: str = ""
    by: str = ""


class Quota(Struct, frozen=True):
    """What a tenant may have, and has. `running` executions have begun and not ended; `most` of them may."""

    tenant: str
    suspended: bool
    running: int
    most: int | None = None


def _whose(_: Tenants, given: Mapping[str, Any]) -> tuple[str, str]:
    return given["tenant"], given["tenant"]


class Tenants:
    def __init__(self, app: Perdure) -> None:
        self._app = app

    @noted("tenants.suspend", _whose)
    async def suspend(self, tenant: str, reason: str = "", *, by: str = "") -> None:
        """Let a tenant's executions rest: what is held goes on until it waits, and nothing is taken up after that."""
        await self._write(tenant, Deed("suspended", Act(reason)), by)

    @noted("tenants.resume", _whose)
    async def resume(self, tenant: str, reason: str = "", *, by: str = "") -> None:
        """Let them go on, with all that came meanwhile."""
        await self._write(tenant, Deed("resumed", Act(reason)), by)

    @noted("tenants.limit", _whose)
    async def limit(self, tenant: str, *, running: int | None, reason: str = "", by: str = "") -> None:
        """Let no more than so many executions of a tenant run: new ones wait until others end. None: any number."""
        if running is not None and running < 0:
            raise UsageError(f"a quota is a number from 0 on, or None for no quota, not {running}")
        await self._write(tenant, Deed("limited", Act(reason, running)), by)

    async def suspended(self) -> list[Suspension]:
        """Those that are suspended now, by name."""
        await self._app.open()
        return [
            Suspension(one.tenant, one.since, one.reason, one.by) for one in await self.standings() if one.suspended
        ]

    async def standings(self) -> list[Standing]:
        """Those that are suspended or have a quota, by name."""
        await self._app.open()
        found = [
            Standing(tenant, record.suspended, record.running, moment(record.at), record.reason, record.by)
            async for tenant, record in _records(self._app.store)
            if record.suspended or record.running is not None
        ]
        return sorted(found, key=lambda one: one.tenant)

    async def quota(self, tenant: str) -> Quota:
        """What a tenant may have running, and has; counted up to the quota, and at least to the setting `counted`."""
        key = key_of(HOME, checked_tenant(tenant))
        await self._app.open()
        record = _shown(await self._app.store.head(key))
        most = max(self._app.settings.counted, record.running or 0)
        running = await self._app.store.begun(tenant, most)
        return Quota(tenant, record.suspended, running, record.running)

    async def _write(self, tenant: str, deed: Deed, by: str) -> None:
        app = self._app
        key = key_of(HOME, checked_tenant(tenant))
        await app.open()

        def decide(record: Record) -> Deed | None:
            then = _after(record, deed.name, deed.act)
            return None if (then.suspended, then.running) == (record.suspended, record.running) else deed

        await Desk(app.store, app.clock, app.me, key, _LEDGER).write(decide, by or app.settings.actor)
        await app.stream.publish([Hint("", news=NEWS)])


async def keeps(store: Store, head: Head) -> Reason | None:
    """Why no worker takes up an execution that is at rest, where that is because of its tenant."""
    if head.status in ENDED or head.holder is not None:
        return None
    tenant = tenant_of(head.key)
    record = _shown(await store.head(key_of(HOME, tenant)))
    if record.suspended:
        text = "its tenant is suspended; what comes is kept, and it goes on when the tenant is resumed"
        return Reason("tenant", text, moment(record.at))
    if (most := record.running) is None or not await store.fresh([head.key]) or await store.begun(tenant, most) < most:
        return None
    text = f"its tenant has as many executions running as it may, which is {most}; it begins when another ends"
    return Reason("quota", text, moment(head.started_at))


async def _records(store: Store) -> AsyncIterator[tuple[str, Record]]:
    """What is known of tenants: of those that were ever suspended or limited."""
    cursor: tuple[int, str] | None = None
    while heads := await store.find(Query(HOME, workflow=TENANT, limit=_PAGE, cursor=cursor)):
        for head in heads:
            yield id_of(head.key), _shown(head)
        cursor = heads[-1].started_at, heads[-1].key


class Resting:
    """What a worker knows of tenants: quotas, and those whose executions it does not take up, with some of these.

    What is passed over is due in the store again and again, ever more seldom. Those that are remembered here are taken
    up when their tenant goes on, as soon as there is a place; the others when they are due.
    """

    def __init__(self, store: Store, most: int = 10_000) -> None:
        self._store = store
        self._most = most
        self._looked = float("-inf")
        self.tenants: frozenset[str] = frozenset()
        self.limits: Mapping[str, int] = {}
        self._passed: dict[str, None] = {}
        self._awake: list[str] = []  # of those, what may go on and has not been given out yet

    def stale(self) -> None:
        """Something has changed."""
        self._looked = float("-inf")

    async def look(self, time: float, every: float) -> None:
        """See who rests, unless that was done within `every` seconds."""
        if time - self._looked < every:
            return
        self._looked = time
        try:
            records = [one async for one in _records(self._store)]
        except BaseException:
            self.stale()
            raise
        self.tenants = frozenset(tenant for tenant, record in records if record.suspended)
        self.limits = {tenant: record.running for tenant, record in records if record.running is not None}
        awake = [key for key in self._passed if not self.rests(key)]
        for key in awake:
            del self._passed[key]
        self._awake += awake

    def again(self, places: int) -> list[str]:
        """Some of those that may go on by now, as many as there is room for."""
        some, self._awake = self._awake[:places], self._awake[places:]
        return some

    def rests(self, key: str) -> bool:
        return key.partition("/")[0] in self.tenants

    def awake(self, keys: list[str]) -> list[str]:
        """Those of the keys that may be taken up; the others are remembered, as far as there is room."""
        if not self.tenants:
            return keys
        resting = [key for key in keys if self.rests(key)]
        for key in resting[: self._most - len(self._passed) - len(self._awake)]:
            self._passed[key] = None
        return [key for key in keys if not self.rests(key)]


# The log.


def _fold(record: Record, rows: Iterable[Row]) -> Record:
    for row in rows:
        if row.type % 1000 == _RECEIVED and isinstance(event := ev.read(row), ev.EventReceived):
            after = _after(record, event.name, msgspec.json.decode(event.payload, type=Act))
            record = replace(after, by=event.by, at=row.at)
    return record


def _after(record: Record, name: str, act: Act) -> Record:
    if name == "limited":
        return replace(record, reason=act.reason, running=act.running)
    return replace(record, reason=act.reason, suspended=name == "suspended")


def _shown(head: Head | None) -> Record:
    return Record() if head is None or head.state is None else msgspec.json.decode(head.state, type=Record)


def _blank(key: str) -> Start:
    """On no queue, so no worker ever claims it."""
    return Start(key, TENANT, f"{TENANT}@1", "", "tenant", (ev.row(ev.Started(TENANT, 1, Raw(b"[]")), 1, 0),))


_LEDGER = Ledger(_blank, Record(), _fold, _shown)
