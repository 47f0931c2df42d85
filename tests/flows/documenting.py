"""Documents in few words, for tests: tasks by name, in their order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from perdure.core import events as ev
from perdure.errors import ExecutionFailed
from perdure.flows.document import Document
from perdure.flows.document.faults import TYPES
from perdure.runtime.run import Run
from perdure.testing import World

_numbers = itertools.count(1)


def body(name: str, tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A document of the namespace `tests`; keys of `more` are its own."""
    about = {"dsl": "1.0.3", "namespace": "tests", "name": name, "version": "1.0.0"}
    return {"document": about, "do": [{task: one} for task, one in tasks.items()], **more}


def listed(**tasks: Any) -> list[dict[str, Any]]:
    """A list of tasks."""
    return [{name: one} for name, one in tasks.items()]


def document(tasks: dict[str, Any], **more: Any) -> Document:
    """Registered, under a name that no other has."""
    return Document(body(f"document-{next(_numbers)}", tasks, **more))


async def result(world: World, tasks: dict[str, Any], given: Any = None, /, **more: Any) -> Any:
    """What an execution of these tasks gives."""
    return await (await world.start(document(tasks, **more), given)).result()


async def failure(world: World, tasks: dict[str, Any], given: Any = None, /, **more: Any) -> dict[str, Any]:
    """The problem with which an execution of these tasks fails."""
    with pytest.raises(ExecutionFailed) as caught:
        await result(world, tasks, given, **more)
    details: dict[str, Any] = caught.value.details
    return details


def kind(problem: dict[str, Any]) -> str:
    """Which of the specification's kinds it is of."""
    assert str(problem["type"]).startswith(TYPES)
    return str(problem["type"]).removeprefix(TYPES)


async def settled(world: World, run: Run[Any]) -> list[tuple[str, str]]:
    """The last part of each task's path, and how it settled, in order."""
    events = [ev.read(row) for row in await world.rows(run.key)]
    return [(one.node.rpartition("/")[2], one.status) for one in events if isinstance(one, ev.NodeSettled)]


async def paths(world: World, run: Run[Any]) -> list[tuple[str, str]]:
    """The path of each task, and how it settled, in order."""
    events = [ev.read(row) for row in await world.rows(run.key)]
    return [(one.node, one.status) for one in events if isinstance(one, ev.NodeSettled)]
