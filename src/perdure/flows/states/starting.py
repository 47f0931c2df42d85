"""How a workflow starts: with which state, and by which events.

One that begins with an exclusive event state is started by each of its events, and that event is the first that the
state takes. It can be started by hand as well; then it waits for the event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.flows.listening import On
from perdure.flows.states.reader import StatesReader
from perdure.flows.states.state import State
from perdure.flows.states.waiting import Event

#: The key of an input that is the event that started an execution: nobody else's data has it.
EVENT = "perdure:event"


def read_start(reader: StatesReader, start: Any, states: Mapping[str, State]) -> tuple[str, tuple[On, ...]]:
    """The name of the first state, and what starts the workflow."""
    at, name = "/start", start
    if isinstance(start, dict):
        body = reader.object(start, at, ("stateName", "schedule"), ("stateName",))
        at, name = f"{at}/stateName", body.get("stateName")
        if "schedule" in body:
            fix = "use `perdure schedules create`"
            reader.wrong("/start/schedule", "a workflow does not start at times by itself", fix)
    if name is None:
        name = next(iter(states), "")
    elif not isinstance(name, str) or name not in states:
        reader.wrong(at, f"there is no state {str(name)[:80]!r}", f"there are: {', '.join(states)}")
        return "", ()
    found = states.get(name)
    if not isinstance(found, Event):
        return name, ()
    if not found.exclusive:
        fix = "start it by hand, and it waits for them"
        reader.warn(found.at, "it needs several events, and they do not start an execution together", fix)
        return name, ()
    starts = [On(event.type, event.source, f'{{"{EVENT}": .}}', event.when) for event in found.events()]
    return name, tuple(dict.fromkeys(starts))
