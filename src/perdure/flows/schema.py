"""JSON Schema of definitions: inputs, data, payloads, forms.

Nothing is fetched, and patterns are those that can be matched in linear time.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec

from perdure.core.codec import Codec
from perdure.errors import InvalidValue

_SHOWN = 5


class Schema:
    """A schema, compiled.

    >>> total = Schema({"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]})
    >>> total.check({"total": "9"})
    ['total: "9" is not of type "integer"']
    >>> Schema({"type": "objekt"})
    Traceback (most recent call last):
    perdure.errors.InvalidValue: not a JSON Schema: "objekt" is not valid under any of the schemas listed in ...
    """

    def __init__(self, schema: dict[str, Any] | bool, formats: bool = False) -> None:
        """With `formats` a text that is to be a date, a UUID and the like must be one, whatever the draft says."""
        self.schema = schema
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, offline=True, pattern_options=jsonschema_rs.RegexOptions(), validate_formats=formats or None
            )
        except (ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidValue(f"not a JSON Schema: {reason}") from error

    def check(self, value: Any) -> list[str]:
        """What is wrong with a value, each with its place."""
        return [f"{place}: {message}" if place else message for place, message in self.faults(value)]

    def faults(self, value: Any) -> list[tuple[str, str]]:
        """What is wrong with a value: the place, empty for the whole of it, and what it is."""
        wrong = self._validator.iter_errors(value)
        return [(".".join(map(str, error.instance_path)), error.message) for error in wrong]

    def refuse(self, value: Any, what: str) -> None:
        """InvalidValue if it does not fit."""
        if wrong := self.check(value):
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise InvalidValue(f"{what} does not fit its schema: {'; '.join(wrong[:_SHOWN])}{more}")

    def shown(self) -> dict[str, Any]:
        """As an object, which it need not be: `true` allows what `{}` allows."""
        return self.schema if isinstance(self.schema, dict) else {} if self.schema else {"not": {}}

    def codec(self) -> Codec[Any]:
        """Reads values that fit."""

        def decode(data: Any) -> Any:
            value = msgspec.json.decode(data)
            self.refuse(value, "it")
            return value

        return Codec(Any, Any, decode)
