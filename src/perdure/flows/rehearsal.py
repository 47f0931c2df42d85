"""A dry run: the real interpreter, with results that are given and time that is virtual. Nothing happens outside.

    rehearsal = rehearse(order, {"total": 20}, results={"charge": "r-1"}, events=[Cue("ship", roles=("packer",))])
    rehearsal.status, rehearsal.log

Actions are never run: the result of each is looked up by its name, a child's by that of its workflow, and what a person
hands in by the task: `person:approve`. Events come when nothing else is left to do, in their order, or after a time of
their own; timers fire when nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core import entries, events as ev, summary, view
from perdure.core.codec import encode
from perdure.core.commands import Asked, Limits
from perdure.core.durations import micros
from perdure.core.records import PERSON, Row, key_of
from perdure.core.replay import Replay
from perdure.core.signature import Signature
from perdure.errors import InvalidValue, UsageError
from perdure.flows.schema import Schema
from perdure.flows.task import read_order
from perdure.flows.workflow import Workflow, emitted

_decode = msgspec.json.decode
#: Inputs of one rehearsal; after so many it is called off.
_MOST = 10_000
_BEGIN = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1e6)
#: The engine's own actions reach out, so they do nothing here.
_OWN: Mapping[str, Any] = {
    "perdure.send": None,
    "perdure.cancel": None,
    "perdure.start": "started",
    "perdure.find_definition": {"version": 1, "hash": "", "queue": "default"},
}


class Cue(Struct, frozen=True):
    """An event that is sent during a rehearsal; `after` counts from the beginning."""

    name: str
    payload: Any = None
    after: float | str | None = None
    by: str = "app"  # as what an application sends without a name
    roles: tuple[str, ...] = ()


class Outcome(Struct, frozen=True, forbid_unknown_fields=True):
    """What an action is said to do: return a value or fail for good; and how long it takes."""

    returns: Any = None
    raises: str = ""  # the class of the error, or the class and a message: "ValueError: too much"
    takes: float | str = 0
    by: str = ""  # whom, if it is a task for a person


class _Task(Struct, frozen=True):
    """What a person is asked: under which name an answer is given, and what it has to fit."""

    name: str
    form: dict[str, Any] | bool | None


class Rehearsal(Struct, frozen=True):
    """How it went. `needs` names the calls for which no result was given; the rehearsal ends there."""

    status: str  # completed, failed, cancelled, waiting
    result: Any
    log: list[entries.Entry]
    state: view.State
    waits: dict[str, Any]
    needs: list[str]


def rehearse(
    workflow: Workflow[..., Any],
    *args: Any,
    results: Mapping[str, Any] | None = None,
    events: Sequence[Cue] = (),
    tenant: str = "default",
    id: str = "rehearsal",
    limits: Limits | None = None,
) -> Rehearsal:
    """Run a workflow, of whatever kind, without a store and without its actions. See the module."""
    script = {name: _outcomes(name, given) for name, given in (results or {}).items()}
    return _Stage(workflow, args, script, list(events), key_of(tenant, id), limits).play()


class _Stage:
    def __init__(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        script: dict[str, list[Outcome]],
        cues: list[Cue],
        key: str,
        limits: Limits | None,
    ) -> None:
        self._workflow = workflow
        self._args = args
        self._script = script
        self._now = _BEGIN
        self._rows: list[Row] = []
        self._replay = Replay(key, workflow, limits)
        self._timed = sorted((cue for cue in cues if cue.after is not None), key=lambda cue: micros(cue.after or 0))
        self._cues = [cue for cue in cues if cue.after is None]
        self._sent = 0
        self._under_way: dict[int, int] = {}  # when actions and children are done
        self._needs: list[str] = []
        self._tasks: dict[int, _Task] = {}  # what people were asked

    def play(self) -> Rehearsal:
        input = Raw(self._workflow.signature.encode(self._args, {}))
        of_content = getattr(self._workflow, "hash", "")
        self._feed(ev.Started(self._workflow.name, self._workflow.version, input, hash=of_content))
        for _ in range(_MOST):
            if self._replay.outcome is not None or not self._step():
                break
        else:
            raise UsageError(f"the rehearsal of {self._workflow.definition} did not end within {_MOST:,} inputs")
        waits = {} if self._replay.outcome is not None else msgspec.to_builtins(summary.waits(self._replay))
        return self._end(waits)

    def _end(self, waits: dict[str, Any]) -> Rehearsal:
        status, result = "waiting", None
        if self._replay.outcome is not None:
            self._write(self._replay.outcome)
            status, data, _ = summary.ended(self._replay.outcome)
            result = msgspec.json.decode(data)
        else:
            self._replay.evict()
        state = view.final(self._rows, self._replay.key)
        return Rehearsal(status, result, [entries.entry(row) for row in self._rows], state, waits, self._needs)

    # What happens next.

    def _step(self) -> bool:
        """The earliest of what is under way, timed events and timers; when all rests, the next event in line first."""
        replay = self._replay
        for ref, asked in sorted({**replay.actions, **replay.children}.items()):
            if ref not in self._under_way and not self._plan(ref, asked):
                return False
        for ref in sorted(replay.lasting):
            self._answer(ref)
        wanted = replay.actions.keys() | replay.children.keys() | replay.lasting
        moments = [(due, 0, ref) for ref, due in self._under_way.items() if ref in wanted]
        if not moments and self._cues:
            self._send(self._cues.pop(0))
            return True
        if self._timed:
            moments.append((_BEGIN + micros(self._timed[0].after or 0), 1, 0))
        if (timer := replay.due_timers(2**62)) is not None:
            moments.append((timer[0], 2, timer[1]))
        if not moments:
            return False
        due, what, ref = min(moments)
        self._now = max(self._now, due)
        if what == 0:
            self._settle(ref)
        elif what == 1:
            self._send(self._timed.pop(0))
        else:
            self._feed(ev.TimerFired(ref, due))
        return True

    def _answer(self, ref: int) -> None:
        """A task that a machine or a graph waits for, beside other things: nobody has to do it."""
        if ref not in self._under_way and (outcomes := self._script.get(self._tasks[ref].name)):
            self._under_way[ref] = self._now + micros(outcomes[0].takes)

    def _plan(self, ref: int, asked: Asked) -> bool:
        name = self._called(asked)
        outcomes = self._script.get(name) or self._own(asked)
        if outcomes is None:
            self._needs.append(f"{name}({bytes(asked.args).decode()[1:-1]})")
            return False
        self._under_way[ref] = self._now + micros(outcomes[0].takes)
        return True

    def _own(self, asked: Asked) -> list[Outcome] | None:
        """What an action of the engine gives, where nobody says it."""
        if asked.spec.name == "perdure.emit":
            event = emitted(f"{self._replay.key}/{asked.ref}", self._replay.key, self._now, *_decode(asked.args))
            return [Outcome(event)]
        return [Outcome(_OWN[asked.spec.name])] if asked.spec.name in _OWN else None

    def _called(self, asked: Asked) -> str:
        """Under which name its result is given."""
        task = f"{PERSON}{read_order(asked.args).name}" if asked.spec.name == PERSON else ""
        return task if task in self._script else asked.spec.name

    def _settle(self, ref: int) -> None:
        del self._under_way[ref]
        asked = self._replay.actions.get(ref) or self._replay.children.get(ref)
        outcomes = self._script.get(self._tasks[ref].name if asked is None else self._called(asked))
        if outcomes is None:
            assert asked is not None
            outcomes = self._own(asked)
            assert outcomes is not None
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        kind, _, message = outcome.raises.partition(":")
        error = ev.Error(kind.strip(), message.strip()) if kind else None
        result = ev.NULL if error is not None else self._checked(ref, asked, outcome.returns)
        if asked is not None and ref in self._replay.actions:
            self._feed(ev.ActionSettled(ref, asked.spec.name, asked.args, result, error, 1, self._now))
        else:
            status = "completed" if error is None else "failed"
            id = f"{self._replay.key.partition('/')[2]}.{ref}"
            self._feed(ev.ChildSettled(ref, id, result, error, status, outcome.by))

    def _checked(self, ref: int, asked: Asked | None, value: Any) -> Raw:
        result = Raw(encode(value))
        if asked is None:
            task = self._tasks[ref]
            if task.form is not None:
                Schema(task.form).refuse(msgspec.json.decode(result), f"the result given for {task.name}")
            return result
        signature: Signature | None = getattr(asked.spec, "signature", None)
        try:
            if signature is not None:
                signature.returns.decode(result)
        except InvalidValue as error:
            raise InvalidValue(f"the result given for {asked.spec.name} does not fit: {error}") from error
        return result

    def _send(self, cue: Cue) -> None:
        self._sent += 1
        payload = Raw(encode(cue.payload))
        self._feed(ev.EventReceived(cue.name, payload, f"cue-{self._sent}", cue.by, roles=cue.roles))

    # The log.

    def _feed(self, event: ev.Event) -> None:
        self._write(event)
        self._replay.feed(event, len(self._rows), self._now)
        for output in self._replay.take():
            self._write(output)
            if isinstance(output, ev.ChildStarted) and output.workflow == PERSON:
                order = read_order(output.input)
                self._tasks[output.ref] = _Task(f"{PERSON}{order.name}", order.form)
        self._replay.child_stops.clear()
        if isinstance(self._replay.outcome, ev.Restarted):
            self._feed(self._replay.outcome)

    def _write(self, event: ev.Event) -> None:
        self._rows.append(ev.row(event, len(self._rows) + 1, self._now))


def _outcomes(name: str, given: Any) -> list[Outcome]:
    """A value; or what the action does, `{"returns": …}` or `{"raises": …}`; or several of those, in turn."""
    several = given if isinstance(given, list) and given and all(_is_outcome(one) for one in given) else [given]
    try:
        return [msgspec.convert(one, Outcome) if _is_outcome(one) else Outcome(one) for one in several]
    except msgspec.ValidationError as error:
        raise InvalidValue(f"the results of {name}: {error}") from error


def _is_outcome(given: Any) -> bool:
    return isinstance(given, dict) and bool(given) and given.keys() <= {"returns", "raises", "takes", "by"}
