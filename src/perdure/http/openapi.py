"""OpenAPI 3.1, made from the routes as they are declared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core.cloudevents import BATCH, STRUCTURED
from perdure.http.problems import MEDIA, Problem
from perdure.http.route import FLOW, Flow, Html, Nothing, Plain, Route
from perdure.http.verbs import LONGEST_KEY

_PLACE = "#/components/schemas/{name}"
_NAME = re.compile(r"\W+")
#: Bodies in forms of others.
_BY_MEDIA: dict[str, Any] = {
    STRUCTURED: {"type": "object"},
    BATCH: {"type": "array", "items": {"type": "object"}},
}
#: The header that makes a repetition harmless.
_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "description": "The same key again is the same request, and has no second effect.",
    },
}
#: One of the events of a flow, as tools that check such answers look at them.
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The document that `/openapi.json` serves."""
    types = list(
        dict.fromkeys([*(part for one in routes for part in (one.body, one.query, *one.answers.values())), Problem])
    )
    kept = [kind for kind in types if kind not in (None, bytes, Flow, Html, Nothing, Plain)]
    schemas, components = msgspec.json.schema_components(kept, ref_template=_PLACE)
    known = dict(zip(kept, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, known, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Perdure", "version": version, "description": "Durable workflows."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, known: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "tags": [route.tag]}
    if route.description:
        told["description"] = route.description
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.names
    ]
    parameters += _query(route, known, components)
    if route.keyed:
        parameters.append(_KEY)
    if parameters:
        told["parameters"] = parameters
    if route.body is not Nothing:
        plain = {} if route.body is bytes else known[route.body]
        content = {"application/json": {"schema": plain}}
        content |= {media: {"schema": _BY_MEDIA.get(media, {})} for media in route.media}
        told["requestBody"] = {"required": True, "content": content}
    told["responses"] = {str(status): _answer(kind, known) for status, kind in route.answers.items()}
    told["responses"]["default"] = {"description": "A problem.", "content": {MEDIA: {"schema": known[Problem]}}}
    if route.scope is not None:
        told["security"] = [{"bearer": []}]
        told["x-scope"] = route.scope
        if route.glance is not None:
            told["x-glance"] = True
    return told


def _answer(kind: Any, known: dict[Any, Any]) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done."}
    if kind is Flow:
        return {"description": "Server-sent events.", "content": {FLOW: {"schema": _EVENT}}}
    if kind is Plain:
        return {"description": "Plain text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    if kind is Html:
        return {"description": "A page.", "content": {"text/html": {"schema": {"type": "string"}}}}
    if kind is bytes:
        forms = {media: {"schema": {"type": "string"}} for media in ("image/svg+xml", "text/plain")}
        return {"description": "A picture.", "content": forms}
    return {"description": "Done.", "content": {"application/json": {"schema": known[kind]}}}


def _query(route: Route, known: dict[Any, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is Nothing:
        return []
    schema = components[known[route.query]["$ref"].rpartition("/")[2]]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": part}
        for name, part in schema["properties"].items()
    ]
