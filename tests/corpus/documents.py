"""Documents of the Serverless Workflow DSL for the corpus: the laws of replay are tried on them as on any workflow."""

from __future__ import annotations

from typing import Any

from perdure.flows.document import Document
from tests.corpus import graphs  # noqa: F401 - books and unbooks
from tests.corpus.workflows import CORPUS, Events, Member
from tests.flows.documenting import listed

#: Their names.
DOCUMENTS: list[str] = []


def step(name: str, n: Any = 0, **more: Any) -> dict[str, Any]:
    return {"call": "corpus.step", "with": {"name": name, "n": n}, **more}


def book(what: str, seat: Any, **more: Any) -> dict[str, Any]:
    return {"call": "graphs.book", "with": [what, seat], **more}


def fails(kind: str = "ValueError", **more: Any) -> dict[str, Any]:
    return {"call": "corpus.fails", "with": {"kind": kind}, **more}


def hears(*types: str, mode: str = "any", until: Any = None, **more: Any) -> dict[str, Any]:
    filters = [{"with": {"type": type}} for type in types]
    to = {mode: filters[0] if mode == "one" else filters, **({} if until is None else {"until": until})}
    return {"listen": {"to": to}, **more}


def attempt(tasks: list[dict[str, Any]], **catch: Any) -> dict[str, Any]:
    return {"try": tasks, "catch": catch}


def tell(name: str, **more: Any) -> dict[str, Any]:
    return {"set": {name: "${ . }"}, **more}


def add(name: str, tasks: dict[str, Any], events: Events = (), input: Any = None, **more: Any) -> Document:
    about = {"dsl": "1.0.3", "namespace": "corpus", "name": name.replace("_", "-"), "version": "1.0.0"}
    made = Document({"document": about, "do": [{task: one} for task, one in tasks.items()], **more})
    CORPUS[name] = Member(name, made, events, (input,))
    DOCUMENTS.append(name)
    return made


add(
    "document_of_tasks",
    {
        "a": step("a", "${ .n }", output={"as": "{a: .}"}, export={"as": "$context + {a: .a}"}),
        "big": {"switch": [{"yes": {"when": "$context.a > 1000", "then": "never"}}, {"no": {"then": "both"}}]},
        "never": {"raise": {"error": {"type": "about:never", "status": 500}}},
        "both": {"do": listed(b=step("b", "${ $context.a }"), c=tell("c", **{"if": ". == null"}), d=tell("d"))},
        "nap": {"wait": {"milliseconds": 700}},
        "last": {"call": "twice", "with": {"n": "${ .d }"}, "then": "exit"},
        "nothing": {"set": {"no": True}},
    },
    input={"n": 1},
    use={
        "functions": {
            "twice": {
                "do": listed(one={"call": "once", "with": {"n": "${ .n }"}}, two={"call": "once", "with": {"n": 2}})
            },
            "once": step("once", "${ .n }", output={"as": "{n: .}"}),
        }
    },
    output={"as": "{got: ., context: $context}"},
)

add(
    "document_of_forks",
    {
        "all": {
            "fork": {
                "branches": listed(
                    a=step("a"),
                    b={"do": listed(nap={"wait": "PT1.5S"}, b=step("b"))},
                    c=hears("c", mode="one", timeout={"after": "PT4S"}, **{"if": "true"}),
                    d={"fork": {"branches": listed(e=step("e"), f={"wait": "PT0.3S"}), "compete": True}},
                )
            }
        },
        "race": {
            "fork": {
                "compete": True,
                "branches": listed(quick=step("quick"), slow={"wait": "PT30S"}, on=hears("on", "off")),
            }
        },
        "last": tell("race"),
    },
    events=(("c", 1), ("x", 2), ("off", 3)),
    input={"n": 1},
    output={"as": "[., $context]"},
)

add(
    "document_of_loops",
    {
        "rows": {
            "for": {"each": "row", "at": "y", "in": ".rows"},
            "while": "($context.sum // 0) < 5000",
            "do": listed(
                cells={
                    "for": {"each": "cell", "in": "$row"},
                    "do": listed(
                        nap={"wait": "PT0.2S", "if": "$cell > 1"},
                        do=attempt(listed(do=step("do", "${ $cell * 10 + $y }")), do=listed(no={"set": "${ 1 }"})),
                    ),
                },
                keep={"set": {"n": "${ . }"}, "export": {"as": "$context + {sum: (($context.sum // 0) + 1)}"}},
            ),
        },
        "last": {"set": {"context": "${ $context }", "rows": "${ . }"}},
    },
    input={"rows": [[1, 2], [3], [], [4, 5, 6]]},
)

