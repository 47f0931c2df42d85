"""What reads a workflow of states: what it defines by name, its expressions, and all that is wrong with it.

Rules kept here: what stands elsewhere, behind a URI, is refused, never fetched; an expression may be the name of a
function, as `${ fn:isAdult }`; where only an expression makes sense, it is one without `${ }` too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core import jq
from perdure.flows.bound import Bound
from perdure.flows.document.reader import Reader
from perdure.flows.document.terms import Expression, Length, Value, length
from perdure.flows.secret import SCHEME

#: What every expression may name.
NAMES = ("CONST", "SECRETS")
_FUNCTION = re.compile(r"fn:(.+)", re.DOTALL)
_DEFINED = {
    "functions": ("name", "operation", "type", "authRef", "metadata"),
    "events": ("name", "source", "type", "kind", "correlation", "dataOnly", "metadata"),
    "errors": ("name", "code", "description"),
    "retries": ("name", "maxAttempts", "delay", "maxDelay", "increment", "multiplier", "jitter"),
}


class StatesReader(Reader):
    """Reads one workflow. `defined` has its functions, events, errors and retries by their names, with their places."""

    def __init__(self, body: Mapping[str, Any], bounds: Mapping[str, Bound]) -> None:
        super().__init__({}, bounds)
        self._elsewhere = [key for key in _DEFINED if isinstance(body.get(key), str)]
        self.defined = {key: self._list(body.get(key), key, known) for key, known in _DEFINED.items()}
        self.auto_retries = self.flag(body.get("autoRetries", False), "/autoRetries")
        self.see = {"CONST": self._constants(body.get("constants", {})), "SECRETS": self._secrets(body.get("secrets"))}

    def _list(self, value: Any, key: str, known: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        for number, one in enumerate(self.list(value, f"/{key}")):
            at = f"/{key}/{number}"
            body = self.object(one, at, known, ("name",))
            name = self.text(body["name"], f"{at}/name") if "name" in body else ""
            if name in found:
                self.wrong(f"{at}/name", f"{name!r} is defined twice", "give each its own name")
            if name:
                found[name] = at, body
        return found

    def _constants(self, value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.wrong("/constants", "constants are an object; those that lie elsewhere are not fetched", "put them here")
        return {}

    def _secrets(self, value: Any) -> dict[str, str]:
        names = self.list(value, "/secrets")
        return {name: f"{SCHEME}{name}" for n, name in enumerate(names) if self.text(name, f"/secrets/{n}")}

    # Parts.

    def list(self, value: Any, at: str) -> list[Any]:
        """A list, empty if there is none."""
        if value is None or isinstance(value, list):
            return value or []
        what = "what lies elsewhere is not fetched" if isinstance(value, str) else "a list is expected here"
        self.wrong(at, what, "put a list here")
        return []

    def one_of(self, value: Any, at: str, words: Sequence[str]) -> str:
        if value not in words:
            self.wrong(at, f"one of {', '.join(words)} is expected here")
            return words[0]
        return str(value)

    def refer(self, name: Any, at: str, key: str) -> tuple[str, dict[str, Any]] | None:
        """What is defined under a name, and where."""
        if not self.text(name, at):
            return None
        known = self.defined[key]
        if name not in known and key in self._elsewhere:
            return None  # that they are elsewhere is told once
        if name not in known:
            self.wrong(at, f"there is no {name!r} among the {key}", f"there are: {', '.join(known) or 'none'}")
            return None
        return known[name]

    def duration(self, value: Any, at: str) -> Length | None:
        return None if value is None else self.length(value, at, NAMES)

    def micros(self, value: Any, at: str) -> int:
        """A duration that is known now, whenever it begins: of what never lasts as long as a month."""
        return self._made(lambda: length(value, 0), at) or 0

    def number(self, value: Any, at: str) -> float:
        """A number from 0 on; it may be written as a text."""
        try:
            found = -1.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            found = -1.0
        if not 0 <= found < 1e9:
            self.wrong(at, "a number from 0 on is expected here")
            return 0.0
        return found

    # Expressions.

    def value(self, value: Any, at: str, names: Sequence[str] = NAMES, *, bare: bool = False) -> Value:
        return super().value(self._named(value, at), at, names, bare=bare)

    def test(self, value: Any, at: str, names: Sequence[str] = NAMES) -> Expression | None:
        return super().test(self._named(value, at, bare=True), at, names)

    def path(self, value: Any, at: str) -> Expression | None:
        """An expression that is a place in the data; it gives the way there."""
        if value is None or not self.text(value, at):
            return None
        return self.test(f"path({jq.expression(str(value))})", at)

    def _named(self, value: Any, at: str, *, bare: bool = False) -> Any:
        """The value with the expression of a function wherever its name is."""
        match value:
            case dict():
                return {key: self._named(one, at) for key, one in value.items()}
            case list():
                return [self._named(one, at) for one in value]
            case str() if bare or jq.is_expression(value):
                found = _FUNCTION.fullmatch(jq.expression(value).strip())
                return value if found is None else f"${{ {self._expression(found[1].strip(), at)} }}"
            case _:
                return value

    def _expression(self, name: str, at: str) -> str:
        found = self.refer(name, at, "functions")
        if found is None:
            return "null"
        _, body = found
        if body.get("type") != "expression":
            self.wrong(at, f"function {name!r} is not an expression", "only those can be named in one")
            return "null"
        return jq.expression(str(body.get("operation")))
