"""Refuses what cannot be replayed: clocks, dice and I/O in the code of a workflow.

Three guards, none of which touches the standard library, so that a log line in a workflow still works: `check` walks
the byte code before anything runs, `watch` sees each call of the workflow's own code as it happens (Python 3.12 and
later), `audit` stops a short list of I/O however deep it is called. What all of them miss, replay finds.
Besides, `refuse_unknown` finds names that nothing defines, before an execution comes to them.
Inside `workflow.record` everything is allowed. Iterating over a set of strings cannot be seen and is only documented.
"""
# ruff: noqa: TID251 - the clocks and dice of the standard library are named here, never called

from __future__ import annotations

import asyncio
import builtins
import datetime as dt
import dis
import hashlib
import inspect
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from types import CodeType, FunctionType, ModuleType
from typing import Any

from msgspec import Struct

from perdure.core.loop import author
from perdure.core.places import short
from perdure.errors import Forbidden, UsageError

_NOW = "use workflow.now()"
_RANDOM = "use workflow.random()"
_UUID = "use workflow.uuid()"
_SLEEP = "use await asyncio.sleep()"
_ACTION = "put it into an action"
_RECORD = "use workflow.record(lambda: ...)"
_IMPORT = "import asyncio and call it from there, or import perdure first"
_WHY = {_SLEEP: "blocks every workflow of this worker", _ACTION: "happens again on replay"}
_WHY |= {_IMPORT: "is the original, which orders tasks by their addresses"}

_CALLS: list[tuple[Any, str, str]] = [
    (time, "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns", _NOW),
    (time, "thread_time thread_time_ns localtime gmtime ctime asctime strftime clock_gettime clock_gettime_ns", _NOW),
    (dt.datetime, "now utcnow today", _NOW),
    (dt.date, "today", _NOW),
    (random, "SystemRandom " + " ".join(name for name in random.__all__ if name[0].islower()), _RANDOM),
    (secrets, "choice randbelow randbits token_bytes token_hex token_urlsafe", _RANDOM),
    (os, "urandom getrandom", _RANDOM),
    (uuid, "uuid1 uuid4 uuid6 uuid7 getnode", _UUID),
    (time, "sleep", _SLEEP),
    (builtins, "open input", _ACTION),
    (threading, "Thread Timer", _ACTION),
    (futures, "ThreadPoolExecutor ProcessPoolExecutor", _ACTION),
    (subprocess, "Popen run call check_call check_output getoutput getstatusoutput", _ACTION),
    (os, "system popen fork posix_spawn", _ACTION),
    (socket, "socket create_connection create_server getaddrinfo gethostbyname gethostname getfqdn", _ACTION),
    (asyncio, "to_thread create_subprocess_exec create_subprocess_shell open_connection start_server", _ACTION),
]

#: What to do instead of calling this. A bound built-in equals another of the same object and name, so a dict of
#: callables finds `datetime.now` by any alias, while a generator of one's own, `Random(7).random`, is not in it.
INSTEAD: dict[Any, str] = {}
_NAMES: dict[Any, str] = {}
for _owner, _names, _instead in _CALLS:
    for _name in _names.split():
        if (_callable := getattr(_owner, _name, None)) is not None:  # not every platform has all of them
            INSTEAD[_callable] = _instead
            _NAMES[_callable] = _name if _owner is builtins else f"{_owner.__name__}.{_name}"

#: Raised wherever in a workflow's turn it happens. Not `open`: imports, tracebacks and log files need it.
AUDITED = {
    "socket.connect": _ACTION,
    "socket.getaddrinfo": _ACTION,
    "subprocess.Popen": _ACTION,
    "os.system": _ACTION,
    "os.fork": _ACTION,
    "os.forkpty": _ACTION,
    "os.posix_spawn": _ACTION,
    "os.exec": _ACTION,
    "sqlite3.connect": _ACTION,
    "_thread.start_new_thread": _ACTION,
    "_thread.start_joinable_thread": _ACTION,
    "time.sleep": _SLEEP,
}

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "RESUME", "NOP"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_MARKING = {"LOAD_GLOBAL"} if sys.version_info < (3, 12) else {"LOAD_GLOBAL", "LOAD_ATTR"}  # by the lowest bit
_NULL_FIRST = sys.version_info < (3, 13)  # whether PUSH_NULL comes before the callee or after it


class Finding(Struct, frozen=True):
    """A use of something that cannot be replayed. `advice` alone is no reason to refuse."""

    where: str
    file: str
    line: int
    what: str
    instead: str
    advice: bool = False

    def __str__(self) -> str:
        why = _WHY.get(self.instead, "gives another value on replay")
        return f"{self.where} ({short(self.file)}:{self.line}) {self.what}, which {why}: {self.instead}"


def check(fn: Callable[..., Any]) -> list[Finding]:
    """All that the function, its inner functions and the plain functions of its module use and should not.

    >>> async def fulfil(order):
    ...     return time.time()
    >>> [(found.what, found.instead) for found in check(fulfil)]
    [('calls time.time()', 'use workflow.now()')]
    """
    walk = _Walk(fn)
    return sorted(walk.findings, key=lambda found: (found.file, found.line))


