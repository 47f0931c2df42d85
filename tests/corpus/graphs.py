"""Node graphs for the corpus: the laws of replay are tried on them as on any workflow."""

from __future__ import annotations

from typing import Any

from perdure import action
from perdure.flows.graph import Graph
from tests.corpus.workflows import CORPUS, Events, Member, happen
from tests.flows.making import body

#: Their names.
GRAPHS: list[str] = []


@action(name="graphs.book")
def book(what: str, seat: int) -> str:
    happen()
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
    events: Events = (),
    input: Any = None,
    **more: Any,
) -> Graph:
    made = Graph(body(f"corpus.{name}", {"start": "trigger", **nodes}, *ways, **more))
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


def circles(name: str, rounds: int, *events: tuple[str, Any]) -> None:
    add(
        name,
        {
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
            "do": step("do", "${ .variables.n }", onError="continue"),
            "p": "parallel",
            "nap": delay(0.2),
            "on": wait("on", timeout=1),
            "join": "join",
            "enough": ("condition", {"when": f".variables.n == {rounds}"}),
            "end": ("end", {"result": "${ .outputs.do }"}),
        },
        "start > count > do > p > nap > join > enough:true > end",
        "p > on > join",
        "on:timeout > join",
        "enough:false > count",
        events=events,
        variables={"n": 0},
    )


circles("graph_of_circles", 9, ("on", 1), ("on", 2), ("on", 3))
circles("graph_of_few_circles", 2, ("on", 1))

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

# --- one rule after the other ----------------------------------------------------------------------------------------


def fails(kind: str = "ValueError", **more: Any) -> tuple[str, dict[str, Any]]:
    return "action", {"action": "corpus.fails", "with": {"kind": kind}, **more}


