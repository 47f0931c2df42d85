"""Commands that treat logs as material: copy them out and in, and replay them against other code.

`replay --check` is the gate before a deploy. It changes nothing: the code at hand is driven by the log of each open
execution, in memory, and must ask for the same commands.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from typer import Argument, Option

from perdure.cli.command import AppOption, Call, Module, RunId, command
from perdure.cli.display import head_data, status_text, styled
from perdure.core import copies
from perdure.core.commands import Limits
from perdure.core.loop import turns
from perdure.core.records import Head, Query, Row, ShownStatus, id_of, tenant_of
from perdure.core.replay import Replay
from perdure.errors import KeyringError, PerdureError, UsageError
from perdure.flows.registry import registry
from perdure.runtime.app import Perdure
from perdure.runtime.definitions.published import ref_in
from perdure.runtime.execution.course import ATTEMPTS
from perdure.runtime.managing.dead import dead_of
from perdure.runtime.run import Run

PANEL = "Logs"
_OPEN: tuple[ShownStatus, ...] = ("running", "waiting", "paused", "stuck")
_STYLES = {"fits": "green", "mended": "green", "stuck": "yellow", "diverges": "red", "missing": "magenta"}

Answer = Literal["fits", "mended", "stuck", "diverges", "missing"]


class Finding(Struct, frozen=True):
    """What a replay of one execution showed.

    fits; mended: it was stuck and would go on; stuck: it is and would stay so; diverges; missing: no such definition.
    """

    id: str
    definition: str
    status: str
    version: int
    answer: Answer
    reason: str
    tenant: str


@command("replay", PANEL)
async def replay(
    call: Call,
    module: Module,
    ids: Annotated[list[str] | None, Argument(metavar="ID", help="Only these; all open ones unless given.")] = None,
    check: Annotated[bool, Option("--check", help="Exit with 1 if one diverges or is missing.")] = False,
    workflow: Annotated[str | None, Option("--workflow", help="Only those of this workflow.")] = None,
    missing_ok: Annotated[bool, Option("--missing-ok", help="Definitions may be in another module.")] = False,
) -> int:
    """Tell which executions would diverge under this code.

    The gate before a deploy: every open execution, of all tenants unless --tenant names one, is replayed against the
    code at hand. Nothing is changed.

    Example: perdure replay shop.py --check
    """
    findings: list[Finding] = []
    async with call.client(module, code=True) as client:
        for known in registry.workflows():
            known.check()
        heads = await _chosen(client, ids or (), workflow, call.tenant)
        with _progress(call, len(heads)) as advance:
            for head in heads:
                findings.append(await _replayed(client, head))
                advance()
    bad = [one for one in findings if one.answer == "diverges" or (one.answer == "missing" and not missing_ok)]
    if call.show.json:
        counts = Counter(one.answer for one in findings)
        call.show.data({"ok": not bad, "replayed": len(findings), "counts": counts, "findings": findings})
    else:
        _report(call, findings, client.tenant)
    return 1 if bad and check else 0


async def _chosen(client: Perdure, ids: Sequence[str], workflow: str | None, tenant: str | None) -> list[Head]:
    if ids:
        return [await client.get(id).head() for id in ids]
    return [head async for head in _open(client, workflow, tenant)]


async def _open(client: Perdure, workflow: str | None, tenant: str | None) -> AsyncIterator[Head]:
    """Every execution that has not ended. One that moves between two statuses meanwhile is seen once."""
    seen: set[str] = set()
    for status in _OPEN:
        inner = workflow is not None or status == "stuck"
        query = Query(tenant, status=status, workflow=workflow, inner=inner, limit=500)
        while heads := await client.store.find(query):
            for head in heads:
                if head.key not in seen:
                    seen.add(head.key)
                    yield head
            query = msgspec.structs.replace(query, cursor=(heads[-1].started_at, heads[-1].key))


async def _replayed(client: Perdure, head: Head) -> Finding:
    def found(answer: Answer, reason: str | None = None) -> Finding:
        place = (id_of(head.key), head.definition, head.shown, head.version)
        return Finding(*place, answer, reason or "", tenant_of(head.key))

    definition: Any = registry.find(head.definition)
    try:
        rows = await Run[Any](client, head.key).since_restart()
    except KeyringError as error:  # whatever the code is, nobody can read it
        return found("stuck", str(error))
    if (ref := ref_in(head.key, rows)) is not None and ref.hash:
        definition = await client.published.one(ref)
    if definition is None:
        return found("missing", f"the code has no {head.definition}")
    fault = differs(head.key, definition, rows, client.settings.limits)
    if head.status == "stuck" and dead_of(head).cause != ATTEMPTS:  # where the code fitted all the time
        return found("mended" if fault is None else "stuck", fault)
    return found("fits" if fault is None else "diverges", fault)


def differs(key: str, definition: Any, rows: Sequence[Row], limits: Limits) -> str | None:
    """Why the code does not fit this log, or None."""
    replay = Replay(key, definition, limits)
    with turns():
        try:
            replay.load(rows)
        except PerdureError as fault:
            return str(fault).removeprefix(f"{key}: ")
        finally:
            replay.evict()
    return None


def _report(call: Call, findings: Sequence[Finding], tenant: str) -> None:
    for one in findings:
        if one.answer != "fits":
            place = (f"  {one.definition}  {one.status} at version {one.version}", "dim")
            name = one.id if one.tenant == tenant else f"{one.tenant}/{one.id}"
            call.show.print(styled((f"{one.answer}  ", _STYLES[one.answer]), (name, "bold"), place))
            if one.reason:
                call.show.print(styled(f"  {one.reason}"), soft_wrap=True)
    counts = Counter(one.answer for one in findings)
    parts: list[str | tuple[str, str]] = [f"{len(findings):,} replayed"]
    for answer, count in counts.most_common():
        parts += [", ", (f"{count:,} {answer}", _STYLES[answer])]
    call.show.print(styled(*parts))


@contextmanager
def _progress(call: Call, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr for work that takes a while; nothing where nobody looks."""
    if call.show.json or total < 50 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=total)
        yield lambda: bar.advance(task)


