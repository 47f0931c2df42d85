"""Requests to try an API with, made for the workflows that there are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from perdure.core.codec import encode
from perdure.errors import UsageError
from perdure.flows.described import Described
from perdure.flows.workflow import Workflow

_ID = "try-1"
#: How deep a sample goes; what refers to itself has to end somewhere.
_DEEPEST = 8
_SIMPLE: dict[str, Any] = {"string": "hello", "integer": 1, "number": 1.5, "boolean": True, "null": None}
_FORMATS = {
    "date-time": "2030-01-01T12:00:00Z",
    "date": "2030-01-01",
    "time": "12:00:00",
    "duration": "PT5S",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "1.5",
}


def curls(address: str, workflows: Iterable[Workflow[..., Any]]) -> list[str]:
    """Three lines for a shell: start something, get its result, list what there is."""
    listing = f"curl -s {address}/v1/executions"
    for one in workflows:
        args = _args(one)
        if args is not None:
            body = shlex.quote(json.dumps({"workflow": one.name, "args": args, "id": _ID}))
            return [
                f"curl -s {address}/v1/executions -H 'content-type: application/json' -d {body}",
                f"curl -s '{address}/v1/executions/{_ID}/result?wait=5s'",
                listing,
            ]
    return [listing, f"curl -s {address}/v1/definitions", f"curl -s {address}/health/ready"]


def _args(workflow: Workflow[..., Any]) -> list[Any] | None:
    """Arguments that it takes, or None if none could be made up."""
    if isinstance(workflow, Described):
        return [{}]
    schema = workflow.signature.schema()
    args = [sample(schema["properties"][name], schema.get("$defs", {})) for name in schema["required"]]
    try:
        workflow.signature.decode(encode(args))
    except UsageError:
        return None
    return args


def sample(schema: Any, named: dict[str, Any], depth: int = 0) -> Any:
    """A value that a schema allows, in most cases: the first that comes to mind."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    for known in ("const", "default"):
        if known in schema:
            return schema[known]
    if schema.get("examples") or schema.get("enum"):
        return (schema.get("examples") or schema["enum"])[0]
    if "$ref" in schema:
        return sample(named.get(schema["$ref"].rpartition("/")[2]), named, depth + 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return sample(schema[several][0], named, depth + 1)
    match schema.get("type"):
        case "object":
            parts = schema.get("properties", {})
            return {name: sample(parts.get(name), named, depth + 1) for name in schema.get("required", ())}
        case "array":
            parts = schema.get("prefixItems") or [schema.get("items", {})] * schema.get("minItems", 0)
            return [sample(part, named, depth + 1) for part in parts]
        case "string":
            return _FORMATS.get(schema.get("format", ""), _SIMPLE["string"])
        case "integer" | "number" as kind:
            return schema.get("minimum", _SIMPLE[kind])
        case kind:
            return _SIMPLE.get(str(kind))
