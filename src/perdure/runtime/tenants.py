"""`Tenants`: those that are suspended. Their executions rest; what is started and sent meanwhile is kept, and waits.

    await app.tenants.suspend("acme", "the invoice of May", by="ada")
    await app.tenants.resume("acme")

What is known of a tenant is a log without code, as that of an API key, under a home of the engine's own. Rules kept
here: the record is a function of its log; workers are told at once, and look by themselves now and then, so that a word
that gets lost only costs time. A suspended tenant is not locked out: that is what its credentials are for.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from perdure.core import events as ev
from perdure.core.records import Head, Hint, Query, Row, Start, id_of, key_of
from perdure.core.view import moment
from perdure.ports import Store
from perdure.runtime.checks import checked_tenant
from perdure.runtime.publishing import Deed, Desk, Ledger

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


class Record(Struct, frozen=True):
    """A tenant as the head of its log shows it."""

    suspended: bool = False
    reason: str = ""
    by: str = ""
    at: int = 0


class Suspension(Struct, frozen=True):
    """A tenant whose executions rest."""

    tenant: str
    since: datetime
    reason: str = ""
    by: str = ""


class Tenants:
    def __init__(self, app: Perdure) -> None:
        self._app = app

    async def suspend(self, tenant: str, reason: str = "", *, by: str = "") -> None:
        """Let a tenant's executions rest: what is held goes on until it waits, and nothing is taken up after that."""
        await self._write(tenant, True, reason, by)

    async def resume(self, tenant: str, reason: str = "", *, by: str = "") -> None:
        """Let them go on, with all that came meanwhile."""
        await self._write(tenant, False, reason, by)

    async def suspended(self) -> list[Suspension]:
        """Those that are suspended now, by name."""
        await self._app.open()
        return sorted(await _suspended(self._app.store), key=lambda one: one.tenant)

    async def _write(self, tenant: str, suspended: bool, reason: str, by: str) -> None:
        app = self._app
        key = key_of(HOME, checked_tenant(tenant))
        await app.open()

        def decide(record: Record) -> Deed | None:
            if record.suspended == suspended:
                return None
            return Deed("suspended" if suspended else "resumed", Act(reason))

        await Desk(app.store, app.clock, app.me, key, _LEDGER).write(decide, by)
        await app.stream.publish([Hint("", news=NEWS)])


async def _suspended(store: Store) -> list[Suspension]:
    found: list[Suspension] = []
    cursor: tuple[int, str] | None = None
    while heads := await store.find(
        Query(HOME, workflow=TENANT, fields={"suspended": True}, limit=_PAGE, cursor=cursor)
    ):
        for head in heads:
            record = _shown(head)
            found.append(Suspension(id_of(head.key), moment(record.at), record.reason, record.by))
        cursor = heads[-1].started_at, heads[-1].key
    return found


class Resting:
    """The tenants whose executions a worker does not take up, and some of those executions.

    What is passed over is due in the store again and again, ever more seldom. Those that are remembered here are taken
    up at once when their tenant goes on; the others when they are due.
    """

    def __init__(self, store: Store, most: int = 10_000) -> None:
        self._store = store
        self._most = most
        self._looked = float("-inf")
        self.tenants: frozenset[str] = frozenset()
        self._passed: dict[str, None] = {}

    def stale(self) -> None:
        """Something has changed."""
        self._looked = float("-inf")

    async def look(self, time: float, every: float) -> list[str]:
        """See who rests, unless that was done within `every` seconds; gives executions that may go on now."""
        if time - self._looked < every:
            return []
        self.tenants = frozenset(one.tenant for one in await _suspended(self._store))
        self._looked = time
        awake = [key for key in self._passed if not self.rests(key)]
        for key in awake:
            del self._passed[key]
        return awake

    def rests(self, key: str) -> bool:
        return key.partition("/")[0] in self.tenants

    def awake(self, keys: list[str]) -> list[str]:
        """Those of the keys that may be taken up; the others are remembered, as far as there is room."""
        if not self.tenants:
            return keys
        resting = [key for key in keys if self.rests(key)]
        for key in resting[: self._most - len(self._passed)]:
            self._passed[key] = None
        return [key for key in keys if not self.rests(key)]


# The log.


def _fold(record: Record, rows: Iterable[Row]) -> Record:
    for row in rows:
        if row.type % 1000 == _RECEIVED and isinstance(event := ev.read(row), ev.EventReceived):
            act = msgspec.json.decode(event.payload, type=Act)
            record = Record(event.name == "suspended", act.reason, event.by, row.at)
    return record


def _shown(head: Head | None) -> Record:
    return Record() if head is None or head.state is None else msgspec.json.decode(head.state, type=Record)


def _blank(key: str) -> Start:
    """On no queue, so no worker ever claims it."""
    return Start(key, TENANT, f"{TENANT}@1", "", "tenant", (ev.row(ev.Started(TENANT, 1, Raw(b"[]")), 1, 0),))


_LEDGER = Ledger(_blank, Record(), _fold, _shown)
