"""What the outside does to the definitions of the corpus that are data, where they really run, and what can be seen.

The driver of the corpus decides every order itself. A worker does not ask: actions end when they end, and timers fire
when it is time. So a scene says what is sent and where the execution has to be before it is sent, and `Sight` is what
a run of it looked like. Of a steady scene it is always the same, wherever it runs; in the others something races, and
only `retrace` can tell whether what happened was right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from perdure import Perdure, Run, action
from perdure.core import events as ev
from perdure.core.records import ENDED, Head, Row
from perdure.core.replay import Replay
from perdure.errors import EventRefused, ExecutionEnded, FormInvalid, InvalidValue
from perdure.flows.workflow import Workflow
from perdure.testing.crashes import end_of
from tests.corpus import documents, graphs, machines
from tests.corpus.drive import Broken, text
from tests.corpus.workflows import CORPUS, Declined, Events

NAMES = [*machines.MACHINES, *graphs.GRAPHS, *documents.DOCUMENTS]
#: They take their time; others do the same in fewer rounds.
LONG = ("graph_of_circles", "graph_that_asks", "document_of_circles")
UNDOS = ("unbook", "graphs_unbook")


class Scene(Struct, frozen=True):
    """`events` are sent one after the other; those of `later` when the execution has come to a state or a node.

    Where somebody `answers`, whatever is asked of people is done, until the end. Then it is cancelled, if that is to
    be, when it rests. What is `hasty` is only a few seconds before one of its timers: steady in virtual time, but not
    on a busy machine.
    """

    events: Events = ()
    later: tuple[str, Events] = ("", ())
    answers: bool = False
    cancel: bool = False
    steady: bool = True
    hasty: bool = False


def scene(name: str) -> Scene:
    """What is not told apart is sent at once."""
    return SCENES.get(name) or Scene(CORPUS[name].events)


def unanswered(name: str) -> Scene:
    """The same where nobody does what is asked: events are all that comes."""
    found = scene(name)
    return Scene(CORPUS[name].events) if found.answers else found


def _whole(name: str, **more: Any) -> Scene:
    return Scene(CORPUS[name].events, **more)


def _after(name: str, place: str, first: int = 0) -> Scene:
    events = CORPUS[name].events
    return Scene(events[:first], (place, events[first:]))


SCENES = {
    "machine_of_actions": _whole("machine_of_actions", steady=False),  # arguments depend on who is faster
    "machine_of_timers": _whole("machine_of_timers", steady=False),  # its timers race with one another
    "machine_of_choices": _whole("machine_of_choices", cancel=True),  # it would go on for ever
    "machine_of_senders": _after("machine_of_senders", "c"),
    "machine_that_asks": Scene(CORPUS["machine_that_asks"].events[:2], answers=True, hasty=True),
    "machine_of_a_document": _after("machine_of_a_document", "late", 2),
    "graph_of_splits": Scene(),
    "graph_of_waits": _whole("graph_of_waits", hasty=True),
    "graph_of_undos": Scene(hasty=True),
    "graph_of_people": _after("graph_of_people", "each[1]/ask"),
    "graph_with_children": Scene(steady=False),  # the first child wins
    "graph_that_stops": Scene(),
    "graph_that_asks": Scene(answers=True),
    "document_of_forks": _whole("document_of_forks", hasty=True),
    "document_of_tries": Scene(hasty=True),
}


# --- playing ---------------------------------------------------------------------------------------------------------


async def start(app: Perdure, name: str, id: str) -> Run[Any]:
    member = CORPUS[name]
    return await app.start(member.workflow, *member.args, id=id)


async def play(run: Run[Any], played: Scene) -> None:
    """Send everything; whoever plays a scene again, in the same execution, changes nothing."""
    await _send(run, played.events, "first")
    place, events = played.later
    if events and await _comes_to(run, place):
        await _send(run, events, "later")
    if played.answers:
        await _answer(run)
    if played.cancel and await run.until("waiting", *ENDED) == "waiting":
        await run.cancel("the scene is over")


async def _send(run: Run[Any], events: Events, prefix: str) -> None:
    for number, (name, payload, *sender) in enumerate(events):
        by, roles = sender or ("", ())
        with suppress(ExecutionEnded, EventRefused, InvalidValue):
            await run.send(name, payload, id=f"{prefix}-{number}", by=by, roles=roles)


async def _answer(run: Run[Any]) -> None:
    """Ada, who leads, does all that is asked, each time with a wrong answer first."""
    tasks = run._app.tasks
    while (await run.head()).status not in ENDED:
        page = await tasks.list(execution=run.id, status="open")
        for task in page.tasks:
            with suppress(ExecutionEnded, EventRefused):  # it was withdrawn meanwhile
                await tasks.claim(task.id, by="ada", roles=["heads"], event_id="claim", wait="30s")
                with suppress(FormInvalid):
                    await tasks.complete(task.id, "seven", by="ada", event_id="wrong")
                    raise AssertionError(f"{run.id}: {task.name} takes what its form does not")
                await tasks.complete(task.id, 7, by="ada", event_id="right", wait="30s")
        await asyncio.sleep(0.05)


async def _comes_to(run: Run[Any], place: str) -> bool:
    """Wait until it is there; False if it has ended elsewhere."""
    while (head := await run.head()).status not in ENDED:
        state = await run.state()
        node = state.nodes.get(place)
        if state.current == place or (node is not None and node.status == "open"):
            return True
        await asyncio.sleep(0.1)
    return head.status not in ENDED


def unlucky() -> None:
    """A happening: in executions with that name every third action fails, always the same ones."""
    dice = crc32(action.key.encode()) % 6
    if action.execution.startswith("unlucky") and dice < 2:
        raise (Declined if dice else ValueError)("out of luck")


def sleeps_for_ever(head: Head) -> bool:
    """It waits for events that nobody sends, and for nothing else."""
    if head.status != "open" or not head.token or head.holder or head.mail or head.due is not None:
        return False
    waits = msgspec.json.decode(head.waits or b"{}")
    return not (waits.get("children") or waits.get("actions"))


# --- looking ---------------------------------------------------------------------------------------------------------


class Sight(Struct, frozen=True):
    """What a run looked like. Where things happen side by side their order is not part of it."""

    status: str
    end: Any
    published: Any
    path: list[str]
    actions: list[str]
    undone: list[str]


def sight(head: Head, rows: Sequence[Row]) -> Sight:
    log = [ev.read(row) for row in rows]
    states = [f"{one.from_state} > {one.to_state} by {one.event}" for one in log if isinstance(one, ev.StateChanged)]
    nodes = [f"{one.node} {one.status}" for one in log if isinstance(one, ev.NodeSettled)]
    actions = [
        f"{one.name} {text(one.args)} {one.error.type if one.error else text(one.result)}"
        for one in log
        if isinstance(one, ev.ActionSettled)
    ]
    undone = [one for one in actions if one.startswith(UNDOS)]
    status, end = end_of(head)
    published = msgspec.json.decode(head.state or b"{}")
    return Sight(status, end, published, [*states, *sorted(nodes)], sorted(actions), undone)


# --- retracing -------------------------------------------------------------------------------------------------------

#: What the code gives out in its turns; everything else came in.
OUTPUTS = (
    ev.TimerCancelled,
    ev.ActionCancelled,
    ev.ChildStarted,
    ev.Marked,
    ev.Published,
    ev.EventRejected,
    ev.StateChanged,
    ev.NodeStarted,
    ev.NodeSettled,
)
ENDS = (ev.Completed, ev.Failed, ev.Cancelled)


def retrace(key: str, workflow: Workflow[..., Any], rows: Sequence[Row]) -> Replay:
    """Run it once more in memory, with what came in, in that order and at those times: it must write the same log.

    Not a replay: the code is not shown what it gave out before.
    """
    replay = Replay(key, workflow)
    given: list[ev.Event] = []
    for row in rows:
        event = ev.read(row)
        place = f"{key}, row {row.version}"
        if isinstance(event, ENDS):
            _same(given, [], place)
            _same(event, replay.outcome, place)
        elif isinstance(event, OUTPUTS):
            _same(event, given.pop(0) if given else None, place)
        elif isinstance(event, ev.TimerStarted):
            replay.unlogged_timers()
        else:
            if isinstance(event, ev.Restarted):
                _same(given, [], place)
                _same(event, replay.outcome, place)
            replay.feed(event, row.version, row.at)
            given += replay.take()
    return replay


def _same(logged: Any, given: Any, place: str) -> None:
    if logged != given:
        raise Broken(f"{place}:\n log    {logged}\n memory {given}")
