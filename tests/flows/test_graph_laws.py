"""Graphs beyond the laws of replay: positions, random graphs against a model, crashes at every point, many at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, TypeAlias
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Raw, Struct

from perdure import action
from perdure.core import events as ev
from perdure.flows.graph import Graph, build
from perdure.testing import World
from tests.corpus.drive import SEEDS, Case, Drive, cases, law
from tests.corpus.graphs import GRAPHS
from tests.corpus.moving import Moving, end_of
from tests.corpus.workflows import CORPUS, Member
from tests.flows.making import body, graph

each_graph = pytest.mark.parametrize("name", GRAPHS)
#: Those in which an action or a child is under way for as long as they last.
NEVER_AT_REST = (
    *("graph_of_actions", "graph_that_handles", "graph_with_children", "graph_that_stops", "graph_of_triggers"),
    *("graph_of_choices", "graph_of_errors", "graph_that_undoes", "graph_of_children_in_turn"),
)


@each_graph
def test_every_node_that_started_has_settled_when_it_is_over(name: str) -> None:
    for case in cases(3 * SEEDS, [name], noise=False):
        live = Drive(case).run()
        if live.replay.outcome is None:
            continue
        log = [ev.read(row) for row in live.rows]
        begun = Counter(event.node for event in log if isinstance(event, ev.NodeStarted))
        over = Counter(event.node for event in log if isinstance(event, ev.NodeSettled))
        assert begun == over, str(case)
        assert live.replay.published["open"] == []


# --- positions -------------------------------------------------------------------------------------------------------


@each_graph
def test_at_rest_the_position_alone_is_enough_to_go_on(name: str) -> None:
    moves = 0
    for case in [Case(name, seed, noise=False) for seed in range(20 * SEEDS)]:
        plain, moving = Drive(case).run(), Moving(case).run(400)
        moves += moving.moves
        assert end_of(moving) == end_of(plain), str(case)
    assert moves or name in NEVER_AT_REST


def test_a_position_fits_another_version_that_has_what_is_open() -> None:
    live = Drive(Case("graph_of_waits", 1)).run(1)
    assert live.replay.position is not None
    position = Raw(msgspec.json.encode(live.replay.position()))
    nodes = {
        "start": "trigger",
        "p": "parallel",
        "two": ("wait", {"events": [{"name": "a"}]}),
        "ask": ("delay", {"duration": 1}),
    }
    other = build(body("other", nodes, "start > p > two", "p > ask"), version=2)
    assert [(one.where, one.message) for one in other.fits(position)] == [
        ("nodes.two", "it waits for a, b, c, and in this version for others"),
        ("nodes.ask", "it is open as person, and in this version its type is delay"),
    ]
    small = build(body("small", {"start": "trigger"}), version=2)
    assert {one.where for one in small.fits(position)} == {"nodes.two", "nodes.ask", "nodes.p"}


# --- random graphs ---------------------------------------------------------------------------------------------------


class Act(Struct, frozen=True):
    pass


class Nap(Struct, frozen=True):
    length: int


class Seq(Struct, frozen=True):
    parts: list[Any]


class Split(Struct, frozen=True):
    branches: list[Any]


class Choice(Struct, frozen=True):
    """Without `orelse` the way leads past, or ends there if it is `dead`."""

    answer: bool
    then: Any
    orelse: Any = None
    dead: bool = False


class Loop(Struct, frozen=True):
    items: int
    parallel: bool
    part: Any


Shape: TypeAlias = Act | Nap | Seq | Split | Choice | Loop

shapes: st.SearchStrategy[Shape] = st.recursive(
    st.one_of(st.builds(Act), st.builds(Nap, st.integers(0, 3))),
    lambda inner: st.one_of(
        st.builds(Seq, st.lists(inner, min_size=1, max_size=3)),
        st.builds(Split, st.lists(inner, min_size=2, max_size=3)),
        st.builds(Choice, st.booleans(), inner, st.none() | inner, st.booleans()),
        st.builds(Loop, st.integers(0, 3), st.booleans(), inner),
    ),
    max_leaves=8,
)


@action(name="laws.act")
def act(node: str, item: Any) -> int:
    return crc32(f"{node} {item}".encode())


class Drawn:
    """A shape as a graph. Each part gets an id and is connected; `ids` knows which."""

    def __init__(self, shape: Shape) -> None:
        self.nodes: dict[str, Any] = {"start": "trigger"}
        self.ways: list[str] = []
        self.ids: dict[int, str] = {}
        ends = self.connect(shape, ["start"])
        self.nodes["end"] = "end"
        self.ways += [f"{one} > end" for one in ends]

    def node(self, part: Any, kind: str, data: dict[str, Any], begins: list[str]) -> str:
        id = self.ids[id_of(part)] = f"{kind}{len(self.nodes)}"
        self.nodes[id] = (kind, data)
        self.ways += [f"{one} > {id}" for one in begins]
        return id

    def connect(self, part: Shape, begins: list[str]) -> list[str]:
        match part:
            case Act():
                data = {"action": "laws.act", "with": {"node": f"{len(self.nodes)}", "item": "${ .item }"}}
                return [self.node(part, "action", data, begins)]
            case Nap(length):
                return [self.node(part, "delay", {"duration": length}, begins)]
            case Seq(parts):
                for one in parts:
                    begins = self.connect(one, begins)
                return begins
            case Split(branches):
                split = self.node(part, "parallel", {}, begins)
                ends = [end for one in branches for end in self.connect(one, [split])]
                self.ids[-id_of(part)] = join = f"join{len(self.nodes)}"
                self.nodes[join] = "join"
                self.ways += [f"{one} > {join}" for one in ends]
                return [join]
            case Choice(answer, then, orelse, dead):
                ask = self.node(part, "condition", {"when": "true" if answer else "false"}, begins)
                ends = self.connect(then, [f"{ask}:true"])
                if orelse is not None:
                    return ends + self.connect(orelse, [f"{ask}:false"])
                return ends if dead else [*ends, f"{ask}:false"]
            case Loop(items, parallel, inner):
                mode = "parallel" if parallel else "sequential"
                loop = self.node(part, "loop", {"items": list(range(items)), "mode": mode, "limit": 2}, begins)
                for end in self.connect(inner, [f"{loop}:each"]):
                    self.ways.append(f"{end} > {loop}")
                return [f"{loop}:done"]


id_of = id  # parts may be equal, and are told apart by being themselves
Gone = "gone"  # the way has ended before


def model(drawn: Drawn, part: Shape, value: Any, source: str, item: Any, prefix: str, ran: list[str]) -> Any:
    """What a part does: the value that comes out and the last node on the way; or that it ended, and with what."""
    id = drawn.ids.get(id_of(part), "")
    if id:
        ran.append(f"{prefix}{id}")
    match part:
        case Act():
            return act.fn(drawn.nodes[id][1]["with"]["node"], item), id
        case Nap():
            return value, id
        case Seq(parts):
            for one in parts:
                value, source = model(drawn, one, value, source, item, prefix, ran)
                if source == Gone:
                    break
            return value, source
        case Split(branches):
            ends = [model(drawn, one, value, id, item, prefix, ran) for one in branches]
            came = {source: value for value, source in ends if source != Gone}
            if not came:
                return ..., Gone  # with what the last of them carried, whichever that was
            ran.append(f"{prefix}{drawn.ids[-id_of(part)]}")
            return came, drawn.ids[-id_of(part)]
        case Choice(answer, then, orelse, dead):
            if answer or orelse is not None:
                return model(drawn, then if answer else orelse, value, id, item, prefix, ran)
            return value, Gone if dead else id
        case Loop(items, _, inner):
            rounds = [model(drawn, inner, n, id, n, f"{prefix}{id}[{n}]/", ran)[0] for n in range(items)]
            return rounds, id


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(shapes, st.integers(0, 1000))
def test_random_graphs_do_what_the_model_says(shape: Shape, seed: int) -> None:
    drawn = Drawn(shape)
    made = build(body("laws.random", drawn.nodes, *drawn.ways), version=1)
    CORPUS["random"] = Member("random", made, (), ("in",))
    try:
        live = Drive(Case("random", seed, noise=seed % 3 == 0), relive=seed % 4 == 0).run(5_000)
        law(live) if seed % 10 == 0 else None
    finally:
        del CORPUS["random"]
    log = [ev.read(row) for row in live.rows]
    ran: list[str] = ["start"]
    value, source = model(drawn, shape, "in", "start", None, "", ran)
    if source != Gone:
        ran.append("end")
    assert Counter(event.node for event in log if isinstance(event, ev.NodeSettled)) == Counter(ran)
    assert isinstance(live.replay.outcome, ev.Completed)
    if ... not in _all(value):
        assert msgspec.json.decode(live.replay.outcome.result) == value


def _all(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(one for part in inner for one in _all(part))]


# --- worlds ----------------------------------------------------------------------------------------------------------


@action(name="laws.work")
async def work(name: str, n: Any = 0) -> str:
    return f"{name} {n}"


@work.undo
async def unwork(name: str, n: Any, result: str) -> None:
    pass


def busy(name: str) -> Graph:
    def do(text: str, n: Any = "${ .item }") -> tuple[str, dict[str, Any]]:
        return "action", {"action": "laws.work", "with": {"name": text, "n": n}, "retries": 2}

    return graph(
        name,
        {
            "start": "trigger",
            "p": "parallel",
            "nap": ("delay", {"duration": "1h"}),
            "a": do("a", "${ .trigger }"),
            "paid": ("wait", {"events": [{"name": "paid"}], "timeout": "1d"}),
            "join": "join",
            "each": ("loop", {"items": "[range(.trigger)]", "mode": "parallel", "limit": 2}),
            "pack": do("pack"),
            "ask": ("person", {"task": "check"}),
            "end": ("end", {"result": "${ [.trigger, .outputs.a, .outputs.paid, .outputs.each, .outputs.ask] }"}),
        },
        "start > p > nap > a > join",
        "p > paid > join > each:each > pack > each",
        "paid:timeout > join",
        "each:done > ask > end",
    )


async def test_a_crash_at_any_point_changes_nothing(world: World) -> None:
    report = await world.crash_everywhere(busy("busy"), 3, send=[("paid", 5), ("ask", "ok")])
    assert report.status == "completed"
    assert report.points > 20


async def test_a_crash_at_any_point_of_a_failing_graph_undoes_once(world: World) -> None:
    made = graph(
        "busy_failing",
        {
            "start": "trigger",
            "p": "parallel",
            "a": ("action", {"action": "laws.work", "with": {"name": "a", "n": 1}}),
            "b": ("action", {"action": "laws.work", "with": {"name": "b", "n": 2}}),
            "nap": ("delay", {"duration": "1h"}),
            "join": "join",
            "end": ("end", {"status": "failed", "message": "no"}),
        },
        "start > p > a > join > end",
        "p > nap > b > join",
    )
    report = await world.crash_everywhere(made)
    assert report.status == "failed"


async def test_a_hundred_executions_do_not_touch_each_other(world: World) -> None:
    made, dice = busy("isolated"), random.Random(7)
    runs = [await world.start(made, number % 4) for number in range(100)]
    sends = [(number, name) for number in range(100) for name in ("paid", "ask")]
    dice.shuffle(sends)
    for number, name in sends:
        await runs[number].send(name, f"{name} of {number}")
    results = await asyncio.gather(*(run.result() for run in runs))
    for number, result in enumerate(results):
        n = number % 4
        packs = [f"pack {item}" for item in range(n)]
        assert result == [n, f"a {n}", [f"paid of {number}"], packs, f"ask of {number}"]


async def test_a_pause_holds_a_graph_back_and_loses_nothing(world: World) -> None:
    run = await world.start(busy("paused"), 1)
    await run.until("waiting")
    await run.pause()
    await run.send("paid", 1)
    await world.advance("2h")
    assert (await run.state()).published["open"] == ["nap", "paid"]
    await run.resume()
    await run.send("ask", "ok")
    assert await run.result() == [1, "a 1", [1], ["pack 0"], "ok"]
