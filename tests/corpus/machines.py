"""State machines for the corpus: the laws of replay are tried on them as on any workflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perdure import Ask, Do, Machine, Retry, State, To
from perdure.flows.machine import build
from perdure.flows.registry import registry
from tests.corpus.workflows import CORPUS, Events, Member, book, fails, step


@dataclass
class Count:
    total: int = 0
    names: list[str] = field(default_factory=list)


def machine(name: str, *events: Any, data: Any = None, args: tuple[Any, ...] = (), **parts: Any) -> None:
    made: Machine[Any] = Machine(f"corpus.{name}", data=data, **parts)
    sent: Events = events
    CORPUS[name] = Member(name, made, sent, args)


def add(count: Count, result: int) -> None:
    count.total += result


def noted(count: Count, event: Any) -> None:
    count.names.append(f"{event.name} {event.payload}")


def counts(name: str, **options: Any) -> Do:
    return Do(step, lambda count, event: (name, count.total % 7), set=add, name=name, **options)


machine(
    "machine_of_events",
    *[("next", 1), ("wrong", 2), ("back", 3), ("next", 4), ("next", 5), ("next", 6), ("stop", None)],
    args=(Count(),),
    data=Count,
    initial="a",
    on={"stop": "end", "wrong": To("end", when=lambda count, event: count.total > 10**9)},
    states={
        "a": State(on={"next": To("b", set=noted)}),
        "b": State(on={"next": To("c", set=noted), "back": To("a", set=noted)}),
        "c": State(on={"next": To(set=noted)}),
        "end": State(final=True),
    },
)

machine(
    "machine_of_actions",
    *[("go", 1), ("go", 2), ("go", 3)],
    args=(Count(),),
    data=Count,
    initial="a",
    states={
        "a": State(
            entry=[counts("in a")],
            exit=[counts("out a")],
            on={
                "go": To(
                    "b",
                    do=[
                        counts("one"),
                        counts("two"),
                        counts("three", after=["one"]),
                        counts("four", after=["two", "three"], optional=True),
                    ],
                )
            },
        ),
        "b": State(entry=[counts("in b")], on={"go": "c"}, error="c"),
        "c": State(final=True),
    },
)

machine(
    "machine_of_timers",
    *[("more", 1), ("more", 2), ("out", 3)],
    args=(Count(),),
    data=Count,
    initial="outer",
    states={
        "outer": State(
            initial="one",
            after={"3s": "late"},
            on={"late": To("end", do=[counts("late")])},
            states={
                "one": State(after={"1s": To("two", set=noted)}, on={"more": To(set=noted), "out": "end"}),
                "two": State(after={"1500ms": To("one", set=noted)}, on={"more": To("two", set=noted), "out": "end"}),
            },
        ),
        "end": State(final=True),
    },
)

machine(
    "machine_of_undos",
    *[("book", "hotel"), ("book", "car"), ("pay", None), ("book", "tour"), ("end", None)],
    args=(Count(),),
    data=Count,
    initial="open",
    states={
        "open": State(
            on={
                "book": To("open", do=[Do(book, lambda count, event: (event.payload, len(count.names)))], set=noted),
                "pay": To("paid", do=[counts("pay")]),
                "end": "end",
            },
        ),
        "paid": State(
            settles=True,
            on={"book": To(do=[Do(book, lambda count, event: (event.payload, 9))]), "end": To("end", do=[counts("x")])},
        ),
        "end": State(final=True),
    },
)

machine(
    "machine_of_choices",
    *[("add", 3), ("add", 4), ("add", 5)],
    args=(Count(),),
    data=Count,
    initial="sum",
    output=lambda count: [count.total, *count.names],
    states={
        "sum": State(
            on={"add": To("check", do=[counts("add")], set=noted)},
        ),
        "check": State(
            initial="first",
            always=[To("end", when=lambda count, event: count.total > 60)],
            done="sum",
            states={
                "first": State(entry=[counts("first")], always="last", error="last"),
                "last": State(final=True),
            },
        ),
        "end": State(final=True),
    },
)

# --- one rule after the other ----------------------------------------------------------------------------------------


def erred(count: Count, event: Any) -> None:
    wrong = event.payload
    count.names.append(f"{wrong['action']} {wrong['type']}: {wrong['failed']} kept back {wrong['blocked']}")


machine(
    "machine_of_nests",
    *[("go", 1), ("up", 2), ("in", 3), ("again", 4), ("jump", 5), ("out", 6), ("out", 7)],
    args=(Count(),),
    data=Count,
    initial="a",
    publish=("total",),
    on={"jump": To("b.deep.two", set=noted)},
    states={
        "a": State(
            entry=[counts("in a")],
            exit=[counts("out a")],
            on={"go": [To("end", when=lambda count, event: count.total < 0), To("b", set=noted)]},
        ),
        "b": State(
            initial="deep",
            entry=[counts("in b")],
            exit=[counts("out b")],
            on={"again": To("b", set=noted), "up": To("a", set=noted), "out": "end"},
            states={
                "deep": State(
                    initial="one",
                    entry=[counts("in deep")],
                    exit=[counts("out deep")],
                    on={"up": To(set=noted), "in": To("deep.one", set=noted)},
                    states={
                        "one": State(exit=[counts("out one")], on={"in": To("two", set=noted)}),
                        "two": State(entry=[counts("in two")], on={"out": To("b.shallow", do=[counts("out two")])}),
                    },
                ),
                "shallow": State(),
            },
        ),
        "end": State(final=True),
    },
)

machine(
    "machine_of_errors",
    *[("try", "Declined"), ("try", "ValueError"), ("go", None)],
    args=(Count(),),
    data=Count,
    initial="group",
    states={
        "group": State(
            initial="work",
            error=To("work", set=erred),
            on={"go": "end"},
            states={
                "work": State(
                    on={
                        "try": To(
                            "check",
                            do=[
                                Do(fails, lambda count, event: (event.payload,), name="bad"),
                                Do(step, ["free", 1], name="free", set=add),
                                Do(step, ["next"], name="next", after=["bad"]),
                                Do(step, ["last"], name="last", after=["next", "free"]),
                            ],
                        )
                    }
                ),
                "check": State(
                    entry=[counts("kept back")],
                    error=To("work", when=lambda count, event: event.payload["type"] == "Declined", set=noted),
                ),
            },
        ),
        "end": State(final=True),
    },
)

machine(
    "machine_of_options",
    *[("go", "a"), ("go", "b")],
    args=(Count(),),
    data=Count,
    initial="a",
    states={
        "a": State(
            on={
                "go": To(
                    "b",
                    do=[
                        Do(fails, ["ValueError"], name="bad", optional=True),
                        Do(fails, ["ValueError"], name="again", retries=Retry(2, first="50ms"), optional=True),
                        Do(step, ["then"], name="then", after=["bad", "again"], set=add, timeout="1m", retries=1),
                    ],
                )
            },
        ),
        "b": State(on={"go": To("end", do=[Do(fails, ["Declined"])])}),
        "end": State(final=True),
    },
)

machine(
    "machine_that_undoes",
    *[("book", "hotel"), ("pay", None), ("book", "car"), ("book", "bus"), ("fail", None)],
    args=(Count(),),
    data=Count,
    initial="open",
    states={
        "open": State(
            initial="new",
            on={
                "book": To("open", do=[Do(book, lambda count, event: (event.payload, 1))], set=noted),
                "pay": To("paid", do=[counts("pay")]),
                "fail": To("end", do=[Do(fails, ["ValueError"])]),
            },
            states={"new": State(), "paid": State(settles=True)},
        ),
        "end": State(final=True),
    },
)

machine(
    "machine_of_senders",
    *[
        ("tick", 0, "eve", ("clerk",)),
        ("more", 1),
        ("stop", 2, "", ("boss",)),
        ("stop", 3, "eve", ("clerk",)),
        ("stop", 4, "ann", ("clerk", "boss")),
    ],
    args=(Count(),),
    data=Count,
    initial="a",
    states={
        "a": State(
            after={"1h": To("never"), "400ms": "tick"},
            on={"tick": To("b", roles=["boss"], set=noted), "stop": To("a", roles=["clerk"], when=lambda c, e: False)},
        ),
        "b": State(
            after={"500ms": To("c", do=[counts("late")]), "2h": To("never")},
            on={"more": To(set=noted), "tick": To(set=noted, roles=["clerk"])},
        ),
        "c": State(
            after={"1h": To("never")},
            on={"stop": To("end", roles=["boss"], set=lambda count, event: count.names.append(event.by)), "more": To()},
        ),
        "never": State(final=True),
        "end": State(final=True),
    },
)


def divide(count: Count, event: Any) -> None:
    count.total += 1000  # to be taken back
    count.total //= event.payload


machine(
    "machine_of_rejections",
    *[("add", 7), ("early", 1), ("divide", 0), ("divide", "x"), ("odd", {}), ("odd", {"n": 3}), ("end", 1), ("end", 2)],
    args=(Count(),),
    data=Count,
    events={"add": int, "early": int},
    initial="a",
    output=lambda count: {"total": count.total, "names": count.names},
    publish=("total", "names"),
    on={"end": To("end", when=lambda count, event: event.payload == 2)},
    states={
        "a": State(on={"add": To("b", set=lambda count, event: add(count, event.payload)), "early": To(set=noted)}),
        "b": State(
            on={
                "divide": To(set=divide),
                "odd": To("b", when=lambda count, event: event.payload["n"] % 2 == 1, do=[counts("odd")], set=noted),
            }
        ),
        "end": State(final=True),
    },
)

machine(
    "machine_of_parts",
    *[("next", 1), ("next", 2), ("next", 3), ("leave", 4)],
    args=(Count(),),
    data=Count,
    initial="part",
    states={
        "part": State(
            initial="one",
            done=[To("part", when=lambda count, event: count.total == 0, do=[counts("once more")]), To("rest")],
            states={
                "one": State(on={"next": To("inner", set=noted)}),
                "inner": State(
                    initial="deep",
                    done=To("two"),
                    states={"deep": State(entry=[Do(step, ["deep"])], always="over"), "over": State(final=True)},
                ),
                "two": State(final=True),
            },
        ),
        "rest": State(
            initial="asleep",
            states={
                "asleep": State(on={"next": To("done", when=lambda count, event: event.payload > 2, set=noted)}),
                "done": State(final=True),
            },
            on={"leave": "end"},
        ),
        "end": State(final=True),
    },
)

machine(
    "machine_that_asks",
    *[("go", 1), ("more", 2), ("wrong", 3), ("skip", 4), ("skip", 5)],
    args=(Count(),),
    data=Count,
    initial="draft",
    states={
        "draft": State(on={"go": "group"}),
        "group": State(
            initial="one",
            person=Ask("all of it", form=int, roles=["heads"], due="1h"),
            done=[To("end", when=lambda count, event: len(count.names) > 2, set=noted)],
            error=To("rest", set=erred),
            states={
                "one": State(
                    person=Ask(lambda count: f"one of {len(count.names)}", form=int, data=lambda count: count.names),
                    done=To("two", set=noted),
                    on={"more": To("one", set=noted), "skip": "two"},
                    after={"1s": "skip"},
                ),
                "two": State(
                    entry=[counts("two")],
                    person=Ask("two", form={"type": "integer"}, assign="ada"),
                    done=[To(when=lambda count, event: len(count.names) < 4, set=noted), To("rest", set=noted)],
                    on={"skip": "rest"},
                ),
            },
        ),
        "rest": State(after={"500ms": To("end")}, entry=[counts("rest")]),
        "end": State(final=True),
    },
)

DOCUMENT: dict[str, Any] = {
    "machine": "corpus.machine_of_a_document",
    "data": {"type": "object", "required": ["cents"]},
    "events": {"note": {"schema": {"type": "string"}}},
    "initial": "draft",
    "publish": ["cents"],
    "output": {"cents": "${ .data.cents }", "notes": "${ .data.notes }", "by": "${ .data.by }"},
    "on": {"note": {"set": {"notes": "${ (.data.notes // []) + [.event.payload] }"}}},
    "states": {
        "draft": {"on": {"send": {"to": "review", "when": "${ .data.cents > 0 }", "set": {"by": "${ .event.by }"}}}},
        "review": {
            "entry": [
                {"action": "corpus.step", "name": "one", "with": {"name": "one"}, "set": {"one": "${ .result }"}},
                {"action": "corpus.fails", "name": "bad", "with": {"kind": "Declined"}, "optional": True},
                {
                    "action": "corpus.step",
                    "name": "sum",
                    "with": {"name": "sum", "n": "${ .data.one }"},
                    "after": ["one", "bad"],
                    "set": {"cents": "${ .data.cents + .result }"},
                },
            ],
            "after": {"PT0.4S": "remind", "PT1H": {"to": "lost"}},
            "on": {"remind": {"to": "late"}},
            "error": "lost",
        },
        "late": {"on": {"approve": {"to": "done", "roles": ["boss"]}}},
        "lost": {"final": True},
        "done": {"final": True},
    },
}
document = build(DOCUMENT)
registry.add_workflow(document)
CORPUS["machine_of_a_document"] = Member(
    "machine_of_a_document",
    document,
    (("note", "well"), ("send", None, "bob", ()), ("approve", None, "bob", ()), ("approve", None, "ann", ("boss",))),
    ({"cents": 5},),
)
#: Their names.
MACHINES = [name for name in CORPUS if name.startswith("machine_")]
