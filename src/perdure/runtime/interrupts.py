"""`asyncio.run` for programs that people interrupt.

Its own handler of Ctrl-C cancels in the middle of whatever runs, also of the step in which an answer of a thread is
handed over; then that step breaks and its traceback is printed. Here the loop itself hears of the signal, between two
steps. A second Ctrl-C interrupts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from perdure.errors import UsageError

R = TypeVar("R")


def refuse_inside(what: str) -> None:
    """UsageError where a loop runs already, as in a module that a command loads: it cannot be blocked."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError(
            f"{what} blocks, and an event loop runs here already: in async code await app.start(…), in a module that"
            ' others import put it below `if __name__ == "__main__":`'
        )


def run(main: Coroutine[Any, Any, R]) -> R:
    """Run it on a loop of its own; KeyboardInterrupt if it was interrupted."""
    interrupted = False

    async def interruptible() -> R:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            loop.remove_signal_handler(signal.SIGINT)
            task.cancel()

        # Not on Windows, and not in a thread: there asyncio's own ways are left.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGINT, interrupt)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
