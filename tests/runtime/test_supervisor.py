"""Several worker processes of one command, as real processes."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import SettingsError
from perdure.runtime import service, supervisor
from perdure.runtime.names import Names
from perdure.runtime.supervisor import Supervisor
from perdure.testing.servers.ports import free_port
from tests.cli.processes import Process

FLOW = """
import asyncio
import os
import signal
from pathlib import Path

from perdure import action, workflow


@action
async def gated(folder: str) -> int:
    print("begins", os.getpid(), flush=True)
    while not (Path(folder) / "gate").exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@workflow
async def flow(folder: str) -> int:
    return await gated(folder)


@action
async def crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@workflow
async def takes_its_worker_down() -> None:
    await crashes()


@action
async def which_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


@workflow
async def looks() -> str:
    return await which_loop()
"""
READY = '"ready"'
#: So long that nothing here can be due to a lease that ran out.
SLOW = {"PERDURE_LEASE": "10m", "PERDURE_PROBE": "10m"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path


def workers(folder: Path, *options: str, count: int = 2, **environ: str) -> Process:
    words = ("worker", "flow.py", "--store", f"sqlite:///{folder / 's.db'}", "--json", "--processes", str(count))
    return Process(*words, *options, cwd=folder, **{**SLOW, **environ})


def perdure(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "perdure.cli.main", *words, "--store", f"sqlite:///{folder / 's.db'}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=True).stdout


def begin(folder: Path, process: Process, id: str = "run") -> int:
    """Start an execution whose action waits for the gate; gives the process that runs it."""
    perdure(folder, "start", "flow.py", "flow", str(folder), "--id", id)
    return int(process.line("begins").split()[-1])


def pids(process: Process, count: int = 2) -> list[int]:
    """Those of the workers, once all are ready."""
    names = [json.loads(process.line(READY))["worker"] for _ in range(count)]
    assert len(set(names)) == count
    return [int(name.split("-")[-2]) for name in names]


def test_all_drain_at_the_first_signal_and_the_code_is_0(folder: Path) -> None:
    with workers(folder) as process:
        pids(process)
        running = begin(folder, process)
        process.signal(signal.SIGTERM)
        process.line("stopping all worker processes")
        process.line(r"stopping: 1 action\(s\) may take up to")
        (folder / "gate").touch()
        assert process.end() == 0
    assert json.loads(perdure(folder, "show", "run", "--json"))["holder"] is None
    assert str(running) in perdure(folder, "tail", "run")


def test_the_second_signal_ends_all_at_once(folder: Path) -> None:
    with workers(folder) as process:
        pids(process)
        begin(folder, process)
        process.signal(signal.SIGINT)
        process.line(r"stopping: 1 action")
        process.signal(signal.SIGINT)
        process.line("stopping all worker processes at once")
        assert process.end() == 128 + signal.SIGINT
    assert json.loads(perdure(folder, "show", "run", "--json"))["holder"] is None


def test_a_worker_that_is_killed_is_started_again(folder: Path) -> None:
    with workers(folder, "--queues", "default,mail", "--concurrency", "3") as process:
        first, second = pids(process)
        os.kill(first, signal.SIGKILL)
        process.line(r"worker process \d ended with 137; starting it again in 0\.1 s")
        [third] = pids(process, 1)
        assert third not in (first, second)
        assert process.stop() == 0
    ready = [json.loads(line) for line in process.seen if READY in line]
    assert [one["queues"] for one in ready] == [["default", "mail"]] * 3


def test_what_takes_its_workers_down_gets_stuck_and_the_others_go_on(folder: Path) -> None:
    quick = {"PERDURE_LEASE": "0.5s", "PERDURE_GRACE": "0.1s", "PERDURE_PROBE": "0.1s", "PERDURE_LAPSES": "2"}
    with workers(folder, **quick) as process:
        pids(process)
        perdure(folder, "start", "flow.py", "takes_its_worker_down", "--id", "bad")
        for _ in range(3):
            process.line("ended with 139; starting it again")
        process.line("bad is stuck: 3 workers in a row died")
        perdure(folder, "start", "flow.py", "looks", "--id", "good", "--wait")
        assert process.stop() == 0
    assert json.loads(perdure(folder, "show", "bad", "--json"))["status"] == "stuck"


def test_signals_to_everybody_are_one_signal(folder: Path) -> None:
    """As a service manager does that signals all processes of a service."""
    with workers(folder) as process:
        all_of_them = pids(process)
        begin(folder, process)
        process.signal(signal.SIGTERM)
        for pid in all_of_them:
            os.kill(pid, signal.SIGTERM)
        process.line(r"stopping: 1 action")
        for pid in all_of_them:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        (folder / "gate").touch()
        assert process.end() == 0
    assert not any("at once" in line for line in process.seen)


def test_when_the_supervisor_is_killed_the_workers_drain(folder: Path) -> None:
    with workers(folder) as process:
        all_of_them = pids(process)
        begin(folder, process)
        process.signal(signal.SIGKILL)
        process.line(r"stopping: 1 action")
        (folder / "gate").touch()
        for pid in all_of_them:
            until(lambda pid=pid: not alive(pid))
    assert json.loads(perdure(folder, "show", "run", "--json"))["holder"] is None


def test_ports_of_health_count_upwards(folder: Path) -> None:
    base = free_port(beside=2)
    with workers(folder, "--health", f"127.0.0.1:{base}") as process:
        said = [re.findall(r"http://127.0.0.1:(\d+)", process.line("health and metrics on")) for _ in range(2)]
        assert sorted(said) == [[str(base)], [str(base + 1)]]
        for port in (base, base + 1):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=20) as answer:
                assert answer.status == 200
        assert process.stop() == 0


def test_several_processes_need_a_store_that_they_share(folder: Path) -> None:
    words = ("worker", "flow.py", "--store", "memory://", "--processes", "2")
    with Process(*words, cwd=folder) as process:
        assert process.end() == 2
    assert any("several need a store that they share" in line for line in process.seen)


@pytest.mark.parametrize(("loop", "module"), [("asyncio", "asyncio"), ("uvloop", "uvloop"), ("auto", "uvloop")])
def test_the_loop_is_the_one_of_the_settings(folder: Path, loop: str, module: str) -> None:
    pytest.importorskip("uvloop")
    with workers(folder, count=1, PERDURE_LOOP=loop) as process:
        pids(process, 1)
        assert module in perdure(folder, "start", "flow.py", "looks", "--wait")
        assert process.stop() == 0


def test_a_loop_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert service.loop_factory("auto") is None
    with pytest.raises(SettingsError, match="perdure\\[fast\\]"):
        service.loop_factory("uvloop")


# --- the supervisor alone --------------------------------------------------------------------------------------------


def supervise(
    *programs: str,
    until_file: Path,
    lines: int,
    drain: float = 0.0,
    signals: int = 1,
    and_until: Callable[[], bool] = lambda: True,
) -> int:
    """Run programs until their file has so many lines; gives the exit code."""

    def stop() -> None:
        until(lambda: until_file.exists() and len(until_file.read_text().splitlines()) >= lines and and_until())
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        commands = [[sys.executable, "-c", textwrap.dedent(program), str(until_file)] for program in programs]
        return Supervisor(commands, drain).run()
    finally:
        thread.join()


LINE = "import sys; print('x', file=open(sys.argv[1], 'a'), flush=True); "


def test_pauses_grow_between_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST", 0.04)
    with caplog.at_level(logging.WARNING, "perdure.supervisor"):
        supervise(LINE + "sys.exit(3)", until_file=tmp_path / "lines", lines=5)
    pauses = [record.args[2] for record in caplog.records if record.args and len(record.args) == 3]  # type: ignore[index]
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.04]


def test_where_a_process_cannot_be_started_again_it_is_tried_later_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST", 0.01)
    begin, tries = subprocess.Popen, iter([True, True, False, False])

    def popen(*args: Any, **options: Any) -> Any:
        if not next(tries, True):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return begin(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    good = LINE + "sys.stdin.read(1)"
    with caplog.at_level(logging.INFO, "perdure.supervisor"):
        supervise(good, LINE + "sys.exit(3)", until_file=tmp_path / "lines", lines=4)
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "worker process 2 cannot be started" in text]) == 2
    assert len([text for text in said if "worker process 1 has pid" in text]) == 1


def test_a_long_life_makes_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST", 0.01)
    monkeypatch.setattr(supervisor, "GOOD", 0.0)
    with caplog.at_level(logging.WARNING, "perdure.supervisor"):
        supervise(LINE + "sys.exit(3)", until_file=tmp_path / "lines", lines=4)
    pauses = [record.args[2] for record in caplog.records if record.args and len(record.args) == 3]  # type: ignore[index]
    assert set(pauses) == {0.01}


def test_the_worst_code_is_the_code(tmp_path: Path) -> None:
    good = LINE + "sys.stdin.read(1)"
    bad = LINE + "sys.stdin.read(1); sys.exit(4)"
    assert supervise(good, bad, good, until_file=tmp_path / "lines", lines=3) == 4


def test_one_that_waits_to_be_started_again_is_not_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST", 600)

    def waits() -> bool:
        return any("starting it again" in record.getMessage() for record in caplog.records)

    with caplog.at_level(logging.WARNING, "perdure.supervisor"):
        good = LINE + "sys.stdin.read(1)"
        assert supervise(LINE + "sys.exit(5)", good, until_file=tmp_path / "lines", lines=2, and_until=waits) == 0


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SLACK", 0.2)
    deaf = LINE + "import time; time.sleep(600)"
    assert supervise(deaf, until_file=tmp_path / "lines", lines=1) == 137


def test_further_signals_do_not_put_off_the_end() -> None:
    told = Supervisor([], drain=1.0)
    deadlines = []
    for _ in range(4):
        told._signals.append(signal.SIGTERM)
        told._pass_on()
        deadlines.append(told._deadline)
    assert deadlines[0] > deadlines[1] == deadlines[2] == deadlines[3]


def test_handlers_are_restored(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]
    supervise(LINE + "sys.stdin.read(1)", until_file=tmp_path / "lines", lines=1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)] == before


# --- names -----------------------------------------------------------------------------------------------------------


def test_processes_of_one_number_on_hosts_of_one_name_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    monkeypatch.setattr("os.getpid", lambda: 7)
    names = [Names() for _ in range(100)]
    assert len({one.me for one in names}) == len({one.new_id() for one in names}) == 100
    assert all(re.fullmatch("host-7-[0-9a-f]{8}", one.me) for one in names)


# --- forks -----------------------------------------------------------------------------------------------------------


def test_after_a_fork_nobody_has_the_name_of_another(tmp_path: Path) -> None:
    program = """
        import asyncio, os
        from perdure import Perdure

        unopened, opened = Perdure("memory://"), Perdure("memory://")
        asyncio.run(opened.open())
        print(unopened.me, unopened.new_id()[-12:-4], flush=True)
        if os.fork() == 0:
            asyncio.run(unopened.open())
            print(unopened.me, unopened.new_id()[-12:-4], flush=True)
            try:
                asyncio.run(opened.open())
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            os._exit(0)
        os.wait()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    first, second, refused = done.stdout.splitlines()
    assert first.split()[0] != second.split()[0]
    assert first.split()[1] != second.split()[1]
    assert refused.startswith("UsageError this application was open when its process forked")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def until(condition: Callable[[], bool], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
