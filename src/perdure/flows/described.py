"""Workflows that are data: machines, graphs and documents, and what all of them share.

A described workflow is interpreted by code of the engine on the deterministic loop, so its log, holds, retries and
replays are those of any workflow. Its position is plain data: at a step's boundary `checkpoint` ends the round and
begins the next from that data, so that replay never reaches further back.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import types
from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar, NoReturn

import msgspec
from msgspec import Raw

from perdure.core.codec import Schema, digest, encode
from perdure.core.commands import RestartWith
from perdure.core.events import Owed
from perdure.core.replay import Replay
from perdure.core.signature import Signature
from perdure.core.view import State
from perdure.errors import LimitReached, NeverWakes
from perdure.flows.action import Action
from perdure.flows.bound import Bound, Problem, owed, undo_named
from perdure.flows.diagram import Diagram, Mark
from perdure.flows.workflow import Workflow, check_name, finish

#: Nodes or tasks that may settle in one turn. Moving on takes no steps of the loop, whose limit is never met.
MOST_AT_ONCE = 100_000
#: How a picture marks a node, or a task, by its status.
MARKS: Mapping[str, Mark] = {"open": "current", "completed": "done", "failed": "failed"}


async def _input(input: Any = None) -> Any:
    """How a described workflow is called: with one value."""


class Described(Workflow[..., Any]):
    """A definition that is data. `content` is what its hash is made of; `hash` is set if it was published."""

    kind: ClassVar[str] = ""
    at_rest: ClassVar[str] = "once it waits"  # when it can go on with another version

    def __init__(
        self,
        name: str,
        version: int,
        queue: str,
        description: str,
        content: Any,
        bounds: Mapping[str, Bound],
        hash: str = "",
    ) -> None:
        check_name(name, version)
        self.fn = _place()
        self.name = name
        self.version = version
        self.queue = queue
        self.description = description
        self.signature = Signature(_input)
        self.signature.name = name
        self.events = {}
        self.content = content
        self.bounds = dict(bounds)
        self.hash = hash
        self._checked = False

    @functools.cached_property
    def fingerprint(self) -> str:
        return self.hash or digest(self.kind, encode(self.content))

    def check(self) -> None:
        """Functions of a definition that is made in Python are looked at by whoever has some."""

    def begin(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        args, kwargs = self.signature.decode(input)
        [value] = (*args, *kwargs.values()) or (None,)
        return self._finished(running, self.fresh(running, value))

    def resume(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        return self._finished(running, self.again(running, input))

    async def _finished(self, running: Replay, main: Coroutine[Any, Any, Any]) -> Raw:
        try:
            return Raw(encode(await main))
        except (Exception, asyncio.CancelledError) as error:
            await finish(running, error)
            raise

    def undo_of(self, owed: Owed) -> Action[..., Any]:
        return undo_named(owed.undo, self.bounds)

    # What a kind of definition says.

    def fresh(self, running: Replay, input: Any) -> Coroutine[Any, Any, Any]:
        """Run from the beginning."""
        raise NotImplementedError

    def again(self, running: Replay, position: Raw) -> Coroutine[Any, Any, Any]:
        """Run from a checkpoint."""
        raise NotImplementedError

    def check_input(self, value: Any) -> None:
        """Raise InvalidValue if no execution can begin with this."""

    def input_schema(self) -> Schema:
        """The JSON Schema of the value that it is started with; {} where anything will do."""
        return {}

    def diagram(self, current: Mapping[str, Mark] | None = None) -> Diagram:
        """As a picture; `current` maps states or nodes to their marks."""
        raise NotImplementedError

    def marks(self, state: State) -> dict[str, Mark]:
        """What a picture marks of an execution: the state it is in, the nodes it has passed and those that are open."""
        marks: dict[str, Mark] = {}
        if state.current:
            marks[state.current] = "failed" if state.status == "failed" else "current"
        for node in state.nodes.values():
            marks[node.node.rpartition("/")[2]] = MARKS.get(node.status, "")
        return marks

    def fits(self, position: Raw) -> list[Problem]:
        """Why an execution at this position of another version could not go on with this one."""
        raise NotImplementedError


def checkpoint(running: Replay, position: Any, undos: bool = True) -> NoReturn:
    """End this round and begin the next from this position."""
    raise RestartWith(Raw(msgspec.json.encode(position)), owed(running) if undos else [])


def encoded(running: Replay, value: Any, what: str) -> Raw:
    """A value as JSON. What the log would not take makes the execution stuck: to fail would depend on a setting."""
    data = encode(value)
    most = running.limits.payload_bytes
    if len(data) > most:
        running.halt(
            LimitReached(
                f"{running.key}: the data of {what} has {len(data):,} bytes, more than {most:,}: keep it elsewhere and"
                " a reference here, or raise payload_bytes"
            )
        )
    return Raw(data)


def check_rest(running: Replay, count: int, what: str) -> None:
    """Stop an execution in which so much has settled in one turn, `what` as the last, that it goes in a circle."""
    if count > MOST_AT_ONCE:
        running.halt(
            NeverWakes(
                f"{running.key} does not come to rest: {MOST_AT_ONCE:,} of its parts have settled in one turn, the last"
                f" one {what}; time stands still there, so put something into the circle that waits"
            )
        )


def _place() -> Any:
    """The place in the user's code that made a definition, as a function: for messages, and to tell two apart."""
    depth = 1
    while (frame := sys._getframe(depth)).f_globals.get("__name__", "").startswith("perdure.flows"):
        depth += 1
    here = types.FunctionType(_input.__code__.replace(co_filename=frame.f_code.co_filename), {})
    here.__module__ = str(frame.f_globals.get("__name__"))
    local = frame.f_code.co_name != "<module>"
    here.__qualname__ = f"{frame.f_code.co_qualname}.<locals>.definition" if local else "definition"
    return here
