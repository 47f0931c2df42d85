"""Tasks for people that the states of a machine ask for: each is open as long as its state lasts.

Rules kept here: it is asked when the machine comes to rest in the state, so it sees the data as the actions have left
it; it outlives checkpoints and changes of version; whoever leaves the state withdraws it. What is handed in is for the
`done` of the state that asked. If it does not fit the form, or no transition takes it, it is rejected in the log and
asked for once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.core.codec import codec_for, encode
from perdure.core.events import ChildSettled, Error, Received
from perdure.core.replay import Replay
from perdure.flows.machine.chart import Node
from perdure.flows.machine.terms import Context
from perdure.flows.person import Asked
from perdure.flows.task import VERSION

_SPEC = Asked(codec_for(Any))
_CHILD = "/child:"


class Desk:
    """The tasks of one execution, by the paths of the states that asked."""

    def __init__(self, running: Replay, open: Mapping[str, int]) -> None:
        self._running = running
        # A fork has the position of the original, but not its tasks: it asks for those that are not done.
        told = {received.id for received in running.buffer}
        self.open = {path: ref for path, ref in open.items() if ref in running.lasting or f"{_CHILD}{ref}" in told}

    def rest(self, line: Sequence[Node], context: Context) -> tuple[Node, Error] | None:
        """Let exactly those tasks be open that these states ask for; or say which could not be asked for, and why."""
        asking = {node.path: node for node in line if node.question is not None}
        for path in [path for path in self.open if path not in asking]:
            self.withdraw(path)  # this version of the machine does not ask for it
        for path, node in reversed(asking.items()):
            assert node.question is not None
            if path in self.open:
                continue
            try:
                order = Raw(encode(node.question.order(path, context)))
                self.open[path] = self._running.begin_lasting(_SPEC, VERSION, order)
            except Exception as error:  # of its expressions and functions
                return node, Error(type(error).__name__, str(error))
        return None

    def withdraw(self, path: str) -> None:
        if (ref := self.open.pop(path, None)) is not None:
            self._running.withdraw(ref)

    def close(self) -> None:
        for path in list(self.open):
            self.withdraw(path)

    def settled(self, received: Received) -> tuple[str, ChildSettled] | None:
        """The state whose task an outcome is of, and the outcome; its task is no longer open."""
        for path, ref in self.open.items():
            if received.id == f"{_CHILD}{ref}":
                del self.open[path]
                return path, msgspec.json.decode(received.payload, type=ChildSettled)
        return None


def is_outcome(received: Received) -> bool:
    """Whether it tells how a task ended. Ids with a slash are the engine's own."""
    return received.id.startswith(_CHILD)
