from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from perdure import Perdure
from perdure.cli import loading
from perdure.cli.main import app
from perdure.flows.registry import registry
from tests.cli.processes import Process

SHOP = '''
import asyncio
from dataclasses import dataclass

from perdure import action, event, workflow


@dataclass
class Order:
    item: str
    count: int = 1


@dataclass
class Packed:
    tracking: str


@action(retries=2, timeout="30s")
async def charge(order: Order) -> str:
    """Take the money."""
    return f"paid {order.count} {order.item}"


@charge.undo
async def refund(order: Order, receipt: str) -> None:
    """Give it back."""


@action
def ship(tracking: str) -> str:
    return f"shipped {tracking}"


@workflow(events={"packed": Packed})
async def fulfil(order: Order) -> str:
    """An order from payment to parcel."""
    await charge(order)
    workflow.publish(step="packing", item=order.item)
    packed = await event("packed", Packed)
    return await ship(packed.tracking)


@workflow
async def echo(text: str) -> str:
    return text


@workflow
async def fails(text: str) -> None:
    raise ValueError(text)
'''


class Shop:
    """A folder with a file shop.py and a store, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "shop.py"
        self.file.write_text(SHOP)
        self.store = f"sqlite:///{folder / 'shop.db'}"

    def run(self, *args: str, code: int = 0, input: str | None = None) -> Result:
        """A command in this process, which knows nothing of the code that commands before it have loaded."""
        forget(self.folder)
        result = CliRunner().invoke(app, [*args, "--store", self.store], input=input)
        trace = "" if isinstance(result.exception, SystemExit | None) else repr(result.exception)
        assert result.exit_code == code, f"{args} → {result.exit_code}\n{result.stdout}\n{result.stderr}\n{trace}"
        return result

    def out(self, *args: str, code: int = 0) -> str:
        return self.run(*args, code=code).stdout

    def json(self, *args: str, code: int = 0) -> Any:
        result = self.run(*args, "--json", code=code)
        return json.loads(result.stdout)

    def lines(self, *args: str, code: int = 0) -> list[Any]:
        return [json.loads(line) for line in self.run(*args, "--json", code=code).stdout.splitlines()]

    def error(self, *args: str, code: int = 2) -> str:
        result = self.run(*args, code=code)
        assert "Traceback" not in result.stderr
        assert result.stdout == ""
        return result.stderr

    def work(self, name: str, input: list[Any], id: str, until: str, tenant: str = "default") -> None:
        """Start an execution, and work in this process until its log has an event of this type."""
        forget(self.folder)
        loading.load("shop.py")

        async def main() -> None:
            async with asyncio.timeout(20), Perdure(self.store, tenant=tenant) as client, client.working():
                run = await client.start_by_name(name, input, id=id)
                while until not in {entry.type for entry in await run.log()}:
                    await asyncio.sleep(0.01)

        asyncio.run(main())

    def process(self, *args: str, **environ: str) -> Process:
        return Process(*args, "--store", self.store, cwd=self.folder, **environ)


def forget(folder: Path) -> None:
    """Drop the modules of a folder, and all that user code has registered."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    registry._workflows.clear()
    for action in [name for name in registry._actions if not name.startswith("perdure.")]:
        del registry._actions[action]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def worker(shop: Shop) -> Iterator[Process]:
    """A worker of the shop, in a process of its own."""
    with shop.process("worker", "shop.py", "--json") as process:
        process.line('"ready"')
        yield process


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has its own working directory, modules, registry and logging."""
    for name in os.environ:
        if name.startswith("PERDURE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(registry, "_actions", dict(registry._actions))
    monkeypatch.setattr(registry, "_workflows", dict(registry._workflows))
    forget(tmp_path)
    loggers = (logging.getLogger(), logging.getLogger("perdure"))
    before = [(one, list(one.handlers), one.level, one.propagate) for one in loggers]
    yield
    forget(tmp_path)
    for one, handlers, level, propagate in before:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)
