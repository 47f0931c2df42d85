"""The `perdure` command as a process, with its output line by line."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

TIMEOUT = 20.0


class Process:
    """`perdure ARGS…` in a folder; everything it writes is kept, and can be waited for."""

    def __init__(self, *args: str, cwd: Path, **environ: str) -> None:
        command = [sys.executable, "-m", "perdure.cli.main", *args]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        env |= {"PYTHONUNBUFFERED": "1", **environ}
        self._popen = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [self._read(self._popen.stdout), self._read(self._popen.stderr)]

    def _read(self, pipe: IO[str] | None) -> threading.Thread:
        assert pipe is not None

        def copy() -> None:
            for line in pipe:
                self._lines.put(line.rstrip("\n"))
            self._lines.put(None)

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        return thread

    def line(self, pattern: str, timeout: float = TIMEOUT) -> str:
        """Wait for a line that matches, of stdout or stderr."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {pattern!r} in {timeout} s; seen: {self.seen}") from None
            if line is None:
                if self._popen.poll() is not None and not any(reader.is_alive() for reader in self._readers):
                    raise AssertionError(f"ended without a line {pattern!r}; seen: {self.seen}")
                continue
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
        for reader in self._readers:
            reader.join(timeout)
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
        for reader in self._readers:
            reader.join(TIMEOUT)
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()
