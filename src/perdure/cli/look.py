"""Commands that look at one execution, or at a lock, and change nothing."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

import msgspec
from typer import Argument, Option

from perdure.cli import values
from perdure.cli.command import AppOption, Call, RunId, command
from perdure.cli.display import (
    add_row,
    age,
    ago,
    brief,
    compact,
    decoded,
    doing,
    entry_cells,
    entry_data,
    error_text,
    head_data,
    iso,
    pairs,
    status_text,
    styled,
    table,
)
from perdure.cli.drawing import DiagramOption, draw
from perdure.core.entries import Entry, entry
from perdure.core.moments import moment, to_micros
from perdure.core.reasons import Reason
from perdure.core.records import ENDED, Head, Row, id_of
from perdure.core.view import State, final
from perdure.runtime.managing.locks import LockState
from perdure.runtime.run import Run

PANEL = "Look closer"
#: Between two looks at a log that is followed.
LOOK = 0.2


@command("show", PANEL)
async def show(
    call: Call,
    id: RunId,
    limit: Annotated[int, Option("--limit", min=0, help="The newest so many events; 0 for all.")] = 200,
    rows: Annotated[bool, Option("--rows", help="The rows as they are stored.")] = False,
    diagram: DiagramOption = None,
    app: AppOption = None,
) -> None:
    """Show an execution: its summary and the timeline of its log.

    Example: perdure show order-42
    """
    async with call.client(app) as client:
        run = client.get(id)
        head = await run.head()
        if diagram is not None:
            call.show.text(draw(await run.diagram(), diagram))
            return
        log = [row async for row in run.rows(max(0, head.version - limit) if limit else 0)]
        if rows:
            _rows(call, log)
            return
        first = await client.store.read(run.key, 0, 1, 1)
        trace = final(first, run.key).trace
        if call.show.json:
            call.show.data(
                head_data(head, await client.running(head))
                | {"trace": trace, "log": [entry_data(entry(row)) for row in log]}
            )
        else:
            begun = entry(first[0]) if first else None
            call.show.print(_header(head, await client.running(head), begun, trace, client.clock.now()))
            call.show.print("")
            call.show.print(_timeline([entry(row) for row in log]))
            if log and log[0].version > 1:
                call.show.note(f"{log[0].version - 1:,} earlier events are not shown: --limit 0 shows all")


def _header(head: Head, definition: str, first: Entry | None, trace: str, now: int) -> Any:
    facts: list[tuple[str, Any]] = [
        ("id", styled((id_of(head.key), "bold"))),
        ("workflow", f"{definition}, queue {head.queue}"),
        ("status", status_text(head.shown) + styled((f"  {doing(head, now)}", ""))),
        ("started", f"{moment(head.started_at):%Y-%m-%d %H:%M:%S} UTC, {ago(head.started_at, now)}"),
    ]
    if first is not None:
        facts.append(("input", compact(first.data.get("input"))))
    if head.state:
        facts.append(("state", compact(decoded(head.state))))
    if head.holder:
        facts.append(("held by", head.holder))
    if head.parent:
        facts.append(("parent", id_of(head.parent)))
    if head.correlation:
        facts.append(("correlation", styled(head.correlation)))
    if head.tags:
        facts.append(("tags", styled(", ".join(head.tags))))
    if trace:
        facts.append(("trace", trace))
    if head.mail:
        facts.append(("mail", f"{head.mail} message(s) wait"))
    if head.status in ENDED:
        facts.append(("took", brief(head.changed_at - head.started_at)))
    return pairs(facts)


def _timeline(log: list[Entry]) -> Any:
    lines = table("v", "time (UTC)", "gap", "event", "what", flexible="what")
    lines.columns[0].justify = lines.columns[1].justify = lines.columns[2].justify = "right"
    before: datetime | None = None
    for one in log:
        add_row(lines, *entry_cells(one, before))
        before = one.at
    return lines


def _rows(call: Call, log: list[Row]) -> None:
    if call.show.json:
        for row in log:
            call.show.line(msgspec.structs.asdict(row) | {"data": decoded(row.data)})
        return
    lines = table("version", "type", "at", "fence", "message", "data", flexible="data")
    for row in log:
        cells = (row.version, row.type, row.at, row.fence, row.message_id or "", row.data.decode(errors="replace"))
        add_row(lines, *(styled(str(cell)) for cell in cells))
    call.show.print(lines)


@command("log", PANEL)
async def log(
    call: Call,
    id: RunId,
    after: Annotated[int | None, Option("--after", min=0, help="Begin behind this version.")] = None,
    until: Annotated[int | None, Option("--until", min=1, help="End with this version.")] = None,
    limit: Annotated[int, Option("--limit", min=1, max=1000, help="How many.")] = 100,
    cursor: Annotated[str | None, Option("--cursor", help="Go on after the page that gave it.")] = None,
    app: AppOption = None,
) -> None:
    """Print a log from its beginning, or a part of it, page by page.

    Example: perdure log order-42 --after 10 --until 20
    """
    async with call.client(app) as client:
        page = await client.get(id).log_page(after, until, limit=limit, cursor=cursor)
    if call.show.json:
        call.show.data({"events": [entry_data(one) for one in page.events], "next": page.next})
        return
    call.show.print(_timeline(page.events))
    if page.next:
        call.show.note(f"there are more: --cursor {page.next}")


@command("tail", PANEL)
async def tail(
    call: Call,
    id: RunId,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until the execution has ended.")] = False,
    lines: Annotated[int, Option("--lines", "-n", min=0, help="Begin with the newest so many events.")] = 20,
    app: AppOption = None,
) -> int:
    """Print the end of a log, and follow it.

    With --follow it ends with the execution: with 0 if that completed, with 1 otherwise.

    Example: perdure tail order-42 --follow
    """
    async with call.client(app) as client:
        run = client.get(id)
        after = (await run.head()).version
        recent = [row async for row in run.rows(max(0, after - lines), after)]
        before = _print(call, recent, None)
        return await _follow(call, run, after, before) if follow else 0


async def _follow(call: Call, run: Run[Any], after: int, before: datetime | None) -> int:
    while True:
        head = await run.head()
        fresh = [row async for row in run.rows(after)]
        before = _print(call, fresh, before)
        after = fresh[-1].version if fresh else after
        if head.status in ENDED:
            return 0 if head.status == "completed" else 1
        await asyncio.sleep(LOOK)


def _print(call: Call, rows: list[Row], before: datetime | None) -> datetime | None:
    for one in map(entry, rows):
        if call.show.json:
            call.show.line(entry_data(one))
        else:
            version, time, gap, kind, text = entry_cells(one, before)
            version.align("right", 4)
            gap.align("right", 9)
            kind.align("left", 16)
            call.show.print(version, time, gap, kind, text)
        before = one.at
    return before


@command("state", PANEL)
async def state(
    call: Call,
    id: RunId,
    at: Annotated[str | None, Option("--at", metavar="VERSION|TIME", help="As it was then.")] = None,
    app: AppOption = None,
) -> None:
    """Show what the log says: now, at a version, or at a time.

    Example: perdure state order-42 --at 7
    """
    point = values.version_or_moment(at) if at is not None else None
    async with call.client(app) as client:
        found = await client.get(id).state(at=point)
        if call.show.json:
            call.show.data(_state_data(found))
        else:
            call.show.print(_state_text(found))


def _state_data(state: State) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.structs.asdict(state)
    return data | {
        "id": id_of(state.key),
        "at": iso(state.at),
        "started_at": iso(state.started_at),
        "timers": {ref: iso(due) for ref, due in state.timers.items()},
    }


def _state_text(state: State) -> Any:
    facts: list[tuple[str, Any]] = [
        ("id", styled((id_of(state.key), "bold"))),
        ("status", status_text(state.status) + styled((f"  at version {state.version}, {_utc(state.at)}", "dim"))),
        ("workflow", state.definition),
        ("input", compact(state.input)),
    ]
    facts += [(name, compact(value)) for name, value in state.published.items()]
    for action in state.actions.values():
        if action.status == "completed":
            result = f"→ {compact(action.result)}"
        else:
            result = f"{action.status} {error_text(action.error) if action.error else ''}"
        whose = f"  by {action.worker}" if action.worker else ""
        facts.append(("action", styled(f"{action.name} {result}", (whose, "dim"))))
    facts += [("timer", f"{ref} due {_utc(due)}") for ref, due in state.timers.items()]
    facts += [("child", child) for child in state.children.values()]
    if state.cancel is not None:
        facts.append(("cancel", state.cancel.reason or "requested"))
    if state.stuck is not None:
        facts.append(("stuck", f"{state.stuck.cause}: {state.stuck.reason}"))
    if state.error is not None:
        facts.append(("error", styled((error_text(state.error), "red"))))
    if state.status == "completed":
        facts.append(("result", compact(state.result)))
    return pairs(facts)


def _utc(micros: int) -> str:
    return f"{moment(micros):%Y-%m-%d %H:%M:%S} UTC"


@command("why", PANEL)
async def why(call: Call, id: RunId, app: AppOption = None) -> None:
    """Tell what an execution waits for, since when, and who holds it.

    Example: perdure why order-42
    """
    async with call.client(app) as client:
        answer = await client.get(id).why()
        if call.show.json:
            call.show.data(answer)
            return
        held = f", held by {answer.holder}" if answer.holder else ""
        call.show.print(styled((answer.id, "bold"), " is ") + status_text(answer.status) + styled((held, "dim")))
        now = client.clock.now()
        for reason in answer.reasons:
            call.show.print(styled(("  • ", "dim"), reason.text, (_since(reason, now), "dim")), soft_wrap=True)
        for place in answer.at:
            call.show.print(styled(("    at ", "dim"), (place, "dim")))


def _since(reason: Reason, now: int) -> str:
    """How long, where the sentence does not say so itself."""
    if reason.since is None or reason.kind == "worker":
        return ""
    then = to_micros(reason.since)
    return f", {ago(then, now)}" if reason.kind == "nothing" else f", for {age(now - then)}"


@command("lock", PANEL)
async def lock(call: Call, name: Annotated[str, Argument(metavar="NAME", show_default=False)]) -> None:
    """Tell who holds a lock, under which fence, and for how long.

    Example: perdure lock printer-3
    """
    async with call.client() as client:
        found = await client.lock(name).look()
    if call.show.json:
        call.show.data(
            {"name": name, "held": False} if found is None else {"held": True} | msgspec.structs.asdict(found)
        )
    elif found is None:
        call.show.print(styled((name, "bold"), " is held by nobody"), soft_wrap=True)
    else:
        call.show.print(pairs(_lock_facts(found)))


def _lock_facts(found: LockState) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [
        ("lock", styled((found.name, "bold"))),
        ("held by", styled(found.holder)),
        ("fence", str(found.fence)),
    ]
    if found.since is not None and found.age is not None:
        facts.append(("since", f"{found.since:%Y-%m-%d %H:%M:%S} UTC, for {age(int(found.age * 1e6))}"))
    return [*facts, ("until", f"{found.until:%Y-%m-%d %H:%M:%S} UTC, if nothing renews it")]
