"""Every call that cannot be replayed is refused with its replacement; what can be replayed is left alone."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import inspect
import io
import logging
import multiprocessing
import os
import random
import secrets
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import types
import uuid
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random, choice
from time import time as clock
from typing import Any
from uuid import uuid4

import pytest

from perdure.core import guard
from perdure.core.guard import INSTEAD, Finding, check, fingerprint, reachable, refuse, refuse_unknown, watch
from perdure.errors import Forbidden, UsageError

WATCHES = sys.version_info >= (3, 12)


class WorkflowLoop(asyncio.AbstractEventLoop):
    __perdure_loop__ = True
    recording = False


def workflow_loop() -> Any:
    kind: Any = WorkflowLoop  # abstract in name only
    return kind()


@contextmanager
def turn(loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
    before = events._get_running_loop()
    events._set_running_loop(loop or workflow_loop())
    try:
        yield
    finally:
        events._set_running_loop(before)


class workflow:
    """A stand-in for the decorator's functions."""

    @staticmethod
    def record(fn: Callable[[], Any]) -> Any:
        loop: Any = events._get_running_loop()
        loop.recording = True
        try:
            return fn()
        finally:
            loop.recording = False

    @staticmethod
    def now() -> datetime:
        return datetime(2024, 1, 1)


def sure(fn: Any) -> Any:
    fn.__perdure_action__ = True
    return fn


# What is refused.


async def by_module() -> Any:
    return time.time()


async def by_name() -> Any:
    return clock()


async def by_class() -> Any:
    return datetime.now()


async def by_module_and_class() -> Any:
    return dt.datetime.utcnow()


async def by_date() -> Any:
    return date.today()


async def dice() -> Any:
    return choice([1, 2])


async def ids() -> Any:
    return str(uuid4())


async def secret() -> Any:
    return secrets.token_hex()


async def sleeps() -> Any:
    time.sleep(1)


async def kernel() -> Any:
    return os.urandom(3)


async def reads() -> Any:
    with open("/etc/hostname") as file:  # noqa: PTH123
        return file.read()


async def runs() -> Any:
    subprocess.run(["true"], check=False)


async def threads() -> Any:
    threading.Thread(target=print).start()


async def comprehends() -> Any:
    return [random.random() for _ in range(3)]


async def generates() -> Any:
    return sum(random.random() for _ in range(3))


async def inner() -> Any:
    def compute() -> float:
        return time.monotonic()

    return compute()


async def lambdas() -> Any:
    return (lambda: uuid.uuid1())()  # noqa: PLC3002


async def hands_over() -> Any:
    return sorted([1, 2], key=lambda _: random.random())


async def by_alias() -> Any:
    draw = random.choice
    return draw([1])


async def by_reference() -> Any:
    return list(map(random.choice, [[1]]))


async def unpacks() -> Any:
    args = ([1],)
    return random.choice(*args)


async def imports_inside() -> Any:
    import time as t
    from random import randint

    return t.time_ns(), randint(1, 2)


async def imports_dotted() -> Any:
    import os.path

    return os.urandom(1)


async def closes_over_import() -> Any:
    import time as t

    def compute() -> float:
        return t.time()

    return compute()


async def via_helper() -> Any:
    return helper(3)


def helper(x: int) -> float:
    return deeper() + x


def deeper() -> float:
    return Tools.wobble()


class Tools:
    @staticmethod
    def wobble() -> float:
        return random.gauss(0, 1)

    async def method(self) -> float:
        return time.time()


async def in_nested_class() -> Any:
    class Local:
        at = time.time()

    return Local.at


async def record_and_not() -> Any:
    return workflow.record(lambda: time.time()), time.time()


