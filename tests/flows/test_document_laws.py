"""Documents beyond the laws of replay: positions, random documents against a model, crashes, many at once."""

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
from perdure.flows.document import Document, build
from perdure.testing import World
from tests.corpus.documents import DOCUMENTS
from tests.corpus.drive import SEEDS, Case, Drive, cases, law
from tests.corpus.moving import Moving, end_of
from tests.corpus.workflows import CORPUS, Member
from tests.flows.documenting import body, document, listed

each_document = pytest.mark.parametrize("name", DOCUMENTS)
#: Those that never wait in their main list.
NEVER_AT_REST = (
    *("document_of_forks", "document_of_loops", "document_of_tries", "document_of_children", "document_that_undoes"),
    *("document_of_circles", "document_of_few_circles"),
)


@each_document
def test_every_task_that_started_has_settled_when_it_is_over(name: str) -> None:
    for case in cases(3 * SEEDS, [name], noise=False):
        live = Drive(case).run()
        if live.replay.outcome is None:
            continue
        log = [ev.read(row) for row in live.rows]
        begun = Counter(event.node for event in log if isinstance(event, ev.NodeStarted))
        over = Counter(event.node for event in log if isinstance(event, ev.NodeSettled))
        assert begun == over, str(case)


# --- positions -------------------------------------------------------------------------------------------------------


@each_document
def test_at_rest_the_position_alone_is_enough_to_go_on(name: str) -> None:
    moves = 0
    for case in [Case(name, seed, noise=False) for seed in range(20 * SEEDS)]:
        plain, moving = Drive(case).run(), Moving(case).run(400)
        moves += moving.moves
        assert end_of(moving) == end_of(plain), str(case)
    assert bool(moves) is (name not in NEVER_AT_REST)


def at(name: str, type: str) -> Raw:
    """The position of an execution of one task that waits."""
    tasks = {"hear": {"listen": {"to": {"one": {"with": {"type": type}}}}}}
    CORPUS["standing"] = Member("standing", build(body(name, tasks), version=1), (), ({},))
    try:
        live = Drive(Case("standing", 1, noise=False)).run(1)
    finally:
        del CORPUS["standing"]
    assert live.replay.position is not None
    return Raw(msgspec.json.encode(live.replay.position()))


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ({"hear": {"listen": {"to": {"one": {"with": {"type": "paid"}}}}, "then": "end"}}, ""),
        ({"hear": {"listen": {"to": {"one": {"with": {"type": "sent"}}}}}}, "it waits for paid, and in this version"),
        ({"hear": {"wait": "PT1S"}}, "it is open as listen, and in this version it is wait"),
        ({"other": {"wait": "PT1S"}}, "it is at hear, and this version does not have it"),
    ],
)
def test_a_position_fits_another_version_that_has_what_is_open(tasks: dict[str, Any], problem: str) -> None:
    found = build(body("standing", tasks), version=2).fits(at("standing", "paid"))
    assert [one.message[: len(problem)] for one in found] == ([problem] if problem else [])


# --- random documents ------------------------------------------------------------------------------------------------


class Act(Struct, frozen=True):
    name: str


class Nap(Struct, frozen=True):
    length: int


class Set(Struct, frozen=True):
    value: int
    export: bool


class Raise(Struct, frozen=True):
    status: int


class Do(Struct, frozen=True):
    parts: list[Any]
    end: str  # of its first task: continue, exit or end


class For(Struct, frozen=True):
    items: int
    part: Any


class Fork(Struct, frozen=True):
    branches: list[Any]


class Try(Struct, frozen=True):
    part: Any
    status: int  # what is caught
    retries: int
    instead: Any


class If(Struct, frozen=True):
    answer: bool
    part: Any


Shape: TypeAlias = Act | Nap | Set | Raise | Do | For | Fork | Try | If

shapes: st.SearchStrategy[Shape] = st.recursive(
    st.one_of(
        st.builds(Act, st.sampled_from("abc")),
        st.builds(Nap, st.integers(0, 3)),
        st.builds(Set, st.integers(0, 9), st.booleans()),
        st.builds(Raise, st.sampled_from([400, 500])),
    ),
    lambda inner: st.one_of(
        st.builds(
            Do, st.lists(inner, min_size=1, max_size=3), st.sampled_from(["continue", "continue", "exit", "end"])
        ),
        st.builds(For, st.integers(0, 3), inner),
        # Of what runs side by side only what neither fails nor ends is told by a model that knows no time.
        st.builds(Fork, st.lists(inner.filter(lambda one: not _leaves(one)), min_size=1, max_size=3)),
        st.builds(Try, inner, st.sampled_from([400, 500]), st.integers(0, 2), st.none() | inner),
        st.builds(If, st.booleans(), inner),
    ),
    max_leaves=8,
)


