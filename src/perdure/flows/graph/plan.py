"""A graph made ready to run: its model, its ways and a step for every node. It is shared by all its executions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import InvalidValue
from perdure.flows.bound import Bound
from perdure.flows.graph.model import Model
from perdure.flows.graph.nodes import Step, TriggerStep, step_of
from perdure.flows.graph.ways import Ways

#: The trigger that a bare payload is for, where there are several.
BY_HAND = ("start", "manual")


class Plan:
    def __init__(self, model: Model, bounds: Mapping[str, Bound]) -> None:
        self.model = model
        self.ways = Ways(model)
        self.steps: dict[str, Step[Any]] = {id: step_of(node, bounds) for id, node in model.nodes.items()}

    def entry(self, input: Any) -> tuple[str, Any]:
        """The trigger that an input is for, and its payload."""
        triggers = self.ways.triggers
        if isinstance(input, dict) and input.keys() <= {"trigger", "payload"} and input.get("trigger") in triggers:
            return input["trigger"], input.get("payload")
        if (bare := self._bare()) is None:
            raise InvalidValue(
                f'{self.model.name} has several triggers: start it with {{"trigger": one of {", ".join(triggers)},'
                ' "payload": …}'
            )
        return bare, input

    def _bare(self) -> str | None:
        """The trigger that an input is for which names none."""
        triggers = self.ways.triggers
        if len(triggers) == 1:
            return triggers[0]
        return next((name for name in BY_HAND if name in triggers), None)

    def wants(self) -> dict[str, Any]:
        """The JSON Schema of an input."""
        if (bare := self._bare()) is not None:
            schema = self._trigger(bare).schema
            return {} if schema is None else schema.shown()
        parts = {"trigger": {"enum": list(self.ways.triggers)}, "payload": {}}
        return {"type": "object", "properties": parts, "required": ["trigger"], "additionalProperties": False}

    def check(self, trigger: str, payload: Any) -> None:
        """InvalidValue if the payload does not fit the trigger's schema."""
        self._trigger(trigger).check(payload)

    def _trigger(self, name: str) -> TriggerStep:
        step = self.steps[name]
        assert isinstance(step, TriggerStep)
        return step
