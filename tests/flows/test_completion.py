"""How workflows of both versions of the DSL end: the stated status, exactly once, whatever happens on the way.

One table says for each way to end what the end is. Every row is run live, replayed from every prefix of its log, and
crashed at every call of its worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from perdure import action
from perdure.core import events as ev
from perdure.core.cloudevents import CloudEvent
from perdure.core.commands import Asked
from perdure.core.records import Row
from perdure.flows.described import Described
from perdure.flows.document import Document
from perdure.flows.states import States
from perdure.runtime.run import Run
from perdure.testing import World
from tests.corpus.drive import SEEDS, Case, Drive, law
from tests.corpus.workflows import CORPUS, Declined, Member

HOUR = {"wait": "PT1H"}
ERRORS = "https://serverlessworkflow.io/spec/1.0.0/errors/"


@action(name="completion.do", retries=0)
def do(what: str) -> dict[str, str]:
    return {what: "done"}


@action(name="completion.fail", retries=0)
def fail() -> None:
    raise Declined("no")


class Stated(Struct, frozen=True):
    """A workflow and its end: the result, or the type of the problem."""

    workflow: Described
    status: str
    end: Any
    send: tuple[tuple[str, Any], ...] = ()
    nodes: dict[str, str] = {}  # how some of its nodes settled, the last time
    order: tuple[str, ...] = ()  # what the log has of these, in this order


ROWS: dict[str, Stated] = {}


def one(
    name: str, body: dict[str, Any], *, end: Any = None, fails: str = "", send: Any = (), order: Any = (), **nodes: str
) -> None:
    """A document of version 1.0. Nodes are given by their names."""
    about = {"dsl": "1.0.3", "namespace": "completion", "name": name.replace("_", "-"), "version": "1.0.0"}
    made = Document({"document": about, **body})
    ROWS[f"one_{name}"] = _row(made, end, fails, send, order, nodes)


def eight(
    name: str, *states: dict[str, Any], end: Any = None, fails: str = "", send: Any = (), order: Any = (), **more: Any
) -> None:
    """A workflow of version 0.8; nodes under `nodes`."""
    made = States(eight_body(f"completion-{name}", *states, **more))
    ROWS[f"eight_{name}"] = _row(made, end, fails, send, order, more.get("nodes", {}))


def _row(made: Described, end: Any, fails: str, send: Any, order: Any, nodes: dict[str, str]) -> Stated:
    if fails:
        return Stated(made, "failed", fails if "/" in fails else ERRORS + fails, send, nodes, order)
    return Stated(made, "completed", end, send, nodes, order)


def eight_body(id: str, *states: dict[str, Any], **more: Any) -> dict[str, Any]:
    more.pop("nodes", None)
    return {
        "id": id,
        "specVersion": "0.8",
        "functions": [
            {"name": "do", "type": "custom", "operation": "completion.do"},
            {"name": "fail", "type": "custom", "operation": "completion.fail"},
        ],
        "errors": [{"name": "Declined"}, {"name": "Late", "code": "408"}],
        "events": [
            {"name": "go", "type": "completion.go", "source": "/test"},
            {"name": "out", "type": "completion.out", "kind": "produced"},
        ],
        "states": list(states),
        **more,
    }


def does(what: str, **more: Any) -> dict[str, Any]:
    return {"name": what, "functionRef": {"refName": "do", "arguments": {"what": what}}, **more}


def later(what: str) -> dict[str, Any]:
    """An action that takes an hour."""
    return does(what, sleep={"before": "PT1H"})


FAILS = {"name": "fails", "functionRef": "fail"}


def state(name: str, *actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "operation",
        "actions": list(actions),
        **({"end": True} | more if _ends(more) else more),
    }


def _ends(more: dict[str, Any]) -> bool:
    return "transition" not in more and "end" not in more and "usedForCompensation" not in more


def quick(name: str, **more: Any) -> dict[str, Any]:
    """Two branches, of which the state waits for one; the other takes an hour."""
    return {
        "name": name,
        "type": "parallel",
        "completionType": "atLeast",
        "numCompleted": 1,
        "branches": [{"name": "fast", "actions": [does("fast")]}, {"name": "slow", "actions": [later("slow")]}],
        **more,
    }


SLOW = "/states/p/branches/1/slow"

# --- version 1.0 -----------------------------------------------------------------------------------------------------

one("last_task", {"do": [{"a": {"set": {"n": 1}}}, {"b": {"set": {"n": "${ .n + 1 }"}}}]}, end={"n": 2})
one("then_end", {"do": [{"a": {"set": {"n": 1}, "then": "end"}}, {"b": {"set": {"n": 2}}}]}, end={"n": 1})
one(
    "end_in_a_branch",
    {
        "do": [
            {
                "p": {
                    "fork": {
                        "branches": [
                            {"slow": HOUR},
                            {"quick": {"do": [{"nap": {"wait": "PT1S"}}, {"a": {"set": {"n": 1}, "then": "end"}}]}},
                        ]
                    }
                }
            },
            {"b": {"set": {"n": 2}}},
        ]
    },
    end={"n": 1},
    slow="cancelled",
    p="completed",
)
one(
    "end_in_a_loop",
    {
        "do": [
            {
                "each": {
                    "for": {"each": "n", "in": "${ [1, 2, 3] }"},
                    "do": [
                        {"nap": {"wait": "PT1S"}},
                        {"a": {"if": "${ $n == 2 }", "set": {"n": "${ $n }"}, "then": "end"}},
                    ],
                }
            },
            {"b": {"set": {"n": 9}}},
        ]
    },
    end={"n": 2},
)
one("exit_of_the_main_list", {"do": [{"a": {"set": {"n": 1}, "then": "exit"}}, {"b": {"set": {"n": 2}}}]}, end={"n": 1})
one(
    "exit_of_an_inner_list",
    {
        "do": [
            {"inner": {"do": [{"a": {"set": {"n": 1}, "then": "exit"}}, {"b": {"set": {"n": 5}}}]}},
            {"c": {"set": {"n": "${ .n + 1 }"}}},
        ]
    },
    end={"n": 2},
)
one(
    "exit_of_a_round",
    {
        "do": [
            {
                "each": {
                    "for": {"each": "n", "in": "${ [1, 2, 3] }"},
                    "do": [{"a": {"set": {"n": "${ $n }"}, "then": "exit"}}, {"b": {"set": {"n": 9}}}],
                }
            }
        ]
    },
    end={"n": 3},
)
one(
    "output",
    {
        "do": [{"a": {"set": {"n": 1}}}],
        "output": {"as": "${ {total: .n} }", "schema": {"document": {"required": ["total"]}}},
    },
    end={"total": 1},
)
one(
    "output_that_does_not_fit",
    {"do": [{"a": {"set": {"n": 1}}}], "output": {"schema": {"document": {"required": ["total"]}}}},
    fails="validation",
)
one(
    "an_error_that_nobody_catches",
    {
        "do": [
            {"a": {"raise": {"error": {"type": "https://x.example/no", "status": 409}}}},
            {"b": {"set": {"n": 2}}},
        ]
    },
    fails="https://x.example/no",
    a="failed",
)
one("the_timeout", {"do": [{"a": HOUR}], "timeout": {"after": "PT1M"}}, fails="timeout", a="cancelled")

# --- version 0.8 -----------------------------------------------------------------------------------------------------

eight("last_state", state("a", does("a"), transition="b"), state("b", does("b")), end={"a": "done", "b": "done"})
eight(
    "end_of_one_path",
    quick("p", transition="b"),
    state("b", does("b")),
    end={"fast": "done", "b": "done"},
    nodes={SLOW: "completed", f"{SLOW}/actions/0/slow": "completed"},
)
eight(
    "end_in_a_parallel",
    quick("p", end=True),
    end={"fast": "done"},
    nodes={SLOW: "completed"},
)
eight(
    "terminate_in_a_parallel",
    quick("p", end={"terminate": True}),
    end={"fast": "done"},
    nodes={SLOW: "cancelled", f"{SLOW}/actions/0/slow": "cancelled"},
)
eight(
    "terminate_while_a_branch_goes_on",
    quick("p", transition="b"),
    state("b", does("b"), end={"terminate": True}),
    end={"fast": "done", "b": "done"},
    nodes={SLOW: "cancelled"},
)
eight(
    "terminate_by_a_failing_branch",
    {
        "name": "p",
        "type": "parallel",
        "branches": [{"name": "bad", "actions": [FAILS]}, {"name": "slow", "actions": [later("slow")]}],
        "onErrors": [{"errorRef": "Declined", "end": {"terminate": True}}],
        "end": True,
    },
    end={},
    nodes={SLOW: "cancelled", "/states/p": "failed"},
)
eight(
    "terminate_in_a_foreach",
    {
        "name": "f",
        "type": "foreach",
        "inputCollection": "${ [1, 2, 3] }",
        "iterationParam": "n",
        "actions": [
            does("slow", condition="${ .n != 2 }", sleep={"before": "PT1H"}),
            FAILS | {"condition": "${ .n == 2 }"},
        ],
        "onErrors": [{"errorRef": "Declined", "end": {"terminate": True}}],
        "end": True,
    },
    end={},
    nodes={"/states/f[0]/actions/0/slow": "cancelled", "/states/f[1]/actions/1/fails": "failed"},
)
eight(
    "a_call_that_nobody_waits_for",
    state("a", {"name": "x", "functionRef": {"refName": "fail", "invoke": "async"}, "sleep": {"before": "PT1H"}}),
    end={},
    nodes={"/states/a": "completed", "/states/a/actions/0/x": "failed"},
)
eight(
    "terminate_with_a_call_that_nobody_waits_for",
    state(
        "a",
        {"name": "x", "functionRef": {"refName": "fail", "invoke": "async"}, "sleep": {"before": "PT1H"}},
        end={"terminate": True},
    ),
    end={},
    nodes={"/states/a/actions/0/x": "cancelled"},
)
eight(
    "a_path_that_begins_another",
    {
        "name": "p",
        "type": "parallel",
        "completionType": "atLeast",
        "numCompleted": 1,
        "branches": [
            {"name": "fast", "actions": [does("fast")]},
            {
                "name": "slow",
                "actions": [
                    later("slow"),
                    {"name": "x", "functionRef": {"refName": "fail", "invoke": "async"}, "sleep": {"before": "PT1H"}},
                ],
            },
        ],
        "end": True,
    },
    end={"fast": "done"},
    nodes={SLOW: "completed", f"{SLOW}/actions/1/x": "failed"},
)
eight(
    "a_child_that_ends_with_it",
    state("a", {"subFlowRef": {"workflowId": "completion-part", "invoke": "async"}}, does("a")),
    end={"a": "done"},
    nodes={"/states/a/actions/0/completion-part": "cancelled"},
)
eight("keep_active_terminated", state("a", does("a"), end={"terminate": True}), end={"a": "done"}, keepActive=True)
eight(
    "keep_active_until_the_timeout",
    state("a", does("a")),
    end={"a": "done"},
    keepActive=True,
    timeouts={"workflowExecTimeout": "PT1H"},
)
eight(
    "keep_active_until_a_timeout_that_does_not_interrupt",
    quick("p", end=True),
    end={"fast": "done"},
    keepActive=True,
    timeouts={"workflowExecTimeout": {"duration": "PT1M", "interrupt": False}},
    nodes={SLOW: "completed"},
)
eight(
    "the_timeout",
    {"name": "s", "type": "sleep", "duration": "PT2H", "end": True},
    state("bye", does("bye")),
    fails="timeout",
    timeouts={"workflowExecTimeout": {"duration": "PT1H", "runBefore": "bye"}},
    nodes={"/states/s": "cancelled", "/states/bye": "completed"},
)
eight(
    "a_timeout_that_does_not_interrupt",
    {"name": "s", "type": "sleep", "duration": "PT2H", "transition": "b"},
    state("b", does("b")),
    fails="timeout",
    timeouts={"workflowExecTimeout": {"duration": "PT1H", "interrupt": False}},
    nodes={"/states/s": "completed"},
)
eight(
    "a_timeout_that_the_last_state_outlives",
    {"name": "s", "type": "sleep", "duration": "PT2H", "end": True},
    end={},
    timeouts={"workflowExecTimeout": {"duration": "PT1H", "interrupt": False}},
)
eight(
    "compensation_in_reverse",
    state("a", does("a"), compensatedBy="undo a", transition="b"),
    state("b", does("b"), compensatedBy="undo b", transition="c"),
    quick("c", compensatedBy="undo c", transition="d"),
    state("d", does("d"), transition={"nextState": "e", "compensate": True}),
    state("e", does("e")),
    state("undo a", does("ua"), usedForCompensation=True),
    state("undo b", does("ub"), usedForCompensation=True, transition="more b"),
    state("more b", does("mb"), usedForCompensation=True),
    state("undo c", does("uc"), usedForCompensation=True),
    end=dict.fromkeys(["a", "b", "fast", "d", "uc", "ub", "mb", "ua", "e"], "done"),
    order=("/states/d", "/states/undo c", "/states/undo b", "/states/more b", "/states/undo a", "/states/e"),
    nodes={"/states/c/branches/1/slow": "cancelled"},
)
eight(
    "a_compensation_that_fails",
    state("a", does("a"), compensatedBy="undo", transition="b"),
    state("b", does("b"), end={"compensate": True}),
    state("undo", FAILS, usedForCompensation=True),
    fails="runtime",
    nodes={"/states/undo": "failed"},
)
eight(
    "the_order_at_the_end",
    state(
        "a",
        does("a"),
        compensatedBy="undo",
        end={
            "compensate": True,
            "produceEvents": [{"eventRef": "out", "data": "${ . }"}],
            "continueAs": {"workflowId": "completion-next", "data": "${ {n: 1} }"},
        },
    ),
    state("undo", does("undo"), usedForCompensation=True),
    end={"n": 1, "next": "done"},
    order=("/states/a", "/states/undo", "perdure.emit", "completion-next"),
)
eight(
    "a_parent_sees_one_invocation",
    state("a", {"subFlowRef": "completion-first"}),
    end={"n": 3, "next": "done"},
)
eight(
    "it_continues_as_itself",
    {
        "name": "more",
        "type": "switch",
        "dataConditions": [{"condition": "${ (.n // 0) < 3 }", "transition": "again"}],
        "defaultCondition": {"end": True},
    },
    {
        "name": "again",
        "type": "sleep",
        "duration": "PT1M",
        "end": {"continueAs": {"workflowId": "completion-it_continues_as_itself", "data": {"n": "${ (.n // 0) + 1 }"}}},
    },
    end={"n": 3},
    timeouts={"workflowExecTimeout": "PT2M"},
)
eight(
    "an_error_that_is_named",
    state("a", does("a"), FAILS, onErrors=[{"errorRef": "Declined", "transition": "b"}]),
    state("b", does("b")),
    end={"a": "done", "b": "done"},
    nodes={"/states/a": "failed"},
)
eight(
    "an_error_that_ends_it",
    state("a", FAILS, onErrors=[{"errorRefs": ["Late", "Declined"], "end": True}]),
    end={},
)
eight(
    "a_timeout_of_a_state_that_is_named",
    {
        "name": "s",
        "type": "sleep",
        "duration": "PT2H",
        "timeouts": {"stateExecTimeout": "PT1M"},
        "onErrors": [{"errorRef": "Late", "transition": "b"}],
        "end": True,
    },
    state("b", does("b")),
    end={"b": "done"},
)
eight(
    "an_error_that_is_not_known",
    state("a", FAILS, onErrors=[{"errorRef": "Late", "end": True}], transition="b"),
    state("b", does("b")),
    fails="runtime",
    nodes={"/states/a": "failed"},
)
eight(
    "an_event_that_ends_it",
    {
        "name": "w",
        "type": "switch",
        "eventConditions": [{"eventRef": "go", "end": {"terminate": True}}],
        "defaultCondition": {"transition": "b"},
    },
    state("b", does("b")),
    send=(("completion.go", {"x": 1}),),
    end={"x": 1},
)
PART = States(eight_body("completion-part", {"name": "s", "type": "sleep", "duration": "P1D", "end": True}))
NEXT = States(eight_body("completion-next", state("a", does("next"))))
FIRST = States(
    eight_body("completion-first", state("a", does("a"), end={"continueAs": {"workflowId": "completion-second"}}))
)
SECOND = States(
    eight_body(
        "completion-second",
        state("a", does("b"), end={"continueAs": {"workflowId": "completion-next", "data": "${ {n: 3} }"}}),
    )
)

each = pytest.mark.parametrize("name", ROWS)


def read(rows: list[Row]) -> list[Any]:
    return [ev.read(row) for row in rows]


def check_log(row: Stated, log: list[Any]) -> None:
    """One end, everything that began has settled before it, and what the row says of the order."""
    ends = [event for event in log if isinstance(event, ev.Completed | ev.Failed | ev.Cancelled)]
    assert ends == [log[-1]]
    begun = Counter(event.node for event in log if isinstance(event, ev.NodeStarted))
    settled = Counter(event.node for event in log if isinstance(event, ev.NodeSettled))
    assert begun == settled
    how = {event.node: event.status for event in log if isinstance(event, ev.NodeSettled)}
    for node, status in row.nodes.items():
        found = [value for path, value in how.items() if path == node or path.rpartition("/")[2] == node]
        assert set(found) == {status}, node
    if row.order:
        seen = [mark for event in log if (mark := _mark(event)) in row.order]
        assert tuple(dict.fromkeys(seen)) == row.order


def _mark(event: Any) -> str:
    match event:
        case ev.NodeSettled(node=node):
            return node
        case ev.ActionSettled(name=name):
            return name
        case ev.ChildStarted(workflow=name):
            return name
        case _:
            return ""


async def check_run(row: Stated, world: World, run: Run[Any]) -> None:
    head = await run.head()
    assert head.status == row.status
    found = msgspec.json.decode(head.result)
    assert (found["details"]["type"] if row.status == "failed" else found) == row.end
    check_log(row, read(await world.rows(run.key)))


@each
async def test_it_ends_as_stated_and_once(name: str, world: World) -> None:
    row = ROWS[name]
    run = await world.start(row.workflow, {})
    for sent, payload in row.send:
        await run.send(sent, payload)
    await run.until("completed", "failed", "cancelled")
    await check_run(row, world, run)
    await world.advance("2d")
    await check_run(row, world, run)


class Ending(Drive):
    """Plays the outside. While it is patient, an hour does not pass before an action, and a child takes longest."""

    patient = True

    def choices(self) -> list[tuple[str, Any]]:
        found = super().choices()
        rank = min((_RANK.get(kind, 0) for kind, _ in found), default=0)
        return [one for one in found if not self.patient or _RANK.get(one[0], 0) == rank]

    def result(self, asked: Asked) -> ev.ActionSettled:
        if asked.spec.name != "perdure.emit":
            return super().result(asked)
        event = CloudEvent("1", "/test", "completion.out", datetime(2030, 1, 1, tzinfo=UTC))
        return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, Raw(msgspec.json.encode(event)))

    def child_result(self, asked: Asked) -> ev.ChildSettled:
        return ev.ChildSettled(asked.ref, f"run.{asked.ref}", Raw(b'{"child":1}'))


_RANK = {"timer": 1, "child": 2}


class Hasty(Ending):
    patient = False


@pytest.fixture
def member(name: str) -> Iterator[Stated]:
    row = ROWS[name]
    CORPUS[name] = Member(name, row.workflow, row.send, ({},))
    yield row
    del CORPUS[name]


@each
def test_every_prefix_of_its_log_replays(name: str, member: Stated) -> None:
    for seed in range(2 * SEEDS):
        live = Ending(Case(name, seed, noise=False), relive=seed == 1).run()
        law(live)
        check_log(member, read(live.rows))
        assert type(live.replay.outcome).__name__ == member.status.capitalize()


@each
def test_it_ends_once_in_whatever_order_things_happen(name: str, member: Stated) -> None:
    for seed in range(4 * SEEDS):
        live = Hasty(Case(name, seed, cancel_at=seed if seed % 2 else -1)).run()
        law(live)
        check_log(Stated(member.workflow, "", None), read(live.rows))


@each
async def test_a_crash_at_any_point_changes_nothing(name: str, world: World) -> None:
    row = ROWS[name]

    async def check(run: Run[Any]) -> None:
        head = await run.head()
        assert head.status == row.status

    # An event has the time at which it was let out, which a crash may change.
    same = "perdure.emit" not in row.order
    report = await world.crash_everywhere(row.workflow, {}, send=row.send, check=check, same_inputs=same)
    assert report.status == row.status


async def test_what_is_kept_active_ends_by_nothing_but_a_cancel(world: World) -> None:
    kept = States(eight_body("completion-kept", state("a", does("a")), keepActive=True))
    run = await world.start(kept, {})
    await world.advance("365d")
    assert await run.status() == "waiting"
    await run.cancel()
    await run.until("completed", "failed", "cancelled")
    log = read(await world.rows(run.key))
    assert [type(event) for event in log if isinstance(event, ev.Completed | ev.Cancelled)] == [ev.Cancelled]
