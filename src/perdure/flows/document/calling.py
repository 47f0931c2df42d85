"""`call` and `run`: actions, functions of the document, other workflows.

What is called by a name is, in this order: a function under `use.functions`, whose input are the arguments; else an
action, as code has them, with its own retries, timeouts, queue and undo. `http` and `openapi` are not names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from msgspec import Raw

from perdure.core.codec import encode
from perdure.flows.bound import Bound, Call, arguments
from perdure.flows.document.course import Course, Scope
from perdure.flows.document.http import HttpRemote, OpenApiRemote, Remote
from perdure.flows.document.reader import Reader, escaped
from perdure.flows.document.step import Left, Step
from perdure.flows.document.tasks import read_step
from perdure.flows.document.terms import See
from perdure.flows.given import Calling
from perdure.flows.graph.children import run_child
from perdure.flows.secret import SCHEME
from perdure.flows.workflow import start_apart

_ELSEWHERE = ("grpc", "asyncapi", "a2a", "mcp")
_REMOTE: dict[str, type[HttpRemote] | type[OpenApiRemote]] = {"http": HttpRemote, "openapi": OpenApiRemote}
_RUNS = ("workflow", "container", "script", "shell")


class CallStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("call", "with")

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        name = reader.text(self.body["call"], f"{self.at}/call")
        self.remote: Remote | None = None
        self.function: Step | None = None
        self.call: Call | None = None
        given = self.body.get("with", {})
        if name in _REMOTE:
            self.remote = remote = _REMOTE[name](reader, given, f"{self.at}/with", names)
            # The engine's own action is in every worker and needs no name here; its secrets have to be there.
            reader.calls.append(Calling(self.at, "", [f"{SCHEME}{one}" for one in remote.secrets]))
            return
        if name in _ELSEWHERE:
            reader.wrong(f"{self.at}/call", f"{name} is not called from here", "call an action that does it")
            return
        if not isinstance(given, dict | list):
            reader.wrong(f"{self.at}/with", "arguments are an object, or a list in their order")
        self.given = reader.value(given, f"{self.at}/with", names)
        functions = reader.used("functions")
        if name in functions:
            self._make_function(reader, name, functions[name])
        elif any(sign in name for sign in ":@/"):
            reader.wrong(
                f"{self.at}/call", f"{name!r} lies in a catalog, and nothing is fetched", "define it under use"
            )
        elif name:
            reader.calls.append(Calling(self.at, name, given))
            self.call = Call(reader.bounds.get(name, Bound(name)))

    def inside(self) -> Iterator[Step]:
        if self.function is not None:
            yield self.function

    def _make_function(self, reader: Reader, name: str, body: Any) -> None:
        if name in reader.inside:
            reader.wrong(f"{self.at}/call", f"{name} calls itself: {' → '.join([*reader.inside, name])}")
            return
        self.function = read_function(reader, name, body)

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        if self.remote is not None:
            return Left(await self.remote.call(given, see), attempts=course.running.tries)
        values = self.given.of(given, see)
        if self.function is not None:
            inner = Scope({}, self.function.at, f"{scope.path(self.at)}/{escaped(self.function.name)}")
            return Left((await self.function.run(course, values, inner)).output)
        assert self.call is not None
        spec = self.call.spec()
        output = await course.running.act(spec, arguments(self.call.bound, values, spec), spec.compensation)
        # One action settles in a turn, and this is still that turn.
        return Left(output, attempts=course.running.tries)


def read_function(reader: Reader, name: str, body: Any) -> Step | None:
    """A function of the document. It sees nothing of who calls it, so one is enough for all."""
    if name not in reader.functions:
        if isinstance(body, dict) and body.get("then", "continue") != "continue":
            at = f"/use/functions/{escaped(name)}/then"
            reader.wrong(at, "a function goes back to whoever calls it", "give `then` to the task that calls it")
        reader.inside.append(name)
        reader.functions[name] = read_step(reader, name, body, f"/use/functions/{escaped(name)}", ())
        reader.inside.pop()
    found: Step | None = reader.functions[name]
    return found


class RunStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("run",)

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        at = f"{self.at}/run"
        body = reader.object(self.body["run"], at, (*_RUNS, "await", "return"))
        others = [kind for kind in _RUNS[1:] if kind in body]
        for kind in others:
            reader.wrong(f"{at}/{kind}", f"no {kind} is run from here", "call an action that runs it")
        if not others and "workflow" not in body:
            reader.wrong(at, "workflow is missing")
        keys = ("namespace", "name", "version", "input")
        needs = ("namespace", "name") if "workflow" in body else ()
        child = reader.object(body.get("workflow", {}), f"{at}/workflow", keys, needs)
        self.awaits = reader.flag(body.get("await", True), f"{at}/await")
        self.child = f"{child.get('namespace')}.{child.get('name')}"
        self.label = str(child.get("version", "latest"))
        self.given = reader.value(child.get("input"), f"{at}/workflow/input", names)

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        version, values = None if self.label == "latest" else self.label, self.given.of(given, see)
        if self.awaits:
            return Left(await run_child(course.running, self.child, version, values))
        await start_apart(self.child, version, Raw(encode([values])))
        return Left(given)
