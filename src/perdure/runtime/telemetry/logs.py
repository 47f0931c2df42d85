"""Logs of the `perdure` logger tree: one line for people, or one JSON object a line for machines.

    configure(Settings(log_format="json"))
    log.warning("lost to another worker", extra={"execution": key, "worker": me})

Rules kept here: a record is one line, and a traceback below it is indented, so nothing that a payload or an error
message contains can pass for a record; control characters are escaped; context travels in `extra` under the names in
CONTEXT; what an action logs names its execution by itself; whatever names an execution that this worker holds has its
trace, and what is said while a request is served has that of the request; a secret that was revealed in this process is
shown as ***.
The root logger and other libraries are left alone unless `root` is given.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec
from msgspec import Struct

from perdure.core import tracing
from perdure.flows.current import attempt
from perdure.runtime.secrets.watching import watch
from perdure.runtime.settings import Settings

CONTEXT = ("tenant", "execution", "version", "worker", "trace")
#: C0 and C1 controls, line separators, what reorders text (all that could make a line look like something else), and
#: lone surrogates, which cannot be written.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COLOURS = {"debug": "2", "info": "36", "warning": "33", "error": "31", "critical": "1;31"}


class Way(Struct, frozen=True, omit_defaults=True):
    """How a process was told to log, for those that it starts."""

    format: Literal["console", "json"]
    level: Literal["debug", "info", "warning", "error"]
    root: bool = False
    worker: str | None = None


def configure(settings: Settings, *, root: bool = False, worker: str | None = None) -> None:
    """Log as the settings say, to stderr; called again, it replaces what it did before.

    With `root` also what other libraries and the application say goes the same way. `worker` is named in every line of
    JSON that names no other.
    """
    handler = _Stderr(Way(settings.log_format, settings.log_level, root, worker))
    handler.setFormatter(JsonLines(worker) if settings.log_format == "json" else ConsoleLines())
    ours = logging.getLogger("perdure")
    for logger in (ours, logging.getLogger()):
        for old in [one for one in logger.handlers if isinstance(one, _Stderr)]:
            logger.removeHandler(old)
        if logger is ours or root:
            logger.addHandler(handler)
            logger.setLevel(settings.log_level.upper())
    ours.propagate = False


def way() -> str:
    """How this process logs, as `go` reads it; empty if it was not told."""
    found = [one.way for one in logging.getLogger("perdure").handlers if isinstance(one, _Stderr)]
    return msgspec.json.encode(found[0]).decode() if found else ""


def go(way: str) -> None:
    """Log as the process that started this one does, if it was told."""
    if way:
        told = msgspec.json.decode(way, type=Way)
        configure(Settings(log_format=told.format, log_level=told.level), root=told.root, worker=told.worker)


def escaped(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would obey.

    >>> escaped("a\\nb\\x1b[2J")
    'a\\\\nb\\\\x1b[2J'
    """
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def context(record: logging.LogRecord) -> dict[str, Any]:
    """What the record says about where it comes from; a whole key is taken apart into tenant and execution."""
    found = {name: record.__dict__[name] for name in CONTEXT if record.__dict__.get(name) is not None}
    if "execution" not in found and (running := attempt.get(None)) is not None:
        found["execution"] = f"{running.tenant}/{running.execution}"
        if running.version is not None:
            found.setdefault("version", running.version)
    if "trace" not in found and (trace := _trace(found.get("execution"))):
        found["trace"] = trace
    key = found.get("execution")
    if isinstance(key, str) and "/" in key:
        tenant, _, found["execution"] = key.partition("/")
        found.setdefault("tenant", tenant)
    return {name: found[name] for name in CONTEXT if name in found}


def _trace(key: object) -> str:
    """The id of the trace that a line belongs to which does not say so itself."""
    found = tracing.known(key) if isinstance(key, str) else None
    if found is None and (running := attempt.get(None)) is not None:
        found = running.trace
    found = found or tracing.here()
    return "" if found is None else found.id


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the context, and the exception if there is one."""

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": watch.hide(record.getMessage()),
            **self._worker,
            **context(record),
        }
        if traceback := _traceback(self, record):
            line["exception"] = traceback
        # Lone surrogates cannot be encoded; a log line is no reason to fail.
        text = msgspec.json.encode(_encodable(line), enc_hook=str).decode()
        return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class ConsoleLines(logging.Formatter):
    """Time, level, where, message and context; coloured on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        paint = _paint if _colourful(sys.stderr) else _plain
        level = record.levelname.lower()
        parts = [
            paint(datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3], "2"),
            paint(f"{level:<7}", _COLOURS.get(level, "0")),
            f"{escaped(record.name.removeprefix('perdure.'))}:",
            escaped(watch.hide(record.getMessage())),
            *(paint(escaped(f"{name}={value}"), "2") for name, value in context(record).items()),
        ]
        line = " ".join(parts)
        if traceback := _traceback(self, record):
            line += "".join(f"\n    | {escaped(one)}" for one in traceback.splitlines())
        return line


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    traces = []
    if record.exc_info and record.exc_info[0] is not None:
        traces.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        traces.append(record.stack_info)
    return watch.hide("\n".join(traces))


def _encodable(line: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for name, value in line.items()
    }


def _colourful(stream: TextIO) -> bool:
    return not os.environ.get("NO_COLOR") and stream.isatty()


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _plain(text: str, code: str) -> str:
    return text


class _Stderr(logging.Handler):
    """Writes to whatever stderr is at the time: a live display or a test may have put something in its place."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)
