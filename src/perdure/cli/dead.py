"""Commands about dead letters: executions that are stuck and need a person.

Nothing is ever deleted here. What is asked for is mail: durable when the command returns, applied once, by a worker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from perdure.cli.command import AppOption, Call, RunId, command, user
from perdure.cli.display import add_row, ago, compact, entry_cells, entry_data, pairs, plain, styled, table
from perdure.cli.runs import Reason, needs, taken
from perdure.core.entries import Entry
from perdure.core.moments import to_micros
from perdure.errors import UsageError
from perdure.runtime.app import Perdure
from perdure.runtime.managing import dead as letters
from perdure.runtime.managing.dead import CAUSES, Case, Dead, Handled

group = typer.Typer(
    name="dead",
    help="Dead letters: list, show, redrive or purge executions that are stuck.",
    epilog="Exit codes: 0 done, 1 one that was named is missing or not stuck, 2 asked wrongly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Ids = Annotated[list[str] | None, Argument(metavar="ID", help="The executions; or choose them by options.")]
Cause = Annotated[str | None, Option("--cause", help=f"Only those of this cause: {', '.join(CAUSES)}.")]
OfWorkflow = Annotated[str | None, Option("--workflow", help="Only those of this workflow.")]
All = Annotated[bool, Option("--all", help="All that are stuck.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only tell which ones.")]


@command("list", group=group)
async def dead_list(
    call: Call,
    cause: Cause = None,
    workflow: OfWorkflow = None,
    oldest: Annotated[bool, Option("--oldest", help="Begin with what has been stuck longest.")] = False,
    limit: Annotated[int, Option("--limit", min=1, max=1000, help="How many.")] = 50,
    cursor: Annotated[str | None, Option("--cursor", help="Go on after the page that gave it.")] = None,
    app: AppOption = None,
) -> None:
    """List stuck executions, those that got stuck last first.

    Example: perdure dead list --cause nondeterminism --oldest
    """
    async with call.client(app) as client:
        page = await client.dead(cause=cause, workflow=workflow, oldest=oldest, limit=limit, cursor=cursor)
        if call.show.json:
            call.show.data({"dead": [_data(one) for one in page.dead], "next": page.next})
            return
        if not page.dead:
            call.show.note("nothing is stuck")
            return
        call.show.print(_table(page.dead, client.clock.now()))
        if page.next:
            call.show.note(f"there are more: --cursor {page.next}")


def _table(dead: list[Dead], now: int) -> Any:
    rows = table("id", "workflow", "stuck", "cause", "tries", "lapses", "reason", flexible="reason")
    for one in dead:
        add_row(
            rows,
            styled((one.id, "bold")),
            styled(one.definition),
            styled((ago(to_micros(one.since), now), "dim")),
            styled((one.cause, "red")),
            styled(str(one.tries)),
            styled(str(one.lapses)),
            styled(one.reason),
        )
    return rows


def _data(dead: Dead) -> dict[str, Any]:
    times = {name: getattr(dead, name).isoformat(timespec="microseconds") for name in ("since", "started_at")}
    data: dict[str, Any] = msgspec.structs.asdict(dead)
    return data | times


@command("show", group=group)
async def dead_show(
    call: Call,
    id: RunId,
    events: Annotated[int, Option("--events", min=1, help="The newest so many events.")] = 20,
    app: AppOption = None,
) -> None:
    """Show one stuck execution: its input, its last events, why it is stuck and how to mend it.

    Example: perdure dead show order-42
    """
    async with call.client(app) as client:
        case = await letters.examine(client, id, events=events)
        if call.show.json:
            data: dict[str, Any] = msgspec.structs.asdict(case)
            call.show.data(data | {"dead": _data(case.dead), "events": [entry_data(one) for one in case.events]})
            return
        call.show.print(_case(case, client.clock.now()))
        call.show.print("")
        call.show.print(_events(case.events))


def _case(case: Case, now: int) -> Any:
    dead = case.dead
    # Texts are folded, not cut: this is the place to see all of it.
    facts: list[tuple[str, Any]] = [
        ("id", styled((dead.id, "bold"))),
        ("workflow", f"{dead.definition}, queue {dead.queue}"),
        (
            "stuck",
            styled(f"{ago(to_micros(dead.since), now)}, at version {dead.version}, {dead.since:%Y-%m-%d %H:%M:%S} UTC"),
        ),
        ("cause", styled((dead.cause, "bold red"))),
        ("reason", styled(dead.reason)),
        ("place", styled(case.place)),
        ("tries", f"stuck {dead.tries} time(s); {dead.lapses} hold(s) lapsed before"),
        ("input", styled(compact(case.input))),
    ]
    if case.published:
        facts.append(("state", styled(compact(case.published))))
    if dead.mail:
        facts.append(("mail", f"{dead.mail} message(s) wait for a worker"))
    facts.append(("to mend it", styled(case.mend)))
    return pairs(facts)


def _events(events: list[Entry]) -> Any:
    lines = table("v", "time (UTC)", "gap", "event", "what", flexible="what")
    before = None
    for one in events:
        lines.add_row(*entry_cells(one, before))
        before = one.at
    return lines


@command("redrive", group=group, act="system.redrive")
async def dead_redrive(
    call: Call,
    ids: Ids = None,
    all: All = False,
    cause: Cause = None,
    workflow: OfWorkflow = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    app: AppOption = None,
) -> int:
    """Try stuck executions again, after what stopped them was mended.

    Each is tried once for each time that it got stuck: to call this twice, or from two places at once, does no harm.

    Example: perdure dead redrive order-42 order-43

    Example: perdure dead redrive --cause lapses --workflow fulfil --dry-run
    """
    async with call.client(app) as client:
        with _counting(call) as progress:
            handled = await client.redrive(
                *(ids or ()),
                cause=cause,
                workflow=workflow,
                all=all,
                dry_run=dry_run,
                reason=reason,
                by=user(),
                progress=progress,
            )
        return await _tell(call, client, handled, "redrive", dry_run, bool(ids))


@command("purge", group=group, act="system.purge")
async def dead_purge(
    call: Call,
    ids: Ids = None,
    all: All = False,
    cause: Cause = None,
    workflow: OfWorkflow = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, Option("--yes", help="They shall end: an ended execution cannot be redriven.")] = False,
    reason: Reason = "",
    app: AppOption = None,
) -> int:
    """Give stuck executions up: they end as cancelled, without clean-up and undos.

    Nothing is deleted: their logs stay, and `perdure retry` can make new executions of them. One that is redriven
    meanwhile is left alone.

    Example: perdure dead purge order-42 --yes --reason "shipped by hand"

    Example: perdure dead purge --workflow trial --dry-run
    """
    if not (yes or dry_run):
        raise UsageError("purge ends executions for good: --dry-run tells which ones, --yes does it")
    async with call.client(app) as client:
        with _counting(call) as progress:
            handled = await client.purge(
                *(ids or ()),
                cause=cause,
                workflow=workflow,
                all=all,
                dry_run=dry_run,
                reason=reason,
                by=user(),
                progress=progress,
            )
        return await _tell(call, client, handled, "purge", dry_run, bool(ids))


async def _tell(call: Call, client: Perdure, handled: Handled, what: str, dry_run: bool, named: bool) -> int:
    """What was done; 1 if something that was named could not be."""
    failed = named and bool(handled.missing or handled.not_stuck)
    if call.show.json:
        data: dict[str, Any] = msgspec.structs.asdict(handled)
        call.show.data({"ok": not failed, "command": what, "dry_run": dry_run, **data})
        return int(failed)
    verb = {"redrive": "redriven", "purge": "purged"}[what]
    lists = [
        (f"would be {verb}" if dry_run else f"{what} accepted", "green", handled.done),
        (f"{what} was asked for before", "yellow", handled.before),
        ("not stuck", "yellow", handled.not_stuck),
        ("not found", "red", handled.missing),
    ]
    for text, colour, ids in lists:
        for id in ids:
            call.show.print(styled((f"{text}  ", colour), (id, "bold")))
    parts = [f"{len(ids):,} {text}" for text, _, ids in lists if ids]
    call.show.print(styled(", ".join(parts) or "nothing is stuck"))
    if handled.done and not dry_run:
        await _note_if_idle(call, client, handled.done[0])
    return int(failed)


async def _note_if_idle(call: Call, client: Perdure, id: str) -> None:
    head, begun = await taken(client.get(id))
    if not begun:
        call.show.note(f"no worker has taken up {plain(id)} yet; {needs(head)}")


@contextmanager
def _counting(call: Call) -> Iterator[Callable[[int], None] | None]:
    """A count on stderr for work that takes a while; nothing where nobody looks."""
    if call.show.json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("looking for stuck executions") as status:
        yield lambda count: status.update(f"{count:,} executions")
