"""Node graphs for the corpus: the laws of replay are tried on them as on any workflow."""

from __future__ import annotations

from typing import Any

from perdure import action
from perdure.flows.graph import Graph, build
from tests.corpus.workflows import CORPUS, Member
from tests.flows.making import body

#: Their names.
GRAPHS: list[str] = []


@action(name="graphs.book")
def book(what: str, seat: int) -> str:
    return f"{what}-{seat}"


@book.undo
def graphs_unbook(what: str, seat: int, ticket: str) -> None:
    pass


def step(name: str, n: Any = 0, **more: Any) -> tuple[str, dict[str, Any]]:
    return "action", {"action": "corpus.step", "with": {"name": name, "n": n}, **more}


def wait(*names: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "wait", {"events": [{"name": name} for name in names], **more}


def delay(seconds: float) -> tuple[str, dict[str, Any]]:
    return "delay", {"duration": seconds}


def add(
    name: str,
    nodes: dict[str, Any],
    *ways: str,
    events: tuple[tuple[str, Any], ...] = (),
    input: Any = None,
    **more: Any,
) -> Graph:
    made = build(body(f"corpus.{name}", {"start": "trigger", **nodes}, *ways, **more), version=1)
    CORPUS[name] = Member(name, made, events, (input,))
    GRAPHS.append(name)
    return made


add(
    "graph_of_actions",
    {"a": step("a"), "b": step("b", "${ .outputs.a }"), "end": ("end", {"result": "${ .outputs }"})},
    "start > a > b > end",
)

add(
    "graph_that_handles",
    {
        "a": step("a"),
        "b": step("b", onError="continue"),
        "sorry": step("sorry", onError="continue"),
        "end": ("end", {"result": "${ .outputs }"}),
        "bad": ("end", {"result": "${ .outputs.a.error.type }"}),
    },
    "start > a > b > end",
    "a:error > sorry > bad",
)

add(
    "graph_of_splits",
    {
        "p": "parallel",
        "a": step("a"),
        "nap": delay(1.5),
        "b": step("b"),
        "q": "parallel",
        "c": step("c", onError="continue"),
        "d": wait("d"),
        "cd": ("join", {"mode": "any"}),
        "all": "join",
        "end": ("end", {"result": "${ [.outputs.all, .variables] }"}),
        "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
    },
    "start > p > a > all",
    "p > nap > b > all",
    "p > q > c > cd > count > all",
    "q > d > cd",
    "all > end",
    events=(("d", 1), ("x", 2)),
    variables={"n": 0},
)

add(
    "graph_of_waits",
    {
        "p": "parallel",
        "two": wait("a", "b", "c", mode=2, timeout=5),
        "late": step("late"),
        "ask": (
            "person",
            {"task": "${ .trigger }", "form": {"type": "integer"}, "timeout": 4, "event": "answer"},
        ),
        "nobody": step("nobody"),
        "join": "join",
        "last": wait("a", timeout=3),
        "end": ("end", {"result": "${ .outputs }"}),
    },
    "start > p > two > join",
    "two:timeout > late > join",
    "p > ask > join",
    "ask:timeout > nobody > join",
    "join > last > end",
    "last:timeout > end",
    events=(("a", 1), ("answer", "wrong"), ("c", 3), ("answer", 4), ("b", 5), ("a", 6)),
    input="well?",
)

add(
    "graph_of_loops",
    {
        "rows": (
            "loop",
            {"items": "${ .trigger }", "as": "row", "mode": "parallel", "limit": 2, "onError": "continue"},
        ),
        "cells": ("loop", {"items": "${ .row }", "as": "cell"}),
        "nap": delay(0.5),
        "do": step("do", "${ .cell }"),
        "sum": step("sum", "${ .outputs.cells | add // 0 }"),
        "end": ("end", {"result": "${ .outputs.rows }"}),
    },
    "start > rows:each > cells:each > nap > do > cells",
    "cells:done > sum > rows",
    "rows:done > end",
    input=[[1, 2], [3], [], [4, 5, 6]],
)

add(
    "graph_of_undos",
    {
        "book": ("action", {"action": "graphs.book", "with": {"what": "hotel", "seat": 1}}),
        "p": "parallel",
        "car": ("action", {"action": "graphs.book", "with": {"what": "car", "seat": 2}, "onError": "compensate"}),
        "nap": delay(1),
        "bus": ("action", {"action": "graphs.book", "with": {"what": "bus", "seat": 3}}),
        "first": ("join", {"mode": "any"}),
        "go": wait("go", timeout=2),
        "end": ("end", {"status": "failed", "message": "nobody goes"}),
    },
    "start > book > p > car > first > go:timeout > end",
    "p > nap > bus > first",
    events=(("go", 1),),
)

add(
    "graph_of_circles",
    {
        "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
        "do": step("do", "${ .variables.n }", onError="continue"),
        "p": "parallel",
        "nap": delay(0.2),
        "on": wait("on", timeout=1),
        "join": "join",
        "enough": ("condition", {"when": ".variables.n == 9"}),
        "end": ("end", {"result": "${ .outputs.do }"}),
    },
    "start > count > do > p > nap > join > enough:true > end",
    "p > on > join",
    "on:timeout > join",
    "enough:false > count",
    events=(("on", 1), ("on", 2), ("on", 3)),
    variables={"n": 0},
)

add(
    "graph_with_children",
    {
        "p": "parallel",
        "a": ("child", {"workflow": "corpus.child", "with": {"n": 1}, "onError": "continue"}),
        "b": ("child", {"workflow": "corpus.child", "with": [2]}),
        "first": ("join", {"mode": "any"}),
        "end": "end",
    },
    "start > p > a > first > end",
    "p > b > first",
)

add(
    "graph_that_stops",
    {
        "p": "parallel",
        "a": step("a"),
        "on": wait("on"),
        "stop": ("end", {"result": "stopped", "stop": True}),
        "halt": ("end", {"result": "halted", "stop": True}),
        "each": ("loop", {"items": [1, 2, 3], "mode": "parallel"}),
        "nap": delay(30),
        "two": ("condition", {"when": ".item == 2"}),
    },
    "start > p > a > stop",
    "p > on > each:each > two:true > halt",
    "two:false > nap > each",
    events=(("on", 1),),
)
