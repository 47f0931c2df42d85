"""Every example runs by itself and ends well; what it promises is in its output."""

from __future__ import annotations

import ast
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.testing.servers.ports import free_port
from tests.docs.conftest import ROOT, Done, Job, environment

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "approval": ["yes well spent", "→ yes", "nobody answered", "→ timed out"],
    "approval_machine": ["to the director: Bob", "only director may send it", "decided_by='dora'"],
    "children": ["['ONE', 'TWO', 'THREE']", "book-1.3: failed", "Durable Tales is on the shelf"],
    "demo": ["took over", "TakenOver", "6 calls, 5 keys", "refund → null", "no lost step"],
    "demo_cluster": ["kill -9", "FLUSHALL", "200  completed", "0  lost", "0  doubled", "take-overs"],
    "deploy": ["is stuck (nondeterminism)", "Ada: release 2", "voucher for Bob", "Eve: version 2"],
    "fanout": ["flaky-page     1000 words", "missing-page   NotFound after 1 attempt(s)"],
    "hello": ["Hello, Ada!"],
    "nightly_report": ["Mon 01 April 07:00 +0200", "daily-report@2030-04-01T05:00:00Z: 72 orders", "3 reports"],
    "order": ["→ tracking-parcel-1", "refund receipt-2", "put samovar back", "CardDeclined"],
    "order_document": ["shop.order@1 is published", "samovar is missing", "refund receipt-o-2", "of o-2 is damaged"],
    "order_graph": ["Inspect the parcel of o-1", "tea packed", "refund receipt-o-2", "release shelf-o-2", "is damaged"],
    "order_machine": [
        "order@1 is published",
        "tell Ada: receipt-570",
        "'state': 'fine'",
        "put samovar back",
        "refused",
    ],
    "person_approval": ["409, task spend-1.1", "is not of type", "→ yes, go", "→ nobody decided", "by escalate"],
    "poller": ["looks", "of them are replayed"],
    "webhook_start": [
        "orders msg_1: 202 o-1",
        "msg_1: 409 CallTaken",
        "401 Unauthenticated",
        "o-1 → parcel-tea",
        "completed, signed",
    ],
}
#: What an example is called with: a small number of orders.
WORDS = {"demo_cluster": ("200",)}
JOBS = [(str(path), *WORDS.get(path.stem, ())) for path in EXAMPLES]


def test_every_example_has_a_test() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(SAYS)


@pytest.mark.parametrize("job", JOBS, ids=[path.stem for path in EXAMPLES])
def test_example(job: Job, done: Done) -> None:
    for text in SAYS[Path(job[0]).stem]:
        assert text in done.stdout


def test_hello_has_ten_lines_of_code() -> None:
    lines = (ROOT / "examples/hello.py").read_text().splitlines()
    assert len([line for line in lines if line.strip() and not line.lstrip().startswith("#")]) <= 10


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem != "hello"], ids=lambda path: path.stem)
def test_example_teaches(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    assert any(isinstance(node, ast.AsyncFunctionDef) and node.name == "main" for node in tree.body)


def test_hello_goes_on_after_an_interrupt(tmp_path: Path) -> None:
    # Given hello, interrupted once its timer is in the store
    command = [sys.executable, "-W", "error", str(ROOT / "examples/hello.py")]
    first = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    show = ["perdure", "why", "hello-1", "--store", "sqlite:///hello.db"]
    while first.poll() is None:
        answer = subprocess.run(show, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
        if "a timer is due" in answer.stdout:
            break
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=50)
    # When it is run again
    again = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=50, check=True
    )
    # Then it has one start and one timer: it went on where it was.
    log = subprocess.run(
        [*show[:1], "show", *show[2:]], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert again.stdout == "Hello, Ada!\n"
    assert [log.stdout.count(kind) for kind in (" Started ", "TimerStarted", "TimerFired", "Completed")] == [1, 1, 1, 1]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_approval_over_curl(tmp_path: Path) -> None:
    command = ["sh", str(ROOT / "examples/approval_curl.sh")]
    said = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment(), "PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    codes = re.findall(r"\((\d+)\)$", said, re.MULTILINE)
    assert codes == ["202", "200", "409", "202", "202", "200"]
    assert '"state":"asked.manager"' in said and "only director or manager may send approve" in said
    assert '"status":"completed"' in said and '"decided_by":"max"' in said
