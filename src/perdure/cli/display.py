"""How answers look: tables, timelines and colours for people, JSON for machines.

Rules kept here: one accent colour per status; tables have no borders; what does not fit the width of the terminal is
cut with an ellipsis, and nothing is cut where stdout is not a terminal; text from outside never reaches the terminal
with control characters in it; times are UTC. With --json only JSON goes to stdout, one document a line for streams.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core import events as ev
from perdure.core.durations import show as span
from perdure.core.entries import Entry
from perdure.core.moments import moment
from perdure.core.records import Head, id_of, tenant_of
from perdure.runtime.managing.registers import Change

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

STATUS = {
    "running": "cyan",
    "waiting": "blue",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "stuck": "bold red",
}
_KINDS = {
    "Started": "bold",
    "Completed": "green",
    "Failed": "red",
    "Stuck": "bold red",
    "Cancel": "magenta",
    "Action": "cyan",
    "Timer": "blue",
    "Event": "yellow",
    "Child": "magenta",
    "Paused": "yellow",
    "Resumed": "yellow",
}


class Display:
    """Where a command's answer goes. Stdout is the one there was at the beginning, see `undisturbed`."""

    def __init__(self, json: bool = False) -> None:
        self.json = json
        self._stdout = sys.stdout

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """With --json, what the user's code prints goes to stderr: stdout is for the answer alone."""
        with redirect_stdout(sys.stderr) if self.json else nullcontext():
            yield

    @property
    def terminal(self) -> bool:
        return self._stdout.isatty()

    @property
    def out(self) -> Console:
        return _console(self._stdout)

    def print(self, *what: RenderableType, soft_wrap: bool = False) -> None:
        self.out.print(*what, soft_wrap=soft_wrap)

    def data(self, value: Any) -> None:
        """A JSON document: indented for a terminal, one line otherwise."""
        encoded = msgspec.json.encode(value, enc_hook=str)
        if self.terminal:
            encoded = msgspec.json.format(encoded, indent=2)
        self._write(encoded)

    def line(self, value: Any) -> None:
        """One document of a stream."""
        self._write(msgspec.json.encode(value, enc_hook=str))

    def text(self, text: str) -> None:
        """A document as it is; on a terminal without control characters."""
        self._stdout.write("\n".join(map(plain, text.split("\n"))) if self.terminal else text)
        self._stdout.flush()

    def note(self, text: str) -> None:
        _console(sys.stderr).print(styled(("note: ", "yellow"), text), soft_wrap=True)

    def error(self, text: str, hint: str = "") -> None:
        console = _console(sys.stderr)
        console.print(styled((f"error: {text}", "red")), soft_wrap=True)
        if hint:
            console.print(styled(("hint: ", "dim"), hint), soft_wrap=True)

    def _write(self, encoded: bytes) -> None:
        self._stdout.write(encoded.decode() + "\n")
        self._stdout.flush()


def _console(file: Any) -> Console:
    from rich.console import Console

    # Without a terminal there is no width: nothing is wrapped or cut for a pipe.
    return Console(file=file, highlight=False, markup=False, emoji=False, width=None if file.isatty() else 100_000)


def plain(text: str) -> str:
    from perdure.runtime.telemetry.logs import escaped

    return escaped(text)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Text of parts, each with or without a style; control characters are escaped."""
    from rich.text import Text

    text = Text()
    for part in parts:
        content, style = (part, "") if isinstance(part, str) else part
        text.append(plain(content), style)
    return text


def status_text(status: str) -> Text:
    return styled((status, STATUS.get(status, "")))


def table(*columns: str, flexible: str = "") -> Table:
    """A table without borders; the flexible column gives way when the terminal is narrow."""
    from rich.table import Table

    made = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, no_wrap=column != flexible, overflow="ellipsis")
    return made


def add_row(made: Table, *cells: Text) -> None:
    """A row of one line: what does not fit is cut."""
    for cell in cells:
        cell.no_wrap, cell.overflow = True, "ellipsis"
    made.add_row(*cells)


def pairs(values: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and values below each other: plain values are cut to the width, texts are folded."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values:
        text = styled(value) if isinstance(value, str) else value
        if isinstance(value, str):
            text.no_wrap, text.overflow = True, "ellipsis"
        made.add_row(name, text)
    return made


def changes(acts: Iterable[Change]) -> Table:
    """Who did what to a thing, and when."""
    rows = table("time (UTC)", "what", "by")
    for one in acts:
        add_row(rows, styled((f"{one.at:%Y-%m-%d %H:%M:%S}", "dim")), styled((one.what, "bold")), styled(one.by))
    return rows


def age(micros: int) -> str:
    """The largest unit alone: 3m."""
    return span(micros).split()[0] if micros >= 1_000_000 else "0s"


def brief(micros: int) -> str:
    """A duration without the digits that nobody reads."""
    unit = 1 if micros < 1_000 else 1_000 if micros < 10_000_000 else 1_000_000
    return span(micros // unit * unit)


def ago(then: int, now: int) -> str:
    return "just now" if now - then < 1_000_000 else f"{age(now - then)} ago"


def compact(value: Any, limit: int = 0) -> str:
    """A value as JSON on one line."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


