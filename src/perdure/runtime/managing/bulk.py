"""`app.bulk`: one thing done to many executions, as an execution of its own.

    operation = await app.bulk.start("cancel", workflow="order", status="waiting", reason="shop closed", by="ada")

Rules kept here: nothing at all does not mean everything: whoever wants all says so; executions of the engine's own are
left alone; a store that does not answer is asked again, and whatever else goes wrong with one execution is counted and
told, and the others go on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from perdure.core import copies, letters as mail
from perdure.core.behalf import acting_as, noted_already, on_behalf_of
from perdure.core.codec import encode
from perdure.core.moments import moment, to_micros
from perdure.core.records import Head, Query, ShownStatus, id_of, key_of
from perdure.errors import (
    ExecutionEnded,
    ExecutionError,
    ExecutionExists,
    ExecutionNotFound,
    InvalidValue,
    SealBroken,
    UsageError,
)
from perdure.flows.bulk import (
    BULK,
    PAGE,
    SHOWN,
    Act,
    Filter,
    Found,
    Handled,
    Order,
    Tally,
    Trouble,
    bulk,
    published as published_of,
)
from perdure.runtime.callers.showing import shown
from perdure.runtime.checks import checked_id, checked_labels, checked_standing
from perdure.runtime.managing import dead
from perdure.runtime.managing.noting import noted
from perdure.runtime.run import Run

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: How long an execution may take to judge another version of its definition.
_PATIENCE = "30s"
Answer: TypeAlias = Literal["done", "skipped"] | str


class Operation(Struct, frozen=True):
    """A bulk operation as it stands.

    found: executions that fit. done: it is asked for, durably. skipped: there was nothing to do. failed: see `errors`,
    which has the first of them. A dry run only finds.
    """

    id: str
    act: Act
    status: ShownStatus
    dry_run: bool
    found: int
    done: int
    skipped: int
    failed: int
    first: list[str]
    errors: list[Trouble]
    reason: str
    by: str
    started_at: datetime
    changed_at: datetime


class Bulk:
    """The bulk operations of an application."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    @noted("bulk.start")
    async def start(
        self,
        act: Act,
        *,
        status: ShownStatus | None = None,
        workflow: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        fields: Mapping[str, str | int | float | bool | None] | None = None,
        correlation: str | None = None,
        tag: str | Sequence[str] = (),
        all: bool = False,
        event: str = "",
        payload: Any = None,
        version: int | None = None,
        reason: str = "",
        dry_run: bool = False,
        id: str | None = None,
        by: str = "",
        roles: Sequence[str] = (),
        tenant: str | None = None,
    ) -> Run[Any]:
        """Do something to all executions that fit; a worker does it, and the run tells how far it is.

        `cancel`, `pause` and `resume` take nothing else; `retry` tries failed, cancelled and stuck ones again; `send`
        takes an `event` and its `payload`; `migrate` the `version` of a definition. With `dry_run` they are only found.
        """
        home, by = self._app._tenant(tenant), by or self._app.settings.actor
        labels = checked_labels(correlation, (tag,) if isinstance(tag, str) else tag)
        times = _micros(after), _micros(before)
        which = Filter(status, workflow, *times, dict(fields or {}), correlation, labels.tags)
        order = Order(act, which, reason, dry_run, event, payload, version or 0, by, tuple(roles), acting_as())
        _check(order, all)
        settings = self._app.settings
        checked_standing(encode(order), settings.standing_bytes, settings.payload_bytes, "this bulk operation")
        await self._app.open()
        if fields:  # what cannot be searched for is said now, and not by a worker
            await self._app.store.find(Query(home, inner=False, fields=which.fields, limit=1))
        key = key_of(home, checked_id(id or f"bulk-{self._app.new_id()}"))
        queue = self._app.settings.queue_names[0]
        first = published_of(order, Tally())
        now = await self._app.clock.sync()  # what has begun by now is meant, and that the store's clock says
        await self._app._starts.own(bulk, (order, Tally()), key, now, by, queue, first)
        return Run(self._app, key)

    async def get(self, id: str, *, tenant: str | None = None) -> Operation:
        """How far an operation is; ExecutionNotFound if this is none."""
        run = self._app.get(id, tenant)
        head = await run.head()
        if head.workflow != BULK:
            raise ExecutionNotFound(f"there is no bulk operation {id!r}", run.key)
        return await self._told(head)

    # What the workflow of bulk operations needs.

    async def page(self, tenant: str, filter: Filter, cursor: tuple[int, str] | None) -> Found:
        """The next executions that fit, newest first."""
        heads = await self._app.store.find(
            Query(
                tenant=tenant,
                status=filter.status,
                workflow=filter.workflow,
                inner=False,
                after=filter.after,
                before=filter.before,
                fields=filter.fields,
                correlation=filter.correlation,
                tags=filter.tags,
                limit=PAGE + 1,
                cursor=cursor,
            )
        )
        here = heads[:PAGE]
        more = (here[-1].started_at, here[-1].key) if len(heads) > PAGE else None
        return Found(tuple(id_of(head.key) for head in here), more)

    async def handle(self, tenant: str, operation: str, order: Order, ids: Sequence[str]) -> Handled:
        """Do it to each of these; a store that does not answer fails the whole page, which can be done again."""
        answers = await asyncio.gather(*(self._answer(self._app.get(id, tenant), operation, order) for id in ids))
        errors = [Trouble(id, text) for id, text in zip(ids, answers, strict=True) if text not in ("done", "skipped")]
        return Handled(answers.count("done"), answers.count("skipped"), len(errors), tuple(errors[:SHOWN]))

    async def _answer(self, run: Run[Any], operation: str, order: Order) -> Answer:
        try:
            with noted_already(), on_behalf_of(None, order.acting_as):  # the operation was noted, as a whole
                return await self._do(run, operation, order)
        except (ExecutionEnded, ExecutionNotFound):
            return "skipped"
        except TimeoutError:
            return f"no worker has judged it within {_PATIENCE}"
        except (UsageError, ExecutionError, SealBroken) as error:
            return str(error)

    async def _do(self, run: Run[Any], operation: str, order: Order) -> Answer:
        reason, by = order.reason, order.by
        id = f"/bulk:{operation}"
        match order.act:
            case "cancel":
                await self._app.post(run.key, id, mail.CancelLetter(reason, by))
            case "pause":
                await self._app.post(run.key, id, mail.PauseLetter(0, reason, by))
            case "resume":
                await self._app.post(run.key, id, mail.ResumeLetter(0, reason, by))
            case "send":
                await run.send(order.event, order.payload, id=operation, by=by, roles=order.roles)
            case "migrate":
                await run.migrate(order.version, by=by, timeout=_PATIENCE)
            case "retry":
                return await self._retry(run, operation, order)
            case _:
                assert_never(order.act)
        return "done"

    async def _retry(self, run: Run[Any], operation: str, order: Order) -> Answer:
        head = await run.head()
        if head.status == "stuck":
            await self._app.post(run.key, dead.redrive_id(head), mail.RedriveLetter(order.reason, order.by))
            return "done"
        if head.status not in ("failed", "cancelled"):
            return "skipped"
        # The same operation makes the same execution of it, however often it does this page.
        chosen = f"{run.id}~{hashlib.blake2b(operation.encode(), digest_size=4).hexdigest()}"
        with suppress(ExecutionExists):
            await run.fork(at=copies.retry_point([row async for row in run.rows()]), id=chosen, by=order.by)
        return "done"

    async def _told(self, head: Head) -> Operation:
        published: dict[str, Any] = msgspec.json.decode(await shown(self._app.store, head))
        about = {
            "id": id_of(head.key),
            "status": head.shown,
            "started_at": moment(head.started_at),
            "changed_at": moment(head.changed_at),
        }
        return msgspec.convert(published | about, Operation)

    # All of them; last, for below this line `list` is no longer the type.

    async def list(self, *, limit: int = 50, tenant: str | None = None) -> list[Operation]:
        """The newest operations."""
        home = self._app._tenant(tenant)
        await self._app.open()
        return [await self._told(head) for head in await self._app.store.find(Query(home, workflow=BULK, limit=limit))]


def _micros(given: datetime | None) -> int | None:
    if given is not None and given.tzinfo is None:
        raise UsageError("a time needs a time zone: datetime.now(timezone.utc) - timedelta(hours=1)")
    return None if given is None else to_micros(given)


def _check(order: Order, all: bool) -> None:
    try:
        msgspec.convert(msgspec.to_builtins(order), Order)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"there is no such bulk operation: {error}") from error
    if order.filter == Filter() and not all:
        raise UsageError(
            "nothing is chosen: name a status, a workflow, times, a correlation id, tags or fields, or ask for all"
        )
    if ":" in (order.filter.workflow or ""):
        raise UsageError(f"{order.filter.workflow} is the engine's own: bulk operations leave such executions alone")
    if (order.act == "send") != bool(order.event):
        raise UsageError("`send`, and nothing else, takes the name of an event")
    if (order.act == "migrate") != bool(order.version):
        raise UsageError("`migrate`, and nothing else, takes the version of a definition")