async def record_and_comprehension() -> Any:
    return [time.time() for _ in workflow.record(lambda: [1])]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (by_module, ["by_module calls time.time(): use workflow.now()"]),
        (by_name, ["by_name calls time.time(): use workflow.now()"]),
        (by_class, ["by_class calls datetime.now(): use workflow.now()"]),
        (by_module_and_class, ["by_module_and_class calls datetime.utcnow(): use workflow.now()"]),
        (by_date, ["by_date calls date.today(): use workflow.now()"]),
        (dice, ["dice calls random.choice(): use workflow.random()"]),
        (ids, ["ids calls uuid.uuid4(): use workflow.uuid()"]),
        (secret, ["secret calls secrets.token_hex(): use workflow.random()"]),
        (sleeps, ["sleeps calls time.sleep(): use await asyncio.sleep()"]),
        (kernel, ["kernel calls os.urandom(): use workflow.random()"]),
        (reads, ["reads calls open(): put it into an action"]),
        (runs, ["runs calls subprocess.run(): put it into an action"]),
        (threads, ["threads calls threading.Thread(): put it into an action"]),
        (comprehends, ["calls random.random(): use workflow.random()"]),
        (generates, ["generates.<locals>.<genexpr> calls random.random(): use workflow.random()"]),
        (inner, ["inner.<locals>.compute calls time.monotonic(): use workflow.now()"]),
        (lambdas, ["lambdas.<locals>.<lambda> calls uuid.uuid1(): use workflow.uuid()"]),
        (hands_over, ["hands_over.<locals>.<lambda> calls random.random(): use workflow.random()"]),
        (by_alias, ["by_alias uses random.choice: use workflow.random()", "by_alias calls random.choice()"]),
        (by_reference, ["by_reference uses random.choice: use workflow.random()"]),
        (unpacks, ["unpacks calls random.choice(): use workflow.random()"]),
        (imports_inside, ["calls time.time_ns()", "calls random.randint()"]),
        (imports_dotted, ["calls os.urandom()"]),
        (closes_over_import, ["closes_over_import.<locals>.compute calls time.time()"]),
        (via_helper, ["Tools.wobble calls random.gauss()"]),
        (Tools.method, ["Tools.method calls time.time()"]),
        (Tools().method, ["Tools.method calls time.time()"]),
        (in_nested_class, ["in_nested_class.<locals>.Local calls time.time()"]),
        (record_and_not, ["record_and_not calls time.time()"]),
        (record_and_comprehension, ["calls time.time()"]),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_finds(fn: Any, expected: list[str]) -> None:
    found = [f"{finding.where} {finding.what}: {finding.instead}" for finding in check(fn)]
    assert len(found) == len(expected)
    assert all(wanted in one for one, wanted in zip(found, expected, strict=True))
    assert all(finding.file == __file__ for finding in check(fn))
    with pytest.raises(Forbidden):
        refuse(fn)


# What is left alone.


@sure
async def charge() -> float:
    return time.time()


@sure
def charge_sync() -> float:
    return time.time()


async def calls_actions() -> Any:
    charge_sync()
    return await charge()


async def records() -> Any:
    return workflow.record(lambda: time.time()), workflow.record(uuid4), workflow.record(deeper)


async def own_generator() -> Any:
    return Random(7).choice([1, 2]), workflow.now() + timedelta(1), datetime(2024, 1, 1).date()


async def sleeps_well() -> Any:
    await asyncio.sleep(1)
    return await asyncio.wait([asyncio.ensure_future(charge())])


async def only_names_types(thread: Any) -> bool:
    return isinstance(thread, threading.Thread | socket.socket)


async def logs() -> None:
    logging.getLogger("shop").warning("paid %s", 3)


async def reassigned() -> Any:
    import time as t

    t: Any = workflow  # type: ignore[no-redef]  # noqa: F811
    return t.now()  # type: ignore[attr-defined]


async def recursive(n: int) -> Any:
    return await recursive(n - 1) if n else 0