def _leaves(part: Any) -> bool:
    """Whether it may fail, end the workflow or change the context."""
    match part:
        case Raise():
            return True
        case Set(_, export):
            return export
        case Do(parts, end):
            return end == "end" or any(map(_leaves, parts))
        case For(_, inner) | If(_, inner):
            return _leaves(inner)
        case Fork(branches):
            return any(map(_leaves, branches))
        case Try(inner, _, _, instead):
            return _leaves(inner) or (instead is not None and _leaves(instead))
        case _:
            return False


@action(name="documents.act")
def act(name: str, value: Any) -> int:
    return crc32(f"{name} {value}".encode()) % 1000


def task(part: Shape) -> dict[str, Any]:
    """A shape as a task."""
    match part:
        case Act(name):
            return {"call": "documents.act", "with": {"name": name, "value": "${ . }"}}
        case Nap(length):
            return {"wait": {"seconds": length}}
        case Set(value, export):
            made = {"set": {"n": value, "was": "${ $context | tostring }"}}
            return {**made, "export": {"as": "{last: .n}"}} if export else made
        case Raise(status):
            return {"raise": {"error": {"type": "about:no", "status": status}}}
        case Do(parts, end):
            tasks = [task(one) for one in parts]
            return {
                "do": [{f"t{place}": {**one, "then": end} if not place else one} for place, one in enumerate(tasks)]
            }
        case For(items, inner):
            return {"for": {"in": f"[range({items})]"}, "do": listed(t=task(inner))}
        case Fork(branches):
            return {"fork": {"branches": [{f"b{place}": task(one)} for place, one in enumerate(branches)]}}
        case Try(inner, status, retries, instead):
            retry = {"retry": {"limit": {"attempt": {"count": retries + 1}}}} if retries else {}
            do = {} if instead is None else {"do": listed(t=task(instead))}
            return {"try": listed(t=task(inner)), "catch": {"errors": {"with": {"status": status}}, **retry, **do}}
        case If(answer, inner):
            return {**task(inner), "if": "true" if answer else "false"}


class Failed(Exception):
    """With a status."""


class Over(Exception):
    """The workflow is at its end, with a value."""


