"""Ctrl-C, wherever it comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The signal comes while the answer of a thread is handed over; in the program below `door` is what runs `main`.
PROGRAM = """
import asyncio, concurrent.futures, os, signal
from perdure.runtime import interrupts

class Answer(concurrent.futures.Future):
    def result(self, timeout=None):
        os.kill(os.getpid(), signal.SIGINT)
        return super().result(timeout)

async def main():
    answer = Answer()
    asyncio.get_running_loop().call_soon(answer.set_result, 7)
    try:
        await asyncio.wrap_future(answer)
        await asyncio.sleep(1000)
    finally:
        await asyncio.sleep(0)
        print("tidied up", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    {door}(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def ran(program: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout, done.stderr


def test_an_interrupt_in_the_middle_of_a_step_cancels_after_it() -> None:
    assert ran(PROGRAM.format(door="interrupts.run")) == ("tidied up\ninterrupted\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio may have mended it")
def test_asyncio_would_break_that_step() -> None:
    assert "InvalidStateError" in ran(PROGRAM.format(door="asyncio.run"))[1]


def test_what_is_cancelled_by_itself_is_no_interrupt() -> None:
    program = """
import asyncio
from perdure.runtime import interrupts

async def main():
    asyncio.current_task().cancel()
    await asyncio.sleep(1)

try:
    interrupts.run(main())
except asyncio.CancelledError:
    print("cancelled")
"""
    assert ran(program) == ("cancelled\n", "")


def test_a_second_interrupt_does_not_wait() -> None:
    program = """
import asyncio, os, signal
from perdure.runtime import interrupts

async def main():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(1000)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1000)

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    interrupts.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    assert ran(program)[0] == "interrupted\n"
