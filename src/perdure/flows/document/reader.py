"""What reads a document: its parts become expressions and steps, and all that is wrong with it is kept with its place.

A place is a JSON pointer, as errors of the running document name it: `/do/0/greet`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from perdure.errors import InvalidValue
from perdure.flows.bound import Bound, Problem
from perdure.flows.document.terms import AFTER, NAME, Expression, Length, Value
from perdure.flows.given import Calling
from perdure.flows.listening import Listen
from perdure.flows.schema import Schema

T = TypeVar("T")


class Reader:
    """Reads one document. `bounds` are what its actions were bound to, if it was published."""

    def __init__(self, use: Mapping[str, Any], bounds: Mapping[str, Bound] | None = None) -> None:
        self.use = use
        self.bounds = bounds or {}
        self.problems: list[Problem] = []
        self.calls: list[Calling] = []
        self.listens: list[Listen] = []
        self.authenticated: set[str] = set()  # those under `use` that a task uses
        self.inside: list[str] = []  # functions that are being read, the outermost first
        self.functions: dict[str, Any] = {}  # those that were read: one that is called twice is read once

    def wrong(self, at: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(at, message, fix))

    def warn(self, at: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(at, message, fix, "warning"))

    # Parts.

    def object(self, value: Any, at: str, keys: Sequence[str], needs: Sequence[str] = ()) -> dict[str, Any]:
        """An object with no other keys than these; what is missing or too much is a problem."""
        if not isinstance(value, dict):
            self.wrong(at, f"this is {kind(value)}, and should be an object", f"it may have: {', '.join(keys)}")
            return {}
        for key in value:
            if key not in keys:
                key = str(key)
                self.wrong(f"{at}/{escaped(key)}", f"{key!r} is not known here", f"there may be: {', '.join(keys)}")
        for key in needs:
            if key not in value:
                self.wrong(at, f"{key} is missing")
        return value

    def text(self, value: Any, at: str) -> str:
        if isinstance(value, str) and value:
            return value
        self.wrong(at, f"this is {kind(value)}, and should be a text")
        return ""

    def flag(self, value: Any, at: str) -> bool:
        if not isinstance(value, bool):
            self.wrong(at, f"this is {kind(value)}, and should be true or false")
        return value is True

    def value(self, value: Any, at: str, names: Sequence[str], *, bare: bool = False) -> Value:
        return self._made(lambda: Value(value, names, bare=bare), at) or Value(None, ())

    def test(self, value: Any, at: str, names: Sequence[str]) -> Expression | None:
        """An expression that is true or not; none if there is none."""
        if value is None:
            return None
        return self._made(lambda: Expression(self.text(value, at) or "null", names), at)

    def length(self, value: Any, at: str, names: Sequence[str]) -> Length:
        return self._made(lambda: Length(value, names), at) or Length("PT0S", ())

    def limit(self, value: Any, at: str, names: Sequence[str]) -> Length | None:
        """A timeout: `after`, or the name of one."""
        if value is None:
            return None
        named = self.named(value, at, "timeouts")
        if named is None:
            return None
        found = self.object(named, at, ("after",), ("after",))
        return self.length(found.get("after", "PT0S"), f"{at}/after", names)

    def schema(self, value: Any, at: str) -> Schema | None:
        if value is None:
            return None
        found = self.object(value, at, ("format", "document", "resource"))
        if str(found.get("format", "json")).partition(":")[0] != "json":
            self.wrong(f"{at}/format", "only JSON Schema is known here")
        elif "document" not in found:
            self.wrong(at, "a schema that lies elsewhere is not fetched", "put it here, under `document`")
        else:
            return self._made(lambda: Schema(found["document"]), f"{at}/document")
        return None

    def named(self, value: Any, at: str, where: str) -> Any:
        """What stands under a name in `use`, if it is a name; else the value itself. None if nothing does."""
        if not isinstance(value, str):
            return value
        known = self.used(where)
        if known.get(value) is None:
            self.wrong(at, f"use.{where} has no {value!r}", f"it has: {', '.join(known) or 'nothing'}")
        return known.get(value)

    def used(self, where: str) -> dict[str, Any]:
        """What stands under a key of `use`."""
        found = self.use.get(where)
        return found if isinstance(found, dict) else {}

    def variable(self, value: Any, at: str) -> str:
        """The name of a variable that the document makes."""
        name = self.text(value, at)
        if name and not NAME.fullmatch(name):
            self.wrong(at, f"{name!r} cannot be the name of a variable", "letters, digits and _ are; without the $")
        elif name in AFTER or name in ("authorization", "ENV", "__loc__"):
            self.wrong(at, f"${name} has a meaning of its own", "give the variable another name")
        return name

    def _made(self, make: Callable[[], T], at: str) -> T | None:
        try:
            return make()
        except InvalidValue as error:
            self.wrong(at, str(error))
            return None


def escaped(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def kind(value: Any) -> str:
    """What a value is, for messages."""
    match value:
        case None:
            return "missing"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a text" if value else "an empty text"
        case _:
            return f"a {type(value).__name__}"
