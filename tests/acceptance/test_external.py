"""External workers in processes of their own, and APIs that die under them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Perdure
from perdure.core import events as ev
from perdure.testing.invariants import check_log
from tests.acceptance.cluster import ROOT, SETTINGS
from tests.acceptance.external_flows import total
from tests.cli.processes import Process

FLOWS = ROOT / "tests/acceptance/external_flows.py"
EXAMPLE = ROOT / "examples/external_worker"


def ask(address: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=70) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


class Fleet:
    """APIs and workers on one store."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = {**SETTINGS, **settings}
        self.processes: list[Process] = []

    def api(self, *words: str, module: Path = FLOWS) -> tuple[Process, str]:
        served = self._run("serve", str(module), "--open", "--port", "0", "--json", *words)
        return served, json.loads(served.line('"ready"'))["address"]

    def worker(self) -> Process:
        worker = self._run("worker", str(FLOWS))
        worker.line("^ready: ")
        return worker

    def app(self) -> Perdure:
        return Perdure(**self.settings)

    def _run(self, *words: str) -> Process:
        environ = {f"PERDURE_{name.upper()}": str(value) for name, value in self.settings.items()}
        self.processes.append(Process(*words, cwd=self.folder, PYTHONPATH=str(ROOT), **environ))
        return self.processes[-1]

    def end(self) -> None:
        for process in self.processes:
            process.__exit__()


