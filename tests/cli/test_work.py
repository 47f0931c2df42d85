from __future__ import annotations

import json
import re
import signal
import time
import urllib.request

import pytest

from tests.cli.conftest import Shop
from tests.cli.processes import Process

# Actions that run until the test lets them go.
GATED = """
import asyncio
import time
from pathlib import Path

from perdure import action, workflow


@action
async def first(gate: str) -> str:
    print("first begins", flush=True)
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return "first"


@action
def stubborn(gate: str) -> str:
    print("stubborn begins", flush=True)
    while not Path(gate).exists():
        time.sleep(0.01)
    return "stubborn"


@action
async def second() -> str:
    return "second"


@workflow
async def steps(gate: str) -> str:
    return await first(gate) + " " + await second()


@workflow
async def blocked(gate: str) -> str:
    return await stubborn(gate)


@workflow(queue="mail")
async def post() -> str:
    return "posted"
"""
#: So long that nothing in these tests can be due to a lease that ran out, or to a look at what is due.
SLOW = {"PERDURE_LEASE": "10m", "PERDURE_GRACE": "10m", "PERDURE_PROBE": "10m"}


@pytest.fixture
def gated(shop: Shop) -> Shop:
    shop.file.write_text(GATED)
    return shop


def test_a_worker_that_is_told_to_stop_finishes_and_another_goes_on_at_once(gated: Shop) -> None:
    gate = gated.folder / "gate"
    with gated.process("worker", "shop.py", **SLOW) as worker:
        worker.line("ready: ")
        gated.run("start", "shop.py", "steps", str(gate), "--id", "s")
        worker.line("first begins")
        worker.signal(signal.SIGTERM)
        worker.line(r"stopping: 1 action\(s\) may take up to 30 s to finish")
        gated.run("start", "shop.py", "steps", str(gate), "--id", "late")
        gate.touch()
        assert worker.end() == 0
        assert sum("first begins" in line for line in worker.seen) == 1, "it took new work"
    for id, types in (("s", ["Started", "ActionSettled"]), ("late", ["Started"])):
        head = gated.json("show", id)
        assert head["holder"] is None
        assert [entry["type"] for entry in head["log"]] == types
    with gated.process("worker", "shop.py", "--json", **SLOW) as worker:
        for id in ("s", "late"):
            assert gated.lines("tail", id, "--follow")[-1]["data"]["result"] == "first second"
        assert worker.stop() == 0
    assert "TakenOver" not in {entry["type"] for entry in gated.json("show", "s")["log"]}


def test_what_does_not_finish_in_time_is_given_back(gated: Shop) -> None:
    gate = gated.folder / "gate"
    with gated.process("worker", "shop.py", "--json", PERDURE_DRAIN="1", **SLOW) as worker:
        worker.line('"ready"')
        gated.run("start", "shop.py", "blocked", str(gate), "--id", "b")
        worker.line("stubborn begins")
        told = time.monotonic()
        assert worker.stop() == 0  # although the thread never ends
        assert 1 <= time.monotonic() - told < 6
        assert json.loads(next(line for line in worker.seen if "stopped" in line))["code"] == 0
    assert gated.json("show", "b")["holder"] is None
    gate.touch()
    with gated.process("worker", "shop.py", "--json", **SLOW):
        assert gated.lines("tail", "b", "--follow")[-1]["data"]["result"] == "stubborn"


def test_a_second_signal_ends_it_at_once(gated: Shop) -> None:
    with gated.process("worker", "shop.py", "--json", **SLOW) as worker:
        worker.line('"ready"')
        gated.run("start", "shop.py", "steps", "never", "--id", "s")
        worker.line("first begins")
        worker.signal(signal.SIGTERM)
        worker.line("stopping: ")
        worker.signal(signal.SIGINT)
        assert worker.end() == 128 + signal.SIGINT
    assert gated.json("show", "s")["holder"] is None


def test_a_start_in_another_process_does_not_wait_for_a_poll(shop: Shop) -> None:
    with shop.process("worker", "shop.py", **SLOW) as worker:
        worker.line("ready: ")
        for _ in range(2):
            with shop.process("start", "shop.py", "echo", "hi", "--wait", **SLOW) as start:
                start.line('"hi"')
                assert start.end() == 0


