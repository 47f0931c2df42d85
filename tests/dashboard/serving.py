"""`perdure serve` and `perdure dev` for the tests of pages: real processes on SQLite, on a port that stays the same.

Nothing here uses an event loop of this process: while a browser is open there can be no other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from perdure.testing.servers.ports import free_port
from tests.cli.asking import ask
from tests.cli.processes import Process


class Served:
    """A module of workflows behind an address; the server can be stopped and started again.

    `serve` asks for a key, and `key` is one of an administrator; `dev` asks for none.
    """

    def __init__(self, folder: Path, flows: str, command: Literal["serve", "dev"] = "serve") -> None:
        self.folder = folder
        (folder / "flows.py").write_text(flows)
        self.store = f"sqlite:///{folder / 'flows.db'}"
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._command = command
        self._process: Process | None = None
        self.key = self.run("keys", "create", "ui", "--role", "admin")["secret"] if command == "serve" else ""

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.__exit__(*error)

    def start(self, *, work: bool = True) -> None:
        """Also again after `stop`, at the same address; `serve` can do without a worker."""
        assert self._process is None, "it is running"
        words = ["--work"] if work and self._command == "serve" else []
        self._process = self._begin(self._command, "flows.py", *words, "--port", str(self.port))
        self._process.line(f'"address": ?"{self.address}"')

    def stop(self) -> None:
        """As an operator does it: what runs is finished, and connections are closed."""
        process, self._process = self._process, None
        assert process is not None, "it is not running"
        with process:
            assert process.stop() == 0, process.seen

    def kill(self) -> None:
        """Like a crash."""
        self.__exit__()

    def run(self, *words: str) -> Any:
        """Another command on the same store, and what it says."""
        with self._begin(*words) as process:
            code = process.end()
        assert code == 0, process.seen
        return json.loads("\n".join(process.seen))

    def ask(self, path: str, body: Any = None) -> Any:
        """What the API answers to somebody with the key; it must not refuse."""
        status, answer = ask(self.address, path, body, self.key)
        assert status < 300, (status, answer)
        return answer

    def made_key(self, name: str, *roles: str) -> str:
        """The secret of a key for somebody of this name."""
        secret: str = self.ask("/v1/keys", {"name": name, "roles": roles})["secret"]
        return secret

    def _begin(self, *words: str) -> Process:
        return Process(*words, "--json", "--store", self.store, cwd=self.folder)
