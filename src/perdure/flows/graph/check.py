"""What is wrong with a graph, all of it at once, each with its place and how to mend it.

First what each node says for itself (fields, expressions, actions and their arguments), then how they hang together.
Warnings are for what runs, but probably not as it was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, structs

from perdure.core import jq
from perdure.errors import ExpressionError, InvalidValue, NotRegistered, UsageError
from perdure.flows import fields, given, listening
from perdure.flows.bound import Bound, Problem, check_arguments
from perdure.flows.graph import model
from perdure.flows.graph.model import Model, Node, read
from perdure.flows.graph.nodes import step_of
from perdure.flows.graph.shape import check_shape
from perdure.flows.listening import On, fields_of_listens
from perdure.flows.registry import registry


def check(body: Mapping[str, Any]) -> list[Problem]:
    """All problems of a graph; what is missing here is fine."""
    return problems_of(read(body))


def problems_of(graph: Model, bounds: Mapping[str, Bound] | None = None) -> list[Problem]:
    """`bounds` names actions that are known from elsewhere, and need not be in this process."""
    found = list(graph.problems)
    for node in graph.nodes.values():
        if node.data is not None:
            found += _check_node(node, graph, bounds or {})
    found += listening.problems(graph.listens, (), graph.events)
    found += fields_of_listens(graph.listens, {name: one.schema for name, one in graph.events.items()})
    if not any(one.where in ("nodes", "edges") for one in found):  # else there is nothing to look at
        found += check_shape(graph)
    return found


def _check_node(node: Node, graph: Model, bounds: Mapping[str, Bound]) -> Iterator[Problem]:
    where = f"nodes.{node.id}"
    try:
        step_of(node, {})
    except InvalidValue as error:
        jq_wrong = isinstance(error, ExpressionError)
        yield Problem(where, str(error), "mend the expression" if jq_wrong else f"mend the data of this {node.type}")
    match node.data:
        case model.Trigger() if node.data.event:
            on = On(node.data.event, node.data.source, node.data.input, node.data.when)
            for problem in listening.problems((), [on], {}):
                yield structs.replace(problem, where=problem.where.replace("starts_on[0]", where))
        case model.Act():
            if node.data.action not in bounds:
                yield from _check_action(node.data, where)
        case model.Wait(events=events):
            for event in events:
                yield from _check_awaited(event, graph, where)
        case model.Person(event=event) if event:
            yield from _check_name(event, graph, where)
        case model.Loop(name=name) if name in model.TAKEN or not name.isidentifier():
            yield Problem(where, f"items cannot be called {name!r}", "choose another name for `as`")
        case model.Switch(cases=cases):
            handles = [case.handle for case in cases]
            if any(not handle or handle in ("default", "error") for handle in handles):
                yield Problem(where, "a case needs a handle of its own", "'default' and 'error' have their meaning")
        case model.End(status="completed", message=message) if message:
            yield Problem(where, "a message is for an end that fails", 'give it "status": "failed"', "warning")
        case model.End(status="failed", result=result) if result is not UNSET:
            yield Problem(where, "an end that fails has no result", "say it in the message", "warning")
        case model.Child(workflow=workflow, version=version):
            yield from _check_child(workflow, version, where)
        case _:
            pass
    for name in dict.fromkeys(_outputs_named(node.data)):
        if name not in graph.nodes:
            yield Problem(where, f"it refers to .outputs.{name}, and there is no such node", "name the node's id")


def _check_action(data: model.Act, where: str) -> Iterator[Problem]:
    try:
        action = registry.action(data.action)
    except (NotRegistered, UsageError) as error:
        yield Problem(where, str(error), "load the code that has the action")
        return
    wrong = check_arguments(action, data.given, where)
    yield from wrong or given.misfits(action, data.given, where)


def _check_name(name: str, graph: Model, where: str) -> Iterator[Problem]:
    if graph.events and name not in graph.events:
        fix = f"declare it in `events`, or name one of {', '.join(graph.events)}"
        yield Problem(where, f"it waits for {name!r}, which is not declared: nobody can send it", fix)


def _check_awaited(event: model.Awaited, graph: Model, where: str) -> Iterator[Problem]:
    """Whether an event can ever match: by its own schema, and by what the graph declares of it."""
    yield from _check_name(event.name, graph, where)
    declared = graph.events.get(event.name)
    for schema in (event.schema, None if declared is None else declared.schema):
        for name, value in event.match.items() if schema is not None else ():
            assert schema is not None
            if given.is_constant(value):
                reason = fields.misfit(schema, [name], value)
            else:
                reason = f"its schema has no .{name}" if fields.at(schema, [name]) is False else ""
            if reason:
                fix = "mend the match or the schema"
                yield Problem(where, f"no {event.name!r} can match: {reason}", fix)


def _check_child(workflow: str, version: int | None, where: str) -> Iterator[Problem]:
    try:
        registry.workflow(workflow, version)
    except NotRegistered:
        wanted = workflow if version is None else f"{workflow}@{version}"
        yield Problem(where, f"this process has no workflow {wanted}", "publish it before this runs", "warning")


def _outputs_named(data: model.Data) -> Iterator[str]:
    """The nodes whose outputs the expressions of a node name: `.outputs.x`, where `.` is still the whole."""
    for text in _texts(structs.asdict(data)):
        for path in fields.paths(text):
            match path:
                case ("outputs", str() as name, *_):
                    yield name
                case _:
                    pass


def _texts(value: Any) -> Iterator[str]:
    """The expressions in a value."""
    if isinstance(value, str) and jq.is_expression(value):
        yield jq.expression(value)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from [one] if name == "when" and isinstance(one, str) and not jq.is_expression(one) else _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(structs.asdict(one) if isinstance(one, Struct) else one)