def iso(micros: int | None) -> str | None:
    return None if micros is None else moment(micros).isoformat(timespec="microseconds")


def decoded(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def head_data(head: Head, definition: str | None = None) -> dict[str, Any]:
    """A head as a JSON document; `definition` is what it runs now, where that may be another."""
    return {
        "id": id_of(head.key),
        "tenant": tenant_of(head.key),
        "workflow": head.workflow,
        "definition": definition or head.definition,
        "queue": head.queue,
        "status": head.shown,
        "version": head.version,
        "started_at": iso(head.started_at),
        "changed_at": iso(head.changed_at),
        "due": iso(head.due),
        "holder": head.holder,
        "lapses": head.lapses,
        "mail": head.mail,
        "parent": None if head.parent is None else id_of(head.parent),
        "correlation": head.correlation,
        "tags": head.tags,
        "state": decoded(head.state),
        "waits": decoded(head.waits),
        "result": decoded(head.result),
    }


def doing(head: Head, now: int) -> str:
    """In a few words what an execution waits for, or how it ended."""
    waits: dict[str, Any] = decoded(head.waits) or {}
    if head.status == "completed":
        return f"→ {compact(decoded(head.result), 200)}"
    if head.status in ("failed", "cancelled"):
        error = decoded(head.result) or {}
        return f"{error.get('type')}: {error.get('message')}" if head.status == "failed" else str(error.get("message"))
    if head.status == "stuck":
        stuck = waits.get("stuck") or {}
        return f"{stuck.get('cause')}: {stuck.get('reason')}"
    if head.holder is not None:
        return "at work"
    if head.status == "paused":
        paused = waits.get("paused") or {}
        return (
            f"until {moment(paused['until']):%Y-%m-%d %H:%M:%S} UTC" if paused.get("until") else "until it is resumed"
        )
    return _waiting(waits, now) or ("a worker" if head.due is not None and head.due <= now else "to begin")


def _waiting(waits: Mapping[str, Any], now: int) -> str:
    parts = [f"event {' or '.join(event['names'])}" for event in waits.get("events", ())]
    for action in waits.get("actions", ()):
        again = f", try {action['attempts'] + 1} in {span(max(0, action['due'] - now))}" if action["due"] else ""
        parts.append(f"action {action['name']}{again}")
    parts += [f"child {child['id']}" for child in waits.get("children", ())]
    timers: Sequence[int] = waits.get("timers", ())
    if timers:
        parts.append(f"timer in {span(max(0, timers[0] - now) // 1000 * 1000)}")
    return ", ".join(parts)


def entry_data(entry: Entry) -> dict[str, Any]:
    return {
        "version": entry.version,
        "at": entry.at.isoformat(timespec="microseconds"),
        "type": entry.type,
        "text": entry.text,
        "data": entry.data,
        "fence": entry.fence,
        "message_id": entry.message_id,
    }


def entry_cells(entry: Entry, before: datetime | None) -> tuple[Text, Text, Text, Text, Text]:
    """Version, time, gap, type and text of one line of a timeline."""
    gap = "" if before is None or entry.at == before else f"+{brief((entry.at - before) // timedelta(microseconds=1))}"
    day = f"{entry.at:%Y-%m-%d} " if before is None or before.date() != entry.at.date() else ""
    return (
        styled((str(entry.version), "dim")),
        styled((day, "dim"), f"{entry.at:%H:%M:%S.%f}"[:-3]),
        styled((gap, "dim")),
        styled((entry.type, kind_style(entry.type))),
        styled(entry.text),
    )


def kind_style(type: str) -> str:
    return next((style for start, style in _KINDS.items() if type.startswith(start)), "dim")


def error_text(error: ev.Error) -> str:
    where = f" ({error.where})" if error.where else ""
    return f"{error.type}: {error.message}{where}"
