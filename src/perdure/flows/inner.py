"""Workflows of the engine's own, such as schedules.

They are workflows like any other, with a log, holds and replay; but their names have a colon, which no other name can
have, so nobody starts or hides one by its name. Every worker runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar

from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")


class Inner(Workflow[P, R]):
    """The definition of such a workflow."""

    def __init__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], name: str, events: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(fn, events=events)
        self.name = name


def inner(
    name: str, *, events: Mapping[str, Any] | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Inner[P, R]]:
    """Make a workflow of the engine's own of an `async def`; its name ends with a colon."""

    def decorate(fn: Callable[P, Coroutine[Any, Any, R]]) -> Inner[P, R]:
        made = Inner(fn, name, events)
        registry.add_inner(made)
        return made

    return decorate