def refuse(fn: Callable[..., Any]) -> None:
    """Forbidden, if `check` finds anything but advice.

    >>> async def fine(order):
    ...     return random.Random(7).random()
    >>> refuse(fine)
    """
    if found := [str(finding) for finding in check(fn) if not finding.advice]:
        raise Forbidden(
            found[0] if len(found) == 1 else "\n- ".join([f"{len(found)} calls cannot be replayed:", *found])
        )


def refuse_unknown(fn: Callable[..., Any]) -> None:
    """UsageError, if the code names what neither its module nor Python has: as an action whose name is misspelt.

    For when the whole module is there: what a function calls may be defined below it.

    >>> async def fulfil(order):
    ...     return await chrage(order)
    >>> refuse_unknown(fulfil)
    Traceback (most recent call last):
    perdure.errors.UsageError: fulfil (<doctest ...>:2) uses chrage, which nothing defines: import it, or mend its name
    """
    if unknown := _Walk(fn).unknown():
        raise UsageError(f"{', '.join(unknown)}, which nothing defines: import it, or mend its name")


def reachable(fn: Callable[..., Any]) -> list[CodeType]:
    """The code of the function and of all that the walk reaches, in the order of the code.

    >>> async def outer():
    ...     return (lambda: 1)()
    >>> [code.co_name for code in reachable(outer)]
    ['outer', '<lambda>']
    """
    return list(_Walk(fn).codes)


def fingerprint(fn: Callable[..., Any]) -> str:
    """A short hash of the byte code of all that the walk reaches: other code, other hash; the place does not matter.

    >>> def make():
    ...     async def pay():
    ...         return 1
    ...
    ...     return pay
    >>> fingerprint(make()) == fingerprint(make()), len(fingerprint(make()))
    (True, 16)
    """
    text = "\n".join(_token(code) for code in _Walk(fn).codes)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def watch(codes: Iterable[CodeType]) -> bool:
    """From now on these raise Forbidden at the call, when a workflow runs them; False if this Python cannot watch."""
    tool = _tool() if _monitoring else None
    if tool is None:
        return False
    for code in codes:
        _monitoring.set_local_events(tool, code, _monitoring.events.CALL)
    return True


def audit() -> None:
    """Install the audit hook, once and for the life of the process: Python cannot remove it."""
    if not _audits:
        _audits.append(_audited)
        sys.addaudithook(_audited)


def in_workflow() -> bool:
    """Whether a workflow's turn runs in this thread, outside `workflow.record`."""
    loop = _get_running_loop()
    return getattr(type(loop), "__perdure_loop__", False) and not getattr(loop, "recording", False)


_audits: list[Any] = []
_tools: list[int] = []
_monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12


def _audited(event: str, args: tuple[Any, ...]) -> None:
    if event in AUDITED and in_workflow():
        instead = AUDITED[event]
        raise Forbidden(f"{author()} causes {event}, which {_WHY[instead]}: {instead}")


def _tool() -> int | None:
    """Our tool id; 0 to 2 and 5 have names of their own, of which 5, the optimizer's, is hardly ever used."""
    for tool in () if _tools else (4, 3, 5):
        try:
            _monitoring.use_tool_id(tool, "perdure")
        except ValueError:
            continue
        _monitoring.register_callback(tool, _monitoring.events.CALL, _called)
        _tools.append(tool)
        break
    return _tools[0] if _tools else None


def _called(code: CodeType, offset: int, callee: Any, first: Any) -> Any:
    try:
        instead = INSTEAD.get(callee)
    except Exception:  # a callable that cannot be hashed
        instead = None
    if instead is None:
        return _monitoring.DISABLE  # this call site is free of cost from now on
    if in_workflow():
        line = next(
            (line for start, end, line in code.co_lines() if start <= offset < end and line), code.co_firstlineno
        )
        raise Forbidden(str(Finding(code.co_qualname, code.co_filename, line, f"calls {_NAMES[callee]}()", instead)))
    return None


def _originals() -> frozenset[Any]:
    try:
        from perdure.core.patches import ORIGINALS
    except ImportError:
        return frozenset()
    return ORIGINALS


class _Unknown(str):
    """The name of a global that is nowhere."""


