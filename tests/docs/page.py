"""Runs the Python blocks of a Markdown page: in order, in one namespace, in an empty directory.

A block with a bare `await` runs as in `python -m asyncio`. A `text` block right after a Python block is what it prints,
where `...` stands for anything. `<!-- not run -->` before a block keeps it from being run. Tests that a page defines
run at its end, each with a world. A page that asks for DATABASE_URL or REDIS_URL and finds none gets private servers.
To run one page: python -m tests.docs.page docs/tutorial.md
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.testing import World, run as virtually
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import shared_server
from tests.docs.servers import DATABASE, REDIS

FENCE = re.compile(
    r"^(?P<skip><!-- not run -->\n+)?```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    line: int
    code: str
    printed: str | None
    skipped: bool


def blocks(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(line, match["code"], match["printed"], match["skip"] is not None))
    return found


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of the `console` blocks, each with what it prints."""
    found = []
    for shown in CONSOLE.findall(text):
        for command in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]:
            line, _, printed = command.partition("\n")
            found.append((line, printed))
    return found


def run(page: Path) -> None:
    """Run a page, or raise with the page's own line numbers."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        os.chdir(folder)
        try:
            for block in blocks(text):
                if not block.skipped:
                    _run(block, str(page), namespace, runner)
            for name, test in namespace.items():
                if name.startswith("test_"):
                    with contextlib.redirect_stdout(io.StringIO()):
                        _run_test(test)
        finally:
            os.chdir(page.parent)


def _run(block: Block, name: str, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    code = compile("\n" * (block.line - 1) + block.code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        made = eval(code, namespace)
        if inspect.iscoroutine(made):
            runner.run(made)
    if block.printed is not None and not fits(printed.getvalue(), block.printed):
        raise AssertionError(
            f"{name}, the block at line {block.line} prints\n{printed.getvalue()}\nnot\n{block.printed}"
        )


def _run_test(test: Any) -> None:
    """As the pytest plugin would: in a world of its own."""

    async def inside() -> None:
        async with World() as world:
            await test(world)

    virtually(inside())


def fits(printed: str, wanted: str) -> bool:
    """Whether a text is as shown; `...` stands for anything."""
    pattern = ".*".join(map(re.escape, wanted.strip().split("...")))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def main(pages: list[Path]) -> None:
    with contextlib.ExitStack() as stack:
        texts = "".join(page.read_text() for page in pages)
        if DATABASE in texts and DATABASE not in os.environ:
            os.environ[DATABASE] = stack.enter_context(PostgresServer(private=True)).address()
        if REDIS in texts and REDIS not in os.environ:
            os.environ[REDIS] = stack.enter_context(shared_server())
        for page in pages:
            run(page)


if __name__ == "__main__":
    main([Path(argument).resolve() for argument in sys.argv[1:]])
