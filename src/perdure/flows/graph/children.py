"""Children of graphs: other workflows, called by name.

What a name stands for is decided when the child starts, and recorded: a worker that knows other versions replays the
same. Code of this process comes first, then what was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core.codec import encode
from perdure.core.events import Error
from perdure.core.failures import child_failed
from perdure.core.replay import Replay
from perdure.errors import NotRegistered
from perdure.flows.described import Described
from perdure.flows.listening import Listen
from perdure.flows.registry import registry
from perdure.flows.workflow import find_definition


class Called(Struct, frozen=True, omit_defaults=True):
    """What is recorded of a call: the version, and the arguments as that version takes them. 0: not known as code."""

    version: int = 0
    input: Raw = Raw(b"null")


async def run_child(running: Replay, name: str, version: int | str | None, given: Any) -> Any:
    """Start a child and wait for its result, as plain JSON. A version that is a text is what a document says it is."""
    recorded = running.record(lambda: Raw(msgspec.json.encode(_call(name, version, given))))
    call = msgspec.json.decode(recorded, type=Called)
    if not call.version:
        return await _published(running, name, version, given)
    child = registry.workflow(name, call.version)
    result = await running.child(child, call.version, call.input)
    return msgspec.json.decode(encode(result))


def _call(name: str, version: int | str | None, given: Any) -> Called:
    try:
        workflow = registry.workflow(name, version)
    except NotRegistered:
        return Called()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(workflow, Described):
        args = (given,)
    elif isinstance(given, Mapping):
        kwargs = dict(given)
    elif given is not None:
        args = tuple(given) if isinstance(given, list) else (given,)
    return Called(workflow.version, Raw(workflow.signature.encode(args, kwargs)))


async def _published(running: Replay, name: str, version: int | str | None, given: Any) -> Any:
    """A child that this process has no code of: what was published under its name, found by an action."""
    found = await running.act(find_definition, Raw(encode([name, version])))
    if not found["hash"]:
        raise NotRegistered(f"{name} is code that the worker of this execution does not have: load it there")
    listens = msgspec.convert(found.get("listens", []), tuple[Listen, ...])
    child = Published(name, found["version"], found["hash"], found["queue"], listens)
    return await running.child(child, child.version, Raw(encode([given])))


class Published(Struct, frozen=True):
    """What a replay needs to know of a child that was published; who runs it loads the rest."""

    name: str
    version: int
    hash: str
    queue: str
    listens: tuple[Listen, ...] = ()

    def decode_result(self, result: Raw, /) -> Any:
        return msgspec.json.decode(result)

    def failure(self, error: Error, /) -> BaseException:
        return child_failed(error, self.name)

    def same_args(self, recorded: Raw, asked: Raw, /) -> bool:
        return bool(msgspec.json.decode(recorded) == msgspec.json.decode(asked))
