"""Trying again from where it failed, and how asking for it twice is asking once.

Rules kept here: a stuck execution goes on itself, one that has failed or was cancelled does so as a copy. Whoever gives
an id can ask again, whatever has happened in between: the copy of that id is the answer, or the log tells that the
execution was redriven for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.core import copies, events as ev, letters as mail
from perdure.core.records import Row, key_of, tenant_of
from perdure.errors import RetryRefused
from perdure.ports import Store
from perdure.runtime.managing import dead

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure
    from perdure.runtime.run import Run

_REDRIVEN = ev.NUMBERS[ev.Redriven]


async def retry(app: Perdure, run: Run[Any], reason: str, id: str | None, by: str) -> Run[Any]:
    """The execution that goes on: this one, or a copy."""
    head = await run.head()
    if head.status == "stuck":
        if id is None or not await _driven(run, id):
            # One redrive for each time that it got stuck, however many ask for it.
            await app.post(run.key, dead.redrive_id(head), mail.RedriveLetter(reason, by, id or ""))
        return run
    rows = [row async for row in run.rows()]
    if id is not None and _redriven(rows, id):
        return run
    if head.status not in ("failed", "cancelled"):
        why = f"{run.id} is {head.shown}: only failed, cancelled and stuck executions can be retried"
        raise RetryRefused(why, run.key)
    return await run.fork(at=copies.retry_point(rows), id=id, by=by)


async def _driven(run: Run[Any], id: str) -> bool:
    return _redriven([row async for row in run.rows()], id)


def _redriven(rows: list[Row], id: str) -> bool:
    """Whether the log says that it was tried again for this request."""
    driven = (ev.read(row) for row in rows if row.type % 1000 == _REDRIVEN)
    return any(isinstance(one, ev.Redriven) and one.asked == id for one in driven)


async def fork_point(store: Store, run: Run[Any], id: str) -> int | None:
    """Where a fork of this execution with this id was made, if it is there: the original may have gone on since."""
    rows = await store.read(key_of(tenant_of(run.key), id), 0, 1, 1)
    if not rows or not isinstance(first := ev.read(rows[0]), ev.Started):
        return None
    origin, _, version = first.forked.rpartition("@")
    return int(version) if origin == run.key and version.isdecimal() else None
