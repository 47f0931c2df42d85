"""`app.audit`: who did what to executions, definitions and access.

    await app.audit.note(Act("ann", "executions.cancel", "order-42", reason="out of stock"))
    page = await app.audit.find(actor="ann")

An act is noted before it is done, as an execution that has ended from the outset: its log has the act as its input, its
head shows it. So it can be found and kept like any execution, and never changed. Rules kept here: an act that cannot be
noted is not done; notes lie under a tenant that nobody can have (`audit:acme` has those of `acme`), so no credential
for the executions of a tenant reaches them; payloads, inputs and secrets are not in them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import copies, events as ev
from perdure.core.moments import moment
from perdure.core.records import Head, id_of, key_of
from perdure.errors import OutcomeUnknown
from perdure.runtime.callers import finding
from perdure.runtime.secrets.watching import watch

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: The workflow of a note, and what the tenant of all notes of a tenant begins with.
AUDIT = "audit:"
#: Longest reason and longest target, in characters.
LONGEST = 500
_PAGE = 500
#: How often a note is written again whose outcome is unknown.
_TRIES = 3
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Act(Struct, frozen=True):
    """Something that somebody is about to do. `credential` says by what right: key:ID, token:ID, open, cli or app."""

    actor: str
    act: str  # as executions.cancel
    target: str = ""
    reason: str = ""
    credential: str = ""
    node: str = ""  # the process that did it
    request: str = ""
    roles: tuple[str, ...] = ()  # of the actor, then


class Noted(Struct, frozen=True):
    """An act in the audit, with its id and time."""

    id: str
    at: datetime
    actor: str
    act: str
    target: str
    reason: str
    credential: str
    node: str
    request: str
    roles: tuple[str, ...]


class AuditPage(Struct, frozen=True):
    """A page of the audit, the newest first; `next` is the cursor of the page that follows, if there is one."""

    acts: list[Noted]
    next: str | None = None


class Audit:
    """The audit of a store. Methods take the `tenant` whose acts are meant; else the application's."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    async def note(self, act: Act, *, tenant: str | None = None) -> str:
        """Write an act down; gives the id of the note. Raises StoreError if that could not be done."""
        app = self._app
        await app.open()
        told = structs.replace(
            act, target=_short(act.target), reason=_short(act.reason), node=act.node or app.me, actor=_short(act.actor)
        )
        id, at = app.new_id(), app.clock.now()
        first = ev.Started(AUDIT, 1, Raw(msgspec.json.encode([told])), told.actor)
        rows = [ev.row(first, 1, at), ev.row(ev.Completed(), 2, at)]
        start = copies.as_start(key_of(self._home(tenant), id), rows, "")
        start = structs.replace(start, state=msgspec.json.encode(told))
        for attempt in range(1, _TRIES + 1):
            try:
                await app.store.start([start], 0)
                break
            except OutcomeUnknown:  # the same note again is the same note
                if attempt == _TRIES:
                    raise
        return id

    async def find(
        self,
        *,
        actor: str | None = None,
        act: str | None = None,
        target: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> AuditPage:
        """Acts, the newest first, page by page."""
        await self._app.open()
        wanted: dict[str, Any] = {"actor": actor, "act": act, "target": target}
        query = finding.query_of(
            self._home(tenant),
            workflow=AUDIT,
            after=after,
            before=before,
            fields={name: value for name, value in wanted.items() if value is not None},
        )
        page = await finding.find(self._app.store, self._app.cursors, "audit", query, limit, cursor)
        return AuditPage([_noted(head) for head in page.heads], page.next)

    async def all(self, *, tenant: str | None = None, **wanted: Any) -> AsyncIterator[Noted]:
        """All acts that `find` would find, the newest first."""
        cursor: str | None = None
        while True:
            page = await self.find(limit=_PAGE, cursor=cursor, tenant=tenant, **wanted)
            for one in page.acts:
                yield one
            if (cursor := page.next) is None:
                return

    def _home(self, tenant: str | None) -> str:
        return AUDIT + self._app._tenant(tenant)


def _noted(head: Head) -> Noted:
    act = msgspec.json.decode(head.state or b"{}", type=Act)
    return Noted(id_of(head.key), moment(head.started_at), **structs.asdict(act))


def _short(text: str) -> str:
    """What somebody wrote, fit to be kept for ever."""
    clean = watch.hide(_CONTROL.sub("�", text))
    return clean if len(clean) <= LONGEST else clean[: LONGEST - 1] + "…"