class Model:
    """What a document does, told in the plainest way: no log, no time, nothing side by side."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.ran: list[tuple[str, str]] = []

    def run(self, part: Shape, value: Any, path: str) -> Any:
        if isinstance(part, If) and not part.answer:
            self.ran.append((path, "skipped"))
            return value
        try:
            value = self.does(part.part if isinstance(part, If) else part, value, path)
        except Failed:
            self.ran.append((path, "failed"))
            raise
        except Over:
            self.ran.append((path, "completed"))
            raise
        self.ran.append((path, "completed"))
        return value

    def does(self, part: Shape, value: Any, path: str) -> Any:
        match part:
            case Act(name):
                return act.fn(name, value)
            case Nap():
                return value
            case Set(number, export):
                was = self.context if isinstance(self.context, str) else msgspec.json.encode(self.context).decode()
                if export:
                    self.context = {"last": number}
                return {"n": number, "was": was}
            case Raise(status):
                raise Failed(status)
            case Do(parts, end):
                for place, one in enumerate(parts):
                    value = self.run(one, value, f"{path}/do/{place}/t{place}")
                    if place == 0 and end != "continue" and not (isinstance(one, If) and not one.answer):
                        if end == "end":
                            raise Over(value)
                        break
                return value
            case For(items, inner):
                for number in range(items):
                    value = self.run(inner, value, f"{path}[{number}]/do/0/t")
                return value
            case Fork(branches):
                paths = [f"{path}/fork/branches/{place}/b{place}" for place in range(len(branches))]
                return [self.run(one, value, where) for one, where in zip(branches, paths, strict=True)]
            case Try(inner, status, retries, instead):
                for left in reversed(range(retries + 1)):
                    try:
                        return self.run(inner, value, f"{path}/try/0/t")
                    except Failed as error:
                        if error.args[0] != status:
                            raise
                        if not left:
                            return value if instead is None else self.run(instead, value, f"{path}/catch/do/0/t")
                raise AssertionError("a try ends")
            case If():
                return self.does(part.part, value, path)  # a condition on a condition is one


def nested(part: Shape) -> bool:
    """A condition on a condition cannot be written."""
    match part:
        case If(_, If()):
            return True
        case If(_, inner) | For(_, inner):
            return nested(inner)
        case Do(parts) | Fork(parts):
            return any(map(nested, parts))
        case Try(inner, _, _, instead):
            return nested(inner) or (instead is not None and nested(instead))
        case _:
            return False


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(shapes.filter(lambda shape: not nested(shape)), st.integers(0, 1000))
def test_random_documents_do_what_the_model_says(shape: Shape, seed: int) -> None:
    made = build(body("random", {"t": task(shape)}), version=1)
    CORPUS["random"] = Member("random", made, (), ({"in": 1},))
    try:
        live = Drive(Case("random", seed, noise=seed % 3 == 0), relive=seed % 4 == 0).run(5_000)
        law(live) if seed % 10 == 0 else None
    finally:
        del CORPUS["random"]
    log = [ev.read(row) for row in live.rows]
    model = Model({"in": 1})
    try:
        expected: Any = ("completed", model.run(shape, {"in": 1}, "/do/0/t"))
    except Over as over:
        expected = ("completed", over.args[0])
    except Failed as failed:
        expected = ("failed", failed.args[0])
    assert Counter((one.node, one.status) for one in log if isinstance(one, ev.NodeSettled)) == Counter(model.ran)
    outcome = live.replay.outcome
    if isinstance(outcome, ev.Failed):
        assert expected == ("failed", msgspec.json.decode(outcome.error.details)["status"])
    else:
        assert isinstance(outcome, ev.Completed)
        assert expected == ("completed", msgspec.json.decode(outcome.result))


# --- worlds ----------------------------------------------------------------------------------------------------------


@action(name="documents.work", retries=2)
async def work(name: str, n: Any = 0) -> str:
    return f"{name} {n}"


@work.undo
async def documents_unwork(name: str, n: Any, result: str) -> None:
    pass


def busy() -> Document:
    def do(text: str, n: Any) -> dict[str, Any]:
        return {"call": "documents.work", "with": {"name": text, "n": n}}

    paid = {
        "listen": {"to": {"one": {"with": {"type": "paid"}}}},
        "timeout": {"after": "P1D"},
        "output": {"as": ".[0]"},
    }
    late = listed(slow={"do": listed(nap={"wait": "PT1H"}, a=do("a", "${ .n }"))}, paid=paid)
    tasks = {
        "both": {"fork": {"branches": late}, "export": {"as": "$context + {both: .}"}},
        "each": {
            "for": {"in": "[range($context.n)]"},
            "do": listed(
                pack={
                    "try": listed(pack=do("pack", "${ $item }")),
                    "catch": {"retry": {"limit": {"attempt": {"count": 2}}}},
                    "export": {"as": "$context + {packs: (($context.packs // []) + [.])}"},
                }
            ),
        },
        "last": {"listen": {"to": {"any": [{"with": {"type": "ask"}}]}}, "output": {"as": ".[0]"}},
    }
    return document(tasks, output={"as": "[$context.n, $context.both, ($context.packs // []), .]"})


async def test_a_crash_at_any_point_changes_nothing(world: World) -> None:
    report = await world.crash_everywhere(busy(), {"n": 3}, send=[("paid", 5), ("ask", "ok")])
    assert report.status == "completed"
    assert report.points > 20


async def test_a_crash_at_any_point_of_a_failing_document_undoes_once(world: World) -> None:
    branches = listed(
        a={"call": "documents.work", "with": ["a", 1]},
        b={"do": listed(nap={"wait": "PT1H"}, b={"call": "documents.work", "with": ["b", 2]})},
    )
    no = {"raise": {"error": {"type": "about:no", "status": 500}}}
    report = await world.crash_everywhere(document({"both": {"fork": {"branches": branches}}, "no": no}), {})
    assert report.status == "failed"


async def test_a_hundred_executions_do_not_touch_each_other(world: World) -> None:
    made, dice = busy(), random.Random(7)
    runs = [await world.start(made, {"n": number % 4, "marker": f"m{number}"}) for number in range(100)]
    sends = [(number, name) for number in range(100) for name in ("paid", "ask")]
    dice.shuffle(sends)
    for number, name in sends:
        await runs[number].send(name, f"{name} of {number}")
    results = await asyncio.gather(*(run.result() for run in runs))
    for number, result in enumerate(results):
        n = number % 4
        packs = [f"pack {item}" for item in range(n)]
        assert result == [n, [f"a {n}", f"paid of {number}"], packs, f"ask of {number}"]
    for number, run in enumerate(runs):
        log = b"".join(bytes(row.data) for row in await world.rows(run.key))
        assert f'"m{number}"'.encode() in log
        assert not any(f'"m{other}"'.encode() in log for other in range(100) if other != number)


async def test_a_pause_holds_a_document_back_and_loses_nothing(world: World) -> None:
    run = await world.start(busy(), {"n": 1})
    await run.until("waiting")
    await run.pause()
    await run.send("paid", 1)
    await world.advance("2h")
    nodes = (await run.state()).nodes
    assert [path for path, one in nodes.items() if one.status == "open"][-2:] == [
        "/do/0/both/fork/branches/0/slow/do/0/nap",
        "/do/0/both/fork/branches/1/paid",
    ]
    await run.resume()
    await run.send("ask", "ok")
    assert await run.result() == [1, ["a 1", 1], ["pack 0"], "ok"]
