"""`schedule`: which events start an execution. Its input is then a list with the event, as a CloudEvent.

What starts at times is a schedule of its own, which has a name, can be paused and is listed; a document does not hide
one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from perdure.core import jq
from perdure.flows.document.reader import Reader
from perdure.flows.listening import On

_TIMES = ("every", "cron", "after")


def starts(reader: Reader, schedule: Any) -> tuple[On, ...]:
    """What a document starts on."""
    if schedule is None:
        return ()
    body = reader.object(schedule, "/schedule", (*_TIMES, "on"))
    for key in _TIMES:
        if key in body:
            reader.wrong(f"/schedule/{key}", "a document does not start at times", "use `perdure schedules create`")
    return tuple(_started(reader, body["on"], "/schedule/on")) if "on" in body else ()


def _started(reader: Reader, strategy: Any, at: str) -> Iterator[On]:
    body = reader.object(strategy, at, ("one", "any", "all"))
    if len(body) != 1 or "all" in body:
        reader.wrong(at, "one event, or any of several, starts an execution", "give `one` or `any`")
        return
    [(mode, found)] = body.items()
    for number, one in enumerate([found] if mode == "one" else found if isinstance(found, list) else []):
        yield _on(reader, one, f"{at}/one" if mode == "one" else f"{at}/any/{number}")


def _on(reader: Reader, filter: Any, at: str) -> On:
    wanted = reader.object(filter, at, ("with",), ("with",)).get("with")
    attributes = dict(wanted) if isinstance(wanted, dict) else {}
    type, source = attributes.pop("type", None), attributes.pop("source", "")
    if not isinstance(type, str) or jq.is_expression(type):
        reader.wrong(f"{at}/with/type", "the type of the event is a text without an expression")
    if jq.is_expression(source):
        attributes["source"], source = source, ""
    tests = [f"(.{name} | {_test(value)})" for name, value in attributes.items()]
    for (name, value), test in zip(attributes.items(), tests, strict=True):
        reader.test(test, f"{at}/with/{name}", ())
        if not name.isalnum():
            reader.wrong(f"{at}/with/{name}", f"{value!r}: attributes of an event have letters and digits")
    return On(str(type), str(source), "[.]", " and ".join(tests))


def _test(value: Any) -> str:
    return jq.expression(value) if jq.is_expression(value) else f". == {json.dumps(value)}"
