"""Random small workflow programs, the one workflow that interprets them, and a model that predicts their results.

A program is plain JSON: stages, one after the other; each a list of branches that run side by side; each a list of
steps. What a step returns does not depend on who was faster or on how often a worker died, except where the model says
ANY. Every step has a name of its own, so what reaches the sink can be traced back to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from random import Random
from typing import Any, TypeAlias

from msgspec import Struct

from perdure.core.retry import Retry
from perdure.errors import ActionFailed, ChildFailed
from perdure.flows.action import action
from perdure.flows.current import attempt
from perdure.flows.event import event
from perdure.flows.workflow import workflow
from perdure.runtime.attempts.attempt import Running

Step: TypeAlias = dict[str, Any]
Program: TypeAlias = list[list[list[Step]]]

#: What the model cannot know: it depends on faults.
ANY = "<anything>"


class Effect(Struct):
    """One arrival at the sink: which action, for which step of its program."""

    key: str
    step: str


class Sink:
    """The world outside: it notes what actions do to it."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.fences: dict[str, int] = {}  # the highest that came from each execution

    def take(self, step: str) -> None:
        self.effects.append(Effect(action.key, step))
        running = attempt.get()
        assert isinstance(running, Running)
        # Whoever runs an action apart is an execution of its own, with fences of its own.
        self.fences[running.whose] = max(self.fences.get(running.whose, 0), running.fence)


sink: ContextVar[Sink] = ContextVar("perdure_sink")


# What programs do.


@action(name="perdure.program.act")
async def act(step: str, takes: float) -> str:
    sink.get().take(step)
    await asyncio.sleep(takes)
    return step


@action(name="perdure.program.reserve", retries=3)
async def reserve(step: str, takes: float) -> str:
    sink.get().take(step)
    await asyncio.sleep(takes)
    return step


@reserve.undo
async def unreserve(step: str, takes: float, reserved: str) -> None:
    sink.get().take(f"undo {step}")


@action(name="perdure.program.flaky", retries=Retry(attempts=6, first=0.2, cap=4.0))
async def flaky(step: str, fails: int) -> str:
    sink.get().take(step)
    if action.attempt <= fails:
        raise ConnectionError(f"try {action.attempt} of {step}")
    return step


@action(name="perdure.program.fragile", retries=Retry(attempts=2, first=0.2, spent="stuck"))
async def fragile(step: str, fails: int) -> str:
    """More failures than attempts: then somebody has to redrive it."""
    sink.get().take(step)
    if action.attempt <= fails:
        raise ConnectionError(f"try {action.attempt} of {step}")
    return step


@action(name="perdure.program.once", at_most_once=True)
async def once(step: str, takes: float) -> str:
    sink.get().take(step)
    await asyncio.sleep(takes)
    return step


@workflow(name="perdure.program")
async def program(stages: Program, rounds: int = 0) -> list[Any]:
    """Interpret a program, `rounds` times more after a checkpoint each."""
    results: list[Any] = []
    for number, stage in enumerate(stages):
        if len(stage) == 1:
            results.append([await _branch(stage[0], rounds)])
        elif number % 2:
            branches = [asyncio.create_task(_branch(branch, rounds)) for branch in stage]
            try:
                results.append(await asyncio.gather(*branches))
            finally:
                for branch in branches:
                    branch.cancel()
                await asyncio.wait(branches)
        else:
            async with asyncio.TaskGroup() as group:
                branches = [group.create_task(_branch(branch, rounds)) for branch in stage]
            results.append([branch.result() for branch in branches])
    if rounds:
        workflow.restart_with(stages, rounds - 1)
    return results


async def _branch(steps: list[Step], rounds: int) -> list[Any]:
    return [await _step(step, rounds) for step in steps]


