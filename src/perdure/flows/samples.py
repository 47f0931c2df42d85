"""Values to try a workflow with, made up from the schema of what it takes."""

from __future__ import annotations

from typing import Any

from perdure.core.codec import encode
from perdure.errors import UsageError
from perdure.flows.described import Described
from perdure.flows.workflow import Workflow

#: How deep a sample goes; what refers to itself has to end somewhere.
_DEEPEST = 8
#: How many values are made up at most.
_MOST = 1_000
_SIMPLE: dict[str, Any] = {"string": "hello", "integer": 1, "number": 1.5, "boolean": True, "null": None}
_FORMATS = {
    "date-time": "2030-01-01T12:00:00Z",
    "date": "2030-01-01",
    "time": "12:00:00",
    "duration": "PT5S",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "1.5",
}


def arguments(workflow: Workflow[..., Any]) -> list[Any] | None:
    """Arguments that it takes, or None if none could be made up. What is data takes one."""
    try:
        schema = workflow.input_schema()
        sample = _Sampling(schema.get("$defs", {})).sample
        if isinstance(workflow, Described):
            given = [sample(schema) if schema else {}]
            workflow.check_input(given[0])
        else:
            given = [sample(schema["properties"][name]) for name in schema["required"]]
            workflow.signature.decode(encode(given))
    except (UsageError, LookupError, TypeError, ValueError, AttributeError):
        return None  # schemas come from anybody, and what a keyword means depends on the draft
    return given


class _Sampling:
    """Values that a schema allows, in most cases: the first that come to mind."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._left = _MOST

    def sample(self, schema: Any, depth: int = 0) -> Any:
        self._left -= 1
        if not isinstance(schema, dict) or depth > _DEEPEST or self._left < 0:
            return None
        for known in ("const", "default"):
            if known in schema:
                return schema[known]
        if schema.get("examples") or schema.get("enum"):
            return (schema.get("examples") or schema["enum"])[0]
        if "$ref" in schema:
            return self.sample(self._named.get(schema["$ref"].rpartition("/")[2]), depth + 1)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.sample(schema[several][0], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        match schema.get("type"):
            case "object":
                parts = schema.get("properties", {})
                return {name: self.sample(parts.get(name), depth + 1) for name in schema.get("required", ())}
            case "array":
                parts = schema.get("prefixItems") or [schema.get("items", {})] * min(schema.get("minItems", 0), _MOST)
                return [self.sample(part, depth + 1) for part in parts]
            case "string":
                return _FORMATS.get(schema.get("format", ""), _SIMPLE["string"])
            case "integer" | "number" as kind:
                return schema.get("minimum", _SIMPLE[kind])
            case kind:
                return _SIMPLE.get(str(kind))