@pytest.mark.parametrize(
    "fn",
    [
        calls_actions,
        records,
        own_generator,
        sleeps_well,
        only_names_types,
        logs,
        reassigned,
        recursive,
        print,
        Random(7).random,
    ],
    ids=lambda fn: fn.__name__,
)
def test_leaves_alone(fn: Any) -> None:
    assert check(fn) == []
    refuse(fn)


# Names.


async def misspelt() -> Any:
    return await chrage()  # type: ignore[name-defined]  # noqa: F821


async def not_imported() -> Any:
    return await shop.charge()  # type: ignore[name-defined]  # noqa: F821


async def deep_inside() -> Any:
    return misspelt_helper([1])


def misspelt_helper(numbers: list[int]) -> list[Any]:
    return [workflow.record(lambda: numbr) for _ in numbers]  # type: ignore[name-defined]  # noqa: F821


async def names_well() -> Any:
    global made_here
    made_here = len([__name__, defined_below(), int, ValueError])

    class Local:
        one = 1
        two = one

    return made_here, Local


def defined_below() -> None: ...


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (misspelt, r"^misspelt \(test_guard.py:\d+\) uses chrage, which nothing defines: import it, or mend its name$"),
        (not_imported, "not_imported .* uses shop, which"),
        (deep_inside, "misspelt_helper.<locals>.* uses numbr, which"),
    ],
)
def test_a_name_that_nothing_defines_is_found(fn: Any, message: str) -> None:
    refuse(fn)
    with pytest.raises(UsageError, match=message):
        refuse_unknown(fn)


@pytest.mark.parametrize("fn", [names_well, calls_actions, records, reassigned, recursive, only_names_types, print])
def test_names_that_something_defines_are_left_alone(fn: Any) -> None:
    refuse_unknown(fn)


async def environment() -> Any:
    return os.environ["HOME"], os.getenv("HOME")


def test_reading_the_environment_is_only_advised_against() -> None:
    assert [(found.what, found.advice) for found in check(environment)] == [
        ("uses os.environ", True),
        ("calls os.getenv()", True),
    ]
    assert "workflow.record" in str(check(environment)[0])
    refuse(environment)


def test_the_message_names_place_and_replacement() -> None:
    line = inspect.getsourcelines(by_module)[1] + 1
    with pytest.raises(Forbidden) as caught:
        refuse(by_module)
    assert str(caught.value) == (
        f"by_module (test_guard.py:{line}) calls time.time(), which gives another value on replay: use workflow.now()"
    )
    with pytest.raises(Forbidden, match="2 calls cannot be replayed:\n- .*time_ns.*\n- .*randint"):
        refuse(imports_inside)


@pytest.mark.parametrize("called", list(INSTEAD), ids=lambda one: getattr(one, "__qualname__", str(one)))
def test_everything_in_the_table_is_found_at_the_call(called: Any) -> None:
    scope: dict[str, Any] = {"called": called, "__name__": "shop"}
    exec(compile("async def wf():\n    return called()\n", "shop.py", "exec"), scope)
    found = check(scope["wf"])
    assert [(one.where, one.file, one.line, one.instead) for one in found] == [("wf", "shop.py", 2, INSTEAD[called])]
    assert "workflow." in str(found[0]) or "action" in str(found[0]) or "asyncio.sleep" in str(found[0])


def test_functions_of_other_modules_are_not_walked() -> None:
    other = types.FunctionType(deeper.__code__, globals())
    other.__module__ = "elsewhere"
    scope: dict[str, Any] = {"other": other, "__name__": "shop"}
    exec("async def wf():\n    return other()\n", scope)
    assert check(scope["wf"]) == []


def test_asyncio_functions_imported_before_the_patch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None: ...

    monkeypatch.setattr(guard, "_originals", lambda: frozenset({wait}))
    module = types.ModuleType("asyncio_like")
    module.__dict__["wait"] = wait
    scope: dict[str, Any] = {"wait": wait, "module": module, "__name__": __name__}
    exec("async def early():\n    await wait()\nasync def fine():\n    await module.wait()\n", scope)
    assert [found.what for found in check(scope["early"])] == ["calls asyncio.wait()"]
    assert "import asyncio" in check(scope["early"])[0].instead
    assert check(scope["fine"]) == []


