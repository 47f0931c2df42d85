"""Dead letters: executions that are stuck, as a person wants them: listed, explained, tried again, given up.

Rules kept here: an execution is the dead letter itself, so nothing is moved and nothing can be lost on the way; to
redrive and to purge is mail whose id is the version at which the execution got stuck, so it is applied once however
many ask for it; a purge never ends an execution that has gone on meanwhile. Who asked, and why, is in the log.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from perdure.core import entries, letters as mail
from perdure.core.moments import moment, to_micros
from perdure.core.records import Head, Query, id_of, key_of, tenant_of
from perdure.errors import ExecutionEnded, UsageError
from perdure.runtime.callers.finding import Place, begin
from perdure.runtime.cursors import Purpose

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: Heads read, and letters written, at once.
_PAGE = 400
#: Why an execution can be stuck, and what to do about it.
MEND = {
    "nondeterminism": "deploy the code that wrote the log, or guard what has changed with workflow.patched;"
    " `perdure replay MODULE ID` tells beforehand whether code fits",
    "never-wakes": "change the code so that an event, a timer or an action can wake it, and deploy it",
    "undecodable": "deploy the release that wrote this, or types that can read it, then redrive it",
    "lapses": "look into the logs of the workers for a crash, or for code that blocks; mend it, then redrive it",
    "limit": "raise the limit that the reason names, or let the workflow do less at a time, then redrive it",
    "definition": "publish or import the version that it was started with, with the very same content, then redrive it",
    "sealed": "put the keys of its tenant back into the key ring, then redrive it; keys that were shredded cannot come"
    " back",
    "attempts": "mend what its last error names, then redrive it: the action has all its attempts anew; or cancel it,"
    " and its clean-up and undos run",
    "refused": "the reason has the store's own words: change the workflow so that it writes what the store can take,"
    " deploy it, then redrive it",
    "engine": "this is a mistake of Perdure's own: report it with the output of `perdure export ID`; after an upgrade,"
    " redrive it",
}
CAUSES = tuple(MEND)


class Dead(Struct, frozen=True):
    """An execution that is stuck. `version` is that of the event that says so."""

    id: str
    tenant: str
    workflow: str
    definition: str
    queue: str
    cause: str
    reason: str
    since: datetime
    version: int
    started_at: datetime
    lapses: int  # holds before, in a row, that ended without a sign of life
    tries: int  # how often it has got stuck
    mail: int  # messages that wait: events, and redrives that no worker has seen yet

    @property
    def key(self) -> str:
        return key_of(self.tenant, self.id)


class DeadPage(Struct, frozen=True):
    """Dead letters; `next` is the cursor of the page that follows, if there is one."""

    dead: list[Dead]
    next: str | None = None


class Case(Struct, frozen=True):
    """All that is known about one dead letter."""

    dead: Dead
    input: Any
    published: dict[str, Any]
    place: str  # the event after which it got stuck
    mend: str
    events: list[entries.Entry]  # the newest


class Handled(Struct, frozen=True):
    """The ids of executions, by what became of them.

    done: it is asked for; before: it had been asked for already; not_stuck: there is nothing to do; missing.
    """

    done: list[str]
    before: list[str]
    not_stuck: list[str]
    missing: list[str]


class Which(Struct, frozen=True):
    """Which dead letters: those named, or those of a cause and a workflow."""

    ids: tuple[str, ...]
    cause: str | None
    workflow: str | None
    tenant: str


Answer: TypeAlias = Literal["done", "before", "not_stuck", "missing"]


def which(ids: Sequence[str], cause: str | None, workflow: str | None, all: bool, tenant: str) -> Which:
    """A choice that somebody made on purpose: nothing at all does not mean everything."""
    if cause is not None and cause not in MEND:
        raise UsageError(f"{cause!r} is no cause; there are: {', '.join(CAUSES)}")
    if ids and (all or cause or workflow):
        raise UsageError("name executions, or filter them by cause and workflow, not both")
    if not (ids or all or cause or workflow):
        raise UsageError("nothing is chosen: name executions, or a cause or a workflow, or ask for all")
    return Which(tuple(dict.fromkeys(ids)), cause, workflow, tenant)


def redrive_id(head: Head) -> str:
    """The id of the one letter that redrives a stuck execution this time."""
    return f"/redrive:{_version(_waits(head), head)}"


def dead_of(head: Head) -> Dead:
    waits = _waits(head)
    stuck = waits.get("stuck") or {}
    return Dead(
        id=id_of(head.key),
        tenant=tenant_of(head.key),
        workflow=head.workflow,
        definition=head.definition,
        queue=head.queue,
        cause=str(stuck.get("cause", "")),
        reason=str(stuck.get("reason", "")),
        since=moment(waits.get("since") or head.changed_at),
        version=_version(waits, head),
        started_at=moment(head.started_at),
        lapses=stuck.get("lapses", 0),
        tries=stuck.get("tries", 1),
        mail=head.mail,
    )


def _waits(head: Head) -> dict[str, Any]:
    waits: dict[str, Any] = msgspec.json.decode(head.waits or b"{}")
    return waits


def _version(waits: dict[str, Any], head: Head) -> int:
    return waits.get("version") or head.version


# Looking.


async def page(app: Perdure, which: Which, oldest: bool, limit: int, cursor: str | None) -> DeadPage:
    """One page in the order of getting stuck. All are looked at: the store knows no such order."""
    if which.cause is not None and which.cause not in MEND:
        raise UsageError(f"{which.cause!r} is no cause; there are: {', '.join(CAUSES)}")
    await app.open()
    filters = {"cause": which.cause, "workflow": which.workflow, "oldest": oldest}
    purpose = Purpose(which.tenant, "dead", filters)
    limit, place = await begin(app.cursors, purpose, limit, cursor)
    after = None if place is None else (place.at, place.id)
    first = heapq.nsmallest if oldest else heapq.nlargest
    best: list[Dead] = []
    async for some in _all(app, which):
        fresh = [one for one in some if after is None or (_place(one) > after if oldest else _place(one) < after)]
        best = first(limit + 1, [*best, *fresh], key=_place)
    if len(best) <= limit:
        return DeadPage(best)
    return DeadPage(best[:limit], await app.cursors.write(purpose, Place(*_place(best[limit - 1]))))


def _place(dead: Dead) -> tuple[int, str]:
    return to_micros(dead.since), dead.id


async def examine(app: Perdure, id: str, tenant: str | None = None, events: int = 20) -> Case:
    """Everything about one dead letter; UsageError when it is not stuck."""
    run = app.get(id, tenant)
    head = await run.head()
    if head.status != "stuck":
        raise UsageError(f"{id} is {head.shown}, not stuck; `perdure show {id}` tells more")
    dead = dead_of(head)
    state = await run.state()
    newest = await run.log(max(0, head.version - events))
    [before] = await run.log(max(0, dead.version - 2), max(1, dead.version - 1))
    place = f"after version {before.version}, {before.type} {before.text}".rstrip()
    return Case(dead, state.input, state.published, place, MEND.get(dead.cause, ""), newest)


# Doing.


async def redrive(
    app: Perdure, which: Which, dry_run: bool, reason: str, by: str, progress: Callable[[int], None] | None
) -> Handled:
    async def post(dead: Dead) -> Answer:
        return await _post(app, dead, f"/redrive:{dead.version}", mail.RedriveLetter(reason, by))

    return await _handle(app, which, dry_run, post, progress)


async def purge(
    app: Perdure, which: Which, dry_run: bool, reason: str, by: str, progress: Callable[[int], None] | None
) -> Handled:
    text = f"purged: {reason}" if reason else "purged"

    async def post(dead: Dead) -> Answer:
        letter = mail.CancelLetter(text, by, now=True, stuck=dead.version)
        return await _post(app, dead, f"/purge:{dead.version}", letter)

    return await _handle(app, which, dry_run, post, progress)


async def _post(app: Perdure, dead: Dead, id: str, letter: mail.Letter) -> Answer:
    try:
        answer = await app.post(dead.key, id, letter)
    except ExecutionEnded:
        return "not_stuck"
    return "done" if answer == "accepted" else "before"


async def _handle(
    app: Perdure,
    which: Which,
    dry_run: bool,
    post: Callable[[Dead], Awaitable[Answer]],
    progress: Callable[[int], None] | None,
) -> Handled:
    """Post a letter to each; those of one page share one write."""
    answers: dict[Answer, list[str]] = {"done": [], "before": [], "not_stuck": [], "missing": []}
    async for some in _named(app, which, answers) if which.ids else _all(app, which):
        given: list[Answer] = ["done"] * len(some) if dry_run else await asyncio.gather(*map(post, some))
        for dead, answer in zip(some, given, strict=True):
            answers[answer].append(dead.id)
        if progress is not None:
            progress(sum(map(len, answers.values())))
    return Handled(**answers)


async def _named(app: Perdure, which: Which, answers: dict[Answer, list[str]]) -> AsyncIterator[list[Dead]]:
    """Those that are stuck; what the others are is noted."""
    await app.open()
    for start in range(0, len(which.ids), _PAGE):
        some = []
        for id in which.ids[start : start + _PAGE]:
            head = await app.store.head(key_of(which.tenant, id))
            if head is None:
                answers["missing"].append(id)
            elif head.status != "stuck":
                answers["not_stuck"].append(id)
            else:
                some.append(dead_of(head))
        yield some


async def _all(app: Perdure, which: Which) -> AsyncIterator[list[Dead]]:
    """All that fit, in the store's order. One that gets stuck again meanwhile is not met twice."""
    await app.open()
    cursor: tuple[int, str] | None = None
    while True:
        query = Query(tenant=which.tenant, status="stuck", workflow=which.workflow, limit=_PAGE, cursor=cursor)
        heads = await app.store.find(query)
        yield [dead for dead in map(dead_of, heads) if which.cause in (None, dead.cause)]
        if len(heads) < _PAGE:
            return
        cursor = (heads[-1].started_at, heads[-1].key)
