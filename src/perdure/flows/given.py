"""The arguments of actions as documents give them: what can be told of them before anything runs.

Rules kept here: what an expression will give is not known, so nothing is said of it; where an action takes a secret, a
document has a reference, `secret://stripe`, and a value in its place is refused and never repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from perdure.core import jq
from perdure.core.codec import encode
from perdure.errors import InvalidValue, NotRegistered, UsageError
from perdure.flows.action import Action
from perdure.flows.bound import Problem, bind
from perdure.flows.registry import registry
from perdure.flows.schema import Schema
from perdure.flows.secret import SCHEME, Secret


class Calling(Struct, frozen=True):
    """A call of an action in a document: its place, the action's name, and what it is given."""

    where: str
    action: str
    given: Any


class Wanted(Struct, frozen=True):
    """A secret that a document names, and where."""

    where: str
    name: str


def is_constant(value: Any) -> bool:
    """Whether there is no expression in a value."""
    if isinstance(value, dict):
        return all(map(is_constant, value.values()))
    return all(map(is_constant, value)) if isinstance(value, list) else not jq.is_expression(value)


def misfits(action: Action[..., Any], given: Any, where: str) -> Iterator[Problem]:
    """Constants that the parameters of an action do not take."""
    schema = action.schema()["parameters"]
    parts = Schema({**schema, "required": []})
    for name, value in _named(action, given).items():
        place = f"{where}.with.{name}"
        if not is_constant(value):
            continue
        if name in action.signature.references:
            if (problem := _refused(value, place)) is not None:
                yield problem
        elif not action.signature.fits(name, encode(value)):
            # A value that stands beside secrets is not shown: it may hold one.
            told = [] if b'"format":"secret"' in encode(schema) else parts.check({name: value})
            what = told[0] if told else f"{name} cannot be read"
            fix = f"give {name} a value that {action.name} takes"
            yield Problem(f"{where}.with", f"the arguments do not fit {action.name}: {what}", fix)
        elif _is_reference(value) and schema["properties"].get(name) == {"type": "string"}:
            fix = f"let {name} be a Secret in the code of {action.name}"
            message = f"{action.name} takes a text here, and gets the reference itself"
            yield Problem(place, message, fix, "warning")


def secrets(calls: Iterable[Calling]) -> list[Wanted]:
    """The secrets that calls name, each place once."""
    return list(dict.fromkeys(one for call in calls for one in _wanted(call.given, f"{call.where}.with")))


def action_of(name: str) -> Action[..., Any] | None:
    """The action of this process, if there is one."""
    try:
        return registry.action(name)
    except (NotRegistered, UsageError):
        return None


def _named(action: Action[..., Any], given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    return dict(zip(bind(action).parameters, given, strict=False)) if isinstance(given, list | tuple) else {}


def _refused(value: Any, where: str) -> Problem | None:
    try:
        Secret(value if isinstance(value, str) else "")
    except InvalidValue as error:
        return Problem(where, str(error), "put the value where the setting `secrets` says, and its name here")
    return None


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(SCHEME)


def _wanted(value: Any, where: str) -> Iterator[Wanted]:
    match value:
        case str() if _is_reference(value):
            yield Wanted(where, value.removeprefix(SCHEME))
        case dict():
            for name, one in value.items():
                yield from _wanted(one, f"{where}.{name}")
        case list():
            for place, one in enumerate(value):
                yield from _wanted(one, f"{where}[{place}]")
        case _:
            pass
