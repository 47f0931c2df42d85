"""The conformance kit of the Serverless Workflow specification: its features, read, and what its steps mean.

The kit itself is not part of this project. The environment variable PERDURE_TEST_CTK names the folder with its feature
files; where it is not set, only our own scenarios run, for the steps that those of the kit do not use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from gherkin.parser import Parser
from msgspec import Struct

from perdure.flows.reading import read

FOLDER = os.environ.get("PERDURE_TEST_CTK", "")
#: How many scenarios the kit has, as of 1.0.3: a run that finds fewer has not run them all.
SCENARIOS = 21


class Did(Struct, frozen=True):
    """What one task did, as the log tells it."""

    name: str
    status: str  # completed, failed, cancelled, skipped
    output: Any = None
    error: Any = None


class Went(Struct, frozen=True):
    """How an execution went: its tasks in the order in which they began, those that are made of others left out."""

    status: str
    result: Any  # the output, or the problem details
    tasks: list[Did]


class Step(Struct, frozen=True):
    text: str
    content: str = ""


class Scenario(Struct, frozen=True):
    file: str
    name: str
    steps: list[Step]

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"

    @property
    def definition(self) -> dict[str, Any]:
        body: dict[str, Any] = read(self._given("a workflow with definition:"))
        return body

    @property
    def input(self) -> Any:
        text = self._given("given the workflow input is:")
        return read(text) if text else {}

    def check(self, went: Went) -> None:
        """Raise AssertionError for the first step that does not hold; every step must be a known one."""
        for step in self.steps:
            check_step(step, went)

    def _given(self, text: str) -> str:
        return next((step.content for step in self.steps if step.text == text), "")


def scenarios(folder: str = FOLDER) -> Iterator[Scenario]:
    files = sorted(Path(folder).glob("*.feature")) if folder else []
    for file in (Path(__file__).with_name("own.feature"), *files):
        yield from scenarios_in(file.read_text(encoding="utf-8"), file.stem)


def scenarios_in(text: str, file: str) -> Iterator[Scenario]:
    feature: Any = Parser().parse(text)["feature"]
    for child in feature["children"]:
        steps = [
            Step(one["text"].strip(), one.get("docString", {}).get("content", "")) for one in child["scenario"]["steps"]
        ]
        yield Scenario(file, child["scenario"]["name"], steps)


# --- what the steps mean ---------------------------------------------------------------------------------------------


def check_step(step: Step, went: Went) -> None:
    for pattern, check in _STEPS:
        if (found := re.fullmatch(pattern, step.text)) is not None:
            wanted = read(step.content) if step.content and check is not _nothing else None
            check(went, wanted, *found.groups())
            return
    unknown(step)


def unknown(step: Step) -> NoReturn:
    raise AssertionError(f"the step {step.text!r} is not known")


def _nothing(went: Went, wanted: Any) -> None: ...


def _ends(status: str) -> Callable[[Went, Any], None]:
    def check(went: Went, wanted: Any) -> None:
        assert went.status == status, f"it has {went.status}: {went.result}"
        if wanted is not None:
            assert went.result == wanted

    return check


def _has(went: Went, wanted: Any, paths: str) -> None:
    for path in re.findall(r"'([^']*)'", paths):
        at(went, path)


def _is(went: Went, wanted: Any, path: str) -> None:
    assert at(went, path) == wanted


def _counts(went: Went, wanted: Any, path: str, count: str) -> None:
    assert len(at(went, path)) == int(count)


def _first(went: Went, wanted: Any, task: str) -> None:
    assert went.tasks[0].name == task


def _last(went: Went, wanted: Any, task: str) -> None:
    assert went.tasks[-1].name == task


def _before(went: Went, wanted: Any, task: str, other: str) -> None:
    order = [one.name for one in went.tasks]
    assert order.index(task) < order.index(other)


def _after(went: Went, wanted: Any, task: str, other: str) -> None:
    _before(went, wanted, other, task)


def _task(status: str) -> Callable[[Went, Any, str], None]:
    def check(went: Went, wanted: Any, task: str) -> None:
        [did] = [one for one in went.tasks if one.name == task]
        assert did.status == status
        if wanted is not None:
            assert (did.output if status == "completed" else did.error) == wanted

    return check


def at(went: Went, path: str) -> Any:
    """What the output has at a path."""
    assert went.status == "completed", f"it has {went.status}: {went.result}"
    value = went.result
    for part in path.split("."):
        assert isinstance(value, dict) and part in value, f"there is no {path} in {went.result}"
        value = value[part]
    return value


_STEPS: list[tuple[str, Callable[..., None]]] = [
    (r"a workflow with definition:", _nothing),
    (r"given the workflow input is:", _nothing),
    (r"the workflow is executed", _nothing),
    (r"the workflow should cancel", _ends("cancelled")),
    (r"the workflow should complete(?: with output:)?", _ends("completed")),
    (r"the workflow should fault(?: with error:)?", _ends("failed")),
    (r"the workflow output should have properties ('.*')", _has),
    (r"the workflow output should have a '(.*)' property with value:", _is),
    (r"the workflow output should have a '(.*)' property containing (\d+) items", _counts),
    (r"(\S+) should run first", _first),
    (r"(\S+) should run last", _last),
    (r"(\S+) should run before (\S+)", _before),
    (r"(\S+) should run after (\S+)", _after),
    (r"(\S+) should cancel", _task("cancelled")),
    (r"(\S+) should complete(?: with output:)?", _task("completed")),
    (r"(\S+) should fault(?: with error:)?", _task("failed")),
]