async def _step(step: Step, rounds: int) -> Any:
    name, takes = f"{step['name']}.{rounds}", step.get("takes", 0.0)
    match step["do"]:
        case "act":
            return await act(name, takes)
        case "reserve":
            return await reserve(name, takes)
        case "flaky":
            return await flaky(name, step["fails"])
        case "fragile":
            return await fragile(name, step["fails"])
        case "once":
            try:
                return await once(name, takes)
            except ActionFailed:
                return "unknown"
        case "sleep":
            await asyncio.sleep(takes)
            return None
        case "event":
            return await event(name, str)
        case "limited":
            try:
                async with asyncio.timeout(step["limit"]):
                    return await act(name, takes)
            except TimeoutError:
                return "late"
        case "race":
            racers = [asyncio.create_task(act(name, takes)), asyncio.create_task(asyncio.sleep(step["limit"]))]
            try:
                await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for racer in racers:
                    racer.cancel()
                await asyncio.wait(racers)
            return None
        case "tell":
            try:
                await workflow.send(step["to"], "told", name)
            except ActionFailed as error:
                return error.type
            return None
        case "publish":
            workflow.publish(**{step["name"]: rounds})
            return None
        case "record":
            return workflow.record(lambda: "recorded")
        case "child":
            try:
                return await program(step["program"])
            except ChildFailed:
                return "child failed"
        case "fail":
            raise ValueError(name)
        case other:
            raise AssertionError(f"no such step: {other}")


# Drawing them.


def draw(random: Random, depth: int = 0, name: str = "s") -> Program:
    """A program of a few stages; only the outermost one waits for events."""
    stages: Program = []
    for s in range(random.randint(1, 3 if depth else 4)):
        branches = random.choice((1, 1, 2, 3))
        stages.append([_draw_branch(random, depth, f"{name}{s}{'abc'[b]}") for b in range(branches)])
    if random.random() < (0.3 if depth else 0.1):
        stages[-1][-1].append({"do": "fail", "name": f"{name}-fail"})
    return stages


def _draw_branch(random: Random, depth: int, name: str) -> list[Step]:
    return [_draw_step(random, depth, f"{name}{number}") for number in range(random.randint(1, 3))]


def _draw_step(random: Random, depth: int, name: str) -> Step:
    kinds = ["act"] * 4 + ["reserve"] * 2 + ["flaky"] * 3 + ["once"] * 2 + ["sleep"] * 3 + ["publish", "record"]
    kinds += ["limited", "race", "tell", "fragile"] + (["event"] * 3 + ["child"] if depth == 0 else [])
    do = random.choice(kinds)
    step: Step = {"do": do, "name": name}
    match do:
        case "act" | "reserve" | "once" | "limited" | "race":
            step["takes"] = random.choice((0.0, 0.0, 0.05, 0.7, 2.5))
            if do in ("limited", "race"):
                step["limit"] = random.choice((0.5, 2.0, 5.0))
        case "tell":
            step["to"] = f"p{random.randrange(3)}"
        case "flaky":
            step["fails"] = random.choice((0, 1, 2, 4))
        case "fragile":
            step["fails"] = random.choice((0, 1, 2, 5))
        case "sleep":
            step["takes"] = random.choice((0.0, 0.01, 0.4, 1.5, 8.0))
        case "child":
            step["program"] = draw(random, depth + 1, f"{name}-")
        case _:
            pass
    return step


# Predicting them.


def steps(stages: Program) -> Iterator[Step]:
    for stage in stages:
        for branch in stage:
            yield from branch


def events(stages: Program, rounds: int) -> list[str]:
    """The events that an execution of the program waits for."""
    names = [step["name"] for step in steps(stages) if step["do"] == "event"]
    return [f"{name}.{left}" for left in range(rounds, -1, -1) for name in names]


def predict(stages: Program) -> list[Any] | None:
    """The result, with ANY where it depends on faults; None if the program fails."""
    if any(step["do"] == "fail" for step in steps(stages)):
        return None
    return [[[_predict_step(step) for step in branch] for branch in stage] for stage in stages]


def _predict_step(step: Step) -> Any:
    match step["do"]:
        case "act" | "reserve" | "flaky" | "fragile" | "event":
            return f"{step['name']}.0"
        case "sleep" | "publish":
            return None
        case "record":
            return "recorded"
        case "child":
            result = predict(step["program"])
            return "child failed" if result is None else result
        case _:
            return ANY


def agrees(result: Any, predicted: Any) -> bool:
    """Whether a result is what the model says."""
    if predicted == ANY:
        return True
    if isinstance(predicted, list):
        return (
            isinstance(result, list)
            and len(result) == len(predicted)
            and all(agrees(one, other) for one, other in zip(result, predicted, strict=True))
        )
    return bool(result == predicted)