def books(what: str, seat: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "action", {"action": "graphs.book", "with": [what, seat], **more}


add(
    "graph_of_triggers",
    {
        "paid": ("trigger", {"event": "payment", "schema": {"type": "object", "required": ["cents"]}}),
        "by_hand": step("by hand"),
        "check": step("check", "${ .trigger.cents }"),
        "none": ("end", {"result": "by hand"}),
        "end": ("end", {"result": "${ [.trigger.cents, .outputs.check, .metadata.unit] }"}),
    },
    "start > by_hand > none",
    "paid > check > end",
    input={"trigger": "paid", "payload": {"cents": 7}},
    metadata={"unit": "EUR"},
)

add(
    "graph_of_choices",
    {
        "each": ("loop", {"items": "${ .trigger }"}),
        "which": (
            "switch",
            {
                "value": "${ .item }",
                "cases": [
                    {"equals": 1, "handle": "one"},
                    {"equals": True, "handle": "yes"},
                    {"when": ".item == null", "handle": "nothing"},
                ],
            },
        ),
        "one": step("one", "${ .index }"),
        "yes": ("set", {"variables": {"yes": "${ .variables.yes + 1 }"}}),
        "nothing": ("end", {"result": "nothing"}),
        "other": ("condition", {"when": ".item | length > 2"}),
        "long": step("long"),
        "end": ("end", {"result": "${ [.outputs.each, .variables] }"}),
    },
    "start > each:each > which:one > one > each",
    "which:yes > yes > each",
    "which:nothing > nothing",
    "which:default > other:true > long > each",
    "other:false > each",
    "each:done > end",
    input=[1, True, None, "xyz", "x", 1, True],
    variables={"yes": 0},
)

add(
    "graph_of_numbers",
    {
        "p": "parallel",
        "a": step("a"),
        "b": step("b"),
        "never": delay(3600),
        "two": ("join", {"mode": 2}),
        "q": "parallel",
        "order": (
            "wait",
            {"events": [{"name": "paid", "match": {"order": "${ .trigger }"}}, {"name": "packed"}], "mode": "all"},
        ),
        "some": wait("x", "y", "z", mode=2),
        "first": wait("m", "n", mode="any"),
        "all": "join",
        "end": ("end", {"result": "${ [.outputs.two, .outputs.all] }"}),
    },
    "start > p > a > two > q > order > all > end",
    "p > b > two",
    "p > never > two",
    "q > some > all",
    "q > first > all",
    events=(
        *[("z", 1), ("paid", {"order": 8}), ("n", 2), ("packed", 3)],
        *[("x", 4), ("paid", {"order": 7}), ("m", 5), ("y", 6)],
    ),
    input=7,
)

add(
    "graph_of_people",
    {
        "late": ("person", {"task": "be quick", "timeout": "300ms"}),
        "each": ("loop", {"items": ["a", "b"], "as": "who", "mode": "parallel"}),
        "ask": (
            "person",
            {
                "task": '${ "ask " + .who }',
                "roles": ["boss"],
                "form": {"type": "object", "required": ["ok"]},
                "assign": "${ .who }",
                "timeout": "1h",
            },
        ),
        "nobody": ("end", {"status": "failed", "message": "nobody answered"}),
        "end": ("end", {"result": "${ .outputs.each }"}),
    },
    "start > late:timeout > each:each > ask > each",
    "late > each",
    "ask:timeout > nobody",
    "each:done > end",
    events=(
        ("each[1]/ask", {"ok": 1}, "eve", ("clerk",)),
        ("each[0]/ask", {"no": 1}, "ann", ("boss",)),
        ("each[1]/ask", {"ok": 2}, "ann", ("boss",)),
        ("each[0]/ask", {"ok": 3}, "ann", ("boss", "clerk")),
    ),
)

add(
    "graph_of_errors",
    {
        "p": "parallel",
        "goes_on": fails(onError="continue"),
        "handled": fails("Declined"),
        "sorry": step("sorry"),
        "again": fails(retries=1, onError="continue"),
        "odd": ("condition", {"when": ".trigger | keys", "onError": "handle"}),
        "rounds": ("loop", {"items": [1, 2, 3], "onError": "continue"}),
        "second": ("condition", {"when": ".item == 2"}),
        "bad": fails(),
        "good": step("good", "${ .item }"),
        "lost": ("child", {"workflow": "corpus.lost_child", "with": [1], "onError": "handle"}),
        "found": step("found"),
        "join": "join",
        "end": ("end", {"result": "${ .outputs.join }"}),
    },
    "start > p > goes_on > join > end",
    "p > handled > join",
    "handled:error > sorry > join",
    "p > again > join",
    "p > odd:true > join",
    "odd:error > join",
    "p > rounds:each > second:true > bad > rounds",
    "second:false > good > rounds",
    "rounds:done > join",
    "p > lost > join",
    "lost:error > found > join",
    input=5,
)

add(
    "graph_that_undoes",
    {
        "hotel": books("hotel", 1),
        "p": "parallel",
        "never": delay(3600),
        "each": ("loop", {"items": [2, 3, 4], "onError": "continue"}),
        "car": books("car", "${ .item }"),
        "third": ("condition", {"when": ".item == 3"}),
        "bad": fails(onError="compensate"),
        "join": "join",
    },
    "start > hotel > p > never > join",
    "p > each:each > car > third:true > bad > each",
    "third:false > each",
    "each:done > join",
)

add(
    "graph_of_dead_ends",
    {
        "p": "parallel",
        "a": step("a"),
        "b": step("b"),
        "no": ("condition", {"when": "false"}),
        "nap": delay(0.3),
        "off": ("end", {"result": "off"}),
        "join": "join",
        "last": step("last"),
        "end": "end",
    },
    "start > p > a > join > last > end",
    "p > b > no:true > join",
    "no:false > off",
    "p > nap > join",
)

add(
    "graph_of_delays",
    {
        "p": "parallel",
        "ms": ("delay", {"duration": 200, "unit": "milliseconds"}),
        "text": ("delay", {"duration": "PT0.6S"}),
        "told": ("delay", {"duration": "${ .trigger }"}),
        "bad": ("delay", {"duration": "${ .trigger | keys }", "onError": "continue"}),
        "one": ("end", {"result": "one"}),
        "two": ("end", {"result": "two"}),
        "three": ("end", {"result": "${ .outputs.bad }"}),
    },
    "start > p > ms > one",
    "p > text > two",
    "p > told",
    "p > bad > three",
    input=0.4,
)

add(
    "graph_of_children_in_turn",
    {
        "named": ("child", {"workflow": "corpus.child", "with": {"n": 1}}),
        "listed": ("child", {"workflow": "corpus.child", "with": ["${ .outputs.named }"]}),
        "each": ("loop", {"items": [1, 2, 3], "mode": "parallel", "limit": 2}),
        "many": ("child", {"workflow": "corpus.child", "with": ["${ .item }"]}),
        "drawn": ("child", {"workflow": "corpus.graph_of_actions", "with": None}),
        "bad": ("child", {"workflow": "corpus.lost_child", "with": [2], "onError": "continue"}),
        "end": ("end", {"result": "${ .outputs }"}),
    },
    "start > named > listed > each:each > many > each",
    "each:done > drawn > bad > end",
)

add(
    "graph_that_asks",
    {
        "p": "parallel",
        "each": ("loop", {"items": "[range(25)]"}),
        "ask": ("person", {"task": "${ .item }", "form": {"type": "integer"}}),
        "nap": delay(0.3),
        "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
        "more": ("condition", {"when": ".variables.n < 25"}),
        "join": "join",
        "end": ("end", {"result": "${ [.outputs.each, .variables.n] }"}),
    },
    "start > p > each:each > ask > each",
    "each:done > join",
    "p > nap > count > more:true > nap",
    "more:false > join > end",
    variables={"n": 0},
)