def test_a_worker_serves_the_queues_that_it_is_given(gated: Shop) -> None:
    with gated.process("worker", "shop.py", "--queues", "mail,other", "--concurrency", "2", "--json") as worker:
        assert json.loads(worker.line('"ready"'))["queues"] == ["mail", "other"]
        gated.run("start", "shop.py", "post", "--id", "p")
        assert gated.lines("tail", "p", "--follow")[-1]["data"]["result"] == "posted"
        assert worker.stop() == 0


def test_a_worker_has_the_places_that_it_is_given(gated: Shop) -> None:
    with gated.process("worker", "shop.py", "--concurrency", "2", "--health", "127.0.0.1:0") as worker:
        text = _held(gated, worker, "abcd")
        assert "\nperdure_attempts_running 2\n" in text
        (gated.folder / "gate").touch()
        for id in "abcd":
            assert gated.lines("tail", id, "--follow")[-1]["data"]["result"] == "first second"
        assert worker.stop() == 0


def test_a_worker_that_is_told_to_stop_waits_for_no_action_that_has_no_place(gated: Shop) -> None:
    with gated.process("worker", "shop.py", "--concurrency", "1", "--health", "127.0.0.1:0") as worker:
        _held(gated, worker, "abc")
        worker.signal(signal.SIGTERM)
        worker.line(r"stopping: 1 action\(s\) may take up to")
        (gated.folder / "gate").touch()
        assert worker.end() == 0
        assert sum("first begins" in line for line in worker.seen) == 1


def _held(gated: Shop, worker: Process, ids: str) -> str:
    """The metrics of the worker once it holds an execution of each id."""
    port = re.search(r"http://127.0.0.1:(\d+)", worker.line("health and metrics on"))
    assert port is not None
    for id in ids:
        gated.run("start", "shop.py", "steps", str(gated.folder / "gate"), "--id", id)
    text = ""
    while f"\nperdure_holds {len(ids)}\n" not in text:
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=20) as answer:
            text = answer.read().decode()
    return text


def test_a_queue_that_nobody_serves_is_noted(gated: Shop) -> None:
    with gated.process("worker", "shop.py") as worker:
        worker.line("post@1 is on queue mail, which this worker does not serve")
        worker.line("ready: ")


def test_logs_are_json_on_stderr_and_prints_do_not_disturb_stdout(gated: Shop) -> None:
    with gated.process("worker", "shop.py", "--json") as worker:
        worker.line('"ready"')
        assert worker.stop() == 0
    records = [json.loads(line) for line in worker.seen]
    assert [one.get("event") or one["message"] for one in records if "worker" in one or "code" in one] == [
        "ready",
        "stopping",
        "stopped",
    ]


def test_a_worker_needs_code_and_a_store(shop: Shop) -> None:
    assert "there is no file" in shop.error("worker", "nope.py")
    shop.file.write_text("x = 1\n")
    assert "registers nothing" in shop.error("worker", "shop.py")
    assert shop.run("worker", "shop.py", "--concurrency", "0", code=2).stderr


@pytest.mark.parametrize("words", [("worker", "shop.py"), ("serve", "shop.py", "--port", "0"), ("dev", "shop.py")])
def test_a_mistake_in_the_settings_stops_the_start(shop: Shop, words: tuple[str, ...]) -> None:
    with shop.process(*words, PERDURE_LEASE="long", PERDURE_LEESE="3s", WORKER_CONCURRENCY="many") as process:
        assert process.end() == 2
    said = "".join(process.seen)
    assert all(name in said for name in ("PERDURE_LEASE", "PERDURE_LEESE", "WORKER_CONCURRENCY"))
    assert "ready" not in said


def test_a_start_that_waits_ends_cleanly_when_interrupted(gated: Shop) -> None:
    with gated.process("worker", "shop.py", "--json") as worker:
        worker.line('"ready"')
        with gated.process("start", "shop.py", "steps", "never", "--wait", "--id", "s1") as start:
            worker.line("first begins")
            start.signal(signal.SIGINT)
            assert start.end() == 130
            assert start.seen == ["note: s1 goes on; `perdure tail s1` follows it"]
        worker.signal(signal.SIGINT)
        worker.line("stopping: ")
        worker.signal(signal.SIGINT)
        assert worker.end() == 130
