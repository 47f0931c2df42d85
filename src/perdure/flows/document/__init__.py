"""Documents of the CNCF Serverless Workflow DSL, version 1.0, run as workflows.

Document(body)            made in Python and registered, started like any workflow
check(body)               all that is wrong with one
build(body, version=…)    a document that was published
actions(body)             the names of the actions that it calls
calls(body)               where it calls them, and with what
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Raw, structs

from perdure.core.replay import Replay
from perdure.core.view import State
from perdure.errors import DefinitionInvalid
from perdure.flows import given
from perdure.flows.bound import Bound, Problem, bind_name, check_arguments
from perdure.flows.described import MARKS, Described
from perdure.flows.diagram import Diagram, Mark
from perdure.flows.document.course import Position
from perdure.flows.document.events import ListenStep
from perdure.flows.document.picture import picture
from perdure.flows.document.plan import Plan, called
from perdure.flows.document.terms import is_whole, unknown
from perdure.flows.given import Calling, Wanted, action_of, misfits
from perdure.flows.registry import registry

__all__ = ["Document", "actions", "build", "called", "calls", "check", "secrets"]

#: A round of a loop, in the path of a task.
_ROUND = re.compile(r"\[[0-9]+\](?=/)")


class Document(Described):
    """A document as a workflow. Its name is `namespace.name`.

    >>> from perdure import Perdure
    >>> double = Document(
    ...     {
    ...         "document": {"dsl": "1.0.3", "namespace": "sums", "name": "double", "version": "1.0.0"},
    ...         "do": [{"twice": {"set": "${ . * 2 }"}}],
    ...     }
    ... )
    >>> Perdure("memory://").run(double, 21)
    42
    """

    kind: ClassVar[str] = "document"
    at_rest: ClassVar[str] = "once a wait or a listen of its main list waits"

    def __init__(self, body: Mapping[str, Any], *, version: int = 1) -> None:
        self._make(body, version, "", None)
        registry.add_workflow(self)

    def _make(self, body: Mapping[str, Any], version: int, hash: str, bounds: Mapping[str, Bound] | None) -> None:
        # What was published was checked then; a later release may check more, and must run it all the same.
        found = [] if hash else check(body)
        if wrong := [problem for problem in found if problem.level == "error"]:
            raise DefinitionInvalid(f"document {called(body) or '?'}", wrong)
        bound = {name: bind_name(name) for name in actions(body)} if bounds is None else bounds
        self.plan = plan = Plan(body, bound)
        super().__init__(plan.name, version, "default", plan.description, body, bound, hash)
        self.label, self.listens, self.starts_on = plan.label, plan.listens, plan.starts_on

    def check_input(self, value: Any) -> None:
        """InvalidValue if it does not fit the schema of the input."""
        self.plan.check_input(value)

    def input_schema(self) -> dict[str, Any]:
        return {} if self.plan.wants is None else self.plan.wants.shown()

    def fresh(self, running: Replay, input: Any) -> Coroutine[Any, Any, Any]:
        return self.plan.begin(running, {} if input is None else input)

    def again(self, running: Replay, position: Raw) -> Coroutine[Any, Any, Any]:
        return self.plan.go_on(running, msgspec.json.decode(position, type=Position))

    def diagram(self, current: Mapping[str, Mark] | None = None) -> Diagram:
        """As a picture; `current` maps tasks, by their names or their pointers, to their marks."""
        return picture(self.plan, current or {})

    def marks(self, state: State) -> dict[str, Mark]:
        """By pointers: lists may have tasks of the same name. Of a loop the newest round counts."""
        return {_ROUND.sub("", path): MARKS.get(node.status, "") for path, node in state.nodes.items()}

    def fits(self, position: Raw) -> list[Problem]:
        at = msgspec.json.decode(position, type=Position)
        place = self.plan.tasks.place.get(at.task)
        if place is None:
            return [Problem("/do", f"it is at {at.task}, and this version does not have it", "keep the task")]
        step = self.plan.tasks.steps[place]
        if at.open is None:
            return []
        if step.keys[0] != at.open.kind:
            return [Problem(step.at, f"it is open as {at.open.kind}, and in this version it is {step.keys[0]}")]
        if isinstance(step, ListenStep) and at.open.heard["types"] != step.types:
            heard = ", ".join(at.open.heard["types"])
            return [Problem(step.at, f"it waits for {heard}, and in this version for others")]
        return []


def build(
    body: Mapping[str, Any], *, version: int, hash: str = "", bounds: Mapping[str, Bound] | None = None
) -> Document:
    """A document that is not registered: what was published is found elsewhere."""
    made = Document.__new__(Document)
    made._make(body, version, hash, bounds)
    return made


def check(body: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with a document, and with what it gives to the actions that this process has."""
    plan = Plan(body, {})
    return [*plan.problems, *(problem for call in plan.calls for problem in _misfits(call))]


def _misfits(call: Calling) -> Iterator[Problem]:
    action = action_of(call.action)
    if action is None or not isinstance(call.given, dict | list):
        return
    if mixed := [text for text in _texts(call.given) if "$secrets" in text and not is_whole(text)]:
        fix = "give it by itself, where the action takes a Secret"
        yield Problem(f"{call.where}/with", f"a secret cannot be part of a text: {mixed[0][:60]!r}", fix)
    known = unknown(call.given)
    for one in check_arguments(action, known, call.where) or misfits(action, known, call.where):
        yield structs.replace(one, where=call.where + one.where.removeprefix(call.where).replace(".", "/"))


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict() | list():
            for one in value.values() if isinstance(value, dict) else value:
                yield from _texts(one)
        case _:
            pass


def secrets(body: Mapping[str, Any]) -> list[Wanted]:
    """The secrets that its calls name, and those that it declares besides: expressions may name them."""
    plan = Plan(body, {})
    named = given.secrets(plan.calls)
    known = {one.name for one in named}
    return named + [Wanted("/use/secrets", name) for name in plan.secrets if name not in known]


def actions(body: Mapping[str, Any]) -> list[str]:
    """The names of the actions that a document calls, in their order."""
    return list(dict.fromkeys(one.action for one in calls(body) if one.action))


def calls(body: Mapping[str, Any]) -> list[Calling]:
    """Where a document calls actions, and with what."""
    return Plan(body, {}).calls
