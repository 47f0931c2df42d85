"""Several worker processes of one command: started together, kept alive, told to stop together.

No event loop runs here and none is forked: each worker is a process of its own that begins from the command line.
Rules kept here:

- A worker that ends without being told is started again, at first at once and then with growing pauses; a minute of
  life makes good. Each restart is logged with the reason. Where there can be no process at the time, the others go on.
- Signals are passed on through a pipe to each worker, one byte each: the first means drain, the second at once. When
  this process dies, the pipes end, and the workers drain by themselves.
- A worker that does not end in time after either is killed: its loop may be blocked, and then it hears nothing.
- The exit code is 0 when all ended with 0, and the worst otherwise.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

log = logging.getLogger("perdure.supervisor")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Pauses before a restart, in seconds: the first, the longest, and the life after which the first applies again.
FIRST, LONGEST, GOOD = 0.1, 30.0, 60.0
#: What a worker may take to end beyond its time to drain, and after it was told to end at once.
SLACK, AT_ONCE = 10.0, 5.0
#: Where child processes do not announce their end, they are looked at this often.
LOOK = 0.5 if not hasattr(signal, "SIGCHLD") else None


class Seat:
    """The place of one worker: the process that has it, and when the next one may."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self._command = list(command)
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.due = 0.0
        self._began = 0.0
        self._pause = FIRST

    def start(self) -> None:
        self._began = time.monotonic()
        # A group of its own: Ctrl-C in a terminal reaches the supervisor alone, which passes it on.
        apart = {} if sys.platform == "win32" else {"process_group": 0}
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, bufsize=0, **apart)  # type: ignore[call-overload]
        self.code = None
        log.info("worker process %d has pid %d", self.number, self.process.pid)

    def ended(self) -> bool:
        """Whether its process has just ended; then `code` is as a shell would say it."""
        if self.process is None or (code := self.process.poll()) is None:
            return False
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process, self.code = None, code if code >= 0 else 128 - code
        return True

    def again(self) -> float:
        """Plan the next start; gives the pause until then."""
        now = time.monotonic()
        pause = FIRST if now - self._began >= GOOD else self._pause
        self._pause = min(pause * 2, LONGEST)
        self.due = now + pause
        return pause

    def tell(self, number: int) -> None:
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):  # it has just ended
                self.process.stdin.write(bytes([number]))

    def kill(self) -> None:
        if self.process is not None:
            log.error("worker process %d (pid %d) does not end; killing it", self.number, self.process.pid)
            self.process.kill()


class Supervisor:
    """Keeps one process for each command; `drain` is the time that a worker takes to stop, in seconds."""

    def __init__(self, commands: Sequence[Sequence[str]], drain: float) -> None:
        self._seats = [Seat(number, command) for number, command in enumerate(commands, 1)]
        self._drain = drain
        self._signals: list[int] = []
        self._told = 0
        self._deadline = float("inf")

    def run(self) -> int:
        """Until a signal comes, and all have ended; gives the exit code."""
        with self._listening() as bell:
            for seat in self._seats:
                seat.start()
            while not self._told or any(seat.process for seat in self._seats):
                self._wait(bell)
                self._pass_on()
                for seat in self._seats:
                    self._look_after(seat)
                if time.monotonic() >= self._deadline:
                    self._deadline = float("inf")
                    for seat in self._seats:
                        seat.kill()
        return max(seat.code or 0 for seat in self._seats)

    def _look_after(self, seat: Seat) -> None:
        if seat.ended():
            if self._told:
                log.info("worker process %d ended with %d", seat.number, seat.code)
            else:
                pause = seat.again()
                text = "worker process %d ended with %d; starting it again in %.1f s"
                log.warning(text, seat.number, seat.code, pause)
        if not self._told and seat.process is None and seat.due <= time.monotonic():
            try:
                seat.start()
            except OSError as error:  # the host is short of something; the others work
                log.error(
                    "worker process %d cannot be started (%s); trying again in %.1f s", seat.number, error, seat.again()
                )

    def _pass_on(self) -> None:
        for number in self._signals[self._told :]:
            if not self._told:
                for seat in self._seats:
                    seat.code = None  # one that was to be started again no longer is
            self._told += 1
            limit = self._drain + SLACK if self._told == 1 else AT_ONCE
            self._deadline = min(self._deadline, time.monotonic() + limit)  # further signals do not put it off
            log.info("stopping all worker processes%s", "" if self._told == 1 else " at once")
            for seat in self._seats:
                seat.tell(number)

    def _wait(self, bell: int) -> None:
        """Until a signal comes, a child ends, or something is to be done."""
        dues = [self._deadline, *(seat.due for seat in self._seats if seat.process is None and not self._told)]
        left = max(0.0, min(dues) - time.monotonic())
        if LOOK is not None:
            time.sleep(min(left, LOOK))
        elif select.select([bell], [], [], min(left, 3600.0))[0]:
            os.read(bell, 4096)

    @contextmanager
    def _listening(self) -> Iterator[int]:
        """A pipe that can be read when a signal has come; handlers are restored afterwards."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        numbers = [*SIGNALS, *([] if LOOK is not None else [signal.SIGCHLD])]
        before = {number: signal.signal(number, self._handler(number)) for number in numbers}
        wakeup = -1 if LOOK is not None else signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            if LOOK is None:
                signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            os.close(reader)
            os.close(writer)

    def _handler(self, number: int) -> Callable[[int, FrameType | None], None]:
        def came(got: int, frame: FrameType | None) -> None:
            if number in SIGNALS:
                self._signals.append(got)

        return came
