"""The description of the API for people: what `/openapi.json` says, as sections with names, types and meanings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

#: What an answer that is no problem may be described with.
_DONE = "default"
_SPACE = re.compile(r"\s+")


class Field(Struct, frozen=True):
    """A parameter, or a part of a body or an answer."""

    name: str
    kind: str
    required: bool
    meaning: str = ""


class Shape(Struct, frozen=True):
    """What a body or an answer looks like; `named` are the shapes that its parts refer to."""

    kind: str
    meaning: str = ""
    fields: tuple[Field, ...] = ()


class Operation(Struct, frozen=True):
    """One route; with `glance` it is also for those who may only glance."""

    method: str
    path: str
    name: str
    summary: str
    description: str
    scope: str
    parameters: tuple[Field, ...]
    body: Shape | None
    answers: tuple[tuple[str, Shape], ...]
    glance: bool = False

    @property
    def scopes(self) -> str:
        """What takes one to it, each of them enough."""
        return f"{self.scope}, glance" if self.glance else self.scope


class Section(Struct, frozen=True):
    """The routes of one resource, and the shapes that they speak of."""

    tag: str
    operations: tuple[Operation, ...]
    shapes: tuple[Shape, ...]


def sections(document: dict[str, Any]) -> list[Section]:
    """An OpenAPI document by tags, in the order of its paths."""
    named: dict[str, Any] = document["components"]["schemas"]
    found: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            found.setdefault(told["tags"][0], []).append(_operation(method.upper(), path, told, named))
    return [
        Section(tag, tuple(operations), tuple(_spoken_of(tag, document, named))) for tag, operations in found.items()
    ]


def _operation(method: str, path: str, told: dict[str, Any], named: dict[str, Any]) -> Operation:
    parameters = tuple(
        Field(one["name"], kind_of(one["schema"]), one["required"], _meaning(one["schema"]))
        for one in told.get("parameters", ())
    )
    body = told.get("requestBody")
    answers = [(status, _shape(one, named)) for status, one in told["responses"].items() if status != _DONE]
    return Operation(
        method,
        path,
        told["operationId"],
        told["summary"],
        _SPACE.sub(" ", told.get("description", "")),
        told.get("x-scope", ""),
        parameters,
        None if body is None else _shape(body, named),
        tuple(answers),
        told.get("x-glance", False),
    )


def _shape(told: dict[str, Any], named: dict[str, Any]) -> Shape:
    for media, one in told.get("content", {}).items():
        schema = one["schema"]
        if not media.endswith("json"):
            return Shape(media, told.get("description", ""))
        name = _name(schema)
        return Shape(kind_of(schema)) if name is None else named_shape(name, named)
    return Shape("nothing")


def named_shape(name: str, named: dict[str, Any]) -> Shape:
    schema = named[name]
    required = schema.get("required", ())
    fields = [
        Field(part, kind_of(one), part in required, _meaning(one)) for part, one in schema.get("properties", {}).items()
    ]
    return Shape(_short(name), _SPACE.sub(" ", schema.get("description", "")), tuple(fields))


def _spoken_of(tag: str, document: dict[str, Any], named: dict[str, Any]) -> Iterator[Shape]:
    """The shapes that the routes of a tag use, and those that these use in turn, each once."""
    seen: dict[str, None] = {}
    waiting: list[Any] = [
        [told.get("requestBody"), *(one for status, one in told["responses"].items() if status != _DONE)]
        for methods in document["paths"].values()
        for told in methods.values()
        if told["tags"][0] == tag
    ]
    while waiting:
        for name in _names(waiting.pop(0)):
            if name not in seen:
                seen[name] = None
                waiting.append(named[name])
    for name in seen:
        if named[name].get("properties"):
            yield named_shape(name, named)


def _names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        name = _name(schema)
        if name is not None:
            yield name
        for part in schema.values():
            yield from _names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _names(part)


def _name(schema: dict[str, Any]) -> str | None:
    place = schema.get("$ref")
    return place.rpartition("/")[2] if isinstance(place, str) else None


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _meaning(schema: dict[str, Any]) -> str:
    parts = [schema, *schema.get("anyOf", ())]
    return next((_SPACE.sub(" ", one["description"]) for one in parts if "description" in one), "")


def kind_of(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if (name := _name(schema)) is not None:
        return _short(name)
    if "enum" in schema:
        return " | ".join(str(one) for one in schema["enum"])
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        return " | ".join(dict.fromkeys(kind_of(one) for one in several if one != {"type": "null"}))
    match schema.get("type"):
        case "array":
            return f"list of {kind_of(schema['items'])}" if schema.get("items") else "list"
        case "object":
            parts = schema.get("additionalProperties")
            return f"object of {kind_of(parts)}" if isinstance(parts, dict) and parts else "object"
        case "string":
            return str(schema.get("format", "string"))
        case None:
            return "anything"
        case kind:
            return str(kind)
