"""Every failure ends an execution, or leaves it stuck, with problem details and the place of the task that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Do, Graph, Machine, Permanent, Retry, State, To, action, workflow
from perdure.flows.document import Document
from tests.flows.documenting import body
from tests.http.test_api import Door, served


@action(name="failing.charge", retries=0)
async def charge(card: str) -> str:
    if card == "slow":
        await asyncio.sleep(60)
    if card != "good":
        raise Permanent(f"{card} declined")
    return card


@workflow(name="failing-action")
async def by_action() -> None:
    with_note = await charge("good")
    try:
        await charge("first")  # caught: not why it fails
    except Permanent:
        await charge(with_note)
    await charge("second")


@workflow(name="failing-group")
async def by_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(charge("good"))
        group.create_task(charge("bad"))


@workflow(name="failing-timeout")
async def by_timeout() -> None:
    await charge.options(timeout=0.01)("slow")


@workflow(name="failing-child")
async def by_child() -> None:
    await by_action()


@workflow(name="failing-code")
async def by_code() -> None:
    await charge("good")
    raise LookupError("no such order")


@workflow(name="failing-hangs")
async def hangs() -> None:
    await asyncio.get_running_loop().create_future()


@action(name="failing.spent", retries=Retry(attempts=2, first="1ms", spent="stuck"))
async def spent() -> None:
    raise ConnectionError("refused")


@workflow(name="failing-spent")
async def by_attempts() -> None:
    await charge("good")
    await spent()


def graph() -> Graph:
    call = {"action": "failing.charge", "with": ["bad"]}
    nodes: list[dict[str, Any]] = [{"id": "start", "type": "trigger"}, {"id": "pay", "type": "action", "data": call}]
    return Graph({"graph": "failing-graph", "nodes": nodes, "edges": [{"source": "start", "target": "pay"}]})


def machine() -> Machine[Any]:
    states = {"new": State(entry=[Do(charge, ["good"]), Do(charge, ["bad"], name="again")], on={"go": To("new")})}
    return Machine("failing-machine", initial="new", states=states)


def document() -> Document:
    inner = [{"pay": {"call": "failing.charge", "with": {"card": "bad"}}}]
    return Document(body("failing-document", {"both": {"do": inner}}))


CALL = "failing.charge"
URN = "urn:perdure:problem:"
STUCK = {"type": f"{URN}execution-stuck", "status": 500}
DECLINED = {"type": f"{URN}permanent", "title": "Permanent", "status": 500, "kind": "permanent"}
RUNTIME = "https://serverlessworkflow.io/spec/1.0.0/errors/runtime"


@pytest.mark.parametrize(
    ("make", "status", "expected"),
    [
        (lambda: by_action, "failed", {**DECLINED, "detail": "second declined", "instance": f"/actions/4/{CALL}"}),
        (lambda: by_group, "failed", {"title": "ExceptionGroup", "status": 500, "instance": f"/actions/2/{CALL}"}),
        (lambda: by_timeout, "failed", {"title": "TimeoutError", "status": 408, "instance": f"/actions/1/{CALL}"}),
        (lambda: by_child, "failed", {"title": "Permanent", "status": 500, "instance": "/children/1/f1.1"}),
        (lambda: by_code, "failed", {"type": f"{URN}lookup-error", "detail": "no such order", "instance": None}),
        (lambda: hangs, "stuck", {**STUCK, "kind": "never-wakes", "instance": None}),
        (lambda: by_attempts, "stuck", {**STUCK, "kind": "attempts", "instance": "/actions/2/failing.spent"}),
        (graph, "failed", {**DECLINED, "detail": "bad declined (node pay)", "instance": "/nodes/pay"}),
        (machine, "failed", {**DECLINED, "detail": "bad declined", "instance": f"/actions/2/{CALL}"}),
        (document, "failed", {"type": RUNTIME, "status": 500, "instance": "/do/0/both/do/0/pay"}),
    ],
    ids=["action", "group", "timeout", "child", "code", "stuck", "attempts", "graph", "machine", "document"],
)  # fmt: skip
def test_what_fails_tells_why_and_where(make: Callable[[], Any], status: str, expected: dict[str, Any]) -> None:
    async def main(door: Door) -> None:
        run = await door.app.start(make(), id="f1", tenant="acme")
        await run.until("failed", "stuck")
        answer = (await door("GET", "/v1/executions/f1/result?wait=10s")).json()
        assert answer["status"] == status
        problem = answer["problem"]
        assert {key: problem.get(key) for key in expected} == expected
        assert {"type", "title", "status", "detail"} <= problem.keys()
        if "instance" not in problem and status == "failed":
            assert problem["where"].startswith("test_failing.py:")

    served(main)