# Fingerprints.


def compiled(source: str, filename: str = "shop.py", **scope: Any) -> Any:
    exec(compile(source, filename, "exec"), scope := scope | {"__name__": "shop"})
    return scope["wf"]


SOURCE = "async def wf(x):\n    return [y for y in x if y in {'a', 'b', 'c'}]\n"


def test_a_fingerprint_stays_when_code_moves() -> None:
    here = fingerprint(compiled(SOURCE))
    assert len(here) == 16
    assert fingerprint(compiled("\n\n\n" + SOURCE, "elsewhere.py")) == here
    assert fingerprint(compiled("# a comment\n" + SOURCE.replace("    ", "        "))) == here


@pytest.mark.parametrize(
    ("old", "new"), [("'c'", "'d'"), ("y in {", "y not in {"), ("return [y", "return [y.z"), ("(x)", "(x, z=1)")]
)
def test_a_fingerprint_changes_with_the_code(old: str, new: str) -> None:
    assert fingerprint(compiled(SOURCE.replace(old, new))) != fingerprint(compiled(SOURCE))


def test_a_fingerprint_covers_helpers_and_what_is_recorded() -> None:
    codes = {code.co_name for code in reachable(via_helper)}
    assert codes == {"via_helper", "helper", "deeper", "wobble"}
    assert {code.co_name for code in reachable(records)} >= {"records", "<lambda>", "deeper", "wobble"}


def test_a_fingerprint_does_not_depend_on_the_process_or_on_running() -> None:
    script = (
        "from perdure.core.guard import fingerprint; from tests.core.test_guard import compiled, SOURCE;"
        "print(fingerprint(compiled(SOURCE)))"
    )
    path = ":".join(["src", ".", *sys.path])
    prints = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    fn = compiled(SOURCE)
    watch(reachable(fn))
    for _ in range(100):  # specialised by now
        with pytest.raises(StopIteration):
            fn(["a", "b"]).send(None)
    assert prints == {fingerprint(fn).encode()}


# At the call.


@pytest.fixture
def watched() -> Callable[[Any], Any]:
    def start(fn: Any) -> Any:
        if not watch(reachable(fn)):
            pytest.skip("this Python cannot watch")
        return fn

    return start


def test_watching_is_for_python_3_12_and_later() -> None:
    assert watch([]) is WATCHES


@pytest.mark.parametrize(
    "fn",
    [
        by_module,
        by_name,
        by_class,
        dice,
        ids,
        secret,
        sleeps,
        kernel,
        reads,
        runs,
        threads,
        by_alias,
        imports_inside,
    ],
)
def test_a_forbidden_call_is_stopped_before_it_happens(watched: Callable[[Any], Any], fn: Any) -> None:
    run = watched(fn)
    with turn(), pytest.raises(Forbidden, match=rf"{fn.__name__} \(test_guard.py:\d+\) calls .*: (use|put) "):
        run().send(None)


def test_dynamic_calls_are_stopped_too(watched: Callable[[Any], Any]) -> None:
    async def dynamic(fn: Any) -> Any:
        return fn()

    with turn(), pytest.raises(Forbidden, match="random.random"):
        watched(dynamic)(random.random).send(None)


def test_outside_a_workflow_loop_nothing_is_stopped(watched: Callable[[Any], Any]) -> None:
    run = watched(by_module)
    with pytest.raises(StopIteration) as caught:
        run().send(None)
    assert isinstance(caught.value.value, float)
    with closing(asyncio.new_event_loop()) as loop, turn(loop), pytest.raises(StopIteration):
        run().send(None)
    with turn(), pytest.raises(Forbidden):
        run().send(None)


