"""Where a state leads: to another one, or to the end; and what happens on the way.

In this order: what was done is compensated, events are produced, then the next state begins, or the execution ends, or
it continues as another one.
"""

from __future__ import annotations

from typing import Any

from perdure.flows.document.terms import Length, Value
from perdure.flows.states.course import Course
from perdure.flows.states.events import Produced
from perdure.flows.states.reader import StatesReader

_TRANSITION = ("nextState", "produceEvents", "compensate")
_END = ("terminate", "produceEvents", "compensate", "continueAs")


class Follower:
    """What an execution continues as."""

    def __init__(self, reader: StatesReader, body: Any, at: str, own: str) -> None:
        if isinstance(body, str):
            body = {"workflowId": body}
        found = reader.object(body, at, ("workflowId", "version", "data", "workflowExecTimeout"), ("workflowId",))
        self.workflow = reader.text(found.get("workflowId"), f"{at}/workflowId") if found else ""
        self.version = found.get("version")
        self._data: Value | None = reader.value(found["data"], f"{at}/data") if "data" in found else None
        self.limit: Length | None = None
        if (limit := found.get("workflowExecTimeout")) is not None:
            where = f"{at}/workflowExecTimeout"
            duration = limit.get("duration") if isinstance(limit, dict) else limit
            self.limit = reader.duration(duration, where)
            if isinstance(limit, dict) and limit.keys() - {"duration"}:
                reader.wrong(where, "only the duration can be given here")
            if self.workflow != own:
                reader.wrong(where, "another workflow has its own timeout", "set it there")

    def input(self, data: Any, course: Course) -> Any:
        return data if self._data is None else self._data.of(data, course.names)


class Way:
    """A transition or an end. `to` is the next state, or nothing."""

    def __init__(self, reader: StatesReader, body: Any, at: str, own: str, *, end: bool) -> None:
        self.at = at
        self.to = ""
        if end:
            if body is not True and not isinstance(body, dict):
                reader.wrong(at, "true, or an object, is expected here")
            body = reader.object(body, at, _END) if isinstance(body, dict) else {}
        else:
            body = (
                {"nextState": body} if isinstance(body, str) else reader.object(body, at, _TRANSITION, _TRANSITION[:1])
            )
            self.to = reader.text(body["nextState"], at) if "nextState" in body else ""
        self.compensates = reader.flag(body.get("compensate", False), f"{at}/compensate")
        self.terminates = reader.flag(body.get("terminate", False), f"{at}/terminate")
        self.plain = not body or set(body) == {"nextState"}
        follower = body.get("continueAs")
        self.follower = None if follower is None else Follower(reader, follower, f"{at}/continueAs", own)
        if self.follower is not None and body.get("terminate") is False:
            reader.wrong(f"{at}/terminate", "what continues as another execution is over", "leave it out")
        self.events: list[Produced] = []
        for number, one in enumerate(reader.list(body.get("produceEvents"), f"{at}/produceEvents")):
            where = f"{at}/produceEvents/{number}"
            event = reader.object(one, where, ("eventRef", "data", "contextAttributes"), ("eventRef",))
            self.events.append(Produced(reader, event.get("eventRef"), event, where))

    async def produce(self, data: Any, course: Course) -> None:
        for event in self.events:
            await event.emit(data, course)


def read_way(reader: StatesReader, body: dict[str, Any], at: str, own: str, *, needed: bool = True) -> Way | None:
    """The transition or the end that something has."""
    found = [key for key in ("transition", "end") if body.get(key) not in (None, False)]
    if len(found) != 1:
        if found or needed:
            what = "it has a transition and an end" if found else "it has neither a transition nor an end"
            reader.wrong(at, what, "give it one of them")
        return None
    [key] = found
    return Way(reader, body[key], f"{at}/{key}", own, end=key == "end")
