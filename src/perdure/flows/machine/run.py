"""A machine at work: one event after the other, each to its end before the next one is looked at.

Rules kept here:
- An event is judged in the state that it finds, in the order of the log. One that is not taken is rejected, in the log,
  and changes nothing.
- A step is decided in one turn: the data, the change of state, the timers of what is left and entered are in the commit
  of the event. Then its actions run: those of leaving, of the transition, of entering, each list when the one before it
  is done, within a list as `after` says.
- When a step is over, the position goes into the log and replay begins there, so a machine never gets slower. While
  events wait, a checkpoint comes at the latest when half of them are done: what waits is part of it.
- What a state asks a person is asked when the machine rests in it, and withdrawn by whatever leaves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from perdure.core import events as ev
from perdure.core.commands import Waiter
from perdure.core.replay import Replay
from perdure.errors import ActionFailed, InvalidValue, LimitReached
from perdure.flows.bound import arguments
from perdure.flows.described import checkpoint
from perdure.flows.machine.chart import Node, Step, Task, Timer, Transition
from perdure.flows.machine.desk import Desk, is_outcome
from perdure.flows.machine.model import Event
from perdure.flows.machine.terms import Context
from perdure.flows.machine.timers import Due, Timers

if TYPE_CHECKING:
    from perdure.flows.machine.machine import Machine

ERROR = "error"
_NO_TASKS: Mapping[str, int] = {}


class Position(Struct, frozen=True, omit_defaults=True):
    """Where a machine is between two events. `tasks` are those of people, by the states that asked for them."""

    state: str
    data: Raw
    due: Due = {}
    tasks: dict[str, int] = {}


class Failure(Struct, frozen=True):
    """An action of a step, or a task for a person, that failed, and those that did not run because of it."""

    name: str
    error: ActionFailed
    blocked: tuple[str, ...] = ()


class MachineRun:
    """One execution of a machine. See the module."""

    def __init__(
        self,
        machine: Machine[Any],
        running: Replay,
        data: Any,
        leaf: Node | None,
        tasks: Mapping[str, int] = _NO_TASKS,
    ) -> None:
        self._machine = machine
        self._chart = machine.chart
        self._running = running
        self._data = data
        self._leaf = leaf
        self._waiter: Waiter | None = None
        self._timers = Timers(self._tell)
        self._desk = Desk(running, tasks)
        self._since = 0  # steps since the last checkpoint

    async def begin(self) -> Any:
        """Enter the first state."""
        root = self._chart.root
        step = self._chart.enter(None, root, root)
        await self._move(step, None, Event(""))
        return await self._live(stepped=True)

    async def resume(self, due: Due) -> Any:
        self._timers.resume(self._chart.nodes, due)
        return await self._live(stepped=False)

    @property
    def leaf(self) -> Node:
        assert self._leaf is not None
        return self._leaf

    async def _live(self, stepped: bool) -> Any:
        """To the end, or the next checkpoint. Who leaves otherwise leaves nobody asked."""
        try:
            return await self._rounds(stepped)
        except (Exception, asyncio.CancelledError):
            if not self._running.loop.closed:
                self._desk.close()
            raise

    async def _rounds(self, stepped: bool) -> Any:
        """After a step: the end, or a checkpoint; then the next event."""
        while True:
            if stepped:
                self._since += 1
                shown = self._machine.shown(self.leaf.path, self._data)
                if self._over():
                    if self._machine.publish:
                        self._running.publish(shown)
                    return self._machine.output_of(self._data)
                if self._since >= len(self._running.buffer):
                    self._running.published = shown
                    checkpoint(self._running, self.position())
            if (failed := self._desk.rest(self.leaf.line(), self._context(Event("")))) is not None:
                stepped = await self._not_done(*failed)
                continue
            self._running.position = self.position
            found = await self._next()
            self._running.position = None
            stepped = await (self._take(found) if isinstance(found, ev.Received) else self._time_out(*found))

    def _over(self) -> bool:
        leaf = self.leaf
        return leaf.final and leaf.parent is not None and leaf.parent.parent is None

    def position(self) -> Position:
        """All that is to be known between two events."""
        return Position(self.leaf.path, self._machine.encode(self._data), self._timers.due(), dict(self._desk.open))

    # Waiting.

    async def _next(self) -> ev.Received | tuple[Node, Timer]:
        found: ev.Received | tuple[Node, Timer] = self._timers.waiting() or await self._heard()
        if not isinstance(found, ev.Received):
            self._timers.over(*found)
        return found

    async def _heard(self) -> ev.Received | tuple[Node, Timer]:
        self._waiter = self._running.listen(self._machine.wanted(self.leaf), {})
        found: ev.Received | tuple[Node, Timer] = (await self._waiter.future)[0]
        self._waiter = None
        return found

    def _tell(self, node: Node, timer: Timer) -> bool:
        """The time of a state has come."""
        waiter = self._waiter
        if waiter is None or waiter.future.done():
            return False
        self._running.unlisten(waiter)
        waiter.future.set_result(((node, timer), None))
        return True

    # What people have done.

    async def _told(self, received: ev.Received) -> bool:
        """A task has come to its end."""
        settled = self._desk.settled(received)
        if settled is None:
            self._running.reject(received, "the state that asked for it was left before")
            return False
        path, told = settled
        node = self._chart.nodes[path]
        if told.error is not None:
            return await self._not_done(node, told.error)
        assert node.question is not None
        try:
            event = Event(f"done {path}", node.question.read(told.result), "", told.by)
        except InvalidValue as error:
            self._running.reject(received, str(error))
            return False
        chosen = self._choose(event, node.done)
        if isinstance(chosen, str):
            self._running.reject(received, chosen)
            return False
        await self._move(*chosen, event)
        return True

    async def _not_done(self, node: Node, error: ev.Error) -> bool:
        """The task could not be asked for, or somebody has cancelled it."""
        failed = ActionFailed(error.message, node.path, error.type)
        wrong = Event(ERROR, _described([Failure(node.path, failed)]))
        for around in node.line():
            if around.error and not isinstance(chosen := self._choose(wrong, around.error), str):
                await self._move(*chosen, wrong)
                return True
        raise failed

    # Deciding.

    async def _take(self, received: ev.Received) -> bool:
        """Judge an event from outside."""
        if is_outcome(received):
            return await self._told(received)
        payload = self._machine.payload(received)
        event = Event(received.name, payload, received.id, received.by, received.roles)
        chosen = self._choose(event)
        if isinstance(chosen, str):
            self._running.reject(received, chosen)
            return False
        self._running.taking = received.id
        await self._move(*chosen, event)
        self._running.taking = ""
        return True

    async def _time_out(self, node: Node, timer: Timer) -> bool:
        """A state has lasted so long that something follows, if anything takes it."""
        event = Event(timer.event or f"after {timer.key}", {"state": node.path})
        chosen = self._choose(event, None if timer.event else timer.transitions)
        if isinstance(chosen, str):
            self._running.reject(ev.Received("", event.name), chosen)
            return False
        await self._move(*chosen, event)
        return True

    def _choose(self, event: Event, among: Sequence[Transition] | None = None) -> tuple[Step, Transition] | str:
        """The transition that an event takes, with the data as it makes it; or why it takes none.

        An event that makes a condition fail, or data that does not fit, is refused: it must not end the machine.
        """
        before = self._machine.encode(self._data)
        try:
            context = self._context(event)
            chosen: Transition | str | None
            if among is None:
                chosen = self._chart.select(self.leaf, event, context)
            else:
                chosen = self._chart.pick(among, context) or "the condition does not hold"
            if isinstance(chosen, str):
                return chosen
            if chosen.set is not None:
                self._data = self._machine.checked(chosen.set(context))
            return self._chart.steps(self.leaf, chosen), chosen
        except Exception as error:
            self._data = self._machine.decode(before)
            return f"{type(error).__name__}: {error}"

    async def _move(self, step: Step, transition: Transition | None, event: Event) -> None:
        """One transition and all that follow from it without an event."""
        most = self._running.limits.transitions_per_event
        for _ in range(most):
            failures = await self._change(step, transition, event)
            followed = self._follow(failures, event)
            if followed is None:
                return
            transition, event = followed
            if transition.set is not None:
                self._data = self._machine.checked(transition.set(self._context(event)))
            step = self._chart.steps(self.leaf, transition)
        self._running.halt(
            LimitReached(
                f"{self._running.key}: machine {self._machine.name} has made {most:,} transitions in a row without"
                f" an event, the last to state {self.leaf.path}: give its `always`, `done` or `error` a condition that"
                " ends it, or raise transitions_per_event"
            )
        )

    def _follow(self, failures: Sequence[Failure], event: Event) -> tuple[Transition, Event] | None:
        """What happens next by itself."""
        line = list(self.leaf.line())
        if failures:
            wrong = Event(ERROR, _described(failures))
            for node in line:
                if (chosen := self._chart.pick(node.error, self._context(wrong))) is not None:
                    return chosen, wrong
            raise failures[0].error
        context = self._context(event)
        if self.leaf.final:
            done = Event(f"done {line[1].path}" if len(line) > 1 else "done")
            chosen = self._chart.pick(line[1].done if len(line) > 1 else (), self._context(done))
            return None if chosen is None else (chosen, done)
        for node in line:
            if (chosen := self._chart.pick(node.always, context)) is not None:
                return chosen, event
        return None

    async def _change(self, step: Step, transition: Transition | None, event: Event) -> list[Failure]:
        """Decide in this turn, then act."""
        before = "" if self._leaf is None else self._leaf.path
        self._leaf = step.leaf
        self._running.note(
            ev.StateChanged(before, step.leaf.path, event.name, event.id, event.by, inner=not step.entered)
        )
        for node in step.left:
            self._desk.withdraw(node.path)
            self._timers.leave(node)
        now = asyncio.get_running_loop().time()
        for node in step.entered:
            self._timers.enter(node, now)
        lists = [node.exit for node in step.left]
        lists.append([] if transition is None else transition.do)
        lists += [node.entry for node in step.entered]
        if self._machine.publish and any(lists):
            self._running.publish(self._machine.shown(self.leaf.path, self._data))
        for tasks in lists:
            if tasks and (failures := await self._perform(tasks, event)):
                return failures
        if any(node.state.settles for node in step.entered):
            self._running.undos.clear()
        return []

    # Acting.

    async def _perform(self, tasks: Sequence[Task], event: Event) -> list[Failure]:
        """Run actions as their `after` allows, side by side. A failed one keeps back only those that come after it."""
        if len(tasks) == 1:
            failed = await self._run(tasks[0], event)
            return [] if failed is None or tasks[0].optional else [Failure(tasks[0].name, failed)]
        waiting = {task.name: task for task in tasks}
        under_way: dict[asyncio.Task[ActionFailed | None], Task] = {}
        done: set[str] = set()
        failures: dict[str, ActionFailed] = {}
        while True:
            for task in [one for one in waiting.values() if done.issuperset(one.after)]:
                del waiting[task.name]
                under_way[asyncio.create_task(self._run(task, event), name=task.name)] = task
            if not under_way:
                break
            ended, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for one in ended:
                task = under_way.pop(one)
                if (failed := one.result()) is None or task.optional:
                    done.add(task.name)
                else:
                    failures[task.name] = failed
        blocked = tuple(waiting)
        return [Failure(task.name, failures[task.name], blocked) for task in tasks if task.name in failures]

    async def _run(self, task: Task, event: Event) -> ActionFailed | None:
        bound = task.call.bound
        spec = task.action if task.action is not None else task.call.spec()
        try:
            given = arguments(bound, task.args(self._context(event), bound), spec)
            result = await self._running.act(spec, given, spec.compensation)
            if task.set is not None:
                context = self._context(event)
                context.result = result
                self._data = self._machine.checked(task.set(context))
        except ActionFailed as error:
            return error
        except Exception as error:  # of its arguments, or of what its result does to the data
            return ActionFailed(f"{task.name}: {error}", task.name, type(error).__name__)
        return None

    def _context(self, event: Event) -> Context:
        return Context(self._data, event, None, self._machine.codec)


def _described(failures: Sequence[Failure]) -> dict[str, Any]:
    """What an `error` transition learns."""
    first = failures[0]
    return {
        "action": first.name,
        "type": first.error.type,
        "message": str(first.error),
        "failed": [one.name for one in failures],
        "blocked": list(first.blocked),
    }


Decode = Callable[[Raw], Any]


class Wanted(dict[str, Decode]):
    """All events are taken in order to be judged; named are those that the state takes."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Decode:
        return msgspec.json.decode
