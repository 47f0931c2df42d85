from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import SHOP, Shop


def test_dev_tells_what_happens_and_reloads(shop: Shop) -> None:
    helper = shop.folder / "words.py"
    helper.write_text("GREETING = 'hello'\n")
    shop.file.write_text(
        SHOP.replace("    return text\n", "    return f'{words.GREETING} {text}'\n") + "\nimport words\n"
    )
    with shop.process("dev", "shop.py") as dev:
        dev.line("^ready shop.py")
        shop.run("start", "shop.py", "echo", "Ada", "--id", "one")
        dev.line('^one echo@1 completed → "hello Ada"$')
        helper.write_text("GREETING = 'bonjour'\n")
        dev.line("^reload .*words.py has changed")
        dev.line("^ready shop.py")
        shop.run("start", "shop.py", "echo", "Ada", "--id", "two")
        dev.line('^two echo@1 completed → "bonjour Ada"$')
        assert sum(line.startswith("one echo@1 completed") for line in dev.seen) == 1
        assert dev.stop() == 0


def test_dev_shows_a_syntax_error_and_waits_for_its_repair(shop: Shop) -> None:
    shop.file.write_text(SHOP + "\ndef broken(:\n")
    with shop.process("dev", "shop.py") as dev:
        dev.line("error: shop.py:.*invalid syntax")
        dev.line("note: waiting for a change")
        shop.file.write_text("x = 1\n")
        dev.line("error: shop.py registers nothing")
        dev.line("note: waiting for a change")
        shop.file.write_text(SHOP)
        dev.line("^ready shop.py")
        assert dev.stop() == 0


def test_dev_finds_at_once_what_would_not_survive_a_crash(shop: Shop) -> None:
    shop.file.write_text(
        SHOP + "\nseen = []\n\n"
        "@workflow\nasync def moody() -> None:\n"
        "    seen.append(1)\n"
        "    if len(seen) > 1: await ship('b')\n"
        "    await charge(Order('a'))\n"
        "    await charge(Order('b'))\n"
    )
    with shop.process("dev", "shop.py", "--json") as dev:
        dev.line('"ready"')
        shop.run("start", "shop.py", "moody", "--id", "m")
        told = json.loads(dev.line('"stuck"'))
        assert told["where"].startswith("nondeterminism: ")


def test_dev_serves_every_queue_of_the_module(shop: Shop) -> None:
    shop.file.write_text(SHOP.replace("@workflow\nasync def echo", "@workflow(queue='mail')\nasync def echo"))
    with shop.process("dev", "shop.py") as dev:
        dev.line("^ready")
        shop.run("start", "shop.py", "echo", "Ada", "--id", "one")
        dev.line("^one echo@1 completed")


def test_a_signal_while_dev_reloads_ends_it(shop: Shop) -> None:
    shop.file.write_text(
        "import asyncio\nfrom perdure import action, workflow\n"
        "@action\nasync def long() -> None:\n    print('long begins', flush=True)\n    await asyncio.sleep(600)\n"
        "@workflow\nasync def waits() -> None:\n    await long()\n"
    )
    with shop.process("dev", "shop.py") as dev:
        dev.line("^ready")
        shop.run("start", "shop.py", "waits")
        dev.line("long begins")
        shop.file.touch()
        dev.line("stopping: ")
        dev.signal(signal.SIGINT)
        assert dev.end() == 130


def test_dev_of_a_file_that_is_not_there(shop: Shop) -> None:
    assert "there is no file nope.py" in shop.error("dev", "nope.py")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_dev_is_live_on_a_terminal(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_GRACE", "0.1")
    shop.run("start", "shop.py", "fulfil", '{"item": "tea"}', "--id", "order-1")
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "perdure.cli.main", "dev", "shop.py", "--store", shop.store]
    process = subprocess.Popen(
        command, cwd=shop.folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        _until(ours, "order-1 .*waiting.*event packed.*Ctrl-C ends")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)
        os.close(ours)


def _until(terminal: int, pattern: str, timeout: float = 20.0) -> None:
    text, deadline = "", time.monotonic() + timeout
    while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text), re.DOTALL):
        left = deadline - time.monotonic()
        assert left > 0 and select.select([terminal], [], [], left)[0], f"no {pattern!r} in {text!r}"
        text += os.read(terminal, 65536).decode(errors="replace")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_dev_serves_the_api_and_what_it_says_to_try_works_as_it_is_printed(shop: Shop) -> None:
    shop.file.write_text(
        SHOP + "\n@workflow(name='aaa-first')\nasync def first(order: Order, times: int) -> int:\n    return times\n"
    )
    with shop.process("dev", "shop.py", "--port", "0") as dev:
        dev.line("^api http://127.0.0.1:.* open to everybody on this machine")
        dev.line("^dashboard http://127.0.0.1:.*/dashboard/$")
        lines = [dev.line("^    curl ").strip() for _ in range(3)]
        told = [json.loads(subprocess.check_output(["sh", "-c", line])) for line in lines]
        assert told[0] == {"id": "try-1"}
        assert told[1]["status"] in ("completed", "waiting")
        assert [one["id"] for one in told[2]["executions"]] == ["try-1"]
        assert dev.stop() == 0


def test_dev_takes_another_port_if_its_own_is_taken(shop: Shop) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else has it already: just as well
            taken.bind(("127.0.0.1", 8470))
            taken.listen()
        with shop.process("dev", "shop.py", "--json") as dev:
            address = json.loads(dev.line('"api"'))["address"]
            assert address.startswith("http://127.0.0.1:") and not address.endswith(":8470")
            assert dev.stop() == 0