def test_recording_allows_everything(watched: Callable[[Any], Any]) -> None:
    run = watched(records)
    guard.audit()
    with turn(), pytest.raises(StopIteration) as caught:
        run().send(None)
    assert isinstance(caught.value.value[1], uuid.UUID)


@pytest.mark.skipif(not WATCHES, reason="this Python cannot watch")
@pytest.mark.parametrize("taken", [[4], [4, 3], [4, 3, 5]])
def test_a_taken_tool_id_is_left_to_its_owner(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Monitoring:
        events = types.SimpleNamespace(CALL=1)
        used: list[int] = []
        local: list[Any] = []

        def use_tool_id(self, tool: int, name: str) -> None:
            if tool in taken:
                raise ValueError("in use")
            self.used.append(tool)

        def register_callback(self, *args: Any) -> None: ...

        def set_local_events(self, *args: Any) -> None:
            self.local.append(args)

    fake = Monitoring()
    fake.used, fake.local = [], []
    monkeypatch.setattr(guard, "_monitoring", fake)
    monkeypatch.setattr(guard, "_tools", [])
    assert watch([by_module.__code__]) is (len(taken) < 3)
    assert fake.used == [tool for tool in (4, 3, 5) if tool not in taken][:1]
    assert len(fake.local) == len(fake.used)


# Deep in libraries.


def test_the_audit_hook_stops_io_inside_a_turn() -> None:
    guard.audit()
    guard.audit()
    assert len(guard._audits) == 1
    with turn():
        with pytest.raises(Forbidden) as caught:
            sqlite3.connect(":memory:")
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        assert str(caught.value) == (
            f"test_the_audit_hook_stops_io_inside_a_turn (test_guard.py:{line}) causes sqlite3.connect, which"
            " happens again on replay: put it into an action"
        )
        with pytest.raises(Forbidden, match="subprocess.Popen"):
            subprocess.run(["true"], check=False)
        with pytest.raises(Forbidden, match="socket.getaddrinfo"):
            socket.getaddrinfo("localhost", 80)
        with socket.socket() as plug, pytest.raises(Forbidden, match="socket.connect"):
            plug.connect(("127.0.0.1", 9))
        if sys.version_info >= (3, 12):  # before, Python does not tell
            with pytest.raises(Forbidden, match="start_"):
                threading.Thread(target=int).start()
        with pytest.raises(Forbidden, match="os.system"):
            os.system("true")
        with pytest.raises(Forbidden, match="os.fork"):
            multiprocessing.get_context("fork").Process(target=int).start()
        with pytest.raises(Forbidden, match="os.posix_spawn"):
            os.posix_spawn("/bin/true", ["true"], {})
        with pytest.raises(Forbidden, match="os.exec"):
            os.execv("/bin/true", ["true"])
        if sys.version_info >= (3, 13):
            with pytest.raises(Forbidden, match="asyncio.sleep"):
                time.sleep(0)


def test_the_audit_hook_leaves_everybody_else_alone() -> None:
    guard.audit()
    sqlite3.connect(":memory:").close()
    loop = workflow_loop()
    loop.recording = True
    with turn(loop):
        sqlite3.connect(":memory:").close()


def test_a_log_line_an_import_and_a_file_work_with_all_guards_on(tmp_path: Path) -> None:
    guard.audit()
    watch(reachable(logs))
    stream = io.StringIO()
    handlers: list[logging.Handler] = [logging.StreamHandler(stream), logging.FileHandler(tmp_path / "log", delay=True)]
    logger = logging.getLogger("shop")
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
    try:
        with turn():
            sys.modules.pop("colorsys", None)
            importlib.import_module("colorsys")
            for _ in range(2):
                with pytest.raises(StopIteration):
                    logs().send(None)
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
    assert stream.getvalue().count("paid 3") == 2


def test_findings_are_values() -> None:
    assert Finding("wf", "/a/shop.py", 1, "calls x()", "y") == Finding("wf", "/a/shop.py", 1, "calls x()", "y")
