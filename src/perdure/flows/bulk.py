"""What a bulk operation does: find executions page by page, and do one thing to each.

It is an execution of this workflow, so it survives crashes, and is paused, cancelled and looked at like any other.
Rules kept here: which executions a page has is in the log before anything is done to them; what is done bears the id of
the operation, so a page that is done again after a crash does nothing twice and is counted the same; only executions
that were started before the operation are looked at, so it comes to an end.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from perdure.core.moments import to_micros
from perdure.core.records import ShownStatus
from perdure.flows.action import action
from perdure.flows.current import this_attempt
from perdure.flows.inner import inner
from perdure.flows.workflow import workflow

Act: TypeAlias = Literal["cancel", "pause", "resume", "retry", "send", "migrate"]

BULK = "bulk:"
#: Executions of a page, pages of a round, and how many ids and errors are shown.
PAGE, ROUND, SHOWN = 100, 100, 10


class Filter(Struct, frozen=True, omit_defaults=True):
    """Which executions; times are microseconds."""

    status: ShownStatus | None = None
    workflow: str | None = None
    after: int | None = None
    before: int | None = None
    fields: dict[str, str | int | float | bool | None] = {}
    correlation: str | None = None
    tags: tuple[str, ...] = ()


class Order(Struct, frozen=True, omit_defaults=True):
    """What to do, and to which executions."""

    act: Act
    filter: Filter
    reason: str = ""
    dry_run: bool = False
    event: str = ""  # to send
    payload: Any = None
    version: int = 0  # to migrate to
    by: str = ""
    roles: tuple[str, ...] = ()
    acting_as: tuple[str, ...] = ()  # the roles that the credential of `by` named


class Trouble(Struct, frozen=True):
    """Why something could not be done to an execution."""

    id: str
    reason: str


class Handled(Struct, frozen=True):
    """What became of a page."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    errors: tuple[Trouble, ...] = ()


class Tally(Struct, frozen=True, omit_defaults=True):
    """How far an operation has come. skipped: there was nothing to do, as it has ended meanwhile."""

    found: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    first: tuple[str, ...] = ()  # ids that were found first
    errors: tuple[Trouble, ...] = ()


class Found(Struct, frozen=True):
    """A page of ids; `next` is where the one after it begins."""

    ids: tuple[str, ...]
    next: tuple[int, str] | None = None


@inner(BULK)
async def bulk(order: Order, tally: Tally, cursor: tuple[int, str] | None = None) -> Tally:
    """Do one thing to many executions."""
    workflow.publish(**published(order, tally))
    if order.filter.before is None:
        just_begun = to_micros(workflow.now()) + 1
        order = structs.replace(order, filter=structs.replace(order.filter, before=just_begun))
    for _ in range(ROUND):
        page = await _find(order.filter, cursor)
        handled = Handled() if order.dry_run or not page.ids else await _handle(order, page.ids)
        tally = _counted(tally, page, handled)
        workflow.publish(**published(order, tally))
        if page.next is None:
            return tally
        cursor = page.next
    return workflow.restart_with(order, tally, cursor)


def published(order: Order, tally: Tally) -> dict[str, Any]:
    """What is shown of an operation."""
    facts = {"act": order.act, "reason": order.reason, "by": order.by, "dry_run": order.dry_run}
    return facts | {name: msgspec.to_builtins(getattr(tally, name)) for name in Tally.__struct_fields__}


def _counted(tally: Tally, page: Found, handled: Handled) -> Tally:
    return Tally(
        tally.found + len(page.ids),
        tally.done + handled.done,
        tally.skipped + handled.skipped,
        tally.failed + handled.failed,
        (*tally.first, *page.ids)[:SHOWN],
        (*tally.errors, *handled.errors)[:SHOWN],
    )


@action(name="perdure.bulk_find", retries=20)
async def _find(filter: Filter, cursor: tuple[int, str] | None) -> Found:
    """The next page of executions."""
    found: Found = await action.app.bulk.page(this_attempt("a bulk operation").tenant, filter, cursor)
    return found


@action(name="perdure.bulk_act", retries=20)
async def _handle(order: Order, ids: tuple[str, ...]) -> Handled:
    """Do it to the executions of a page."""
    handled: Handled = await action.app.bulk.handle(
        this_attempt("a bulk operation").tenant, action.execution, order, ids
    )
    return handled
