"""A pool of processes for actions that compute: `@action(process=True)`.

Rules kept here: a process begins from nothing (it is no fork of a running loop) and is kept for the next action; it
runs one at a time; whoever is cancelled or runs out of time has its process killed, because nothing else ends a
computation; a process that dies fails the attempt that it ran, and the next one gets a new process.
`perdure.runtime.attempts.process` is the inside.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from perdure.core.events import NULL
from perdure.core.failures import Recorded
from perdure.core.tracing import Trace
from perdure.errors import ProcessDied, UsageError
from perdure.flows.action import Action
from perdure.runtime.attempts.process import MAIN, Answer, Beat, Failure, Place, Result, Task, get, put
from perdure.runtime.telemetry import logs

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    " from perdure.runtime.attempts.process import main; main()"
)
_answer = msgspec.json.Decoder[Answer](Answer).decode


class Call(Protocol):
    """What is sent of an attempt, and what comes back to it while it runs."""

    action: Action[..., Any]
    fence: int

    @property
    def args(self) -> Raw: ...
    @property
    def key(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def execution(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def number(self) -> int: ...
    @property
    def asked_at(self) -> int: ...
    @property
    def progress(self) -> Any: ...
    @property
    def secrets(self) -> dict[str, str]: ...
    def begins(self) -> bool: ...
    def beat(self, details: Any) -> None: ...


class Elsewhere(Recorded):
    """What the function raised over there, as it was described there."""

    def __init__(self, failed: Failure) -> None:
        super().__init__(failed.error)
        self.retry_after = failed.retry_after


class Processes:
    """At most `size` of them, 0 being one for each core; none before the first is needed."""

    def __init__(self, size: int = 0) -> None:
        self._size = size or os.cpu_count() or 1
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    async def call(self, call: Call) -> Any:
        """The result; when this is cancelled, the process that runs it ends."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._size, "perdure-process")
        ticket = _Ticket()
        try:
            data = await asyncio.get_running_loop().run_in_executor(self._threads, self._perform, call, ticket)
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        return call.action.signature.returns.decode(data)

    def close(self) -> None:
        """End all of them, whatever they do."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        while self._idle:
            self._idle.pop().bury()
        for process in list(self._busy):
            process.kill()  # the thread that waits for it does the rest

    # In a thread.

    def _perform(self, call: Call, ticket: _Ticket) -> Raw:
        if not call.begins():
            return NULL  # it was called off while it waited here, so nobody waits for the answer
        process = self._take()
        self._busy.add(process)
        try:
            if self._closed or not ticket.give(process):
                process.kill()
            return process.run(call)
        finally:
            self._busy.discard(process)
            if ticket.take_back() and not self._closed:
                self._idle.append(process)
            else:
                process.bury()

    def _take(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.lives():
                return process
            process.bury()
        return _Process()


class _Ticket:
    """Connects a caller that may give up with the process that may not have begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._cancelled = False

    def give(self, process: _Process) -> bool:
        with self._lock:
            self._process = process
            return not self._cancelled

    def take_back(self) -> bool:
        """The process is free: from now on it must not be killed by mistake. False if it was."""
        with self._lock:
            self._process = None
            return not self._cancelled

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()


class _Process:
    def __init__(self) -> None:
        command = [sys.executable, "-c", _BOOT, logs.way(), json.dumps(sys.path)]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def lives(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        with suppress(OSError):
            self._popen.kill()

    def run(self, call: Call) -> Raw:
        requests, answers = self._popen.stdin, self._popen.stdout
        assert requests is not None and answers is not None
        with suppress(OSError):  # its answers will have ended, too
            put(requests, msgspec.json.encode(_as_task(call)))
        while (message := get(answers)) is not None:
            answer: Answer = _answer(message)
            match answer:
                case Beat():
                    call.beat(msgspec.json.decode(answer.details))
                case Result():
                    return answer.data
                case Failure():
                    raise Elsewhere(answer)
        raise ProcessDied(
            f"the process of {call.action.name} {self.bury()} before it answered; if memory ran out, give it less at"
            " once or lower `pool`"
        )

    def bury(self) -> str:
        """Close what is left of it; gives what it died of."""
        self.kill()
        code = self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if code < 0:
            with suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _as_task(call: Call) -> Task:
    place, progress = place_of(call.action), Raw(msgspec.json.encode(call.progress))
    return Task(
        place,
        call.args,
        call.key,
        call.fence,
        call.tenant,
        call.execution,
        call.number,
        call.asked_at,
        progress,
        str(call.trace),
        call.version,
        call.secrets,
    )


def place_of(action: Action[..., Any]) -> Place:
    """Where another process finds the function of an action."""
    fn = action.fn
    module = sys.modules.get(fn.__module__)
    file = getattr(module, "__file__", None)
    if fn.__module__ != "__main__":
        return Place(fn.__module__, fn.__qualname__, file)
    spec = getattr(module, "__spec__", None)
    if spec is not None:  # python -m package.module
        return Place(spec.name, fn.__qualname__, file)
    if file is None:
        raise UsageError(f"{action.name} runs in a process of its own, so it must be in a module, not typed in")
    return Place(MAIN, fn.__qualname__, file)
