"""Commands about schedules: executions that start by the clock.

What is wished of a schedule is mail: durable when the command returns, and done by a worker.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from typer import Argument, Option

from perdure.cli import values
from perdure.cli.command import AppOption, Call, command, user
from perdure.cli.display import add_row, compact, pairs, styled, table
from perdure.errors import UsageError
from perdure.flows.schedule import CatchUp, Overlap
from perdure.runtime.managing.scheduled import Schedule

PANEL = "Executions"
group = typer.Typer(
    name="schedules",
    help="Schedules: make, list, pause, trigger or end what starts executions by the clock.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, Argument(metavar="NAME", help="The schedule's name.", show_default=False)]
CronOption = Annotated[str | None, Option("--cron", metavar="LINE", help="When, as '0 9 * * 1-5'.")]
Every = Annotated[str | None, Option("--every", metavar="DURATION", help="Again and again after so long, as 5m.")]
At = Annotated[list[str] | None, Option("--at", metavar="TIME", help="At this time; repeatable.")]
Start = Annotated[str | None, Option("--start", metavar="TIME", help="Not before this time.")]
End = Annotated[str | None, Option("--end", metavar="TIME", help="Not after this time.")]
Args = Annotated[str | None, Option("--args", metavar="JSON", help="All arguments as one JSON list.")]
_ZONE = "Whose clock; times without a zone are on it, too."
_OVERLAP = "While the one before runs: skip it, queue it, start it as well (all), or stop the one before."
_CATCH_UP = "What to start of the times that passed while no worker was there."
_JITTER = "Start at a random moment within so long."


@command("create", group=group, act="schedules.create", typed=True)
async def create(
    call: Call,
    name: Name,
    workflow: Annotated[str, Argument(metavar="WORKFLOW", help="Its name; --app has its code.", show_default=False)],
    args: Annotated[list[str] | None, Argument(metavar="ARGS", help="Its arguments, each in JSON.")] = None,
    cron: CronOption = None,
    every: Every = None,
    at: At = None,
    timezone: Annotated[str, Option("--timezone", help=_ZONE)] = "UTC",
    start: Start = None,
    end: End = None,
    overlap: Annotated[Overlap, Option("--overlap", help=_OVERLAP)] = "skip",
    catch_up: Annotated[CatchUp, Option("--catch-up", help=_CATCH_UP)] = "last",
    jitter: Annotated[str, Option("--jitter", metavar="DURATION", help=_JITTER)] = "0s",
    paused: Annotated[bool, Option("--paused", help="Do not begin yet.")] = False,
    version: Annotated[int | None, Option("--version", help="Of the workflow; the newest unless given.")] = None,
    note: Annotated[str, Option("--note", help="What it is for.", show_default=False)] = "",
    app: AppOption = None,
) -> None:
    """Make a schedule. The same one again is the same.

    Example: perdure schedules create nightly report '"sales"' --cron "0 3 * * *" --timezone Europe/Berlin --app shop.py

    Example: perdure schedules create poll check_stock --every 5m --app shop.py
    """
    given = [values.json_value(text, "an argument") for text in args or ()]
    async with call.client(app, create=app is not None) as client:
        made = await client.schedules.create(
            name,
            workflow,
            given,
            cron=cron,
            every=every,
            at=[_time(text) for text in at] if at else None,
            timezone=timezone,
            start=None if start is None else _time(start),
            end=None if end is None else _time(end),
            overlap=overlap,
            catch_up=catch_up,
            jitter=jitter,
            paused=paused,
            version=version,
            note=note,
            by=user(),
        )
        if call.show.json:
            call.show.data(made)
            return
        call.show.print(styled((made.name, "bold"), " is paused" if paused else f" starts {_when(made.next)}"))


@command("update", group=group, act="schedules.update", typed=True)
async def update(
    call: Call,
    name: Name,
    workflow: Annotated[str | None, Option("--workflow", help="Another workflow.")] = None,
    args: Args = None,
    cron: CronOption = None,
    every: Every = None,
    at: At = None,
    timezone: Annotated[str | None, Option("--timezone", help=_ZONE)] = None,
    start: Start = None,
    end: End = None,
    overlap: Annotated[Overlap | None, Option("--overlap", help=_OVERLAP)] = None,
    catch_up: Annotated[CatchUp | None, Option("--catch-up", help=_CATCH_UP)] = None,
    jitter: Annotated[str | None, Option("--jitter", metavar="DURATION", help=_JITTER)] = None,
    note: Annotated[str | None, Option("--note", help="What it is for.")] = None,
    app: AppOption = None,
) -> None:
    """Change what is given and nothing else.

    Example: perdure schedules update nightly --cron "30 3 * * *"
    """
    given: dict[str, Any] = {} if end is None else {"end": _time(end)}
    async with call.client(app) as client:
        await client.schedules.update(
            name,
            workflow=workflow,
            args=None if args is None else values.json_list(args),
            cron=cron,
            every=every,
            at=[_time(text) for text in at] if at else None,
            timezone=timezone,
            start=None if start is None else _time(start),
            overlap=overlap,
            catch_up=catch_up,
            jitter=jitter,
            note=note,
            by=user(),
            **given,
        )
    _accepted(call, name, "update")


@command("list", group=group)
async def list_all(
    call: Call,
    ended: Annotated[bool, Option("--ended", help="Also those that have ended.")] = False,
    app: AppOption = None,
) -> None:
    """List schedules by name.

    Example: perdure schedules list
    """
    async with call.client(app) as client:
        found = await client.schedules.list(ended=ended)
    if call.show.json:
        call.show.data(found)
        return
    if not found:
        call.show.note("there are no schedules; `perdure schedules create NAME WORKFLOW --cron …` makes one")
        return
    rows = table("name", "workflow", "when", "next", "started", "skipped", "failed", flexible="when")
    for one in found:
        add_row(
            rows,
            styled((one.name, "bold")),
            styled(one.workflow),
            styled(_rhythm(one)),
            _next(one),
            *(styled(str(number)) for number in (one.started, one.skipped, one.failed)),
        )
    call.show.print(rows)


@command("show", group=group)
async def show(call: Call, name: Name, app: AppOption = None) -> None:
    """Show a schedule, its latest starts and its next times.

    Example: perdure schedules show nightly
    """
    async with call.client(app) as client:
        found = await client.schedules.get(name)
    if call.show.json:
        call.show.data(found)
        return
    call.show.print(_facts(found))
    if found.recent:
        call.show.print("")
        rows = table("time (UTC)", "execution", "what", "reason", flexible="reason")
        for one in reversed(found.recent):
            add_row(
                rows,
                styled((f"{one.at:%Y-%m-%d %H:%M:%S}", "dim")),
                styled((one.id, "bold")),
                styled((one.fate, {"started": "green", "skipped": "yellow", "failed": "red"}[one.fate])),
                styled(one.reason),
            )
        call.show.print(rows)


@command("next", group=group)
async def next_times(
    call: Call,
    name: Name,
    count: Annotated[int, Option("--count", min=1, max=1000, help="How many.")] = 5,
    app: AppOption = None,
) -> None:
    """Tell the next times of a schedule, on the clock of its zone.

    Example: perdure schedules next nightly --count 3
    """
    async with call.client(app) as client:
        times = await client.schedules.next(name, count)
    if call.show.json:
        call.show.data([at.isoformat() for at in times])
        return
    for at in times:
        call.show.print(styled(f"{at:%a %Y-%m-%d %H:%M:%S %z}"))


@command("pause", group=group, act="schedules.pause")
async def pause(call: Call, name: Name, app: AppOption = None) -> None:
    """Start nothing until it is resumed. What passes meanwhile is not caught up with.

    Example: perdure schedules pause nightly
    """
    async with call.client(app) as client:
        await client.schedules.pause(name, by=user())
    _accepted(call, name, "pause")


@command("resume", group=group, act="schedules.resume")
async def resume(call: Call, name: Name, app: AppOption = None) -> None:
    """Go on with the next time.

    Example: perdure schedules resume nightly
    """
    async with call.client(app) as client:
        await client.schedules.resume(name, by=user())
    _accepted(call, name, "resume")


@command("trigger", group=group, act="schedules.trigger")
async def trigger(
    call: Call,
    name: Name,
    overlap: Annotated[Overlap | None, Option("--overlap", help="Other than the schedule says, for this one.")] = None,
    app: AppOption = None,
) -> None:
    """Start one now, also of a schedule that is paused.

    Example: perdure schedules trigger nightly
    """
    async with call.client(app) as client:
        execution = await client.schedules.trigger(name, overlap=overlap, by=user())
    if call.show.json:
        call.show.data({"name": name, "accepted": "trigger", "execution": execution})
        return
    call.show.print(styled("trigger accepted: ", (execution, "bold")))


@command("delete", group=group, act="schedules.delete")
async def delete(call: Call, name: Name, app: AppOption = None) -> None:
    """End a schedule. Its log stays, and what it has started goes on.

    Example: perdure schedules delete nightly
    """
    async with call.client(app) as client:
        await client.schedules.delete(name, by=user())
    _accepted(call, name, "delete")


def _accepted(call: Call, name: str, what: str) -> None:
    if call.show.json:
        call.show.data({"name": name, "accepted": what})
    else:
        call.show.print(styled(f"{what} accepted: ", (name, "bold")))


def _time(text: str) -> datetime:
    """A time without a zone stays without one: it is on the clock of the schedule."""
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a time: write 2030-05-01T12:00 or 2030-05-01T12:00Z") from error


def _when(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S %z}"


def _next(one: Schedule) -> Any:
    if one.ended or one.paused:
        return styled(("ended", "dim") if one.ended else ("paused", "yellow"))
    return styled(_when(one.next))


def _rhythm(one: Schedule) -> str:
    if one.at:
        return f"at {len(one.at)} time(s)"
    return f"every {one.every}" if one.every else f"{one.cron} {one.timezone}"


def _facts(one: Schedule) -> Any:
    facts: list[tuple[str, Any]] = [
        ("name", styled((one.name, "bold"))),
        ("workflow", styled(f"{one.workflow} {compact(one.args)}")),
        ("when", styled(_rhythm(one))),
        ("next", _next(one)),
        ("overlap", f"{one.overlap}; catch up: {one.catch_up}" + (f"; jitter {one.jitter}" if one.jitter else "")),
        ("counts", f"{one.started} started, {one.skipped} skipped, {one.failed} failed"),
    ]
    if one.end is not None:
        facts.append(("until", f"{one.end:%Y-%m-%d %H:%M:%S} UTC"))
    if one.note:
        facts.append(("note", styled(one.note)))
    if one.pending:
        facts.append(("pending", f"{one.pending} wish(es) wait for a worker"))
    return pairs(facts)
