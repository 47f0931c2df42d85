"""Workflows of states in few words, for tests."""

from __future__ import annotations

from typing import Any

from perdure import action
from perdure.flows.states import States
from perdure.testing import World

_made: list[str] = []


class Refused(Exception):
    pass


@action(name="stating.echo", retries=0)
async def echo(**given: Any) -> Any:
    """What it is given; a `result` as it is."""
    return given.get("result", given)


@action(name="stating.refuse", retries=0)
async def refuse(kind: str = "Refused") -> None:
    raise type(kind, (Refused,), {})("no")


def body(*states: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": f"stating-{len(_made)}",
        "specVersion": "0.8",
        "functions": [
            {"name": "echo", "type": "custom", "operation": "stating.echo"},
            {"name": "refuse", "type": "custom", "operation": "stating.refuse"},
            *more.pop("functions", []),
        ],
        "states": list(states),
        **more,
    }


def states(*states: dict[str, Any], **more: Any) -> States:
    found = body(*states, **more)
    _made.append(found["id"])
    return States(found)


def echoes(**given: Any) -> dict[str, Any]:
    """An action that gives what it is given."""
    more = {key: given.pop(key) for key in ("actionDataFilter", "sleep", "condition") if key in given}
    return {"functionRef": {"refName": "echo", "arguments": given}, **more}


def refuses(kind: str = "Refused", **more: Any) -> dict[str, Any]:
    return {"functionRef": {"refName": "refuse", "arguments": {"kind": kind}}, **more}


def operation(*actions: dict[str, Any], name: str = "a", **more: Any) -> dict[str, Any]:
    way = {} if "transition" in more or "usedForCompensation" in more else {"end": True}
    return {"name": name, "type": "operation", "actions": list(actions), **way, **more}


async def result(world: World, made: States, input: Any = None, *, send: Any = ()) -> Any:
    run = await world.start(made, {} if input is None else input)
    for name, payload in send:
        await run.send(name, payload)
    return await run.result()
