"""The `perdure` command as a process, with its output line by line."""

from __future__ import annotations

import os
import queue
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

#: For a test that hangs: a process that starts beside ten others takes its time.
TIMEOUT = 90.0


class Process:
    """`perdure ARGS…` in a folder; everything it writes is kept, and can be waited for."""

    def __init__(self, *args: str, cwd: Path, **environ: str) -> None:
        command = [sys.executable, "-m", "perdure.cli.main", *args]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        env |= {"PYTHONUNBUFFERED": "1", **environ}
        # One pipe for stdout and stderr: with two, which line is read first is up to the threads that read.
        self._popen = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        assert self._popen.stdout is not None
        self._pipe = self._popen.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._pipe:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self, pattern: str, timeout: float = TIMEOUT) -> str:
        """Wait for a line that matches, of stdout or stderr."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {pattern!r} in {timeout} s; seen: {self.seen}") from None
            if line is None:
                raise AssertionError(f"ended without a line {pattern!r}; seen: {self.seen}")
            self.seen.append(line)
            if re.search(pattern, line):
                return line

    @property
    def pid(self) -> int:
        return self._popen.pid

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def end(self, timeout: float = TIMEOUT) -> int:
        """Wait for the end; gives the exit code."""
        code = self._popen.wait(timeout)
        self._reader.join(timeout)
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                self.seen.append(line)
        return code

    def stop(self) -> int:
        """SIGTERM, and its end."""
        self.signal(signal.SIGTERM)
        return self.end()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        self._pipe.close()


def stop_between_writes(pid: int, database: Path) -> None:
    """SIGSTOP. Stopped inside a transaction it would keep the one write lock: nobody could write until it goes on."""
    with closing(sqlite3.connect(database, timeout=0.1, isolation_level=None)) as probe:
        for _ in range(1000):
            os.kill(pid, signal.SIGSTOP)
            try:
                probe.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                continue
            probe.execute("ROLLBACK")
            return
    raise AssertionError("never found between two of its writes")
