"""`perdure dev`: a worker, the HTTP API and the dashboard beside the editor.

The worker replays after every turn, so code that would not survive a crash is found at once. Files are watched by their
time of change; when one changes, the worker drains and the process begins afresh (the same process id, a new
interpreter: nothing of the old code is left). Code that cannot be loaded shows its error and waits for the next change.
The API is open, on this machine only. On a terminal the recent executions are shown live, elsewhere each change is a
line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from perdure.cli import loading
from perdure.cli.command import Call
from perdure.cli.display import add_row, age, doing, head_data, status_text, styled, table
from perdure.cli.samples import curls
from perdure.core.records import ENDED, Head, id_of
from perdure.errors import StoreError, UsageError
from perdure.flows.registry import registry
from perdure.runtime import service
from perdure.runtime.app import Perdure
from perdure.runtime.telemetry import logs as telemetry
from perdure.runtime.urls import redacted
from perdure.runtime.work.worker import Worker

if TYPE_CHECKING:
    from rich.console import RenderableType

LOOK = 0.5
#: Nobody wants to wait longer for a reload; what was cut off runs again.
DRAIN = 5.0
SHOWN = 20
#: Where the API listens.
HOST, PORT = "127.0.0.1", 8470


def run(call: Call, module: str, port: int | None = None) -> int:
    """Work until a signal comes. A reload does not return: the process begins again."""
    sys.dont_write_bytecode = True  # it tells files apart by whole seconds: too coarse for somebody who edits
    try:
        log_format = "json" if call.show.json else None
        app = call.application(module, code=True, replay_always=True, log_format=log_format)
    except loading.Broken as error:
        if call.debug:
            traceback.print_exc()
        call.show.error(str(error))
        return _wait_for_change(call, module, error)
    queues = dict.fromkeys([*app.settings.queue_names, *(one.queue for one in registry.workflows())])
    app.settings = structs.replace(app.settings, drain=min(app.settings.drain, DRAIN), queues=",".join(queues))
    telemetry.configure(app.settings, worker=app.me)
    watch = Watch(loading.watched(loading.directory(module)))
    view = View(call, app, module)

    def leave(code: int) -> None:
        if code == 0 and watch.changed is not None:
            _again()
        service.exit_now(code)

    async def follow() -> None:
        async with _api(call, app, port):
            await view.follow(watch)

    code = service.run(app, ready=view.began, until=follow, leave=leave)
    if watch.changed is not None:
        _again()
    return code


@asynccontextmanager
async def _api(call: Call, app: Perdure, port: int | None) -> AsyncIterator[None]:
    """Serve the API, where it is installed, and say how to try it."""
    try:
        from perdure.http.auth import Authenticator, Open
        from perdure.http.serving import listening
    except ImportError:
        call.show.note("the HTTP API is not installed: pip install 'perdure[http]'")
        yield
        return
    async with AsyncExitStack() as stack:
        everybody = Authenticator(open=Open(app.tenant))
        try:
            address = await stack.enter_async_context(listening(app, everybody, HOST, PORT if port is None else port))
        except UsageError:
            if port is not None:
                raise
            address = await stack.enter_async_context(listening(app, everybody, HOST, 0))
        ours = [one for one in registry.workflows() if not one.name.startswith("perdure.") and ":" not in one.name]
        lines = curls(address, ours)
        if call.show.json:
            call.show.line({"event": "api", "address": address, "dashboard": f"{address}/dashboard/", "try": lines})
        else:
            call.show.print(
                styled(("api ", "green"), (address, "bold"), ("  open to everybody on this machine", "dim"))
            )
            call.show.print(styled(("dashboard ", "green"), (f"{address}/dashboard/", "bold")))
            for line in lines:
                call.show.print(styled(f"    {line}"))
        yield


def _wait_for_change(call: Call, module: str, error: loading.Broken) -> int:
    root = loading.directory(module)
    near = {*root.glob("*.py"), *root.glob("*/*.py"), *loading.watched(root), *_named(error)}
    watch = Watch(near)
    call.show.note("waiting for a change")
    try:
        while not watch.look():
            time.sleep(LOOK)
    except KeyboardInterrupt:
        return 0
    _again()
    return 0


def _named(error: BaseException) -> Iterable[Path]:
    """The files that an error is about."""
    cause = error.__cause__
    if isinstance(cause, SyntaxError) and cause.filename:
        yield Path(cause.filename)
    if cause is not None:
        yield from (Path(frame.filename) for frame in traceback.extract_tb(cause.__traceback__))


def _again() -> None:
    """Begin anew with the same command line. All threads and all memory of this process end here."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Watch:
    """Files and when they changed. A file that is away for a moment, as while an editor saves it, has not changed."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._times = {path: at for path in files if (at := _changed_at(path)) is not None}
        self.changed: Path | None = None

    def look(self) -> bool:
        for path, before in self._times.items():
            if _changed_at(path) not in (before, None):
                self.changed = path
                return True
        return False


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


class View:
    """What is shown while the worker works."""

    def __init__(self, call: Call, app: Perdure, module: str) -> None:
        self._show = call.show
        self._app = app
        self._module = module
        self._worker: Worker | None = None
        self._known: dict[str, tuple[str, str]] = {}
        self._began_at = 0

    def began(self, worker: Worker) -> None:
        self._worker = worker
        self._began_at = self._app.clock.now()
        names = [one for one in registry.definitions() if not one.startswith("perdure.")]
        if self._show.json:
            self._show.line({"event": "ready", "worker": worker.me, "workflows": sorted(names)})
        else:
            store = (f"  {redacted(self._app.settings.store)}, worker {worker.me}", "dim")
            self._show.print(
                styled(("ready ", "green"), (self._module, "bold"), f"  {', '.join(sorted(names))}", store)
            )

    async def follow(self, watch: Watch) -> None:
        """Show what happens until a file changes."""
        if self._show.terminal and not self._show.json:
            await self._live(watch)
        else:
            while not watch.look():
                for head in reversed(await self._heads()):
                    self._tell(head)
                await asyncio.sleep(LOOK)
        if self._show.json:
            self._show.line({"event": "reload", "file": str(watch.changed)})
        else:
            self._show.print(styled(("reload ", "yellow"), (f"{watch.changed} has changed", "dim")))

    async def _live(self, watch: Watch) -> None:
        from rich.live import Live

        # Log lines and prints of actions go through the live display, which keeps them above the table.
        with Live(console=self._show.out, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
            while not watch.look():
                live.update(self._table(await self._heads()), refresh=True)
                await asyncio.sleep(LOOK)

    async def _heads(self) -> list[Head]:
        try:
            return (await self._app.find(limit=SHOWN)).heads
        except StoreError:
            return []  # the worker's own loops say so in the log

    def _table(self, heads: list[Head]) -> RenderableType:
        from rich.console import Group

        now = self._app.clock.now()
        rows = table("id", "workflow", "status", "where", "age", flexible="where")
        for head in heads:
            add_row(
                rows,
                styled((id_of(head.key), "bold")),
                styled(head.definition),
                status_text(head.shown),
                styled(self._where(head, now)),
                styled((age(now - head.started_at), "dim")),
            )
        idle = f"no executions yet: perdure start {self._module} WORKFLOW"
        return Group("", rows if heads else styled((idle, "dim")), styled(("Ctrl-C ends", "dim")))

    def _tell(self, head: Head) -> None:
        """A line for what is new about an execution; those that had ended before are not news."""
        now = self._app.clock.now()
        where = self._where(head, now)
        before, self._known[head.key] = self._known.get(head.key), (head.shown, where)
        if before == (head.shown, where) or (before is None and self._before_us(head)):
            return
        if self._show.json:
            self._show.line({"event": "execution", **head_data(head), "where": where})
        else:
            self._show.print(
                styled((id_of(head.key), "bold"), f" {head.definition} ")
                + status_text(head.shown)
                + styled(f" {where}")
            )

    def _before_us(self, head: Head) -> bool:
        return head.status in ENDED and head.changed_at < self._began_at

    def _where(self, head: Head, now: int) -> str:
        resident = self._worker.residents.get(head.key) if self._worker is not None else None
        if resident is None:
            return doing(head, now)
        if resident.running:
            return ", ".join(f"action {running.action.name}" for running in resident.running.values())
        return ", ".join(resident.replay.places()) if resident.replay is not None else doing(head, now)