add(
    "document_of_tries",
    {
        "again": attempt(
            listed(a=step("a"), bad=fails()),
            retry={
                "delay": "PT0.5S",
                "backoff": {"exponential": {}},
                "jitter": {"from": "PT0S", "to": "PT0.2S"},
                "limit": {"attempt": {"count": 3}},
            },
            do=listed(sorry={"set": {"caught": "${ $error.title }"}}),
        ),
        "other": attempt(
            listed(b=step("b"), no={"raise": {"error": {"type": "about:no", "status": 418, "detail": "${ . }!"}}}),
            errors={"with": {"status": 418}},
            **{"as": "oops", "when": '$oops.type == "about:no"'},
        ),
        "slow": attempt(
            listed(outer={"do": listed(c=step("c"), nap={"wait": "PT60S"}), "timeout": {"after": "PT2S"}}),
            errors={"with": {"status": 408}},
            do=listed(d=step("d")),
        ),
        "each": attempt(
            listed(
                e={
                    "fork": {
                        "branches": listed(
                            f=fails("Declined"),
                            g={"do": listed(nap={"wait": "PT5S"}, g=step("g"))},
                            h={"wait": "PT10S"},
                        )
                    }
                }
            ),
            retry={"limit": {"attempt": {"count": 2, "duration": "PT1S"}, "duration": "PT1H"}},
        ),
        "last": tell("last"),
    },
)

add(
    "document_of_events",
    {
        "one": hears("a", mode="one"),
        "all": hears("b", "c", mode="all", export={"as": "$context + {all: .}"}),
        "some": hears(
            "bid",
            until="length == 2",
            foreach={"item": "bid", "do": listed(look=step("look", "${ $bid.n }"), keep={"set": {"n": "${ . }"}})},
        ),
        "most": {
            "listen": {
                "to": {
                    "any": [{"with": {"type": "bid"}, "correlate": {"who": {"from": ".data.who"}}}],
                    "until": {"all": [{"with": {"type": "a"}}, {"with": {"type": "b"}}]},
                },
                "read": "envelope",
            },
            "timeout": {"after": "PT30S"},
            "output": {"as": "map(.data)"},
        },
        "out": {
            "emit": {
                "event": {
                    "with": {
                        "id": "done",
                        "source": "/corpus",
                        "type": "done",
                        "time": "2030-01-01T00:00:00Z",
                        "data": {"n": "${ length }"},
                    }
                }
            },
            "output": {"as": ".type"},
        },
    },
    events=(
        *[("a", 1), ("bid", {"n": 1, "who": "x"}), ("c", 2), ("b", 3), ("bid", {"n": 2, "who": "y"})],
        *[("bid", {"n": 3, "who": "x"}), ("bid", {"n": 4, "who": "y"}), ("bid", {"n": 5, "who": "x"})],
        *[("b", 6), ("a", 7), ("a", 8)],
    ),
    output={"as": "[., $context]"},
)

add(
    "document_of_children",
    {
        "both": {
            "fork": {
                "branches": listed(
                    a=attempt(
                        listed(a={"run": {"workflow": {"namespace": "corpus", "name": "child", "input": {"n": 1}}}})
                    ),
                    b={"run": {"workflow": {"namespace": "corpus", "name": "child", "input": [2]}}},
                )
            }
        },
        "document": {
            "run": {"workflow": {"namespace": "corpus", "name": "document-of-tasks", "input": {"n": 5}}},
            "output": {"as": "{n: (. | tostring | length)}"},
        },
        "lost": attempt(
            listed(lost={"run": {"workflow": {"namespace": "corpus", "name": "lost_child", "input": [3]}}}),
            do=listed(found=step("found")),
        ),
    },
)

add(
    "document_that_undoes",
    {
        "hotel": book("hotel", 1),
        "both": {
            "fork": {
                "branches": listed(
                    car={"do": listed(nap={"wait": "PT0.5S"}, car=book("car", 2))},
                    bus=attempt(listed(bus=book("bus", 3), go=hears("go", mode="one", timeout={"after": "PT3S"}))),
                )
            }
        },
        "no": {"raise": {"error": "nobody"}},
    },
    events=(("go", 1),),
    use={"errors": {"nobody": {"type": "about:nobody", "status": 404, "title": "nobody goes"}}},
)


def circles(name: str, rounds: int, *events: tuple[str, Any]) -> None:
    add(
        name,
        {
            "count": {"set": {"n": "${ .n + 1 }"}, "export": {"as": "{n: .n}"}},
            "do": attempt(listed(do=step("do", "${ .n }")), do=listed(no={"set": {"no": "${ $error.status }"}})),
            "rest": {
                "fork": {
                    "branches": listed(nap={"wait": "PT0.2S"}, on=attempt(listed(on=hears("on", timeout="short"))))
                }
            },
            "more": {
                "input": {"from": "{n: $context.n}"},
                "switch": [{"yes": {"when": f".n < {rounds}", "then": "count"}}],
            },
            "ends": {"set": {"n": "${ $context.n }"}},
        },
        events=events,
        input={"n": 0},
        use={"timeouts": {"short": {"after": "PT1S"}}},
    )


circles("document_of_circles", 20, ("on", 1), ("on", 2), ("on", 3))
circles("document_of_few_circles", 2, ("on", 1))
