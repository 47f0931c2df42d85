"""The kinds of definitions that are data, by the key that tells them: `machine: order`, `graph: order`, `document: …`,
`specVersion: '0.8'`.

A kind is a module with `check`, `build`, `actions` and `calls`; it is imported when the first definition of it is seen.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from perdure.errors import DefinitionInvalid, NotRegistered, UsageError
from perdure.flows import given
from perdure.flows.bound import Bound, Problem, bind_name
from perdure.flows.described import Described
from perdure.flows.given import Calling, Wanted

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")


class Kind(Protocol):
    """What a kind of definition offers. `check` finds all problems at once and never raises for a bad body."""

    def check(self, body: Mapping[str, Any]) -> list[Problem]: ...
    def build(
        self, body: Mapping[str, Any], *, version: int, hash: str = "", bounds: Mapping[str, Bound] | None = None
    ) -> Described: ...
    def actions(self, body: Mapping[str, Any]) -> list[str]:
        """The names of the actions that it calls."""
        ...

    def calls(self, body: Mapping[str, Any]) -> list[Calling]:
        """Where it calls actions, and with what."""
        ...


#: Where a kind lives: a module, by name until it is needed.
KINDS: dict[str, Kind | str] = {
    "machine": "perdure.flows.machine",
    "graph": "perdure.flows.graph",
    "document": "perdure.flows.document",
    "states": "perdure.flows.states",
}
#: The key that tells a kind, where it is not its name; and what stands there.
_TELLS, _SAYS = {"states": "specVersion"}, {"states": "0.8", "document": "…"}


def kind_of(body: Any) -> str:
    """Which kind a body is of, or DefinitionInvalid."""
    kinds = [kind for kind in KINDS if _TELLS.get(kind, kind) in body] if isinstance(body, Mapping) else []
    if len(kinds) == 1:
        return kinds[0]
    keys = [_TELLS.get(kind, kind) for kind in kinds]
    known = " or ".join(f"`{_TELLS.get(kind, kind)}: {_SAYS.get(kind, 'NAME')}`" for kind in KINDS)
    if not isinstance(body, Mapping):
        problem = Problem("definition", f"it is a {type(body).__name__}", f"a definition is an object with {known}")
    elif keys:
        problem = Problem("definition", f"it has {' and '.join(keys)}", "leave one of them: it is its kind and name")
    else:
        problem = Problem("definition", "it does not say what it is", f"give it {known}")
    raise DefinitionInvalid("the definition", [problem])


def name_of(body: Any) -> str:
    kind = kind_of(body)
    name = _NAMES[kind](body) if kind in _NAMES else body[kind]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        fix = "a name has letters, digits and _.- and is at most 120 long"
        problem = Problem(kind, f"{str(name)[:80]!r} cannot be the name of a definition", fix)
        raise DefinitionInvalid("the definition", [problem])
    return name


def _document_name(body: Mapping[str, Any]) -> Any:
    about = body["document"]
    return f"{about.get('namespace')}.{about.get('name')}" if isinstance(about, Mapping) else about


def _states_name(body: Mapping[str, Any]) -> Any:
    return body.get("id") or body.get("key")


#: How a kind is named that does not have its name under its key.
_NAMES: dict[str, Callable[[Mapping[str, Any]], Any]] = {"document": _document_name, "states": _states_name}


def label_of(body: Any) -> str:
    """The version that a body gives itself, if it does."""
    if isinstance(body, Mapping) and "specVersion" in body:
        return str(body.get("version", ""))
    about = body.get("document") if isinstance(body, Mapping) else None
    return str(about.get("version", "")) if isinstance(about, Mapping) else ""


def check(body: Any) -> list[Problem]:
    """All that is wrong with a body, apart from the code that it needs."""
    try:
        name_of(body)
        kind = _kind(body)
    except DefinitionInvalid as error:
        return [problem for problem in error.problems if isinstance(problem, Problem)]
    return kind.check(body)


def actions(body: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(_kind(body).actions(body)))


def secrets(body: Mapping[str, Any]) -> list[Wanted]:
    """The secrets that it names, as far as it names them without an expression."""
    kind = _kind(body)
    declared = getattr(kind, "secrets", None)  # where a kind has a place for them
    found: list[Wanted] = given.secrets(kind.calls(body)) if declared is None else declared(body)
    return found


def bind(body: Mapping[str, Any]) -> tuple[dict[str, Bound], list[Problem]]:
    """What this process knows of the actions, and those that it does not have."""
    bounds: dict[str, Bound] = {}
    problems: list[Problem] = []
    for name in actions(body):
        try:
            bounds[name] = bind_name(name)
        except NotRegistered:
            fix = "load the code that has it (--code shop.py), or mend the name"
            problems.append(Problem(f"actions.{name}", "this process has no action of this name", fix))
        except UsageError as error:
            problems.append(Problem(f"actions.{name}", str(error)))
    return bounds, problems


def build(
    body: Mapping[str, Any], *, version: int, hash: str = "", bounds: Mapping[str, Bound] | None = None
) -> Described:
    """A workflow of a body that was checked."""
    return _kind(body).build(body, version=version, hash=hash, bounds=bounds)


def _kind(body: Mapping[str, Any]) -> Kind:
    name = kind_of(body)
    found = KINDS[name]
    if isinstance(found, str):
        try:
            module = importlib.import_module(found)
        except ModuleNotFoundError as error:
            if error.name != found:
                raise
            fix = "use the release that it was written for"
            problem = Problem(name, f"this release cannot run a {name}", fix)
            raise DefinitionInvalid("the definition", [problem]) from error
        found = KINDS[name] = cast(Kind, module)
    return found
