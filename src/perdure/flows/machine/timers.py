"""How long a machine may be in its states: a timer runs from entering a state until it is left.

Rules kept here: a timer whose time has come waits for its turn like an event, and is forgotten if its state is left
before that; until its turn it counts as running, so that a checkpoint keeps it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

from perdure.flows.machine.chart import Node, Timer

#: Running timers by the path of their state and their key, with the loop's time.
Due: TypeAlias = dict[str, dict[str, float]]


class Timers:
    """The timers of one execution. `tell` hands one over to whoever waits, and gives False if nobody does."""

    def __init__(self, tell: Callable[[Node, Timer], bool]) -> None:
        self._tell = tell
        self._handles: dict[str, dict[str, asyncio.TimerHandle]] = {}
        self._fired: deque[tuple[Node, Timer]] = deque()

    def due(self) -> Due:
        return {
            path: {key: handle.when() for key, handle in handles.items()}
            for path, handles in self._handles.items()
            if handles
        }

    def resume(self, nodes: Mapping[str, Node], due: Due) -> None:
        """Go on with those that ran when the position was written."""
        for path, times in due.items():
            node = nodes[path]
            for timer in node.after:
                if timer.key in times:
                    self._arm(node, timer, times[timer.key])

    def enter(self, node: Node, now: float) -> None:
        for timer in node.after:
            self._arm(node, timer, now + timer.delay / 1e6)

    def leave(self, node: Node) -> None:
        for handle in self._handles.pop(node.path, {}).values():
            handle.cancel()
        self._fired = deque(one for one in self._fired if one[0] is not node)

    def waiting(self) -> tuple[Node, Timer] | None:
        """The first whose time has come while nobody waited."""
        return self._fired.popleft() if self._fired else None

    def over(self, node: Node, timer: Timer) -> None:
        """It is its turn."""
        del self._handles[node.path][timer.key]

    def _arm(self, node: Node, timer: Timer, due: float) -> None:
        loop = asyncio.get_running_loop()
        self._handles.setdefault(node.path, {})[timer.key] = loop.call_at(due, self._fire, node, timer)

    def _fire(self, node: Node, timer: Timer) -> None:
        if not self._tell(node, timer):
            self._fired.append((node, timer))