class _Walk:
    """One pass over all code that a function reaches. Follows names as far as they can be known without running."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.findings: list[Finding] = []
        self.codes: dict[CodeType, bool] = {}  # whether it was looked into, or only reached through `record`
        self.originals = _originals()
        self.missed: dict[str, tuple[CodeType, int]] = {}
        target: Any = inspect.unwrap(fn)
        target = getattr(target, "__func__", target)
        self.module = getattr(target, "__module__", None)
        if isinstance(target, FunctionType):
            self.function(target, True)

    def function(self, fn: FunctionType, looking: bool) -> None:
        cells = {}
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                cells[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        self.code(fn.__code__, fn.__globals__, cells, looking)

    def unknown(self) -> list[str]:
        """Where which names are used that are nowhere, unless the code itself makes them, by `global`."""
        own = {op.argval for code in self.codes for op in dis.get_instructions(code) if op.opname == "STORE_GLOBAL"}
        return [
            f"{code.co_qualname} ({short(code.co_filename)}:{line}) uses {name}"
            for name, (code, line) in self.missed.items()
            if name not in own
        ]

    def code(self, code: CodeType, scope: dict[str, Any], outer: dict[str, Any], looking: bool) -> None:
        if self.codes.get(code, -1) >= looking:
            return
        self.codes[code] = looking
        records = "record" in code.co_names
        names = dict(outer)  # of locals and cells, as far as imports and plain assignments tell
        for value, line, called, direct in _loads(code, scope, names):
            if isinstance(value, _Unknown):
                self.missed.setdefault(value, (code, line))
            elif isinstance(value, FunctionType) and value.__module__ == self.module and value not in self.originals:
                if not getattr(value, "__perdure_action__", False):
                    self.function(value, looking and (called or not records))
            elif looking and (called or not (records or isinstance(value, type))):
                self.look(code, line, value, called, direct)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                self.code(inner, scope, names, looking and (not records or inner.co_name in _COMPREHENSIONS))

    def look(self, code: CodeType, line: int, value: Any, called: bool, direct: bool) -> None:
        try:
            instead = INSTEAD.get(value) or (_IMPORT if direct and value in self.originals else "")
        except Exception:  # a value that cannot be hashed or compared
            instead = ""
        advice = value is os.environ or value is os.getenv
        if advice:
            name, instead = "os.environ" if value is os.environ else "os.getenv", _RECORD
        elif instead:
            name = _NAMES.get(value) or f"asyncio.{value.__name__}"
        else:
            return
        what = f"calls {name}()" if called else f"uses {name}"
        self.findings.append(Finding(code.co_qualname, code.co_filename, line, what, instead, advice))


def _loads(code: CodeType, scope: dict[str, Any], names: dict[str, Any]) -> Iterator[tuple[Any, int, bool, bool]]:
    """What the code loads, with its line, whether it calls it, and whether by a name of its own, not a module's."""
    operations = [op for op in dis.get_instructions(code) if op.opname not in _SKIPPED]
    value: Any = None
    module: Any = None
    marked = direct = False  # marked: a NULL lies beside it on the stack, which makes it a callee
    for index, op in enumerate(operations):
        name, argument = op.opname, op.argval
        if name == "PUSH_NULL":
            marked = _NULL_FIRST
            continue
        if name in _ATTRIBUTES:
            value, direct = _attribute(value, argument), False
        elif name in ("LOAD_GLOBAL", "LOAD_NAME"):
            nowhere = _Unknown(argument) if name == "LOAD_GLOBAL" else None  # the body of a class has names of its own
            value, direct = scope.get(argument, getattr(builtins, argument, nowhere)), True
        elif name == "IMPORT_NAME":
            level, chosen = (one.argval for one in operations[index - 2 : index])
            module = value = None if level else sys.modules.get(argument if chosen else argument.partition(".")[0])
        elif name == "IMPORT_FROM":
            value = _attribute(module, argument)
        else:
            value, direct = _local(name, argument, value, names), True
        following = operations[index + 1].opname if index + 1 < len(operations) else ""
        marked = marked or name == "LOAD_METHOD" or (name in _MARKING and bool((op.arg or 0) & 1))
        if name.startswith("LOAD") and value is not None:
            line = (op.positions and op.positions.lineno) or code.co_firstlineno
            called = marked or (following == "PUSH_NULL" and not _NULL_FIRST)
            yield value, line, called and following not in _ATTRIBUTES, direct
        marked = marked and following in _ATTRIBUTES


def _local(name: str, argument: Any, value: Any, names: dict[str, Any]) -> Any:
    """Follow a local name or cell; one instruction of Python 3.13 may store one and load another."""
    loads = [argument] if isinstance(argument, str) else list(argument) if isinstance(argument, tuple) else []
    if name.startswith(("STORE_FAST", "STORE_DEREF")):
        names[loads.pop(0)] = value
        value = None
        if "LOAD" not in name[5:]:
            names.update(dict.fromkeys(loads))
            return None
    elif not name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")):
        return None
    return names.get(loads[-1]) if loads else None


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, ModuleType):
        return vars(value).get(name)  # never a module's own __getattr__: it may import things
    try:
        return getattr(value, name, None) if isinstance(value, type) else None
    except Exception:
        return None


def _token(const: object) -> str:
    """A constant as text that is the same in every process and wherever the code stands."""
    if isinstance(const, CodeType):
        parts = (const.co_names, const.co_varnames, const.co_freevars, const.co_argcount, const.co_kwonlyargcount)
        consts = [_token(one) for one in const.co_consts]
        return f"code({const.co_code.hex()} {const.co_flags} {parts} {consts})"
    if isinstance(const, tuple):
        return f"({','.join(map(_token, const))})"
    if isinstance(const, frozenset):
        return f"{{{','.join(sorted(map(_token, const)))}}}"
    return f"{type(const).__name__}:{const!r}"
