"""Where events that workflows emit go to: functions of the application, each for all types or for some.

An event that a sink does not take (it raises) is delivered again later, to all of them, with the same id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from perdure.core.cloudevents import CloudEvent

Sink: TypeAlias = Callable[[CloudEvent], Awaitable[None]]


class Sinks:
    def __init__(self) -> None:
        self._sinks: list[tuple[frozenset[str], Sink]] = []

    def adding(self, types: Sequence[str]) -> Callable[[Sink], Sink]:
        """A decorator that adds a sink for these types, or for all if none is named."""

        def add(sink: Sink) -> Sink:
            self._sinks.append((frozenset(types), sink))
            return sink

        return add

    async def deliver(self, event: CloudEvent) -> None:
        for types, sink in self._sinks:
            if not types or event.type in types:
                await sink(event)