@pytest.fixture(params=["sqlite", "postgresql+redis"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    if request.param == "sqlite":
        settings = {"store": f"sqlite:///{tmp_path}/far.db"}
    else:
        prefix = f"far{time.monotonic_ns()}-{os.getpid()}"
        stream = request.getfixturevalue("redis_url")
        settings = {"store": request.getfixturevalue("postgres"), "stream": stream, "stream_prefix": prefix}
    made = Fleet(tmp_path, **settings)
    yield made
    made.end()


def test_the_api_that_gave_tasks_out_is_killed_and_another_takes_the_answers(fleet: Fleet) -> None:
    fleet.worker()
    first, there = fleet.api()
    _, here = fleet.api()

    async def main() -> None:
        async with fleet.app() as app:
            run = await app.start(total, list(range(10)), id="s1")
            poll = {"queue": "far", "limit": 10, "wait": "20s", "worker": "test"}
            tasks: list[dict[str, Any]] = []
            while len(tasks) < 10:
                tasks += (await asyncio.to_thread(ask, there, "/v1/external/poll", poll))[1]["tasks"]
            assert sorted(task["args"][0] for task in tasks) == list(range(10))
            first.signal(signal.SIGKILL)
            first.end()
            code, beat = await asyncio.to_thread(ask, here, "/v1/external/heartbeat", {"token": tasks[0]["token"]})
            assert (code, beat["cancelled"]) == (200, False)
            for task in tasks:
                body = {"token": task["token"], "result": task["args"][0] * 2}
                assert await asyncio.to_thread(ask, here, "/v1/external/complete", body) == (204, None)
            assert await run.result(timeout=20) == 90
            second = await asyncio.to_thread(ask, here, "/v1/external/complete", body)
            assert (second[0], second[1]["title"]) == (409, "TaskLost")
            async with httpx.AsyncClient(base_url=here) as client:
                counted = (await client.get("/v1/metrics")).text
            assert 'perdure_external_late_total{said="complete"} 1\n' in counted
            check_log([row async for row in run.rows()], run.key)

    asyncio.run(main())


def test_the_task_of_a_killed_worker_is_given_to_the_next_and_late_answers_are_dropped(fleet: Fleet) -> None:
    fleet.worker()
    _, one = fleet.api()
    _, other = fleet.api()

    async def main() -> None:
        async with fleet.app() as app:
            run = await app.start(total, [4], id="s1")
            poll = {"queue": "far", "wait": "20s"}
            lost = await asyncio.to_thread(given_to_one_who_dies, one, {**poll, "lease": "1s"})
            [task] = (await asyncio.to_thread(ask, other, "/v1/external/poll", poll))[1]["tasks"]
            assert (task["attempt"], task["key"]) == (2, lost["key"])
            for address in (one, other):
                late = await asyncio.to_thread(
                    ask, address, "/v1/external/complete", {"token": lost["token"], "result": 1}
                )
                assert (late[0], late[1]["title"]) == (409, "TaskLost")
            body = {"token": task["token"], "result": 8}
            assert await asyncio.to_thread(ask, one, "/v1/external/complete", body) == (204, None)
            assert await run.result(timeout=20) == 8
            rows = [row async for row in app.get("s1.1").rows()]
            check_log(rows, "s1.1")
            lapses = [it.error.type for row in rows if isinstance(it := ev.read(row), ev.ActionAttempted)]
            assert lapses == ["WorkerLost"]

    asyncio.run(main())


def test_those_who_ask_at_several_apis_share_the_tasks(fleet: Fleet) -> None:
    fleet.worker()
    addresses = [fleet.api()[1] for _ in range(2)]
    count = 60

    async def main() -> None:
        done: list[int] = []

        async def work(address: str) -> None:
            while len(done) < count:
                poll = {"queue": "far", "limit": 3, "wait": "500ms"}
                for task in (await asyncio.to_thread(ask, address, "/v1/external/poll", poll))[1]["tasks"]:
                    body = {"token": task["token"], "result": task["args"][0]}
                    assert await asyncio.to_thread(ask, address, "/v1/external/complete", body) == (204, None)
                    done.append(task["args"][0])

        async with fleet.app() as app:
            workers = [asyncio.create_task(work(address)) for address in addresses * 2]
            began = time.monotonic()
            run = await app.start(total, list(range(count)))
            assert await run.result(timeout=40) == sum(range(count))
            took = time.monotonic() - began
            await asyncio.gather(*workers)
        assert sorted(done) == list(range(count)), "each was given out once"
        assert took < 20

    asyncio.run(main())


def given_to_one_who_dies(address: str, poll: dict[str, Any]) -> dict[str, Any]:
    """The task of a worker that asked for one, and was killed while it did it."""
    code = (
        "import json, sys, time, urllib.request as web\n"
        "asked = web.Request(sys.argv[1], sys.argv[2].encode(), {'content-type': 'application/json'})\n"
        "print(web.urlopen(asked).read().decode(), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, f"{address}/v1/external/poll", json.dumps(poll)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        [task] = json.loads(worker.stdout.readline())["tasks"]
        worker.kill()
    found: dict[str, Any] = task
    return found


@contextmanager
def script(name: str, address: str) -> Iterator[subprocess.Popen[str]]:
    program = {".sh": "sh", ".mjs": "node"}[Path(name).suffix]
    command = [program, str(EXAMPLE / name), address]
    # A group of its own: whatever it waits for, as curl, ends with it.
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield running
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=10)


@pytest.mark.parametrize("name", ["worker.sh", "worker.mjs"])
def test_the_example_prints_letters_in_another_language(name: str, tmp_path: Path) -> None:
    needs = ["curl", "jq"] if name.endswith(".sh") else ["node"]
    if missing := [program for program in needs if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    fleet = Fleet(tmp_path, store=f"sqlite:///{tmp_path}/letters.db")
    try:
        _, address = fleet.api("--work", module=EXAMPLE / "shop.py")
        with script(name, address) as worker:
            assert worker.stdout is not None and worker.stdout.readline() == f"{name} is ready\n"
            body = {"workflow": "greet_all", "args": [["Ada", "Bob"]], "id": "g1"}
            assert ask(address, "/v1/executions", body)[0] == 202
            _, done = ask(address, "/v1/executions/g1/result?wait=30s")
            kind = "shell" if name.endswith(".sh") else "node"
            assert done == {"status": "completed", "result": f"2 pages by {kind}"}
            assert ask(address, "/v1/executions", {**body, "args": [[""]], "id": "g2"})[0] == 202
            _, done = ask(address, "/v1/executions/g2/result?wait=30s")
            assert done["status"] == "failed" and "a letter needs a name" in done["error"]["message"]
    finally:
        fleet.end()