@command("export", PANEL)
async def export(
    call: Call,
    id: RunId,
    output: Annotated[Path | None, Option("--output", "-o", metavar="FILE", help="Not to stdout but there.")] = None,
    app: AppOption = None,
) -> None:
    """Write the log of an execution as JSON.

    Example: perdure export order-42 -o order-42.json
    """
    async with call.client(app) as client:
        run = client.get(id)
        head = await run.head()
        rows = [row async for row in run.rows()]
    document = copies.export(head.key, head.queue, rows)
    if output is None:
        call.show.data(document)
        return
    try:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from error
    if call.show.json:
        call.show.data({"id": id, "file": str(output), "events": len(rows)})
    else:
        call.show.print(styled(f"{len(rows):,} events of ", (id, "bold"), f" in {output}"))


@command("import", PANEL, act="executions.import")
async def import_(
    call: Call,
    file: Annotated[Path, Argument(metavar="FILE", help="An exported log; - for stdin.", show_default=False)],
    new: Annotated[str | None, Option("--id", metavar="NEW", help="Another id than it had.")] = None,
    app: AppOption = None,
) -> None:
    """Make an execution of an exported log.

    One that had ended stays ended; any other goes on.

    Example: perdure import order-42.json --id order-42-copy
    """
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        document: Any = msgspec.json.decode(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    queue, rows = copies.restore(document)
    async with call.client(app, create=True) as client:
        run = await client.adopt(rows, new or id_of(str(document["key"])), queue)
        head = await run.head()
        if call.show.json:
            call.show.data(head_data(head))
        else:
            call.show.print(
                styled(f"{len(rows):,} events are now ", (run.id, "bold"), ", which is ") + status_text(head.shown)
            )
