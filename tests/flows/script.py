"""A tiny kind of definition, to test what all kinds share: steps in a row, each an action, an event, a sleep, a child.

    {"script": "order",
     "steps": [{"act": "charge", "with": [7]}, {"wait": "packed"}, {"sleep": 5}, {"child": "parcel"}]}

The result is the list of what the steps gave. While it waits or sleeps it is at rest, and its position is the number of
steps that are done and what they gave; a step may have a `name`, by which another version knows it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from msgspec import Raw

from perdure.core.codec import codec_for, encode
from perdure.core.replay import Replay
from perdure.errors import DefinitionInvalid, InvalidValue
from perdure.flows import kinds
from perdure.flows.bound import Bound, Call, Problem, arguments
from perdure.flows.described import Described, checkpoint
from perdure.flows.event import event
from perdure.flows.given import Calling
from perdure.flows.workflow import find_definition


class Script(Described):
    kind = "script"

    @property
    def steps(self) -> list[dict[str, Any]]:
        return list(self.content["steps"])

    async def fresh(self, running: Replay, input: Any) -> Any:
        return await self._run(running, [], 0)

    async def again(self, running: Replay, position: Raw) -> Any:
        at = msgspec.json.decode(position)
        return await self._run(running, at["done"], at.get("due", 0))

    async def _run(self, running: Replay, done: list[Any], due: float) -> Any:
        for step in self.steps[len(done) :]:
            done.append(await self._step(running, step, done, due))
            due = 0
            if step.get("checkpoint"):
                checkpoint(running, {"done": done})
        return done

    async def _step(self, running: Replay, step: dict[str, Any], done: list[Any], due: float) -> Any:
        match step:
            case {"beside": name}:
                self.beside = asyncio.ensure_future(running.act(Call(self.bounds[name]).spec(), Raw(b"[]")))
                return "beside"
            case {"act": name}:
                call = Call(self.bounds[name])
                spec = call.spec()
                return await running.act(spec, arguments(call.bound, step.get("with", [])), spec.compensation)
            case {"wait": name}:
                with at_rest(running, {"done": done, "step": _label(step)}):
                    return await event(name)
            case {"sleep": seconds}:
                until = due or running.loop.now + seconds
                with at_rest(running, {"done": done, "step": _label(step), "due": until}):
                    await asyncio.sleep(until - running.loop.now)
                return "slept"
            case {"child": name}:
                found = await find_definition(name)
                spec = cast(Any, Child(name, found["hash"], found["queue"]))
                return await running.child(spec, found["version"], Raw(encode([step.get("input")])))
            case _:
                raise AssertionError(step)

    def check_input(self, value: Any) -> None:
        if "input" in self.content and type(value).__name__ != self.content["input"]:
            raise InvalidValue(f"{self.name} wants a {self.content['input']}")

    def fits(self, position: Raw) -> list[Problem]:
        at = msgspec.json.decode(position)
        place = len(at["done"])
        here = _label(self.steps[place]) if place < len(self.steps) else "the end"
        return [] if here == at["step"] else [Problem(f"steps[{place}]", f"it waits at {at['step']}, not at {here}")]


class Child:
    """A published child, as the parent knows it."""

    def __init__(self, name: str, hash: str, queue: str) -> None:
        self.name, self.hash, self.queue = name, hash, queue

    def same_args(self, recorded: Raw, asked: Raw, /) -> bool:
        return bytes(recorded) == bytes(asked)

    def decode_result(self, result: Raw, /) -> Any:
        return msgspec.json.decode(result)

    def failure(self, error: Any, /) -> BaseException:
        return ValueError(error.message)


@contextmanager
def at_rest(running: Replay, position: Any) -> Iterator[None]:
    running.position = lambda: position
    try:
        yield
    finally:
        running.position = None


def _label(step: Mapping[str, Any]) -> str:
    return str(step.get("name") or step.get("wait") or step.get("sleep"))


def check(body: Mapping[str, Any]) -> list[Problem]:
    problems = []
    if not isinstance(body.get("steps"), list):
        return [Problem("steps", "there are no steps", "give it a list")]
    for place, step in enumerate(body["steps"]):
        if not isinstance(step, dict) or not {"act", "wait", "sleep", "child"} & step.keys():
            problems.append(Problem(f"steps[{place}]", "it does nothing", "say act, wait, sleep or child"))
        elif "sleep" in step and not isinstance(step["sleep"], int | float):
            problems.append(Problem(f"steps[{place}].sleep", "it is no number of seconds"))
    return problems


def calls(body: Mapping[str, Any]) -> list[Calling]:
    steps = list(enumerate(body["steps"]))
    return [Calling(f"steps[{place}]", one["act"], one.get("with", [])) for place, one in steps if "act" in one]


def actions(body: Mapping[str, Any]) -> list[str]:
    return [step["act"] for step in body["steps"] if "act" in step]


def build(
    body: Mapping[str, Any], *, version: int, hash: str = "", bounds: Mapping[str, Bound] | None = None
) -> Described:
    if problems := check(body):
        raise DefinitionInvalid(f"script {body['script']}", problems)
    made = Script(body["script"], version, body.get("queue", "default"), "", body, bounds or {}, hash)
    made.events = (
        {name: codec_for(kind) for name, kind in (("packed", dict[str, str]), ("paid", int))}
        if body.get("declares")
        else {}
    )
    return made


def register() -> None:
    kinds.KINDS["script"] = SimpleNamespace(check=check, actions=actions, calls=calls, build=build)


@contextmanager
def known() -> Iterator[None]:
    """The kind is there for as long as this lasts."""
    register()
    try:
        yield
    finally:
        del kinds.KINDS["script"]


def script(name: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"script": name, "steps": list(steps), **more}
