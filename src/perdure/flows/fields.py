"""What can be told of events before any comes: which fields a schema allows, and which ones expressions look at.

Rules kept here: only what is certain counts. Where a schema leaves a field open, or says it in a way that is not
followed here, the field may be there; where an expression computes, nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from perdure.core.jq import tree
from perdure.core.jq.parser import parse
from perdure.errors import InvalidValue
from perdure.flows.schema import Schema

JsonSchema: TypeAlias = Mapping[str, Any] | bool
#: A place in a value: names of fields and numbers of items.
Path: TypeAlias = tuple[str | int, ...]
#: References that are followed, one after the other.
_HOPS = 10


# What expressions look at.


def paths(text: str) -> Iterator[Path]:
    """The places of its input that an expression looks at, as far as they are written out.

    >>> list(paths(".event.payload.sum > .data.limit"))
    [('data', 'limit'), ('event', 'payload', 'sum')]
    """
    waiting: list[Any] = [parsed] if (parsed := _parsed(text)) is not None else []
    while waiting:
        node = waiting.pop()
        if (path := _path(node)) is not None:
            yield path
            continue
        match node:
            case tree.Index(term) | tree.Slice(term) | tree.Iterate(term) | tree.Negate(term):
                waiting.append(term)
            case tree.Array(body):
                waiting.append(body)
            case tree.Object(entries):
                waiting += [value for _, value in entries]
            case tree.Pipe((first, *_)):
                waiting.append(first)
            case tree.Comma(items):
                waiting += items
            case tree.Binary(_, left, right) | tree.Logic(_, left, right) | tree.Otherwise(left, right):
                waiting += [left, right]
            case tree.If(condition, then, orelse):
                waiting += [condition, then, orelse]
            case tree.Text(parts):
                waiting += parts
            case _:
                pass


def equalities(text: str) -> Iterator[tuple[Path, Any]]:
    """What has to be equal for a condition to hold, whatever else it asks: places and constants.

    >>> list(equalities('.kind == "big" and (.sum > 5 or .paid == true)'))
    [(('kind',), 'big')]
    """
    waiting: list[Any] = [_parsed(text)]
    while waiting:
        match waiting.pop():
            case tree.Logic("and", left, right):
                waiting += [right, left]
            case tree.Binary("==", tree.Literal(value), side) | tree.Binary("==", side, tree.Literal(value)):
                if (path := _path(side)) is not None:
                    yield path, value
            case _:
                pass


def _parsed(text: str) -> Any:
    try:
        return parse(text)
    except InvalidValue:
        return None  # it is told elsewhere


def _path(node: Any) -> Path | None:
    """`.a.b` as a path, and nothing else; the whole input is none."""
    found: list[str | int] = []
    while isinstance(node, tree.Index):
        match node.key:
            case tree.Literal(str() | int() as key):
                found.append(key)
            case _:
                return None
        node = node.term
    return tuple(reversed(found)) if found and isinstance(node, tree.Identity) else None


# What schemas say.


def at(schema: JsonSchema, path: Sequence[str | int]) -> JsonSchema:
    """What a schema says of a place: False if there can be nothing, True if nothing is known.

    >>> order = {"properties": {"id": {"type": "integer"}}, "additionalProperties": False}
    >>> at(order, ["id"]), at(order, ["sum"]), at({}, ["sum"])
    ({'type': 'integer'}, False, True)
    """
    found = _followed(schema, schema)
    for name in path:
        found = _followed(_inner(found, name), schema)
    return found


def misfit(schema: JsonSchema, path: Sequence[str | int], value: Any) -> str:
    """Why there can never be this value at a place, or nothing."""
    said = at(schema, path)
    if isinstance(said, bool):
        return "" if said else f"its schema has no {_named(path)}"
    around = {} if isinstance(schema, bool) else {key: schema[key] for key in _SHARED if key in schema}
    try:
        wrong = Schema({**around, **said}).check(value)
    except InvalidValue:
        return ""  # it refers to what is not at hand
    return f"its schema says of {_named(path)}: {wrong[0]}" if wrong else ""


def never(schema: JsonSchema, condition: str, prefix: Path) -> Iterator[str]:
    """Why a condition cannot hold, or looks at what is never there; `prefix` is where it has the value."""
    told: set[Path] = set()
    for path in paths(condition):
        place = path[len(prefix) :]
        if path[: len(prefix)] == prefix and place not in told and at(schema, place) is False:
            told.add(place)
            yield f"its schema has no {_named(place)}"
    for path, value in equalities(condition):
        place = path[len(prefix) :]
        if path[: len(prefix)] == prefix and place not in told and (reason := misfit(schema, place, value)):
            yield reason


#: What a part of a schema may need from the whole.
_SHARED = ("$schema", "$defs", "definitions")


def _inner(schema: JsonSchema, name: str | int) -> JsonSchema:
    if isinstance(schema, bool) or isinstance(name, int):
        return schema if schema is False else True
    kinds = schema.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        return False
    properties = schema.get("properties", {})
    if name in properties:
        said: JsonSchema = properties[name]
        return said
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _followed(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Without references inside of the document."""
    for _ in range(_HOPS):
        if isinstance(schema, bool) or "$ref" not in schema:
            return schema
        where = schema["$ref"]
        if not isinstance(where, str) or not where.startswith("#/") or isinstance(root, bool):
            return True
        found: Any = root
        for part in where.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping | bool):
            return True
        schema = found
    return True


def _named(path: Sequence[str | int]) -> str:
    return "." + ".".join(map(str, path)) if path else "such value"
