"""State machines for the corpus: the laws of replay are tried on them as on any workflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perdure import Do, Machine, State, To
from tests.corpus.workflows import CORPUS, Events, Member, book, step


@dataclass
class Count:
    total: int = 0
    names: list[str] = field(default_factory=list)


def machine(name: str, *events: tuple[str, Any], data: Any = None, args: tuple[Any, ...] = (), **parts: Any) -> None:
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
